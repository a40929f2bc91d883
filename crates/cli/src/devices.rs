//! Creation of the devices that the flags name.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use device::Device;
use device_parallel::ParallelDevice;

use crate::args::{DeviceArgs, DeviceName};
use crate::choose;
use crate::tell::tell;

/// Creates the device of the flags; with `auto`, the first that is present.
pub fn device(args: &DeviceArgs) -> anyhow::Result<Arc<dyn Device>> {
    device_that(args, &|_| Ok(()))
}

pub fn device_that(
    args: &DeviceArgs,
    runs: &dyn Fn(&dyn Device) -> anyhow::Result<()>,
) -> anyhow::Result<Arc<dyn Device>> {
    if let [_, _, ..] = args.gpus[..] {
        return several(args);
    }
    match (args.device, &args.gpus[..]) {
        (DeviceName::Auto, []) => {}
        (name, []) => return named_device(name, args),
        // --gpus implies CUDA.
        (DeviceName::Auto | DeviceName::Cuda, _) => return named_device(DeviceName::Cuda, args),
        (DeviceName::Cpu | DeviceName::Reference | DeviceName::Metal | DeviceName::MetalEmulated, _) => {
            anyhow::bail!("{OTHER_DEVICE}")
        }
    }
    let metal = || -> anyhow::Result<Arc<dyn Device>> {
        let device: Arc<dyn Device> = metal::apple(false, args.metal_encoder)?;
        Ok(device)
    };
    let cuda = || named_device(DeviceName::Cuda, args);
    let cpu = || named_device(DeviceName::Cpu, args);
    let mut candidates = vec![choose::Candidate { name: "cuda", make: &cuda, check: Some(&cuda::tolerance) }];
    // On other systems a missing Metal device needs no note.
    if cfg!(target_os = "macos") {
        candidates.push(choose::Candidate { name: "metal", make: &metal, check: Some(&choose::tolerance) });
    }
    candidates.push(choose::Candidate { name: "cpu", make: &cpu, check: None });
    let cache = hub::Cache::resolve(None, None).map(|cache| cache.root().join("self-checks")).ok();
    let choice = choose::choose(&candidates, runs, cache.as_deref())?;
    tracing::info!("{}", choice.reason);
    if choice.device.name() != "cuda" && has_nvidia_gpu() {
        choice.passed_over.iter().for_each(|why| tell!("note: the GPU is not used: {why}"));
    }
    Ok(choice.device)
}

/// True if the system has an NVIDIA GPU, with or without a driver. Without one, no note about it is
/// needed.
fn has_nvidia_gpu() -> bool {
    if Path::new("/dev/nvidia0").exists() {
        return true;
    }
    let devices = std::fs::read_dir("/sys/bus/pci/devices").into_iter().flatten().flatten();
    let is = |folder: &Path, file: &str, begins: &str| {
        std::fs::read_to_string(folder.join(file)).is_ok_and(|text| text.starts_with(begins))
    };
    // The vendor's number, and the class of display controllers.
    devices
        .map(|device| device.path())
        .any(|path| is(&path, "vendor", "0x10de") && is(&path, "class", "0x03"))
}

/// Creates the CPU device with the threads and the instruction set of the flags.
pub fn cpu(args: &DeviceArgs) -> anyhow::Result<device_cpu::CpuDevice> {
    Ok(device_cpu::CpuDevice::new(device_cpu::Options { threads: args.threads, isa: args.isa })?)
}

/// Creates the device of this name.
pub fn named_device(name: DeviceName, args: &DeviceArgs) -> anyhow::Result<Arc<dyn Device>> {
    Ok(match name {
        DeviceName::Auto | DeviceName::Cpu => Arc::new(cpu(args)?),
        DeviceName::Reference => Arc::new(match args.threads {
            Some(n_threads) => device_reference::Reference::new(n_threads),
            None => device_reference::Reference::default(),
        }),
        DeviceName::Cuda => cuda::device(first_gpu(args))?,
        DeviceName::Metal => metal::apple(false, args.metal_encoder)?,
        DeviceName::MetalEmulated => metal::emulated(args.threads)?,
    })
}

/// The error of `--gpus` together with another device.
const OTHER_DEVICE: &str = "--gpus needs --device cuda, found another device";

/// Index of the first GPU of the flags, or 0.
pub fn first_gpu(args: &DeviceArgs) -> usize {
    args.gpus.first().copied().unwrap_or(0)
}

/// Creates a device of several GPUs that share every layer.
fn several(args: &DeviceArgs) -> anyhow::Result<Arc<dyn Device>> {
    if let Some((index, gpu)) = args.gpus.iter().enumerate().find(|(i, gpu)| args.gpus[..*i].contains(gpu)) {
        anyhow::bail!("--gpus names GPU {gpu} a second time, at place {}; expected each GPU once", index + 1);
    }
    let ranks = match args.device {
        DeviceName::Auto | DeviceName::Cuda => cuda::group(&args.gpus)?,
        DeviceName::Reference => {
            let n_threads = args.threads.unwrap_or_else(device_cpu::default_threads);
            let n = args.gpus.len();
            let ranks = device_reference::Reference::group(n, n_threads.div_ceil(n));
            ranks.into_iter().map(|rank| Arc::new(rank) as Arc<dyn Device>).collect()
        }
        DeviceName::Cpu | DeviceName::Metal | DeviceName::MetalEmulated => anyhow::bail!("{OTHER_DEVICE}"),
    };
    Ok(Arc::new(ParallelDevice::new(ranks)?))
}

/// CUDA devices.
pub mod cuda {
    use super::*;
    use device_check::Case;

    /// Creates the device of the GPU with this index.
    #[cfg(any(target_os = "linux", target_os = "windows"))]
    pub fn device(index: usize) -> anyhow::Result<Arc<device_cuda::CudaDevice>> {
        Ok(Arc::new(device_cuda::CudaDevice::new(index)?))
    }

    /// Creates GPUs as the ranks of one group.
    #[cfg(any(target_os = "linux", target_os = "windows"))]
    pub fn group(indices: &[usize]) -> anyhow::Result<Vec<Arc<dyn Device>>> {
        let ranks = device_cuda::CudaDevice::group(indices, device_cuda::Reach::Any)?;
        Ok(ranks.into_iter().map(|rank| Arc::new(rank) as Arc<dyn Device>).collect())
    }

    #[cfg(not(any(target_os = "linux", target_os = "windows")))]
    pub fn group(_indices: &[usize]) -> anyhow::Result<Vec<Arc<dyn Device>>> {
        anyhow::bail!("--device cuda runs on Linux and Windows, and this is {}", std::env::consts::OS)
    }

    /// Like [`device`], without the copies of weights that only increase speed.
    #[cfg(any(target_os = "linux", target_os = "windows"))]
    pub fn frugal(index: usize) -> anyhow::Result<Arc<device_cuda::CudaDevice>> {
        let device = device_cuda::CudaDevice::new(index)?;
        let profile = device_cuda::Profile { most_packed: 0, persistent: false, ..device.profile().clone() };
        Ok(Arc::new(device.with_profile(profile)))
    }

    #[cfg(not(any(target_os = "linux", target_os = "windows")))]
    pub use device as frugal;

    #[cfg(not(any(target_os = "linux", target_os = "windows")))]
    pub fn device(_index: usize) -> anyhow::Result<Arc<dyn Device>> {
        anyhow::bail!("--device cuda runs on Linux and Windows, and this is {}", std::env::consts::OS)
    }

    /// Tolerance of CUDA's arithmetic in a test case.
    #[cfg(any(target_os = "linux", target_os = "windows"))]
    pub fn tolerance(case: &Case) -> f32 {
        device_cuda::selftest::tolerance(case)
    }

    #[cfg(not(any(target_os = "linux", target_os = "windows")))]
    pub fn tolerance(case: &Case) -> f32 {
        choose::tolerance(case)
    }
}

/// Metal devices.
pub mod metal {
    use super::*;

    #[cfg(target_os = "macos")]
    pub use device_metal::gpu::apple::{AppleGpu, Options};
    #[cfg(all(target_os = "linux", target_arch = "x86_64"))]
    pub use device_metal::gpu::emulated::{EmulatedGpu, Options};

    /// Creates the device of a Mac. With `tensors`, tiles are multiplied on an M5's tensor units,
    /// which is untested.
    #[cfg(target_os = "macos")]
    pub fn apple(
        tensors: bool,
        encoder: crate::args::MetalEncoder,
    ) -> anyhow::Result<Arc<device_metal::MetalDevice<AppleGpu>>> {
        use device_metal::{MetalDevice, Profile};
        let gpu = AppleGpu::new(&Options {
            cache: cache().ok(),
            tensors,
            any_family: false,
            encoder: encoder.mode(),
        })?;
        let profile = Profile { tensor: tensors, ..Profile::new(device_metal::gpu::Gpu::facts(&gpu)) };
        Ok(Arc::new(MetalDevice::with_profile(gpu, profile)))
    }

    #[cfg(not(target_os = "macos"))]
    pub fn apple(_tensors: bool, _encoder: crate::args::MetalEncoder) -> anyhow::Result<Arc<dyn Device>> {
        anyhow::bail!(
            "--device metal needs a Mac with Apple Silicon, and this is {}; use --device cpu \
             (--device metal-emulated runs the same shaders on Linux, very slowly, for tests)",
            std::env::consts::OS
        )
    }

    #[cfg(all(target_os = "linux", target_arch = "x86_64"))]
    pub fn emulated(threads: Option<usize>) -> anyhow::Result<Arc<device_metal::MetalDevice<EmulatedGpu>>> {
        let threads = threads.unwrap_or_else(device_cpu::default_threads);
        let options = Options { threads, ..Options::new(cache()?) };
        Ok(Arc::new(device_metal::MetalDevice::new(EmulatedGpu::new(&options)?)))
    }

    #[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
    pub fn emulated(_threads: Option<usize>) -> anyhow::Result<Arc<dyn Device>> {
        anyhow::bail!("--device metal-emulated runs on Linux on x86-64; use --device cpu")
    }

    /// The folder of compiled shaders.
    #[cfg(any(target_os = "macos", all(target_os = "linux", target_arch = "x86_64")))]
    pub fn cache() -> anyhow::Result<PathBuf> {
        Ok(hub::Cache::resolve(None, None)?.root().join("shaders"))
    }
}

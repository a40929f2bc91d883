//! Devices: their names and options, and the choice of one for a model.

mod choose;
mod split;

pub mod cuda;
pub mod metal;

use std::path::Path;
use std::sync::Arc;

use device::Device;
use device_parallel::ParallelDevice;

pub use device_cpu::{Isa, default_threads};

use crate::error::{Error, Result};
use crate::note::Note;

pub(crate) use split::split;

/// Kinds of devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DeviceKind {
    /// The first of CUDA, Metal and CPU that is present, runs the model, and passes a check of its
    /// arithmetic. The result of the check is cached.
    #[default]
    Auto,
    /// The processor.
    Cpu,
    /// The reference interpreter: plain f32, slow.
    Reference,
    /// NVIDIA's GPUs.
    Cuda,
    /// The GPU of a Mac with Apple Silicon.
    Metal,
    /// The Metal shaders in an emulator on Linux; for tests, very slow, needs clang.
    MetalEmulated,
}

impl DeviceKind {
    /// The name as users write it: `metal-emulated`.
    pub fn name(self) -> &'static str {
        match self {
            DeviceKind::Auto => "auto",
            DeviceKind::Cpu => "cpu",
            DeviceKind::Reference => "reference",
            DeviceKind::Cuda => "cuda",
            DeviceKind::Metal => "metal",
            DeviceKind::MetalEmulated => "metal-emulated",
        }
    }

    /// The message of [`Error::WrongSystem`].
    pub(crate) fn wrong_system(self) -> String {
        let system = std::env::consts::OS;
        match self {
            DeviceKind::Cuda => format!("device cuda runs on Linux and Windows, and this is {system}"),
            DeviceKind::Metal => format!(
                "device metal needs a Mac with Apple Silicon, and this is {system}; use device cpu (device \
                 metal-emulated runs the same shaders on Linux, very slowly, for tests)"
            ),
            DeviceKind::MetalEmulated => {
                "device metal-emulated runs on Linux on x86-64; use device cpu".to_owned()
            }
            DeviceKind::Auto | DeviceKind::Cpu | DeviceKind::Reference => {
                format!("device {} does not run on {system}", self.name())
            }
        }
    }
}

/// Orders of commands on a Mac's GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MetalEncoder {
    /// Dispatches run concurrently, with barriers; Metal orders command buffers.
    #[default]
    Concurrent,
    /// Like concurrent, with a fence between command buffers.
    Fenced,
    /// One dispatch runs after the other.
    Serial,
}

/// Options of a device.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct DeviceOptions {
    /// The kind of the device.
    pub kind: DeviceKind,
    /// Indices of the GPUs in nvidia-smi; empty: the first. Several share every layer, and their
    /// number must divide the model's heads. [`DeviceKind::Auto`] then means CUDA. With
    /// [`DeviceKind::Reference`], as many interpreters run, for tests.
    pub gpus: Vec<usize>,
    /// Number of threads that compute on the CPU; `None`: the number of processors that this
    /// process may use.
    pub threads: Option<usize>,
    /// Instruction set of the CPU device; `None`: the processor's best.
    pub isa: Option<Isa>,
    /// Order of commands on a Mac's GPU.
    pub metal_encoder: MetalEncoder,
}

impl DeviceOptions {
    /// Index of the first GPU of the options, or 0.
    fn first_gpu(&self) -> usize {
        self.gpus.first().copied().unwrap_or(0)
    }
}

/// A device that was created or chosen.
#[derive(Clone)]
#[non_exhaustive]
pub struct ChosenDevice {
    /// The device.
    pub device: Arc<dyn Device>,
    /// Facts that a user should know.
    pub notes: Vec<Note>,
}

impl From<Arc<dyn Device>> for ChosenDevice {
    fn from(device: Arc<dyn Device>) -> ChosenDevice {
        ChosenDevice { device, notes: Vec::new() }
    }
}

/// Creates the device of the options, for any model.
/// [`direct::device_for`](crate::direct::device_for) is for one model.
///
/// # Errors
/// The device is absent, or the options contradict each other.
pub fn create(options: &DeviceOptions) -> Result<ChosenDevice> {
    first_that(options, &|_| Ok(()))
}

/// Like [`create`]; the kind `Auto` chooses only among devices for which `runs` returns no error.
pub(crate) fn first_that(
    options: &DeviceOptions,
    runs: &dyn Fn(&dyn Device) -> Result<()>,
) -> Result<ChosenDevice> {
    if let [_, _, ..] = options.gpus[..] {
        return several(options).map(ChosenDevice::from);
    }
    match (options.kind, &options.gpus[..]) {
        (DeviceKind::Auto, []) => {}
        (kind, []) => return of_kind(kind, options).map(ChosenDevice::from),
        // GPUs imply CUDA.
        (DeviceKind::Auto | DeviceKind::Cuda, _) => {
            return of_kind(DeviceKind::Cuda, options).map(ChosenDevice::from);
        }
        (DeviceKind::Cpu | DeviceKind::Reference | DeviceKind::Metal | DeviceKind::MetalEmulated, _) => {
            return Err(Error::GpusOfOtherDevice);
        }
    }
    let metal = || of_kind(DeviceKind::Metal, options);
    let cuda = || of_kind(DeviceKind::Cuda, options);
    let cpu = || of_kind(DeviceKind::Cpu, options);
    let mut candidates = vec![choose::Candidate { name: "cuda", make: &cuda, check: Some(&cuda::tolerance) }];
    // On other systems a missing Metal device needs no note.
    if cfg!(target_os = "macos") {
        candidates.push(choose::Candidate { name: "metal", make: &metal, check: Some(&choose::tolerance) });
    }
    candidates.push(choose::Candidate { name: "cpu", make: &cpu, check: None });
    let cache = hub::Cache::resolve(None, None).map(|cache| cache.root().join("self-checks")).ok();
    let choice = choose::choose(&candidates, runs, cache.as_deref())?;
    tracing::info!("{}", choice.reason);
    let misses_gpu = choice.device.name() != "cuda" && has_nvidia_gpu();
    let reasons = if misses_gpu { choice.passed_over } else { Vec::new() };
    let notes = reasons.into_iter().map(|reason| Note::GpuNotUsed { reason }).collect();
    Ok(ChosenDevice { device: choice.device, notes })
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

/// Creates the CPU device with the threads and the instruction set of the options.
fn cpu(options: &DeviceOptions) -> Result<device_cpu::CpuDevice> {
    Ok(device_cpu::CpuDevice::new(device_cpu::Options { threads: options.threads, isa: options.isa })?)
}

/// Creates a device of one kind; `Auto` means the CPU.
fn of_kind(kind: DeviceKind, options: &DeviceOptions) -> Result<Arc<dyn Device>> {
    Ok(match kind {
        DeviceKind::Auto | DeviceKind::Cpu => Arc::new(cpu(options)?),
        DeviceKind::Reference => Arc::new(match options.threads {
            Some(n_threads) => device_reference::Reference::new(n_threads),
            None => device_reference::Reference::default(),
        }),
        DeviceKind::Cuda => cuda::device(options.first_gpu())?,
        DeviceKind::Metal => metal::apple(false, options.metal_encoder)?,
        DeviceKind::MetalEmulated => metal::emulated(options.threads)?,
    })
}

/// Creates a device of several GPUs that share every layer.
fn several(options: &DeviceOptions) -> Result<Arc<dyn Device>> {
    let gpus = &options.gpus;
    if let Some((index, &gpu)) = gpus.iter().enumerate().find(|(i, gpu)| gpus[..*i].contains(gpu)) {
        return Err(Error::GpuTwice { gpu, place: index + 1 });
    }
    let ranks = match options.kind {
        DeviceKind::Auto | DeviceKind::Cuda => cuda::group(gpus)?,
        DeviceKind::Reference => {
            let n_threads = options.threads.unwrap_or_else(default_threads);
            let n = gpus.len();
            let ranks = device_reference::Reference::group(n, n_threads.div_ceil(n));
            ranks.into_iter().map(|rank| Arc::new(rank) as Arc<dyn Device>).collect()
        }
        DeviceKind::Cpu | DeviceKind::Metal | DeviceKind::MetalEmulated => {
            return Err(Error::GpusOfOtherDevice);
        }
    };
    Ok(Arc::new(ParallelDevice::new(ranks)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_that_contradict_each_other_are_refused() {
        let refused = |kind, gpus: &[usize]| {
            let options = DeviceOptions { kind, gpus: gpus.to_vec(), ..DeviceOptions::default() };
            create(&options).err().map(|error| error.to_string()).unwrap_or_default()
        };
        assert_eq!(refused(DeviceKind::Cpu, &[1]), "gpus needs device cuda, found another device");
        assert_eq!(refused(DeviceKind::Metal, &[0, 1]), "gpus needs device cuda, found another device");
        let twice = "gpus names GPU 3 a second time, at place 3; expected each GPU once";
        assert_eq!(refused(DeviceKind::Cuda, &[3, 0, 3]), twice);
    }

    #[test]
    fn a_device_has_the_name_of_its_kind() {
        for kind in [DeviceKind::Cpu, DeviceKind::Reference] {
            let options = DeviceOptions { kind, threads: Some(1), ..DeviceOptions::default() };
            assert_eq!(create(&options).unwrap().device.name(), kind.name());
        }
    }
}

//! Metal devices, with their own types; for self-tests.

#[cfg(any(target_os = "macos", all(target_os = "linux", target_arch = "x86_64")))]
use std::path::PathBuf;
use std::sync::Arc;

use device::Device;

#[cfg(target_os = "macos")]
pub use device_metal::gpu::apple::{AppleGpu, Options};
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
pub use device_metal::gpu::emulated::{EmulatedGpu, Options};

use super::{DeviceKind, MetalEncoder};
use crate::error::{Error, Result};

#[cfg(target_os = "macos")]
impl MetalEncoder {
    /// The device's value for this order.
    pub fn mode(self) -> device_metal::gpu::EncoderMode {
        match self {
            MetalEncoder::Concurrent => device_metal::gpu::EncoderMode::Concurrent,
            MetalEncoder::Fenced => device_metal::gpu::EncoderMode::Fenced,
            MetalEncoder::Serial => device_metal::gpu::EncoderMode::Serial,
        }
    }
}

/// Creates the device of a Mac. With `tensors`, tiles are multiplied on an M5's tensor units, which
/// is untested.
///
/// # Errors
/// The GPU lacks a feature that the kernels need.
#[cfg(target_os = "macos")]
pub fn apple(tensors: bool, encoder: MetalEncoder) -> Result<Arc<device_metal::MetalDevice<AppleGpu>>> {
    use device_metal::{MetalDevice, Profile};
    let gpu =
        AppleGpu::new(&Options { cache: cache().ok(), tensors, any_family: false, encoder: encoder.mode() })?;
    let profile = Profile { tensor: tensors, ..Profile::new(device_metal::gpu::Gpu::facts(&gpu)) };
    Ok(Arc::new(MetalDevice::with_profile(gpu, profile)))
}

/// Returns an error: Metal does not exist on this system.
///
/// # Errors
/// [`Error::WrongSystem`].
#[cfg(not(target_os = "macos"))]
pub fn apple(_tensors: bool, _encoder: MetalEncoder) -> Result<Arc<dyn Device>> {
    Err(Error::WrongSystem { device: DeviceKind::Metal })
}

/// Creates the emulated device. `threads` is the number of threads; `None`: one for each processor
/// that this process may use.
///
/// # Errors
/// There is no cache folder, or clang is missing or cannot compile the shaders.
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
pub fn emulated(threads: Option<usize>) -> Result<Arc<device_metal::MetalDevice<EmulatedGpu>>> {
    let threads = threads.unwrap_or_else(device_cpu::default_threads);
    let options = Options { threads, ..Options::new(cache()?) };
    Ok(Arc::new(device_metal::MetalDevice::new(EmulatedGpu::new(&options)?)))
}

/// Returns an error: the emulator does not run on this system.
///
/// # Errors
/// [`Error::WrongSystem`].
#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
pub fn emulated(_threads: Option<usize>) -> Result<Arc<dyn Device>> {
    Err(Error::WrongSystem { device: DeviceKind::MetalEmulated })
}

/// The folder of compiled shaders.
///
/// # Errors
/// [`Error::Hub`]: the system has no cache folder.
#[cfg(any(target_os = "macos", all(target_os = "linux", target_arch = "x86_64")))]
pub fn cache() -> Result<PathBuf> {
    Ok(hub::Cache::resolve(None, None)?.root().join("shaders"))
}

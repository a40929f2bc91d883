//! CUDA devices, with their own types; for self-tests.

use std::sync::Arc;

use device::Device;
use device_check::Case;

#[cfg(not(any(target_os = "linux", target_os = "windows")))]
use super::DeviceKind;
#[cfg(not(any(target_os = "linux", target_os = "windows")))]
use crate::error::Error;
use crate::error::Result;

/// Creates the device of the GPU with this index.
///
/// # Errors
/// There is no such GPU, or its driver is missing or too old.
#[cfg(any(target_os = "linux", target_os = "windows"))]
pub fn device(index: usize) -> Result<Arc<device_cuda::CudaDevice>> {
    Ok(Arc::new(device_cuda::CudaDevice::new(index)?))
}

/// Returns an error: CUDA does not exist on this system.
///
/// # Errors
/// [`Error::WrongSystem`].
#[cfg(not(any(target_os = "linux", target_os = "windows")))]
pub fn device(_index: usize) -> Result<Arc<dyn Device>> {
    Err(Error::WrongSystem { device: DeviceKind::Cuda })
}

/// Creates GPUs as the ranks of one group.
#[cfg(any(target_os = "linux", target_os = "windows"))]
pub(super) fn group(indices: &[usize]) -> Result<Vec<Arc<dyn Device>>> {
    let ranks = device_cuda::CudaDevice::group(indices, device_cuda::Reach::Any)?;
    Ok(ranks.into_iter().map(|rank| Arc::new(rank) as Arc<dyn Device>).collect())
}

#[cfg(not(any(target_os = "linux", target_os = "windows")))]
pub(super) fn group(_indices: &[usize]) -> Result<Vec<Arc<dyn Device>>> {
    Err(Error::WrongSystem { device: DeviceKind::Cuda })
}

/// Like [`device`], without the copies of weights that only increase speed.
#[cfg(any(target_os = "linux", target_os = "windows"))]
pub(super) fn frugal(index: usize) -> Result<Arc<device_cuda::CudaDevice>> {
    let device = device_cuda::CudaDevice::new(index)?;
    let profile = device_cuda::Profile { most_packed: 0, persistent: false, ..device.profile().clone() };
    Ok(Arc::new(device.with_profile(profile)))
}

#[cfg(not(any(target_os = "linux", target_os = "windows")))]
pub(super) use self::device as frugal;

/// Tolerance of CUDA's arithmetic in a test case.
#[cfg(any(target_os = "linux", target_os = "windows"))]
pub(super) fn tolerance(case: &Case) -> f32 {
    device_cuda::selftest::tolerance(case)
}

#[cfg(not(any(target_os = "linux", target_os = "windows")))]
pub(super) fn tolerance(case: &Case) -> f32 {
    super::choose::tolerance(case)
}

//! Properties of a GPU.

use std::ffi::{CStr, c_char, c_int};

use cudarc::driver::sys;
use device::Result;

use super::{check, failed};

/// Facts that a GPU reports about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// The GPU's name, such as `NVIDIA H200`.
    pub name: String,
    /// Compute capability: 9.0 is `(9, 0)`.
    pub capability: (u32, u32),
    /// Number of multiprocessors.
    pub n_processors: usize,
    /// Newest CUDA version that the driver supports: 12080 is 12.8.
    pub driver: i32,
    /// Maximum number of bytes of shared memory of a block.
    pub shared_bytes: u32,
    /// Bytes of the GPU's memory.
    pub memory: u64,
}

impl Facts {
    /// The architecture that kernels are compiled for.
    pub fn architecture(&self) -> String {
        let (major, minor) = self.capability;
        // Architectures 9.0 and 10.0 have instructions that only code with the suffix `a` may use.
        let suffix = if matches!((major, minor), (9 | 10, 0)) { "a" } else { "" };
        format!("sm_{major}{minor}{suffix}")
    }
}

pub(super) fn facts(device: sys::CUdevice) -> Result<Facts> {
    use sys::CUdevice_attribute as A;
    let attribute = |which: A| -> Result<u32> {
        let mut value = 0;
        // SAFETY: `device` exists; the driver writes the live integer `value`.
        check(unsafe { sys::cuDeviceGetAttribute(&mut value, which, device) }, "a property of the GPU")?;
        Ok(value as u32)
    };
    let mut name = [0 as c_char; 256];
    // SAFETY: the driver writes at most `name.len()` bytes, and ends them with 0.
    check(unsafe { sys::cuDeviceGetName(name.as_mut_ptr(), name.len() as c_int, device) }, "the GPU's name")?;
    let mut driver = 0;
    // SAFETY: the driver writes the live integer `driver`.
    check(unsafe { sys::cuDriverGetVersion(&mut driver) }, "the driver's version")?;
    if attribute(A::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED)? == 0 {
        return failed("the driver cannot map memory in parts (virtual memory management)".to_owned());
    }
    let mut memory = 0;
    // SAFETY: `device` exists; the driver writes the live integer `memory`.
    check(unsafe { sys::cuDeviceTotalMem_v2(&mut memory, device) }, "the GPU's memory")?;
    Ok(Facts {
        // SAFETY: `cuDeviceGetName` wrote a string that ends in 0 within `name`.
        name: unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned(),
        capability: (
            attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        ),
        n_processors: attribute(A::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)? as usize,
        driver,
        memory: memory as u64,
        shared_bytes: attribute(A::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?,
    })
}

//! The number of GPU cores in the system's registry of devices. Metal does not report it, and chips
//! of one name are sold with different numbers.

use objc2_core_foundation::{CFNumber, CFString};
use objc2_io_kit::{
    IOObjectRelease, IORegistryEntryCreateCFProperty, IOServiceGetMatchingService, IOServiceMatching,
};

/// The class of the GPU's driver on every Mac with Apple Silicon, which have one GPU each.
const DRIVER: &std::ffi::CStr = c"AGXAccelerator";

/// The driver's property, a number: `ioreg -rc AGXAccelerator` shows it.
const PROPERTY: &str = "gpu-core-count";

/// Cores of the GPU; `None` where there is no such driver, or it does not say.
pub fn registered() -> Option<usize> {
    // SAFETY: the name is a C string; the dictionary that comes of it is what the second call takes
    // over; 0 is the default port.
    let service = unsafe {
        let matching = IOServiceMatching(DRIVER.as_ptr())?;
        IOServiceGetMatchingService(0, Some((&*matching).into()))
    };
    if service == 0 {
        return None;
    }
    // SAFETY: a service that was just found, and a key that is a string.
    let value = unsafe {
        IORegistryEntryCreateCFProperty(service, Some(&CFString::from_static_str(PROPERTY)), None, 0)
    };
    IOObjectRelease(service);
    let n_cores = value?.downcast::<CFNumber>().ok()?.as_i64()?;
    usize::try_from(n_cores).ok().filter(|n| *n > 0)
}

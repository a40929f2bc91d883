//! The system and the machine, as they report themselves.

use super::Object;
use objc2_foundation::{NSOperatingSystemVersion, NSProcessInfo, NSProcessInfoThermalState};
use objc2_metal::MTLDevice;

/// Returns true if the system has at least this version, as the first two numbers.
pub(super) fn is_system_at_least((major, minor): (isize, isize)) -> bool {
    let version = NSOperatingSystemVersion { majorVersion: major, minorVersion: minor, patchVersion: 0 };
    NSProcessInfo::processInfo().isOperatingSystemAtLeastVersion(version)
}

/// The system's version and build: `Version 15.6 (Build 24G84)`.
pub(super) fn system() -> String {
    NSProcessInfo::processInfo().operatingSystemVersionString().to_string()
}

/// The thermal state of the machine: `nominal`, `fair`, `serious` or `critical`. The GPU is slowed
/// down in the last two.
pub(super) fn thermal_state() -> &'static str {
    match NSProcessInfo::processInfo().thermalState() {
        NSProcessInfoThermalState::Nominal => "nominal",
        NSProcessInfoThermalState::Fair => "fair",
        NSProcessInfoThermalState::Serious => "serious",
        NSProcessInfoThermalState::Critical => "critical",
        _ => "unknown",
    }
}

/// Facts about the machine, for the report.
pub(super) fn about(device: &Object<dyn MTLDevice>) -> Vec<(&'static str, String)> {
    vec![
        ("system", system()),
        ("bytes of memory", NSProcessInfo::processInfo().physicalMemory().to_string()),
        ("bytes of the recommended working set", device.recommendedMaxWorkingSetSize().to_string()),
        ("bytes of the longest buffer", device.maxBufferLength().to_string()),
        ("bytes of threadgroup memory", device.maxThreadgroupMemoryLength().to_string()),
        ("architecture", device.architecture().name().to_string()),
        ("thermal state", thermal_state().to_owned()),
    ]
}

//! Readings of a system's memory while a program runs: free memory and memory pressure.
//!
//! [`MemorySource`] is all that a governor of memory needs. [`system_source`] is the source of this
//! machine. A device with its own memory implements a source, and [`Script`] is a source for tests.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Memory pressure, as reported by the system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Pressure {
    /// No pressure.
    #[default]
    None,
    /// Programs wait for memory, or it will be short soon.
    Some,
    /// The system is about to kill programs.
    Critical,
}

/// The resource that limits free memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Bound {
    /// The machine's memory.
    #[default]
    Machine,
    /// The limit of a control group, a job or a container.
    Group,
    /// The memory of a device.
    Device,
}

/// A reading. All numbers are bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// Installed memory, or the limit of the bound. 0 if the system does not report it; the other
    /// fields are then meaningless.
    pub total: u64,
    /// Free memory, including page cache that can be dropped.
    pub free: u64,
    /// The resource that limits `free`.
    pub bound: Bound,
    /// Highest pressure since the last reading.
    pub pressure: Pressure,
    /// Swap in use; `None` if unknown.
    pub swap_used: Option<u64>,
    /// Memory of this process that the system cannot drop, only swap; `None` if unknown.
    pub resident: Option<u64>,
}

/// A source of memory readings.
pub trait MemorySource: Send {
    /// The name for people, such as `linux, cgroup v2 with PSI`.
    fn name(&self) -> String;

    /// Reads the memory.
    fn read(&mut self) -> Reading;

    /// Waits until the system reports pressure, at most for the timeout; returns true if it did.
    fn wait(&mut self, timeout: Duration) -> bool {
        std::thread::sleep(timeout);
        false
    }
}

/// The source of this machine.
pub fn system_source() -> Box<dyn MemorySource> {
    crate::system::source()
}

/// A source for tests, which repeats the reading that was set last. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Script(Arc<(Mutex<Scripted>, Condvar)>);

#[derive(Clone, Copy, Debug, Default)]
struct Scripted {
    reading: Reading,
    /// True if a reading with pressure was set since the last wait.
    is_signalled: bool,
}

impl Script {
    /// Creates a source with these bytes in total and free.
    pub fn new(total: u64, free: u64) -> Script {
        let script = Script::default();
        script.set(Reading { total, free, ..Reading::default() });
        script
    }

    /// Sets the next readings. Pressure is reported once, and ends a wait.
    pub fn set(&self, reading: Reading) {
        let mut scripted = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
        scripted.reading = reading;
        if reading.pressure > Pressure::None {
            scripted.is_signalled = true;
            self.0.1.notify_all();
        }
    }
}

impl MemorySource for Script {
    fn name(&self) -> String {
        "a script".to_owned()
    }

    fn read(&mut self) -> Reading {
        let mut scripted = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
        let reading = scripted.reading;
        scripted.reading.pressure = Pressure::None;
        reading
    }

    fn wait(&mut self, timeout: Duration) -> bool {
        let scripted = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.0.1.wait_timeout_while(scripted, timeout, |scripted| !scripted.is_signalled);
        let (mut scripted, _) = waited.unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut scripted.is_signalled)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_wakes_whoever_waits() {
        let script = Script::new(100, 50);
        let mut source = script.clone();
        assert!(!source.wait(Duration::from_millis(1)));
        assert_eq!((source.read().total, source.read().free), (100, 50));
        script.set(Reading { total: 100, free: 5, pressure: Pressure::Some, ..Reading::default() });
        assert!(source.wait(Duration::from_secs(60)), "it did not wait for a minute");
        assert_eq!(source.read().pressure, Pressure::Some);
        assert_eq!((source.read().pressure, source.read().free), (Pressure::None, 5), "said once");
    }

    #[test]
    fn this_machine_tells_of_its_memory() {
        let mut source = system_source();
        let reading = source.read();
        assert_eq!(reading.total > 0, cfg!(any(target_os = "linux", target_os = "macos", windows)));
        assert!(reading.free <= reading.total, "{reading:?} of {}", source.name());
        source.wait(Duration::from_millis(1));
    }
}

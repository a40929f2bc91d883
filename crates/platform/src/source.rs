//! What a system tells of its memory while a program runs: how much is free, and whether it is short.
//!
//! [`MemorySource`] is all that a governor of memory needs of a system. [`system_source`] is that of this machine; a device with
//! memory of its own implements one for it; [`Script`] says what a test wants.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

/// How short of memory the system says it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Pressure {
    /// It does not complain.
    #[default]
    None,
    /// Programs wait for memory, or it is about to be short.
    Some,
    /// It is about to end programs.
    Critical,
}

/// What bounds the memory that is free.
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

/// One reading. All numbers are bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// Installed, or what the bound allows; 0: the system does not say, and then nothing is known.
    pub total: u64,
    /// Free now, page cache that can be dropped included.
    pub free: u64,
    /// What bounds `free`.
    pub bound: Bound,
    /// The most that the system complained since the last reading.
    pub pressure: Pressure,
    /// Swap in use; `None` where nothing is known of it.
    pub swap_used: Option<u64>,
    /// Memory of this process that the system could only swap, not drop; `None` where it does not say.
    pub resident: Option<u64>,
}

/// Where a governor learns of memory.
pub trait MemorySource: Send {
    /// For people: `linux, cgroup v2 with PSI`.
    fn name(&self) -> String;

    /// What is free now.
    fn read(&mut self) -> Reading;

    /// Wait until the system complains, at most so long; whether it did.
    fn wait(&mut self, timeout: Duration) -> bool {
        std::thread::sleep(timeout);
        false
    }
}

/// This machine's memory, as the system tells of it.
pub fn system_source() -> Box<dyn MemorySource> {
    Box::new(crate::system::Source::new())
}

/// A source for tests: it says what it was last told to say. Clones share that.
#[derive(Clone, Debug, Default)]
pub struct Script(Arc<(Mutex<Scripted>, Condvar)>);

#[derive(Clone, Copy, Debug, Default)]
struct Scripted {
    reading: Reading,
    /// Since the last wait, somebody said that memory is short.
    is_signalled: bool,
}

impl Script {
    /// So much of so much is free.
    pub fn new(total: u64, free: u64) -> Script {
        let script = Script::default();
        script.set(Reading { total, free, ..Reading::default() });
        script
    }

    /// From now on, say this. Pressure is said once, and whoever waits is woken by it.
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

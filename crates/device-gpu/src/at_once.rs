//! Compiles files of kernels: each once, several at a time. A failure is remembered.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Maximum number of threads that compile at once.
const MOST_AT_ONCE: usize = 8;

/// Compiled files by path, or the reasons why they do not compile.
pub struct Libraries<L> {
    of_files: Mutex<HashMap<&'static str, Result<L, String>>>,
}

impl<L> Default for Libraries<L> {
    fn default() -> Libraries<L> {
        Libraries { of_files: Mutex::default() }
    }
}

impl<L: Clone + Send> Libraries<L> {
    fn lock(&self) -> MutexGuard<'_, HashMap<&'static str, Result<L, String>>> {
        self.of_files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Compiles the files that were not tried before, several at a time.
    pub fn prepare(
        &self,
        files: &[&'static str],
        compile: &(dyn Fn(&'static str) -> Result<L, String> + Sync),
    ) {
        let mut missing: Vec<&'static str> = vec![];
        {
            let known = self.lock();
            for file in files {
                if !known.contains_key(file) && !missing.contains(file) {
                    missing.push(file);
                }
            }
        }
        for_each_at_once(&missing, &|file| {
            let made = compile(file);
            self.lock().insert(file, made);
        });
    }

    /// A compiled file.
    ///
    /// # Errors
    /// It did not compile, now or before.
    pub fn get(
        &self,
        file: &'static str,
        compile: &(dyn Fn(&'static str) -> Result<L, String> + Sync),
    ) -> Result<L, String> {
        if let Some(known) = self.lock().get(file) {
            return known.clone();
        }
        let made = compile(file);
        self.lock().entry(file).or_insert(made).clone()
    }
}

/// Calls `act` for each of some things, on a few threads.
pub fn for_each_at_once<T: Sync>(things: &[T], act: &(dyn Fn(&T) + Sync)) {
    let next = AtomicUsize::new(0);
    let work = || {
        while let Some(thing) = things.get(next.fetch_add(1, Ordering::Relaxed)) {
            act(thing);
        }
    };
    let n_threads = things.len().min(MOST_AT_ONCE);
    if n_threads < 2 {
        return work();
    }
    std::thread::scope(|scope| {
        (0..n_threads).for_each(|_| {
            scope.spawn(work);
        });
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_file_is_compiled_once_and_a_failure_is_remembered() {
        let (n, running, most) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
        let libraries = Libraries::<String>::default();
        let compile = |file: &'static str| {
            n.fetch_add(1, Ordering::SeqCst);
            most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            std::thread::sleep(std::time::Duration::from_millis(20));
            running.fetch_sub(1, Ordering::SeqCst);
            if file == "bad" { Err("line 1".to_owned()) } else { Ok(file.to_uppercase()) }
        };
        libraries.prepare(&["a", "b", "bad", "a", "c"], &compile);
        assert_eq!(n.load(Ordering::SeqCst), 4);
        assert!(most.load(Ordering::SeqCst) > 1, "one after the other");
        libraries.prepare(&["a", "bad"], &compile);
        assert_eq!(libraries.get("a", &compile), Ok("A".to_owned()));
        assert_eq!(libraries.get("bad", &compile), Err("line 1".to_owned()));
        assert_eq!(n.load(Ordering::SeqCst), 4);
        assert_eq!(libraries.get("d", &compile), Ok("D".to_owned()));
    }
}

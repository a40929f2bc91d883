//! Mapped files that shrink while they are read.
//!
//! A page of a map whose bytes the file no longer has cannot be read: the system sends SIGBUS, which ends the process. Where
//! a map is watched, zeros take the place of what is gone, and the watch remembers it: whoever computed with the bytes asks
//! before the results are used.

/// A range of the address space that views a file; until it is dropped, what cannot be read in it becomes zeros.
///
/// Only on Unix. Windows does not let a file shrink that is mapped.
#[derive(Debug)]
pub struct MapWatch {
    #[cfg(unix)]
    entry: &'static unix::Entry,
}

impl MapWatch {
    /// Watch `len` bytes from `start` on. `None`: the system has no such signals, or gives no handler for them.
    ///
    /// # Safety
    /// The range is one read-only mapping that begins at a page, and stays mapped until the watch is dropped.
    pub unsafe fn new(start: *const u8, len: usize) -> Option<MapWatch> {
        #[cfg(unix)]
        {
            unix::watch(start as usize, len).map(|entry| MapWatch { entry })
        }
        #[cfg(not(unix))]
        {
            let _ = (start, len);
            None
        }
    }

    /// Whether a part of the file could not be read, so that zeros were read instead.
    pub fn is_damaged(&self) -> bool {
        #[cfg(unix)]
        {
            self.entry.is_damaged()
        }
        #[cfg(not(unix))]
        {
            false
        }
    }
}

#[cfg(unix)]
impl Drop for MapWatch {
    fn drop(&mut self) {
        self.entry.release();
    }
}

#[cfg(unix)]
mod unix {
    use std::ptr;
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};

    /// A watched range. Entries are never freed, so that the handler may walk them at any time; those that are free are used
    /// again.
    #[derive(Debug)]
    pub struct Entry {
        is_used: AtomicBool,
        /// Address of the first byte; 0: nothing is watched.
        start: AtomicUsize,
        /// One past the last byte of its last page.
        end: AtomicUsize,
        is_damaged: AtomicBool,
        next: AtomicPtr<Entry>,
    }

    static ENTRIES: AtomicPtr<Entry> = AtomicPtr::new(ptr::null_mut());

    /// What the handler needs: bytes of a page, and who handled the signal before.
    struct Installed {
        page: usize,
        before: libc::sigaction,
    }

    static INSTALLED: OnceLock<Option<Installed>> = OnceLock::new();

    impl Entry {
        pub fn is_damaged(&self) -> bool {
            self.is_damaged.load(Ordering::Acquire)
        }

        pub fn release(&self) {
            self.start.store(0, Ordering::Release);
            self.is_used.store(false, Ordering::Release);
        }
    }

    /// All entries, newest first.
    fn entries() -> impl Iterator<Item = &'static Entry> {
        let next = |entry: &AtomicPtr<Entry>| {
            // SAFETY: null, or a leaked entry, which lives for ever and is only changed through its atomics.
            unsafe { entry.load(Ordering::Acquire).as_ref::<'static>() }
        };
        std::iter::successors(next(&ENTRIES), move |entry| next(&entry.next))
    }

    pub fn watch(start: usize, len: usize) -> Option<&'static Entry> {
        let installed = INSTALLED.get_or_init(install).as_ref()?;
        let free = |entry: &&Entry| {
            entry.is_used.compare_exchange(false, true, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        };
        let entry = entries().find(free).unwrap_or_else(|| {
            let entry: &'static Entry = Box::leak(Box::new(Entry {
                is_used: AtomicBool::new(true),
                start: AtomicUsize::new(0),
                end: AtomicUsize::new(0),
                is_damaged: AtomicBool::new(false),
                next: AtomicPtr::new(ptr::null_mut()),
            }));
            let mut head = ENTRIES.load(Ordering::Acquire);
            loop {
                entry.next.store(head, Ordering::Release);
                let new = ptr::from_ref(entry).cast_mut();
                match ENTRIES.compare_exchange(head, new, Ordering::AcqRel, Ordering::Acquire) {
                    Ok(_) => break entry,
                    Err(now) => head = now,
                }
            }
        });
        entry.is_damaged.store(false, Ordering::Release);
        entry.end.store(start.saturating_add(len).next_multiple_of(installed.page), Ordering::Release);
        entry.start.store(start, Ordering::Release);
        Some(entry)
    }

    /// Handle the signal from here on, before whoever handled it until now.
    fn install() -> Option<Installed> {
        // SAFETY: a query.
        let page =
            usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).ok().filter(|page| *page > 0)?;
        // SAFETY: a structure of numbers and of a function's address, for all of which zeros are valid.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) = on_signal;
        action.sa_sigaction = handler as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        // SAFETY: as above.
        let mut before: libc::sigaction = unsafe { std::mem::zeroed() };
        // SAFETY: both outlive the call; the handler does only what is safe in one.
        let installed = unsafe { libc::sigaction(libc::SIGBUS, &raw const action, &raw mut before) } == 0;
        installed.then_some(Installed { page, before })
    }

    extern "C" fn on_signal(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
        // SAFETY: the system gives a valid structure to a handler with SA_SIGINFO. What another process sends has no address.
        let (address, is_fault) = unsafe { ((*info).si_addr() as usize, (*info).si_code > 0) };
        // The signal may come before the line that sets it: then its first fault comes again.
        let Some(Some(installed)) = INSTALLED.get() else { return };
        let errno = errno();
        // SAFETY: the location of this thread's errno, which code that is interrupted may be about to read.
        let saved = unsafe { *errno };
        let is_mended = is_fault && mend(address, installed.page);
        // SAFETY: as above.
        unsafe { *errno = saved };
        if !is_mended {
            pass_on(&installed.before, signal, info, context, is_fault);
        }
    }

    /// Put zeros in the place of the page that cannot be read, and of all behind it, if the range is watched.
    fn mend(address: usize, page: usize) -> bool {
        let watched = entries().find_map(|entry| {
            let (start, end) = (entry.start.load(Ordering::Acquire), entry.end.load(Ordering::Acquire));
            (start != 0 && (start..end).contains(&address)).then_some((entry, end))
        });
        let Some((entry, end)) = watched else { return false };
        entry.is_damaged.store(true, Ordering::Release);
        let from = address - address % page;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANON | libc::MAP_FIXED;
        // SAFETY: the pages lie within one read-only mapping that is still there, by the promise of `MapWatch::new`; it stays
        // readable, and nobody may rely on bytes of a file that others can write to.
        let mapped =
            unsafe { libc::mmap(from as *mut libc::c_void, end - from, libc::PROT_READ, flags, -1, 0) };
        mapped != libc::MAP_FAILED
    }

    /// Do what would have been done without this handler.
    fn pass_on(
        before: &libc::sigaction,
        signal: libc::c_int,
        info: *mut libc::siginfo_t,
        context: *mut libc::c_void,
        is_fault: bool,
    ) {
        type WithInfo = extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void);
        type Plain = extern "C" fn(libc::c_int);
        match before.sa_sigaction {
            libc::SIG_DFL | libc::SIG_IGN => {
                // SAFETY: the default action; a fault comes again when the handler returns, what was sent is sent again.
                unsafe {
                    libc::signal(signal, libc::SIG_DFL);
                    if !is_fault {
                        libc::raise(signal);
                    }
                }
            }
            handler if before.sa_flags & libc::SA_SIGINFO != 0 => {
                // SAFETY: the system gave this address as that of a handler with these arguments.
                let handler = unsafe { std::mem::transmute::<usize, WithInfo>(handler) };
                handler(signal, info, context);
            }
            handler => {
                // SAFETY: the system gave this address as that of a handler with one argument.
                let handler = unsafe { std::mem::transmute::<usize, Plain>(handler) };
                handler(signal);
            }
        }
    }

    #[cfg(target_os = "linux")]
    fn errno() -> *mut libc::c_int {
        // SAFETY: always there.
        unsafe { libc::__errno_location() }
    }

    #[cfg(not(target_os = "linux"))]
    fn errno() -> *mut libc::c_int {
        // SAFETY: always there.
        unsafe { libc::__error() }
    }
}

#[cfg(all(test, target_os = "linux"))]
#[allow(clippy::unwrap_used)] // Helpers of tests may, as tests may.
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::fd::AsRawFd;
    use std::os::unix::process::ExitStatusExt;

    const LEN: usize = 40_000;

    /// A map of a file of sevens, and the file.
    fn map(name: &str) -> (&'static [u8], File) {
        let path = std::env::temp_dir().join(format!("ingle-watch-{name}-{}", std::process::id()));
        std::fs::write(&path, vec![7; LEN]).unwrap();
        let file = File::options().read(true).write(true).open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let (prot, flags) = (libc::PROT_READ, libc::MAP_SHARED);
        // SAFETY: a new mapping, which nobody unmaps.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), LEN, prot, flags, file.as_raw_fd(), 0) };
        assert_ne!(start, libc::MAP_FAILED);
        // SAFETY: as long as the file is, which the tests shorten.
        (unsafe { std::slice::from_raw_parts(start.cast(), LEN) }, file)
    }

    fn watch(map: &'static [u8]) -> MapWatch {
        // SAFETY: a mapping of its own that stays.
        unsafe { MapWatch::new(map.as_ptr(), map.len()) }.unwrap()
    }

    fn byte(map: &[u8], at: usize) -> u8 {
        // SAFETY: within the map; the compiler must not guess it.
        unsafe { std::ptr::read_volatile(&raw const map[at]) }
    }

    #[test]
    fn zeros_take_the_place_of_what_is_gone_and_only_that_map_is_damaged() {
        let ((map_a, file_a), (map_b, _file_b)) = (map("a"), map("b"));
        let (watch_a, watch_b) = (watch(map_a), watch(map_b));
        assert_eq!((byte(map_a, LEN - 1), watch_a.is_damaged()), (7, false));
        file_a.set_len(5000).unwrap();
        let ends: Vec<u8> =
            [0, 4999, 5000, 8192, LEN - 1, 12_288].iter().map(|at| byte(map_a, *at)).collect();
        assert_eq!(ends, [7, 7, 0, 0, 0, 0]);
        assert!(watch_a.is_damaged() && !watch_b.is_damaged());
        assert_eq!(byte(map_b, LEN - 1), 7);
        file_a.set_len(0).unwrap();
        // On many threads at once.
        std::thread::scope(|scope| {
            let reads = [0; 8].map(|_| scope.spawn(|| (0..LEN).step_by(512).map(|at| byte(map_a, at)).max()));
            assert!(reads.into_iter().all(|read| read.join().unwrap() == Some(0)));
        });
        drop(watch_a);
        // Its entry is used again, and is whole.
        let (map_c, _file_c) = map("c");
        assert!(!watch(map_c).is_damaged());
    }

    #[test]
    fn what_is_not_watched_ends_the_process_as_before() {
        if std::env::var_os("INGLE_TEST_FAULT").is_some() {
            let ((map_a, file_a), (map_b, _file_b)) = (map("d"), map("e"));
            let _watch = watch(map_b);
            file_a.set_len(0).unwrap();
            byte(map_a, LEN - 1);
            unreachable!("the byte is gone");
        }
        let name = "map_watch::tests::what_is_not_watched_ends_the_process_as_before";
        let child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", name])
            .env("INGLE_TEST_FAULT", "1")
            .output()
            .unwrap();
        assert_eq!(child.status.signal(), Some(libc::SIGBUS), "{child:?}");
    }
}

//! Mapped files that shrink while they are read.
//!
//! If a file becomes shorter, pages of its map cannot be read any more: the system sends SIGBUS,
//! which ends the process. In a watched map, such pages become zeros, and the watch records the
//! damage. A caller checks the watch before it uses results that were computed from the map.

/// A watch on an address range that maps a file. Until it is dropped, pages that cannot be read
/// become zeros.
///
/// Only Unix needs this: Windows does not let a mapped file shrink.
#[derive(Debug)]
pub struct MapWatch {
    #[cfg(unix)]
    entry: &'static unix::Entry,
}

impl MapWatch {
    /// Watches `len` bytes from `start`. `None` if the system has no such signals, or refuses the
    /// handler.
    ///
    /// # Safety
    /// The range is one read-only mapping that begins at a page, and it stays mapped until the
    /// watch is dropped.
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

    /// True if a part of the file could not be read and became zeros.
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

    /// A watched range. Entries are never freed, so that the signal handler can walk them at any
    /// time; unused entries are reused.
    #[derive(Debug)]
    pub struct Entry {
        is_used: AtomicBool,
        /// Address of the first byte; 0 if the entry is unused.
        start: AtomicUsize,
        /// Address after the last byte of the last page.
        end: AtomicUsize,
        is_damaged: AtomicBool,
        next: AtomicPtr<Entry>,
    }

    static ENTRIES: AtomicPtr<Entry> = AtomicPtr::new(ptr::null_mut());

    /// State of the handler: the page size, and the previous handler.
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
            // SAFETY: the pointer is null or a leaked `Entry`, which is never freed and only
            // changed through atomics.
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

    /// Installs the handler, which calls the previous one for other signals.
    fn install() -> Option<Installed> {
        // SAFETY: `sysconf` reads a constant and has no preconditions.
        let page =
            usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).ok().filter(|page| *page > 0)?;
        // SAFETY: `sigaction` is made of integers and an address, for which zeros are valid.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) = on_signal;
        action.sa_sigaction = handler as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        // SAFETY: `sigaction` is made of integers and an address, for which zeros are valid.
        let mut before: libc::sigaction = unsafe { std::mem::zeroed() };
        // SAFETY: `action` and `before` outlive the call. The handler `on_signal` calls only
        // async-signal-safe functions.
        let installed = unsafe { libc::sigaction(libc::SIGBUS, &raw const action, &raw mut before) } == 0;
        installed.then_some(Installed { page, before })
    }

    extern "C" fn on_signal(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
        // SAFETY: the system passes a valid `siginfo_t` to a handler with SA_SIGINFO. A signal of
        // another process has no address, but then `si_code` is not positive.
        let (address, is_fault) = unsafe { ((*info).si_addr() as usize, (*info).si_code > 0) };
        // A signal may arrive before INSTALLED is set. The fault then repeats.
        let Some(Some(installed)) = INSTALLED.get() else { return };
        let errno = errno();
        // SAFETY: `errno` returns the address of this thread's errno, which the interrupted code
        // may be about to read.
        let saved = unsafe { *errno };
        let is_mended = is_fault && mend(address, installed.page);
        // SAFETY: `errno` is the address of this thread's errno, as above.
        unsafe { *errno = saved };
        if !is_mended {
            pass_on(&installed.before, signal, info, context, is_fault);
        }
    }

    /// Replaces the unreadable page and all later pages of a watched range by zeros. Returns false
    /// if the address is not watched.
    fn mend(address: usize, page: usize) -> bool {
        let watched = entries().find_map(|entry| {
            let (start, end) = (entry.start.load(Ordering::Acquire), entry.end.load(Ordering::Acquire));
            (start != 0 && (start..end).contains(&address)).then_some((entry, end))
        });
        let Some((entry, end)) = watched else { return false };
        entry.is_damaged.store(true, Ordering::Release);
        let from = address - address % page;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANON | libc::MAP_FIXED;
        // SAFETY: `from` and `end` are page boundaries inside one read-only mapping, which
        // `MapWatch::new` promises stays mapped. The new pages are readable, and other processes
        // could have changed the file's bytes anyway.
        let mapped =
            unsafe { libc::mmap(from as *mut libc::c_void, end - from, libc::PROT_READ, flags, -1, 0) };
        mapped != libc::MAP_FAILED
    }

    /// Calls the previous handler, or the default action.
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
                // SAFETY: `signal` and `raise` are async-signal-safe. With the default action, a
                // fault repeats when the handler returns; a sent signal is raised again.
                unsafe {
                    libc::signal(signal, libc::SIG_DFL);
                    if !is_fault {
                        libc::raise(signal);
                    }
                }
            }
            handler if before.sa_flags & libc::SA_SIGINFO != 0 => {
                // SAFETY: with SA_SIGINFO, `sa_sigaction` is the address of a handler with these
                // three arguments.
                let handler = unsafe { std::mem::transmute::<usize, WithInfo>(handler) };
                handler(signal, info, context);
            }
            handler => {
                // SAFETY: without SA_SIGINFO, the address is that of a handler with one argument.
                let handler = unsafe { std::mem::transmute::<usize, Plain>(handler) };
                handler(signal);
            }
        }
    }

    #[cfg(target_os = "linux")]
    fn errno() -> *mut libc::c_int {
        // SAFETY: the function has no preconditions.
        unsafe { libc::__errno_location() }
    }

    #[cfg(not(target_os = "linux"))]
    fn errno() -> *mut libc::c_int {
        // SAFETY: the function has no preconditions.
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
        // SAFETY: a new mapping, which is never unmapped.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), LEN, prot, flags, file.as_raw_fd(), 0) };
        assert_ne!(start, libc::MAP_FAILED);
        // SAFETY: the mapping has `LEN` bytes and is never unmapped. Shortening the file is what
        // the tests are about.
        (unsafe { std::slice::from_raw_parts(start.cast(), LEN) }, file)
    }

    fn watch(map: &'static [u8]) -> MapWatch {
        // SAFETY: `map` is a read-only mapping from a page boundary, which is never unmapped.
        unsafe { MapWatch::new(map.as_ptr(), map.len()) }.unwrap()
    }

    fn byte(map: &[u8], at: usize) -> u8 {
        // SAFETY: indexing checks the bound. The read is volatile, because the byte changes behind
        // the compiler's back.
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
        // Many threads fault at the same time.
        std::thread::scope(|scope| {
            let reads = [0; 8].map(|_| scope.spawn(|| (0..LEN).step_by(512).map(|at| byte(map_a, at)).max()));
            assert!(reads.into_iter().all(|read| read.join().unwrap() == Some(0)));
        });
        drop(watch_a);
        // The entry of `watch_a` is reused without its damage.
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

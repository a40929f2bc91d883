//! Threads for expensive Ops: Linear and Attention.

use std::sync::{Mutex, PoisonError};

/// Multiply-adds below which another thread costs more than it saves; starting a thread takes about
/// 20 microseconds.
const MIN_WORK: usize = 1 << 18;

/// Number of threads, up to `n_threads`, that are worth starting for this many multiply-adds.
pub fn worth(n_threads: usize, multiply_adds: usize) -> usize {
    n_threads.min(multiply_adds / MIN_WORK + 1)
}

/// Calls `work(scratch, i, chunk)` for each `i`-th chunk of `chunk_len` values of `data`.
///
/// Up to `n_threads` threads, the caller's among them, fetch chunks from a queue; each has its own
/// scratch. Chunks are not bound to threads, so a chunk's result must depend on `i` alone.
pub fn for_each_chunk<S>(
    n_threads: usize,
    data: &mut [f32],
    chunk_len: usize,
    scratch: impl Fn() -> S + Sync,
    work: impl Fn(&mut S, usize, &mut [f32]) + Sync,
) {
    let n_threads = n_threads.min(data.len().div_ceil(chunk_len));
    let queue = Mutex::new(data.chunks_mut(chunk_len).enumerate());
    let take_chunks = || {
        let mut scratch = scratch();
        loop {
            let next = queue.lock().unwrap_or_else(PoisonError::into_inner).next();
            let Some((index, chunk)) = next else { return };
            work(&mut scratch, index, chunk);
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..n_threads {
            scope.spawn(take_chunks);
        }
        take_chunks();
    });
}

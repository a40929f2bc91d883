//! Threads for the Ops that need them: Linear and Attention.

use std::sync::{Mutex, PoisonError};

/// Multiply-adds below which another thread costs more than it saves (starting one takes some 20 microseconds).
const MIN_WORK: usize = 1 << 18;

/// How many of `n_threads` are worth starting for so many multiply-adds.
pub fn worth(n_threads: usize, multiply_adds: usize) -> usize {
    n_threads.min(multiply_adds / MIN_WORK + 1)
}

/// Call `work(scratch, i, chunk)` for the `i`-th chunk of `chunk_len` values of `data`, for all of them.
///
/// Up to `n_threads` threads, the caller's among them, take chunk after chunk from a queue, each with a scratch of its own.
/// Which thread takes which chunk is chance, so a chunk's result must depend on nothing but `i`.
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

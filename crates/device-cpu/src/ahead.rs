//! What workers read ahead while they wait for each other: the first weights that each multiplies next.
//!
//! A phase of one row reads some 100 KB of weights a worker, at once and in order. Without this the memory would rest while
//! the workers meet, and while they do what reads no weights (attention, rotation).

use crate::kernels::projection;
use crate::prefetch::prefetch_far;

/// Most bytes of a matrix that a worker asks for ahead: a part of its second cache.
const BYTES: usize = 96 << 10;
/// Bytes of a cache line.
const LINE: usize = 64;

/// The weights with which a worker begins a command: of two matrices, where it reads both at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FirstRead {
    starts: [*const u8; 2],
    lines: usize,
}

// SAFETY: the addresses are asked for, never read or written.
unsafe impl Send for FirstRead {}
// SAFETY: as above.
unsafe impl Sync for FirstRead {}

/// For each command of a table, what the workers read first in the next command that reads weights.
#[derive(Default)]
pub struct Ahead {
    /// `(projections, workers)`
    reads: Vec<FirstRead>,
    /// By command: the first of `reads` that concerns those who wait after it.
    next: Vec<usize>,
}

impl Ahead {
    /// Of a table whose commands at the given indices, ascending, are projections of one row.
    pub fn new(projections: &[(usize, projection::Params)], n_commands: usize, n_workers: usize) -> Ahead {
        let read = |p: &projection::Params, index| {
            let (starts, bytes) = p.first_read(index, n_workers);
            FirstRead { starts, lines: bytes.min(BYTES) / LINE }
        };
        let reads = projections.iter().flat_map(|(_, p)| (0..n_workers).map(move |index| read(p, index)));
        let after = |command| n_workers * projections.partition_point(|(at, _)| *at <= command);
        Ahead { reads: reads.collect(), next: (0..n_commands).map(after).collect() }
    }
}

/// How far a worker has read ahead.
pub struct Reader<'a> {
    ahead: &'a Ahead,
    worker: usize,
    /// Where in `ahead.reads`, and how many lines of it were asked for.
    at: (usize, usize),
}

impl<'a> Reader<'a> {
    /// Nothing yet.
    pub fn new(ahead: &'a Ahead, worker: usize) -> Reader<'a> {
        Reader { ahead, worker, at: (usize::MAX, 0) }
    }

    /// What follows concerns those who wait after this command.
    #[inline]
    pub fn waits_after(&mut self, command: usize) {
        let next = self.ahead.next.get(command).map_or(usize::MAX, |first| first + self.worker);
        if next != self.at.0 {
            self.at = (next, 0);
        }
    }

    /// Ask for a little more, if anything is left.
    #[inline]
    pub fn read(&mut self) {
        let (index, line) = self.at;
        match self.ahead.reads.get(index) {
            Some(read) if line < read.lines => {
                read.starts.iter().for_each(|start| prefetch_far(start.wrapping_add(line * LINE)));
                self.at.1 += 1;
            }
            _ => std::hint::spin_loop(),
        }
    }
}

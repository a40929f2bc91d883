//! Runs a kernel over a grid.

use crate::abi::{self, MslBuffer, MslCounters, MslDispatch, MslFault, MslLength};
use crate::counters::{BufferTraffic, Counters, SimdgroupInstructions, most_steps};
use crate::error::{Error, Fault, FaultKind, Location, ThreadPosition};
use crate::library::ParameterKind;
use crate::worker::Worker;
use crate::{Buffer, MAX_BINDINGS, Pipeline, sanitized};
use std::process::Command;

/// A buffer at an index.
#[derive(Debug, Clone, Copy)]
pub struct Binding<'a> {
    /// `[[buffer(index)]]`
    pub index: u32,
    /// The bound buffer.
    pub buffer: &'a Buffer,
    /// Offset of the kernel's pointer from the buffer's start, in bytes.
    pub offset: usize,
    /// Number of bytes from `offset` that may be accessed; None means up to the buffer's end. Metal
    /// has no such limit. It is for hosts that keep many values in one buffer, and detects a kernel
    /// that leaves its own value.
    pub length: Option<usize>,
}

impl<'a> Binding<'a> {
    /// A binding of a whole buffer.
    pub fn new(index: u32, buffer: &'a Buffer) -> Self {
        Binding { index, buffer, offset: 0, length: None }
    }

    /// The binding, starting at `offset` bytes.
    pub fn at(self, offset: usize) -> Self {
        Binding { offset, ..self }
    }

    /// The binding, limited to `length` bytes.
    pub fn limit(self, length: usize) -> Self {
        Binding { length: Some(length), ..self }
    }
}

/// A buffer that a kernel reaches through an address ([`Buffer::gpu_address`]) in memory instead of
/// a parameter, like an encoder's `useResource`.
#[derive(Debug, Clone, Copy)]
pub struct Resource<'a> {
    /// The buffer.
    pub buffer: &'a Buffer,
    /// True if the kernel may write to it.
    pub writable: bool,
}

impl<'a> Resource<'a> {
    /// A resource that may be read.
    pub fn read(buffer: &'a Buffer) -> Self {
        Resource { buffer, writable: false }
    }

    /// A resource that may be read and written.
    pub fn write(buffer: &'a Buffer) -> Self {
        Resource { buffer, writable: true }
    }
}

/// An entry without a buffer.
const NO_BUFFER: MslBuffer = MslBuffer {
    address: std::ptr::null_mut(),
    length: 0,
    index: 0,
    writable: 0,
    noted: 0,
    read_sectors: std::ptr::null_mut(),
    written_sectors: std::ptr::null_mut(),
    writers: std::ptr::null_mut(),
    totals: std::ptr::null_mut(),
};

/// One dispatch, like an encoder's `dispatchThreadgroups`.
#[derive(Debug, Clone, Copy)]
pub struct Dispatch<'a> {
    /// The kernel.
    pub pipeline: &'a Pipeline,
    /// Buffers.
    pub buffers: &'a [Binding<'a>],
    /// Buffers that are reached through addresses, at most [`MAX_RESOURCES`]. Any other address is
    /// a fault.
    pub resources: &'a [Resource<'a>],
    /// Values passed at a buffer index, at most [`MAX_BYTES`] each, like `setBytes`.
    pub bytes: &'a [(u32, &'a [u8])],
    /// Lengths of `[[threadgroup(index)]]` arguments in bytes, multiples of 16.
    pub threadgroup_memory: &'a [(u32, u32)],
    /// Threadgroups in each dimension.
    pub threadgroups: [u32; 3],
    /// Threads per threadgroup in each dimension.
    pub threads_per_threadgroup: [u32; 3],
}

/// Order in which the lanes of a simdgroup run between synchronisation points, and likewise
/// simdgroups and threadgroups. A kernel whose result depends on it has a race.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum LaneOrder {
    /// Ascending from 0.
    #[default]
    Forward,
    /// Descending from the last.
    Reverse,
    /// A different order each time, from this seed.
    Random(u64),
}

/// Options of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunOptions {
    /// The order of lanes.
    pub order: LaneOrder,
    /// Host threads that run the threadgroups; always 1 under a sanitizer. With 1, the default,
    /// nothing is allocated.
    pub threads: usize,
}

impl Default for RunOptions {
    fn default() -> Self {
        RunOptions { order: LaneOrder::Forward, threads: 1 }
    }
}

impl Dispatch<'_> {
    /// Runs until the end or the first fault.
    ///
    /// # Errors
    ///
    /// The kernel's fault, or an error of the dispatch itself.
    pub fn run(&self, options: &RunOptions) -> Result<Counters, Fault> {
        self.check()?;
        match &self.pipeline.mode.runner {
            Some((runner, sanitizer)) => sanitized::run(self, options, runner, *sanitizer),
            None => self.run_here(options),
        }
    }

    /// Threads of the grid.
    fn threads(&self) -> u64 {
        self.threadgroups.iter().chain(&self.threads_per_threadgroup).map(|n| u64::from(*n)).product()
    }

    pub(crate) fn fault(&self, kind: FaultKind) -> Fault {
        Fault { function: self.pipeline.function.name.clone(), kind, location: None, thread: None }
    }

    fn run_here(&self, options: &RunOptions) -> Result<Counters, Fault> {
        let Some(code) = &self.pipeline.code else {
            return Err(self.fault(FaultKind::Dispatch("the library is not loaded".into())));
        };
        let no_memory = || self.fault(FaultKind::Dispatch("no memory for a worker".to_owned()));
        let mut worker = Worker::take(code.new_memory).ok_or_else(no_memory)?;
        let n_buffers = self.buffers.len() + self.bytes.len();
        let mut list = match self.bindings(&mut worker) {
            Ok(list) => list,
            Err(e) => {
                worker.put_back();
                return Err(self.fault(FaultKind::Dispatch(e.to_string())));
            }
        };
        let mut resources = self.resource_list();
        // The maps must outlive the run.
        let _writers = self.overlaps(&mut list);
        let (mut sectors, mut of_resources) = (Sectors::default(), Sectors::default());
        let mut totals = Vec::new();
        if self.pipeline.mode.counting {
            sectors.attach(&mut list[..n_buffers]);
            of_resources.attach(&mut resources);
            totals.resize(2 * resources.len(), 0u64);
            for (resource, totals) in resources.iter_mut().zip(totals.chunks_exact_mut(2)) {
                resource.totals = totals.as_mut_ptr();
            }
        }
        let mut lengths = [MslLength::default(); abi::BINDINGS];
        for (to, (index, length)) in lengths.iter_mut().zip(self.threadgroup_memory) {
            *to = MslLength { index: *index, length: *length };
        }
        let (order, seed) = order_of(options.order);
        let (mut next, mut stop) = (0u64, 0u32);
        let dispatch = MslDispatch {
            function: self.pipeline.index,
            threadgroups: self.threadgroups,
            threads: self.threads_per_threadgroup,
            order,
            seed,
            buffers: list.as_ptr(),
            lengths: lengths.as_ptr(),
            n_buffers: n_buffers as u32,
            n_lengths: self.threadgroup_memory.len() as u32,
            resources: resources.as_ptr(),
            n_resources: resources.len() as u32,
            flush: u32::from(self.pipeline.mode.numerics.flush),
            ulp: self.pipeline.mode.numerics.ulp,
            most_steps: self.pipeline.mode.watchdog.map_or(u64::MAX, |most| most_steps(most, self.threads())),
            next: &raw mut next,
            stop: &raw mut stop,
        };
        let groups: u64 = self.threadgroups.iter().map(|n| u64::from(*n)).product();
        let workers = (options.threads.max(1) as u64).min(groups.max(1)) as usize;
        let (mut counters, mut fault) = (MslCounters::default(), MslFault::none());
        if workers == 1 {
            // SAFETY: `dispatch`, `counters` and `fault` outlive the call, and so does everything
            // that `dispatch` points to; `worker` belongs to this thread.
            unsafe { (code.run)(&dispatch, worker.memory, &mut counters, &mut fault) };
        } else {
            self.run_on(workers, &dispatch, &mut worker, &mut counters, &mut fault)
                .map_err(|()| no_memory())?;
        }
        worker.put_back();
        if fault.kind != 0 {
            return Err(self.found(&fault, &[&list[..n_buffers], &resources].concat()));
        }
        let mut counters = self.count(&counters, &list[..n_buffers], &sectors);
        let traffic = |(n, totals): (usize, &[u64])| BufferTraffic {
            index: n as u32,
            by_value: false,
            read: totals[0],
            written: totals[1],
            read_once: of_resources.bytes(2 * n),
            written_once: of_resources.bytes(2 * n + 1),
        };
        counters.resources = totals.chunks_exact(2).enumerate().map(traffic).collect();
        Ok(counters)
    }

    /// The bound buffers, then the by-value arguments, which `worker` holds. Later entries are
    /// empty.
    fn bindings(&self, worker: &mut Worker) -> Result<[MslBuffer; abi::BINDINGS], Error> {
        let mut list = [NO_BUFFER; abi::BINDINGS];
        for (n, b) in self.buffers.iter().enumerate() {
            let same = self.buffers[..n].iter().filter(|o| std::ptr::eq(o.buffer, b.buffer)).count();
            let writable = b.buffer.is_writable();
            list[n] = MslBuffer {
                address: b.buffer.view(same)?.wrapping_add(b.offset),
                length: b.length.unwrap_or(b.buffer.len() - b.offset) as u64,
                index: b.index,
                writable: u16::from(writable),
                noted: u16::from(writable && (self.may_write(b.index) || b.buffer.is_borrowed())),
                ..NO_BUFFER
            };
        }
        for (n, (index, bytes)) in self.bytes.iter().enumerate() {
            let address = worker.hold(n, bytes);
            list[self.buffers.len() + n] =
                MslBuffer { address, length: bytes.len() as u64, index: *index, ..NO_BUFFER };
        }
        Ok(list)
    }

    /// Buffers that are reached through addresses.
    fn resource_list(&self) -> Vec<MslBuffer> {
        let mut resources = Vec::with_capacity(self.resources.len());
        resources.extend((0u32..).zip(self.resources).map(|(n, r)| {
            let writable = u16::from(r.writable && r.buffer.is_writable());
            MslBuffer {
                address: r.buffer.contents(),
                length: r.buffer.len() as u64,
                index: MAX_BINDINGS + n,
                writable,
                noted: writable,
                ..NO_BUFFER
            }
        }));
        resources
    }

    /// Returns true if the kernel's parameter at `index` is a pointer to non-`const` data.
    fn may_write(&self, index: u32) -> bool {
        let parameters = &self.pipeline.function.parameters;
        parameters.iter().any(|p| p.kind == ParameterKind::Buffer(index) && p.writable)
    }

    /// Adds a map of the last writers of each byte to bindings that overlap, if the kernel may
    /// write one of them.
    fn overlaps(&self, list: &mut [MslBuffer]) -> Vec<Vec<u8>> {
        let range = |n: usize| {
            let b = &self.buffers[n];
            b.offset..b.offset + b.length.unwrap_or(b.buffer.len() - b.offset)
        };
        let mut maps: Vec<(usize, Vec<u8>)> = Vec::new();
        for (n, (b, bound)) in self.buffers.iter().zip(list).enumerate() {
            let overlaps = (0..self.buffers.len()).any(|o| {
                let other = &self.buffers[o];
                o != n
                    && std::ptr::eq(other.buffer, b.buffer)
                    && b.buffer.is_writable()
                    && (self.may_write(b.index) || self.may_write(other.index))
                    && range(n).start < range(o).end
                    && range(o).start < range(n).end
            });
            if !overlaps {
                continue;
            }
            let address = b.buffer.contents() as usize;
            let at = maps.iter().position(|(of, _)| *of == address).unwrap_or_else(|| {
                maps.push((address, vec![0; b.buffer.len()]));
                maps.len() - 1
            });
            bound.writers = maps[at].1.as_mut_ptr().wrapping_add(b.offset);
        }
        maps.into_iter().map(|(_, map)| map).collect()
    }

    /// Runs threadgroups on several threads, including this one. Returns the fault of the first
    /// worker that has one.
    fn run_on(
        &self,
        workers: usize,
        dispatch: &MslDispatch,
        own: &mut Worker,
        counters: &mut MslCounters,
        fault: &mut MslFault,
    ) -> Result<(), ()> {
        let Some(code) = &self.pipeline.code else { return Err(()) };
        let shared = Shared(dispatch);
        let others: Vec<Option<(MslCounters, MslFault)>> = std::thread::scope(|scope| {
            let threads: Vec<_> = (1..workers)
                .map(|_| {
                    let shared = &shared;
                    scope.spawn(move || {
                        let worker = Worker::take(code.new_memory)?;
                        let (mut counters, mut fault) = (MslCounters::default(), MslFault::none());
                        // SAFETY: The dispatch in `shared` outlives the thread scope, and the
                        // fields that workers write are accessed atomically. `worker` belongs to
                        // this thread.
                        unsafe { (code.run)(shared.0, worker.memory, &mut counters, &mut fault) };
                        worker.put_back();
                        Some((counters, fault))
                    })
                })
                .collect();
            // SAFETY: `dispatch`, `counters` and `fault` outlive the call, and the fields that
            // other workers write are accessed atomically. `own` belongs to this thread.
            unsafe { (code.run)(dispatch, own.memory, counters, fault) };
            threads.into_iter().map(|t| t.join().ok().flatten()).collect()
        });
        for other in others {
            // A worker without memory ran nothing; the others ran its share.
            let Some((c, f)) = other else { continue };
            add(counters, &c);
            if fault.kind == 0 {
                *fault = f;
            }
        }
        Ok(())
    }

    /// Translates a fault of the runtime into terms of the dispatch.
    pub(crate) fn found(&self, f: &MslFault, list: &[MslBuffer]) -> Fault {
        let (write, size, name) = (f.write != 0, f.size, MslFault::text(&f.name));
        let offset = f.address as i64;
        let kind = match f.kind {
            abi::kind::OUT_OF_BOUNDS => {
                FaultKind::OutOfBounds { write, size, buffer: nearest(f.address, list) }
            }
            abi::kind::READ_ONLY => {
                FaultKind::ReadOnly { index: nearest(f.address, list).map_or(0, |b| b.0), size }
            }
            abi::kind::THREADGROUP_BOUNDS => FaultKind::ThreadgroupOutOfBounds { write, name, offset, size },
            abi::kind::UNINITIALISED => FaultKind::UninitialisedThreadgroup { name, offset, size },
            abi::kind::DIVERGENT_BARRIER => FaultKind::DivergentBarrier {
                reached: f.count,
                threads: self.threads_per_threadgroup.iter().product(),
            },
            abi::kind::DIVERGENT_SIMDGROUP => FaultKind::DivergentSimdgroup { lanes: f.lanes },
            abi::kind::INACTIVE_LANE => FaultKind::InactiveLane { lane: f.count, lanes: f.lanes },
            abi::kind::TOO_MUCH_THREADGROUP => FaultKind::TooMuchThreadgroupMemory { bytes: size, name },
            abi::kind::MISALIGNED => {
                FaultKind::Misaligned { alignment: size, excess: f.address % size.max(1) }
            }
            abi::kind::ALIASED => {
                let (index, offset, _) = nearest(f.address, list).unwrap_or_default();
                FaultKind::Aliased { index, offset, size, writer: f.count }
            }
            abi::kind::UNORDERED => {
                let (index, offset, _) = nearest(f.address, list).unwrap_or_default();
                FaultKind::UnorderedDevice { index, offset, size, writer: f.count }
            }
            abi::kind::OVERDUE => FaultKind::Overdue { steps: size, threads: self.threads() },
            _ => FaultKind::Undefined(name),
        };
        let location = if f.line != 0 {
            Some(Location { file: MslFault::text(&f.file), line: f.line })
        } else if f.code != 0 {
            self.locate(f.code)
        } else {
            None
        };
        let thread = (f.kind != abi::kind::TOO_MUCH_THREADGROUP)
            .then(|| Box::new(ThreadPosition { threadgroup: f.threadgroup, thread: f.thread }));
        Fault { function: self.pipeline.function.name.clone(), kind, location, thread }
    }

    /// Source location of a code address: the innermost one outside the emulator's own headers.
    fn locate(&self, code: u64) -> Option<Location> {
        let output = Command::new("addr2line")
            .args(["-i", "-e"])
            .arg(&self.pipeline.library)
            .arg(format!("{code:#x}"))
            .output()
            .ok()?;
        let text = String::from_utf8_lossy(&output.stdout);
        let places = text.lines().filter_map(|line| {
            let (file, rest) = line.rsplit_once(':')?;
            let digits = rest.split(|c: char| !c.is_ascii_digit()).next()?;
            // Sources were compiled as if they were in this folder.
            let file = file.strip_prefix("/metal/")?;
            let file = file.strip_prefix("./").unwrap_or(file);
            Some(Location { file: file.to_owned(), line: digits.parse().ok().filter(|n| *n > 0)? })
        });
        places.into_iter().find(|p| !p.file.starts_with('<'))
    }

    fn count(&self, c: &MslCounters, list: &[MslBuffer], sectors: &Sectors) -> Counters {
        let buffers = if self.pipeline.mode.counting {
            let traffic = |(n, b): (usize, &MslBuffer)| BufferTraffic {
                index: b.index,
                by_value: n >= self.buffers.len(),
                read: c.read[n],
                written: c.written[n],
                read_once: sectors.bytes(2 * n),
                written_once: sectors.bytes(2 * n + 1),
            };
            list.iter().enumerate().map(traffic).collect()
        } else {
            Vec::new()
        };
        let [shuffles, reductions, votes, matrix_multiplies, barriers, tensor_products] = c.operations;
        Counters {
            threadgroups: c.threadgroups,
            threads: c.threads,
            threadgroup_barriers: c.threadgroup_barriers,
            simdgroup: SimdgroupInstructions {
                shuffles,
                reductions,
                votes,
                matrix_multiplies,
                barriers,
                tensor_products,
            },
            threadgroup_read: c.threadgroup_read,
            threadgroup_written: c.threadgroup_written,
            steps: c.steps,
            buffers,
            resources: Vec::new(),
        }
    }
}

pub(crate) fn order_of(order: LaneOrder) -> (u32, u64) {
    match order {
        LaneOrder::Forward => (0, 0),
        LaneOrder::Reverse => (1, 0),
        LaneOrder::Random(seed) => (2, seed),
    }
}

/// A dispatch shared by several threads.
struct Shared<'a>(&'a MslDispatch);
// SAFETY: Workers only read the dispatch, except for the two counters that it points to, which are
// atomic.
unsafe impl Sync for Shared<'_> {}

fn add(to: &mut MslCounters, from: &MslCounters) {
    to.threadgroups += from.threadgroups;
    to.threads += from.threads;
    to.threadgroup_barriers += from.threadgroup_barriers;
    to.threadgroup_read += from.threadgroup_read;
    to.threadgroup_written += from.threadgroup_written;
    to.switches += from.switches;
    to.steps += from.steps;
    let pairs = [
        (&mut to.operations[..], &from.operations[..]),
        (&mut to.read, &from.read),
        (&mut to.written, &from.written),
    ];
    for (to, from) in pairs {
        to.iter_mut().zip(from).for_each(|(a, b)| *a += b);
    }
}

/// The buffer whose range is nearest to an address: index, offset from its start, length.
fn nearest(address: u64, list: &[MslBuffer]) -> Option<(u32, i64, u64)> {
    let distance = |b: &MslBuffer| {
        let start = b.address as u64;
        if address < start {
            start - address
        } else {
            address.saturating_sub(start + b.length.saturating_sub(1))
        }
    };
    let b = list.iter().min_by_key(|b| distance(b))?;
    // Larger than the distance of any likely out-of-bounds index.
    (distance(b) < 1 << 36).then(|| (b.index, address.wrapping_sub(b.address as u64) as i64, b.length))
}

/// Bitmaps of 32-byte sectors: two for each binding, reads and writes.
#[derive(Default)]
struct Sectors(Vec<Vec<u64>>);

impl Sectors {
    fn attach(&mut self, list: &mut [MslBuffer]) {
        for b in list {
            let words = (b.length / 32 + 2).div_ceil(64) as usize;
            for to in [&mut b.read_sectors, &mut b.written_sectors] {
                let mut bits = vec![0u64; words];
                *to = bits.as_mut_ptr();
                self.0.push(bits);
            }
        }
    }

    fn bytes(&self, n: usize) -> u64 {
        32 * self.0[n].iter().map(|w| u64::from(w.count_ones())).sum::<u64>()
    }
}

//! Submitted work of the emulated GPU: its groups, the order in which they run, and what a fault
//! says.

use super::{EmulatedBuffer, EmulatedGpu, EmulatedPipeline, failed, lock};
use crate::gpu::{Dispatch, Encoder, threadgroup_length};
use crate::kernels::Kernel;
use device::{Error, Result};
use device_lower::table::{Location, Operand};
use metal_emulator as emulator;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

/// The trace of a dispatch.
#[derive(Clone, Debug)]
pub struct Traced {
    /// The kernel's file.
    pub file: &'static str,
    /// The kernel's function.
    pub function: String,
    /// Threadgroups of the grid.
    pub threadgroups: [u32; 3],
    /// True if a barrier precedes it.
    pub after_barrier: bool,
    /// True if it is the first of its command buffer.
    pub is_first: bool,
    /// Memory accesses and operations of the dispatch.
    pub counters: emulator::Counters,
}

/// Submitted work, in order.
pub(super) type Queue = Arc<Mutex<VecDeque<Arc<Submitted>>>>;

/// A dispatch that waits for the end of its group.
pub(super) struct Waiting {
    pipeline: EmulatedPipeline,
    /// The binding, the address of its buffer.
    bindings: Vec<(Operand, *const EmulatedBuffer)>,
    arguments: Vec<u8>,
    /// Length of threadgroup memory that the encoder has, whether the kernel uses it or not.
    threadgroup_length: u32,
    threadgroups: [u32; 3],
    threads: [u32; 3],
}

// SAFETY: the addresses are of buffers, which any thread may use. They live until the ticket of the
// submission is dropped, and the drop runs the rest of the submission.
unsafe impl Send for Waiting {}

/// A buffer that dispatches reach through addresses.
pub(super) struct Reached(*const EmulatedBuffer);

// SAFETY: as of `Waiting`.
unsafe impl Send for Reached {}

/// The groups of one submission.
#[derive(Default)]
pub struct EmulatedEncoder {
    pub(super) reached: Vec<Reached>,
    pub(super) groups: Vec<Vec<Waiting>>,
    group: Vec<Waiting>,
    /// Length of threadgroup memory at index 0, which stays from one dispatch to the next.
    threadgroup_length: u32,
}

/// Work on its way.
pub(super) struct Work {
    pub(super) reached: Vec<Reached>,
    pub(super) groups: Vec<Vec<Waiting>>,
    pub(super) order: emulator::LaneOrder,
    pub(super) run: emulator::RunOptions,
    pub(super) watchdog: Option<Duration>,
    pub(super) trace: Arc<Mutex<Option<Vec<Traced>>>>,
}

/// Work, and how it ended.
pub(super) struct Submitted {
    /// `None`: it has run.
    pub(super) work: Mutex<Option<Work>>,
    /// Seconds of the submission, or the error's text.
    pub(super) ended: OnceLock<std::result::Result<f64, String>>,
}

/// Submitted work, which runs when somebody waits for it.
pub struct EmulatedTicket {
    pub(super) submitted: Arc<Submitted>,
    pub(super) queue: Queue,
}

impl EmulatedTicket {
    /// Runs all submitted work up to this ticket's.
    pub(super) fn finish(&self) {
        // Held while work runs, so that no one else finds the queue empty before.
        let mut queue = lock(&self.queue);
        while self.submitted.ended.get().is_none() {
            let Some(next) = queue.pop_front() else { return };
            if let Some(work) = lock(&next.work).take() {
                next.ended.get_or_init(|| work.run());
            }
        }
    }
}

impl Drop for EmulatedTicket {
    /// Runs the work, so that its buffers may be freed afterwards.
    fn drop(&mut self) {
        self.finish();
    }
}

impl Work {
    /// Run all groups up to the first fault, which is given in words, or the seconds.
    fn run(self) -> std::result::Result<f64, String> {
        let begun = Instant::now();
        let mut seconds = 0.0;
        // SAFETY: as in `dispatch`.
        let reached = self.reached.iter().map(|Reached(buffer)| unsafe { &(**buffer).buffer });
        let resources: Vec<_> = reached.map(emulator::Resource::write).collect();
        let mut is_first = true;
        for (index, group) in self.groups.iter().enumerate() {
            for (place, waiting) in self.in_order(group).into_iter().enumerate() {
                let after_barrier = index > 0 && place == 0;
                let done = self.dispatch(waiting, &resources, after_barrier, is_first);
                seconds += done.map_err(|error| match error {
                    Error::Failed { reason, .. } => reason,
                    error => error.to_string(),
                })?;
                if self.watchdog.is_some_and(|most| seconds > most.as_secs_f64()) {
                    let function = &waiting.pipeline.lazy.kernel.function;
                    return Err(format!(
                        "watchdog: a command buffer of at least {seconds:.1} s on an M1 with 8 cores, \
                         up to {function}; macOS ends it"
                    ));
                }
                is_first = false;
            }
        }
        Ok(begun.elapsed().as_secs_f64())
    }

    /// The dispatches of a group in the order that was chosen.
    fn in_order<'g>(&self, group: &'g [Waiting]) -> Vec<&'g Waiting> {
        let mut group: Vec<&Waiting> = group.iter().collect();
        match self.order {
            emulator::LaneOrder::Forward | emulator::LaneOrder::Random(0) => {}
            emulator::LaneOrder::Reverse => group.reverse(),
            emulator::LaneOrder::Random(seed) => {
                let n = group.len();
                (1..n).for_each(|i| group.swap(i, (seed as usize).wrapping_mul(2 * i + 1) % (i + 1)));
            }
        }
        group
    }

    /// Runs a dispatch. Returns the seconds that a slow GPU needs at least.
    fn dispatch(
        &self,
        waiting: &Waiting,
        resources: &[emulator::Resource],
        after_barrier: bool,
        is_first: bool,
    ) -> Result<f64> {
        let pipeline = waiting.pipeline.load()?;
        let bindings: Vec<emulator::Binding> = waiting
            .bindings
            .iter()
            .map(|(binding, buffer)| {
                // SAFETY: the program's buffers live until the ticket is dropped, and the drop runs
                // the rest of its submission.
                let buffer = unsafe { &(**buffer).buffer };
                let bound = emulator::Binding::new(u32::from(binding.index), buffer);
                let bound = bound.at(binding.location.offset as usize);
                if binding.len > 0 { bound.limit(binding.len as usize) } else { bound }
            })
            .collect();
        let bytes = [(0, waiting.arguments.as_slice())];
        let dispatch = emulator::Dispatch {
            pipeline,
            buffers: &bindings,
            resources,
            bytes: if waiting.arguments.is_empty() { &[] } else { &bytes },
            threadgroup_memory: &[(0, waiting.threadgroup_length)],
            threadgroups: waiting.threadgroups,
            threads_per_threadgroup: waiting.threads,
        };
        let counters = dispatch.run(&self.run).map_err(|fault| {
            let is_memory = matches!(fault.kind, emulator::FaultKind::TooMuchThreadgroupMemory { .. });
            let length = format!("; {} of them by the encoder's length", waiting.threadgroup_length);
            failed(&format!("{fault}{}", if is_memory { length.as_str() } else { "" }))
        })?;
        let seconds = counters.seconds();
        if let Some(trace) = lock(&self.trace).as_mut() {
            let Kernel { file, function } = waiting.pipeline.lazy.kernel.clone();
            let threadgroups = waiting.threadgroups;
            trace.push(Traced { file, function, threadgroups, after_barrier, is_first, counters });
        }
        Ok(seconds)
    }
}

impl Encoder<EmulatedGpu> for EmulatedEncoder {
    fn reach(&mut self, buffer: &EmulatedBuffer) {
        self.reached.push(Reached(buffer));
    }

    fn dispatch(&mut self, dispatch: &Dispatch<'_, EmulatedGpu>, buffers: &[EmulatedBuffer]) {
        let bound = |operand: &Operand| {
            let (offset, len) = dispatch.bytes_of(operand);
            let location = Location { offset, ..operand.location };
            let buffer = buffers.get(location.buffer as usize)?;
            Some((Operand { location, len, ..*operand }, &raw const *buffer))
        };
        let (threadgroups, threads) = dispatch.pipeline.fitted.grid(dispatch.threadgroups, dispatch.threads);
        let set = threadgroup_length(self.threadgroup_length, dispatch.threadgroup_bytes);
        self.threadgroup_length = set.unwrap_or(self.threadgroup_length);
        self.group.push(Waiting {
            pipeline: dispatch.pipeline.clone(),
            bindings: dispatch.operands.iter().filter_map(bound).collect(),
            arguments: dispatch.arguments.to_vec(),
            threadgroup_length: self.threadgroup_length,
            threadgroups,
            threads,
        });
    }

    fn barrier(&mut self) {
        self.groups.push(std::mem::take(&mut self.group));
    }
}

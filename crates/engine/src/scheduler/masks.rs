//! Masks of the submitted step. Sequences lend their constraints to the mask worker, and get them
//! back with the step.

use device::Masks;

use super::Scheduler;
use crate::constraint::{MaskJob, MaskWorker};
use crate::{Error, Result};

impl Scheduler {
    /// Create the mask worker, unless it exists. The device computes on `n_threads` threads.
    ///
    /// # Errors
    /// The system cannot start a thread.
    pub(crate) fn need_masks(&mut self, n_threads: usize) -> Result<()> {
        if self.masks.is_none() {
            let n_cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
            let has_core = n_cores > n_threads;
            let worker = MaskWorker::new(self.n_vocab, self.limits.max_spans, self.max_draft(), has_core);
            let worker = worker.map_err(|e| Error::Thread { what: "masks", reason: e.to_string() })?;
            self.masks = Some(worker);
        }
        Ok(())
    }

    /// Start computing the masks of the filled step, which is about to be submitted.
    pub(crate) fn begin_masks(&mut self) {
        let (Some(worker), Some(flight)) = (&self.masks, self.spare.last()) else { return };
        for span in &flight.spans {
            let (Some(first), Some(sequence)) = (span.first_mask, &mut self.slots[span.slot]) else {
                continue;
            };
            let Some(constraint) = sequence.constraint.take() else { continue };
            let draft = std::mem::take(&mut sequence.draft);
            self.mask_jobs.push(MaskJob { slot: span.slot, constraint, draft, first, error: None });
        }
        if !self.mask_jobs.is_empty() {
            worker.start(&mut self.mask_jobs);
        }
    }

    /// Masks of the step, between [`Self::begin_masks`] and [`Self::end_masks`].
    pub(crate) fn masks(&self) -> Masks<'_> {
        match &self.masks {
            Some(worker) if self.buffers.n_masks() > 0 => Masks::Later(worker.source()),
            Some(_) | None => Masks::default(),
        }
    }

    /// Return the constraints to their sequences, after the step was submitted or failed.
    pub(crate) fn end_masks(&mut self) {
        let Some(worker) = self.masks.as_ref().filter(|_| self.buffers.n_masks() > 0) else { return };
        worker.finish(&mut self.mask_jobs);
        for MaskJob { slot, constraint, draft, first: _, error } in self.mask_jobs.drain(..) {
            let Some(sequence) = &mut self.slots[slot] else { continue };
            (sequence.constraint, sequence.draft) = (Some(constraint), draft);
            sequence.failed = sequence.failed.take().or(error);
        }
    }
}

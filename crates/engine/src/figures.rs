//! Counters of an engine for monitoring and admission, and warm-up steps.

use std::time::{Duration, Instant};

use crate::{Engine, Error, Overflow, Request, Result, SamplingParams};

/// Current load of an engine, and its totals since it was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineLoad {
    /// Sequences in slots.
    pub n_running: usize,
    /// Number of slots.
    pub n_slots: usize,
    /// Sequences that wait for a slot, parked ones included.
    pub n_waiting: usize,
    /// Parked sequences: they had a slot, released it, and wait to resume.
    pub n_parked: usize,
    /// Number of times that a sequence was parked for lack of memory.
    pub n_times_parked: u64,
    /// Prompt tokens that were computed.
    pub n_computed: u64,
    /// Prompt tokens that were found in the cache.
    pub n_cached: u64,
    /// Tokens of answers.
    pub n_generated: u64,
    /// Bytes of KV pages held by sequences and cached prefixes.
    pub kv_bytes_used: u64,
    /// Largest number of bytes of KV pages at present; `u64::MAX`: limited only by the program's
    /// pool.
    pub kv_bytes_budget: u64,
}

impl Engine {
    /// Current load and totals. Costs one look at each sequence.
    pub fn load(&self) -> EngineLoad {
        let totals = &self.scheduler.totals;
        EngineLoad {
            n_running: self.n_running(),
            n_slots: self.scheduler.n_slots(),
            n_waiting: self.n_waiting(),
            n_parked: self.scheduler.n_parked_now(),
            n_times_parked: self.n_parked(),
            n_computed: totals.n_computed,
            n_cached: totals.n_cached,
            n_generated: totals.n_generated,
            kv_bytes_used: self.kv().held_bytes(),
            kv_bytes_budget: self.kv().allowed_bytes(),
        }
    }

    /// Expected seconds to the first token of a new request with a prompt of `n_tokens`, of which
    /// nothing is cached. The prediction uses the times of steps and answers so far; `None` until a
    /// step with prompts was seen.
    pub fn predicted_first_token_seconds(&self, n_tokens: usize) -> Option<f64> {
        self.scheduler.predicted_first_token(n_tokens)
    }

    /// Run steps with every number of sequences, with and without prompts of every class of
    /// lengths, greedy and sampled. This does the work that a device does at first use. It takes
    /// about `most`, the smallest steps first. It leaves nothing in the prefix cache or in
    /// [`Self::load`], but the scheduler knows the times of steps afterwards. Returns a description
    /// of the steps that there was no time for.
    ///
    /// # Errors
    /// [`Error::Busy`] unless the engine is idle; the device failed, or a sequence did.
    pub fn warm_up(&mut self, most: Duration) -> Result<Option<String>> {
        let n_slots = self.scheduler.n_slots();
        if !self.is_idle() {
            return Err(Error::Busy { what: "warming up", n_sequences: n_slots });
        }
        let before = self.scheduler.totals;
        let until = Instant::now() + most;
        let warmed = self.warm(SamplingParams::greedy(), 1, until).and_then(|left| match left {
            Some(left) => Ok(Some(left)),
            None => {
                self.scheduler.forget_times();
                // Two long prompts tell the cost of rows from noise.
                let sampled = SamplingParams { seed: Some(0), ..SamplingParams::default() };
                Ok(self.warm(sampled, 2, until)?.map(|left| format!("{left}, sampled")))
            }
        });
        self.scheduler.totals = before;
        warmed
    }

    /// Add one sequence in each step until all slots are taken, then let them end. Each prompt is
    /// twice as long as the one before it, up to a full chunk, which the last `n_long` have.
    /// Returns a description of the steps that there was no time for.
    fn warm(&mut self, sampling: SamplingParams, n_long: usize, until: Instant) -> Result<Option<String>> {
        let n_slots = self.scheduler.n_slots();
        let Some(most) = self.limits.n_ctx.checked_sub(1) else { return Ok(None) };
        let max_tokens = (n_slots + 4).min(most);
        let longest = self.limits.max_rows.min(most.saturating_sub(max_tokens));
        let n_vocab = self.model.n_vocab();
        let mut failed = None;
        let mut on_event = |event: crate::Event<'_>| {
            if let crate::Event::Done { reason: crate::FinishReason::Failed(reason), .. } = event {
                failed = Some(reason.clone());
            }
        };
        let (mut last, mut left, mut ids) = ((1, 0.0), None, Vec::with_capacity(n_slots));
        for index in 0..n_slots {
            let halvings = (n_slots - index).saturating_sub(n_long) as u32;
            let n_prompt = longest.checked_shr(halvings).unwrap_or(0).max(1);
            let begun = Instant::now();
            // The time of a prompt grows about with its length.
            let expected = last.1 * n_prompt as f64 / last.0 as f64;
            let ends = Duration::try_from_secs_f64(expected).ok().and_then(|time| begun.checked_add(time));
            if ends.is_none_or(|ends| ends > until) {
                left = Some(format!("prompts of {n_prompt} tokens and more beside {index} answers"));
                break;
            }
            let request = Request {
                sampling: sampling.clone(),
                max_tokens: Some(max_tokens),
                ignore_end: true,
                overflow: Overflow::Stop,
                reuse: false,
                ..Request::new((index..index + n_prompt).map(|i| (i % n_vocab) as u32).collect())
            };
            ids.push(self.add(request)?);
            self.step(&mut on_event)?;
            last = (n_prompt, begun.elapsed().as_secs_f64());
        }
        while self.step(&mut on_event)? {
            if Instant::now() > until && left.is_none() {
                left = Some("steps of fewer answers".into());
            }
            if left.is_some() {
                ids.iter().for_each(|id| self.cancel(*id));
            }
        }
        match failed {
            None => Ok(left),
            Some(reason) => Err(Error::SequenceFailed(reason)),
        }
    }
}

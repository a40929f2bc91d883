//! The way of a step into its pinned region, with how its tokens are chosen.

use super::CudaProgram;
use super::chain::Chained;
use crate::arguments::{Bias, Choice, Copy, Span};
use crate::driver::NAME;
use crate::persistent::MOST_IN_TURN;
use device::{Choose, Error, GroupUse, Needs, Penalties, Result, STATE_NONE, Slice, Step, Want};
use device_lower::ahead::{LINKED, NO_TOKEN, SamplingWords, has_kernels, n_penalised};
use device_lower::table::StepSizes;

/// How kernels choose (`CHOOSE_*`, step.h).
const CHOOSE_BEST: u32 = 1;
const CHOOSE_SAMPLE: u32 = 2;

/// Ranges of a region that are copied to the GPU.
pub(super) const N_COPIES: usize = 8;

/// A step that was written into its region.
#[derive(Clone, Copy)]
pub(super) struct Begun {
    /// Its ticket, if it gets one.
    pub ticket: u64,
    /// Its plan.
    pub plan: usize,
    /// What its table needs to know.
    pub sizes: StepSizes,
    /// What of its region the GPU needs, in words.
    pub copies: [Copy; N_COPIES],
    /// As a step that may share a launch with others: where it stands. `None`: it may not.
    pub chained: Option<Chained>,
    /// Steps that follow in the same launch.
    pub more_steps: u32,
    /// Of its first rows: which of its sequences they belong to.
    pub sequences: [u32; MOST_IN_TURN],
    /// Whether tokens are chosen at all, and by kernels where they can.
    chooses: bool,
    /// Whether its region has room for the tokens that have penalties or biases.
    lists_fit: bool,
}

/// Which sequences a step's first rows belong to, by their place in the step.
fn sequences_of_rows(step: &Step) -> [u32; MOST_IN_TURN] {
    std::array::from_fn(|row| {
        let has_row =
            |span: &device::Span| (span.first_row..span.first_row + span.n_rows).contains(&(row as u32));
        step.spans.iter().position(has_row).unwrap_or(0) as u32
    })
}

impl Begun {
    /// Whether kernels choose an output's token.
    fn by_kernels(&self, want: &Want) -> bool {
        self.chooses && has_kernels(want) && (self.lists_fit || !changes(want))
    }

    /// Whether the host chooses an output's token, or ranks its tokens.
    pub(super) fn by_host(&self, want: &Want) -> bool {
        (want.choose != Choose::Nothing || want.n_best > 0) && !self.by_kernels(want)
    }
}

impl CudaProgram {
    /// Check a step, and write it into the region that is its own if it is submitted next. Without
    /// `choose`, nothing is chosen.
    pub(super) fn begin(&mut self, step: &Step, choose: bool) -> Result<Begun> {
        self.context.enter()?;
        if let Err(reason) = step.check(&self.needs, &self.limits, &self.committed) {
            return self.failed(reason);
        }
        let n_in_flight = self.ahead.in_flight.len();
        if n_in_flight >= self.step.in_flight {
            return self.failed(format!("{n_in_flight} steps are in flight, expected a wait first"));
        }
        if step.is_stopped() {
            return Err(Error::Stopped { device: NAME });
        }
        let Needs { n_vocab, n_logits, .. } = self.needs[step.plan];
        let links = step.links.iter().map(|link| (link.from, n_vocab));
        let pending = step.pending.iter().map(|from| (*from, n_logits));
        for (from, n) in links.chain(pending) {
            self.ahead.check_link(from, n).or_else(|reason| self.failed(reason))?;
        }
        let mut begun = Begun {
            ticket: self.ahead.next,
            plan: step.plan,
            sizes: StepSizes::default(),
            copies: [Copy::default(); N_COPIES],
            chained: None,
            more_steps: 0,
            sequences: sequences_of_rows(step),
            chooses: choose && self.plans[step.plan].chooses,
            lists_fit: step.recent.len() <= self.step.n_recent
                && step.pending.len() <= self.step.n_pending
                && step.biases.len() <= self.step.n_biases,
        };
        let chosen = || step.wants.iter().filter(|want| begun.by_kernels(want));
        begun.sizes = StepSizes {
            n_rows: step.tokens.len(),
            n_outputs: step.outputs.len(),
            best: chosen().any(|want| want.choose == Choose::Best),
            sample: chosen().any(|want| matches!(want.choose, Choose::Sample(_))),
            penalties: chosen().any(changes),
            masks: chosen().any(|want| want.mask.is_some()),
            long: step.spans.iter().any(|span| span.end() > self.long),
            whole: choose && self.plans[step.plan].whole.takes(step),
            // No grid of this device depends on it, and graphs are kept by these sizes.
            n_spans: 0,
        };
        self.write_rows(step);
        self.write_choices(step, &begun);
        begun.copies = self.copies(step, &begun);
        begun.chained = self.chained(step, &begun);
        self.ahead.outputs_of_mut(begun.ticket).begin(step.wants.len(), n_logits);
        self.wants_logits[(begun.ticket % self.step.n_kept() as u64) as usize] =
            step.wants.iter().any(|want| want.logits);
        Ok(begun)
    }

    /// Whether somebody wants logits of a step, or may: a plan that chooses no tokens is run for its values.
    pub(super) fn wanted_logits(&self, ticket: u64) -> bool {
        self.wants_logits[(ticket % self.step.n_kept() as u64) as usize]
    }

    pub(super) fn region(&self, ticket: u64) -> usize {
        (ticket % self.step.in_flight as u64) as usize * self.step.region
    }

    /// Rows, spans, page tables and input.
    fn write_rows(&mut self, step: &Step) {
        let (at, region) = (self.step, self.region(self.ahead.next));
        let buffer = &mut self.steps;
        buffer.write(region + at.tokens, step.tokens);
        for link in step.links {
            let token = LINKED | at.chosen_at(link.from.ticket.0, link.from.output);
            buffer.write(region + at.tokens + link.row as usize * 4, &[token]);
        }
        buffer.write(region + at.outputs, step.outputs);
        buffer.write(region + at.input, step.input);
        for (index, span) in step.spans.iter().enumerate() {
            let first = span.first_row as usize;
            for row in 0..span.n_rows {
                let offset = region + (first + row as usize) * 4;
                buffer.write(at.positions + offset, &[span.first_position + row]);
                buffer.write(at.row_spans + offset, &[index as u32]);
            }
            let state = step.states.get(index);
            let mine = Span {
                first_row: span.first_row,
                n_rows: span.n_rows,
                first_position: span.first_position,
                state_from: state.map_or(STATE_NONE, |state| state.from),
                state_to: state.map_or(0, |state| state.to),
                adapter: step.adapters.get(index).copied().unwrap_or(0),
                ..Span::default()
            };
            buffer.write(region + at.spans + index * size_of::<Span>(), &[mine]);
            for (group, usage) in self.needs[step.plan].groups.iter().enumerate() {
                let n_positions = match usage {
                    GroupUse::Unused => continue,
                    GroupUse::Sequence { .. } => span.end(),
                    GroupUse::EncoderStates { n, .. } => *n,
                };
                let table = step.page_table(span.slot, group, at.n_groups);
                let n = n_positions.div_ceil(self.limits.page_len).min(at.pages_per_table);
                let first = (index * at.n_groups + group) * at.pages_per_table;
                buffer.write(region + at.page_tables + first * 4, &table[..n]);
            }
        }
        // A kernel that has a block for each row looks at as many spans.
        for index in step.spans.len()..step.tokens.len().min(self.limits.max_spans) {
            buffer.write(region + at.spans + index * size_of::<Span>(), &[Span::default()]);
        }
    }

    /// How the tokens of outputs are chosen. None of them has one so far.
    fn write_choices(&mut self, step: &Step, begun: &Begun) {
        let (at, region) = (self.step, self.region(begun.ticket));
        for (output, want) in (0u32..).zip(step.wants) {
            let place = at.chosen_at(begun.ticket, output);
            let choice = if begun.by_kernels(want) { choice_of(want) } else { Choice::default() };
            let mask = match want.mask {
                Some(_) if begun.by_kernels(want) => at.mask_at(begun.ticket, output) as u32 + 1,
                Some(_) | None => 0,
            };
            let choice = Choice { chosen: place, mask, ..choice };
            self.steps.write(region + at.choices + output as usize * size_of::<Choice>(), &[choice]);
            self.host_chosen.write(place as usize * 4, &[NO_TOKEN]);
        }
        if begun.sizes.penalties {
            self.steps.write(region + at.recent, step.recent);
            for (index, from) in step.pending.iter().enumerate() {
                let place = at.chosen_at(from.ticket.0, from.output);
                self.steps.write(region + at.pending + index * 4, &[place]);
            }
            for (index, (token, value)) in step.biases.iter().enumerate() {
                let bias = Bias { token: *token, value: *value };
                self.steps.write(region + at.biases + index * size_of::<Bias>(), &[bias]);
            }
        }
    }

    /// The masks of outputs whose tokens kernels choose, to where these find them. Waits for whoever computes them.
    pub(super) fn write_masks(&mut self, step: &Step, begun: &Begun) {
        let (at, Some(masks)) = (self.step, &mut self.masks) else { return };
        for (output, want) in (0u32..).zip(step.wants).filter(|(_, want)| begun.by_kernels(want)) {
            let Some(mask) = want.mask else { continue };
            let place = at.mask_at(begun.ticket, output);
            step.masks.with(mask, &mut |words| {
                masks.write(place * 4, &words[..words.len().min(at.mask_words)]);
            });
        }
    }

    /// What the GPU needs of the region. The parts of the first rows lie close together for small limits, so that one range
    /// may have several; what lies between is copied too.
    fn copies(&self, step: &Step, begun: &Begun) -> [Copy; N_COPIES] {
        let at = self.step;
        let n_rows = step.tokens.len() * 4;
        let n_spans = step.spans.len().max(step.tokens.len().min(self.limits.max_spans));
        let penalties = begun.sizes.penalties;
        let parts = [
            (at.tokens, n_rows),
            (at.positions, n_rows),
            (at.row_spans, n_rows),
            (at.spans, n_spans * size_of::<Span>()),
            (at.outputs, step.outputs.len() * 4),
            (at.choices, step.wants.len() * size_of::<Choice>()),
            (at.page_tables, step.spans.len() * at.n_groups * at.pages_per_table * 4),
            (at.input, step.input.len() * 4),
            (at.recent, if penalties { step.recent.len() * 4 } else { 0 }),
            (at.pending, if penalties { step.pending.len() * 4 } else { 0 }),
            (at.biases, if penalties { step.biases.len() * size_of::<Bias>() } else { 0 }),
        ];
        let mut copies = [Copy::default(); N_COPIES];
        let mut n = 0usize;
        for (start, len) in parts.into_iter().filter(|(_, len)| *len > 0) {
            let (first_word, end) = ((start / 4) as u32, (start + len).div_ceil(4) as u32);
            let joins = |last: Copy| n == N_COPIES || first_word - (last.first_word + last.n_words) <= GAP;
            if n > 0 && joins(copies[n - 1]) {
                // The last takes all that is left.
                copies[n - 1].n_words = end - copies[n - 1].first_word;
            } else {
                copies[n] = Copy { first_word, n_words: end - first_word };
                n += 1;
            }
        }
        copies
    }
}

/// Words between two parts that are copied rather than left out.
const GAP: u32 = 1024;

/// Whether an output's logits are changed by biases or penalties before its token is chosen.
fn changes(want: &Want) -> bool {
    n_penalised(want) > 0 || want.biases.len > 0
}

/// For the kernels.
fn choice_of(want: &Want) -> Choice {
    let mut choice = Choice::default();
    match want.choose {
        // The host chooses.
        Choose::Nothing | Choose::Chain(_) => return choice,
        Choose::Best => choice.how = CHOOSE_BEST,
        Choose::Sample(sampling) => {
            let SamplingWords { top_k, nucleus, random, temperature, floor } = sampling.into();
            choice = Choice { how: CHOOSE_SAMPLE, top_k, nucleus, temperature, floor, ..choice };
            (choice.random_low, choice.random_high) = (random as u32, (random >> 32) as u32);
        }
    }
    (choice.first_bias, choice.n_biases) = (want.biases.start, want.biases.len);
    if let Some(Penalties { repeat, presence, frequency }) = want.penalties {
        let Slice { start, len } = want.recent;
        (choice.first_recent, choice.n_recent) = (start, len);
        (choice.first_pending, choice.n_pending) = (want.pending.start, want.pending.len);
        (choice.repeat, choice.presence, choice.frequency) = (repeat, presence, frequency);
    }
    choice
}

//! The way of a step into its region of the step buffer, with how its tokens are chosen.

use super::{CHOSEN, MetalProgram, STEP, write};
use crate::arguments;
use crate::gpu::Gpu;
use crate::layout::PAGE_ENTRY_BYTES;
use device::{Choose, Error, GroupUse, Needs, Penalties, Result, STATE_NONE, Slice, Step, Want};
use device_lower::ahead::{self, LINKED, NO_TOKEN, SamplingWords, n_penalised};
use device_lower::table::StepSizes;

/// How kernels choose (`sampling/arguments.h`).
const CHOOSE_BEST: u32 = 1;
const CHOOSE_SAMPLE: u32 = 2;

/// A step that was written into its region.
#[derive(Clone, Copy)]
pub(super) struct Begun {
    /// Its ticket, if it gets one.
    pub ticket: u64,
    /// Its plan.
    pub plan: usize,
    /// What its table needs to know.
    pub sizes: StepSizes,
    /// Whether tokens are chosen at all, and by kernels where they can.
    chooses: bool,
    /// Whether its region has room for the tokens that have penalties.
    lists_fit: bool,
}

impl Begun {
    /// Whether kernels choose an output's token.
    fn by_kernels(&self, want: &Want) -> bool {
        self.chooses && has_kernels(want) && (self.lists_fit || n_penalised(want) == 0)
    }

    /// Whether the host chooses an output's token, or ranks its tokens.
    pub(super) fn by_host(&self, want: &Want) -> bool {
        (want.choose != Choose::Nothing || want.n_best > 0) && !self.by_kernels(want)
    }
}

/// Returns true if kernels compute everything that `want` requests of an output besides its logits.
/// There are none for masks and biases.
pub(super) fn has_kernels(want: &Want) -> bool {
    ahead::has_kernels(want) && want.mask.is_none() && want.biases.len == 0
}

impl<G: Gpu> MetalProgram<G> {
    /// Check a step, and write it into the region that is its own if it is submitted next. Without
    /// `choose`, nothing is chosen.
    pub(super) fn begin(&mut self, step: &Step, choose: bool) -> Result<Begun> {
        if let Err(reason) = step.check(&self.needs, &self.limits, self.pools.committed()) {
            return self.failed(reason);
        }
        let n_in_flight = self.ahead.in_flight.len();
        if n_in_flight >= self.step.in_flight {
            return self.failed(format!("{n_in_flight} steps are in flight, expected a wait first"));
        }
        if step.is_stopped() {
            return Err(Error::Stopped { device: G::NAME });
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
            chooses: choose && self.plans[step.plan].chooses,
            lists_fit: step.recent.len() <= self.step.n_recent && step.pending.len() <= self.step.n_pending,
        };
        let chosen = || step.wants.iter().filter(|want| begun.by_kernels(want));
        begun.sizes = StepSizes {
            n_rows: step.tokens.len(),
            n_outputs: step.outputs.len(),
            best: chosen().any(|want| want.choose == Choose::Best),
            sample: chosen().any(|want| matches!(want.choose, Choose::Sample(_))),
            penalties: chosen().any(|want| n_penalised(want) > 0),
            masks: false,
            long: step.spans.iter().any(|span| span.end() > self.profile.split_positions),
            n_spans: step.spans.len(),
            whole: false,
        };
        self.ready(self.plans[step.plan].class(&begun.sizes))?;
        self.write_rows(step);
        self.write_choices(step, &begun);
        self.ahead.outputs_of_mut(begun.ticket).begin(step.wants.len(), n_logits);
        Ok(begun)
    }

    /// Rows, spans, page tables and input.
    fn write_rows(&mut self, step: &Step) {
        let (at, region) = (self.step, self.window(self.ahead.next).start as usize);
        let MetalProgram { pools, buffers, needs, limits, ahead, .. } = self;
        let buffer = &buffers[STEP];
        pools.begin();
        let header = arguments::Step {
            n_rows: step.tokens.len() as u32,
            n_outputs: step.outputs.len() as u32,
            n_spans: step.spans.len() as u32,
            n_groups: at.n_groups as u32,
            pages_per_table: at.pages_per_table as u32,
            first_chosen: at.chosen_at(ahead.next, 0),
            ..Default::default()
        };
        write(buffer, region, &[header]);
        write(buffer, region + at.tokens, step.tokens);
        for link in step.links {
            let token = LINKED | at.chosen_at(link.from.ticket.0, link.from.output);
            write(buffer, region + at.tokens + link.row as usize * 4, &[token]);
        }
        write(buffer, region + at.outputs, step.outputs);
        write(buffer, region + at.input, step.input);
        for (index, span) in step.spans.iter().enumerate() {
            let first = span.first_row as usize;
            for row in 0..span.n_rows {
                let offset = region + (first + row as usize) * 4;
                write(buffer, at.positions + offset, &[span.first_position + row]);
                write(buffer, at.row_spans + offset, &[index as u32]);
            }
            let adapter = step.adapters.get(index).copied().unwrap_or(0);
            let (first_row, n_rows, first_position) = (span.first_row, span.n_rows, span.first_position);
            let state = step.states.get(index);
            let mine = arguments::Span {
                first_row,
                n_rows,
                first_position,
                adapter,
                state_from: state.map_or(STATE_NONE, |state| state.from),
                state_to: state.map_or(0, |state| state.to),
                ..Default::default()
            };
            write(buffer, region + at.spans + index * size_of::<arguments::Span>(), &[mine]);
            for (group, usage) in needs[step.plan].groups.iter().enumerate() {
                let n_positions = match usage {
                    GroupUse::Unused => continue,
                    GroupUse::Sequence { .. } => span.end(),
                    GroupUse::EncoderStates { n, .. } => *n,
                };
                let table = step.page_table(span.slot, group, at.n_groups);
                let n = n_positions.div_ceil(limits.page_len).min(at.pages_per_table);
                let first = (index * at.n_groups + group) * at.pages_per_table;
                let entries = region + at.page_tables + first * PAGE_ENTRY_BYTES;
                for (entry, page) in table[..n].iter().enumerate() {
                    write(buffer, entries + entry * PAGE_ENTRY_BYTES, &[pools.reach(group, *page)]);
                }
            }
        }
    }

    /// How the tokens of outputs are chosen. None of them has one so far.
    fn write_choices(&self, step: &Step, begun: &Begun) {
        let (at, buffer) = (self.step, &self.buffers[STEP]);
        let region = self.window(begun.ticket).start as usize;
        for (output, want) in (0u32..).zip(step.wants) {
            let choice = if begun.by_kernels(want) { choice_of(want) } else { arguments::Choice::default() };
            let offset = output as usize * size_of::<arguments::Choice>();
            write(buffer, region + at.choices + offset, &[choice]);
            write(&self.buffers[CHOSEN], at.chosen_at(begun.ticket, output) as usize * 4, &[NO_TOKEN]);
        }
        if begun.sizes.penalties {
            write(buffer, region + at.recent, step.recent);
            for (index, from) in step.pending.iter().enumerate() {
                let place = at.chosen_at(from.ticket.0, from.output);
                write(buffer, region + at.pending + index * 4, &[place]);
            }
        }
    }
}

/// For the kernels.
fn choice_of(want: &Want) -> arguments::Choice {
    let mut choice = arguments::Choice::default();
    match want.choose {
        // The host chooses.
        Choose::Nothing | Choose::Chain(_) => return choice,
        Choose::Best => choice.how = CHOOSE_BEST,
        Choose::Sample(sampling) => {
            let SamplingWords { top_k, nucleus, random, temperature, floor } = sampling.into();
            choice = arguments::Choice { how: CHOOSE_SAMPLE, top_k, nucleus, temperature, floor, ..choice };
            (choice.random_low, choice.random_high) = (random as u32, (random >> 32) as u32);
        }
    }
    if let Some(Penalties { repeat, presence, frequency }) = want.penalties {
        let Slice { start, len } = want.recent;
        (choice.first_recent, choice.n_recent) = (start, len);
        (choice.first_pending, choice.n_pending) = (want.pending.start, want.pending.len);
        (choice.repeat, choice.presence, choice.frequency) = (repeat, presence, frequency);
    }
    choice
}

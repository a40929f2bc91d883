//! Writing a step into its region, with how its tokens are chosen.

use crate::ahead::{LINKED, NO_TOKEN, SamplingWords, has_kernels, n_penalised};
use crate::arguments::{Bias, CHOOSE_BEST, CHOOSE_SAMPLE, Choice, Span};
use crate::layout::StepLayout;
use crate::machine::{HostPart, Machine};
use device::{Choose, GroupUse, Limits, Needs, Penalties, STATE_NONE, Slice, Step, Want};
use device_lower::table::StepSizes;

/// A step that was written into its region.
#[derive(Clone, Copy, Debug)]
pub struct Begun {
    /// The step's ticket, if the step is accepted.
    pub ticket: u64,
    /// Index of its plan.
    pub plan: usize,
    /// Sizes by which its table is chosen.
    pub sizes: StepSizes,
    /// True if tokens are chosen at all, and by kernels where there are some.
    pub chooses: bool,
    /// True if its region has room for the tokens that have penalties or biases.
    pub lists_fit: bool,
}

impl Begun {
    /// A step with the sizes of its rows. [`Self::with_choices`] adds the kernels that choose
    /// tokens.
    pub fn new(step: &Step, ticket: u64, chooses: bool, at: &StepLayout) -> Begun {
        Begun {
            ticket,
            plan: step.plan,
            sizes: StepSizes {
                n_rows: step.tokens.len(),
                n_outputs: step.outputs.len(),
                ..StepSizes::default()
            },
            chooses,
            lists_fit: step.recent.len() <= at.n_recent
                && step.pending.len() <= at.n_pending
                && step.biases.len() <= at.n_biases,
        }
    }

    /// Sets which kernels choose tokens.
    pub fn with_choices(mut self, step: &Step) -> Begun {
        let before = self;
        for want in step.wants.iter().filter(|want| before.by_kernels(want)) {
            let sizes = &mut self.sizes;
            sizes.best |= want.choose == Choose::Best;
            sizes.sample |= matches!(want.choose, Choose::Sample(_));
            sizes.penalties |= changes(want);
            sizes.masks |= want.mask.is_some();
        }
        self
    }

    /// Returns true if kernels choose an output's token.
    pub fn by_kernels(&self, want: &Want) -> bool {
        self.chooses && has_kernels(want) && (self.lists_fit || !changes(want))
    }

    /// Returns true if the host chooses an output's token, or ranks its tokens.
    pub fn by_host(&self, want: &Want) -> bool {
        (want.choose != Choose::Nothing || want.n_best > 0) && !self.by_kernels(want)
    }
}

/// Returns true if biases or penalties change an output's logits before its token is chosen.
fn changes(want: &Want) -> bool {
    n_penalised(want) > 0 || want.biases.len > 0
}

/// The regions of steps, while one of them is written.
struct Region<'a, M: Machine> {
    machine: &'a mut M,
    start: usize,
}

impl<M: Machine> Region<'_, M> {
    fn write<T: bytemuck::Pod>(&mut self, offset: usize, values: &[T]) {
        self.machine.write(HostPart::Steps, self.start + offset, bytemuck::cast_slice(values));
    }
}

/// Writes rows, spans, page tables and input.
pub fn write_rows<M: Machine>(
    machine: &mut M,
    at: &StepLayout,
    limits: &Limits,
    needs: &Needs,
    step: &Step,
    ticket: u64,
) {
    let mut region = Region { machine, start: at.region_at(ticket) };
    region.write(at.tokens, step.tokens);
    for link in step.links {
        let token = LINKED | at.chosen_at(link.from.ticket.0, link.from.output);
        region.write(at.tokens + link.row as usize * 4, &[token]);
    }
    region.write(at.outputs, step.outputs);
    region.write(at.input, step.input);
    for (index, span) in step.spans.iter().enumerate() {
        let first = span.first_row as usize;
        for row in 0..span.n_rows {
            let offset = (first + row as usize) * 4;
            region.write(at.positions + offset, &[span.first_position + row]);
            region.write(at.row_spans + offset, &[index as u32]);
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
        region.write(at.spans + index * size_of::<Span>(), &[mine]);
        for (group, usage) in needs.groups.iter().enumerate() {
            let n_positions = match usage {
                GroupUse::Unused => continue,
                GroupUse::Sequence { .. } => span.end(),
                GroupUse::EncoderStates { n, .. } => *n,
            };
            let table = step.page_table(span.slot, group, at.n_groups);
            let n = n_positions.div_ceil(limits.page_len).min(at.pages_per_table);
            let first = (index * at.n_groups + group) * at.pages_per_table;
            let offset = region.start + at.page_tables + first * at.entry_bytes;
            region.machine.write_pages(offset, group, &table[..n]);
        }
    }
    // Kernels with a threadgroup for each row read a span for each, too.
    for index in step.spans.len()..step.tokens.len().min(limits.max_spans) {
        region.write(at.spans + index * size_of::<Span>(), &[Span::default()]);
    }
}

/// Writes how the tokens of outputs are chosen. None of them has one so far.
pub fn write_choices<M: Machine>(machine: &mut M, at: &StepLayout, step: &Step, begun: &Begun) {
    let mut region = Region { machine, start: at.region_at(begun.ticket) };
    for (output, want) in (0u32..).zip(step.wants) {
        let chosen = at.chosen_at(begun.ticket, output);
        let choice = if begun.by_kernels(want) { choice_of(want) } else { Choice::default() };
        let mask = match want.mask {
            Some(_) if begun.by_kernels(want) => at.mask_at(begun.ticket, output) as u32 + 1,
            Some(_) | None => 0,
        };
        let offset = at.choices + output as usize * size_of::<Choice>();
        region.write(offset, &[Choice { chosen, mask, ..choice }]);
        region.machine.write(HostPart::Chosen, chosen as usize * 4, bytemuck::bytes_of(&NO_TOKEN));
    }
    if begun.sizes.penalties {
        region.write(at.recent, step.recent);
        for (index, from) in step.pending.iter().enumerate() {
            region.write(at.pending + index * 4, &[at.chosen_at(from.ticket.0, from.output)]);
        }
        for (index, (token, value)) in step.biases.iter().enumerate() {
            let bias = Bias { token: *token, value: *value };
            region.write(at.biases + index * size_of::<Bias>(), &[bias]);
        }
    }
}

/// Writes the masks of outputs whose tokens kernels choose. Waits for whoever computes them.
pub fn write_masks<M: Machine>(machine: &mut M, at: &StepLayout, step: &Step, begun: &Begun) {
    for (output, want) in (0u32..).zip(step.wants).filter(|(_, want)| begun.by_kernels(want)) {
        let Some(mask) = want.mask else { continue };
        let offset = at.mask_at(begun.ticket, output) * 4;
        step.masks.with(mask, &mut |words| {
            let words = &words[..words.len().min(at.mask_words)];
            machine.write(HostPart::Masks, offset, bytemuck::cast_slice(words));
        });
    }
}

/// An output's wishes as kernels read them.
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

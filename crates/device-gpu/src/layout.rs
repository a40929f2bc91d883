//! Sizes of a program's buffers other than weights and pages, computed once: the memory plan prints
//! them, and compiling allocates them.

use crate::ahead::{MOST_BIASES, MOST_PENALISED};
use crate::arguments::{Bias, Choice, Span};
use device::{Limits, Needs, Op, Plan};

/// Alignment of values and of parts of buffers, in bytes.
pub const ALIGN: usize = 256;

/// Offsets of the parts of a step in its region, in bytes. The step buffer has a region for each
/// step that may be in flight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepLayout {
    /// `(max_rows)` u32
    pub tokens: usize,
    /// `(max_rows)` u32
    pub positions: usize,
    /// `(max_rows)` u32
    pub row_spans: usize,
    /// `(max_spans)` of [`Span`]
    pub spans: usize,
    /// `(max_outputs)` u32
    pub outputs: usize,
    /// `(max_outputs)` of [`Choice`]
    pub choices: usize,
    /// `(max_spans, n_groups, pages_per_table)` entries
    pub page_tables: usize,
    /// f32 numbers of the largest input.
    pub input: usize,
    /// `(n_recent)` u32: tokens that have penalties.
    pub recent: usize,
    /// `(n_pending)` u32: indices of more of them among the chosen tokens.
    pub pending: usize,
    /// `(n_biases)` of [`Bias`]
    pub biases: usize,
    /// Maximum number of recent tokens of a step.
    pub n_recent: usize,
    /// Maximum number of pending tokens of a step.
    pub n_pending: usize,
    /// Maximum number of biases of a step.
    pub n_biases: usize,
    /// Words of the mask of an output; 0: no plan chooses tokens.
    pub mask_words: usize,
    /// Maximum number of outputs of a step.
    pub max_outputs: usize,
    /// Maximum number of steps in flight.
    pub in_flight: usize,
    /// Bytes of a region.
    pub region: usize,
    /// Entries of a page table.
    pub pages_per_table: usize,
    /// Bytes of an entry.
    pub entry_bytes: usize,
    /// KV groups.
    pub n_groups: usize,
}

impl StepLayout {
    /// The layout for a program of these plans, with page tables of u32 indices of pages.
    pub fn new(plans: &[Plan], limits: &Limits, in_flight: usize) -> StepLayout {
        StepLayout::of(plans, limits, in_flight, 0, 4)
    }

    /// The layout for a program of these plans, with page tables of u64 addresses of pages. Each
    /// region begins with a header of `header_bytes`.
    pub fn with_addresses(
        plans: &[Plan],
        limits: &Limits,
        in_flight: usize,
        header_bytes: usize,
    ) -> StepLayout {
        StepLayout::of(plans, limits, in_flight, header_bytes, 8)
    }

    fn of(
        plans: &[Plan],
        limits: &Limits,
        in_flight: usize,
        header_bytes: usize,
        entry_bytes: usize,
    ) -> StepLayout {
        let kv = plans.first().map(|plan| plan.kv.clone()).unwrap_or_default();
        let n_states = kv.groups.iter().filter_map(|group| group.encoder_states).max().unwrap_or(0);
        let pages_per_table = limits.n_ctx.max(n_states).div_ceil(limits.page_len);
        let input = |plan: &Plan| Needs::new(plan, limits).input_len(limits.max_rows, limits.max_outputs);
        let input = plans.iter().map(input).max().unwrap_or(0);
        // Most sequences have one output, and a short window.
        let n_recent = MOST_PENALISED * limits.max_spans.min(limits.max_outputs);
        let n_pending = (in_flight + 1) * limits.max_outputs;
        let n_biases = MOST_BIASES * limits.max_spans.min(limits.max_outputs);
        let chooses = |plan: &&Plan| plan.primitives().any(|op| matches!(op, Op::Argmax { .. }));
        let n_logits =
            plans.iter().filter(chooses).map(|plan| plan.value(plan.output).cols).max().unwrap_or(0);
        let mut at = header_bytes.next_multiple_of(ALIGN);
        let mut take = |bytes: usize| {
            let start = at;
            at += bytes.max(4).next_multiple_of(ALIGN);
            start
        };
        StepLayout {
            tokens: take(limits.max_rows * 4),
            positions: take(limits.max_rows * 4),
            row_spans: take(limits.max_rows * 4),
            spans: take(limits.max_spans * size_of::<Span>()),
            outputs: take(limits.max_outputs * 4),
            choices: take(limits.max_outputs * size_of::<Choice>()),
            page_tables: take(limits.max_spans * kv.groups.len() * pages_per_table * entry_bytes),
            input: take(input * 4),
            recent: take(n_recent * 4),
            pending: take(n_pending * 4),
            biases: take(n_biases * size_of::<Bias>()),
            n_recent,
            n_pending,
            n_biases,
            mask_words: n_logits.div_ceil(32),
            max_outputs: limits.max_outputs,
            in_flight,
            region: at,
            pages_per_table,
            entry_bytes,
            n_groups: kv.groups.len(),
        }
    }

    /// Entries from a span's page tables to the next one's.
    pub fn table_stride(&self) -> u32 {
        (self.n_groups * self.pages_per_table) as u32
    }

    /// Bytes of the step buffer of a GPU to which regions are copied: one for each step that a
    /// launch computes, at most `chained_steps`.
    pub fn buffer_bytes(&self, chained_steps: usize) -> usize {
        chained_steps.clamp(1, self.in_flight) * self.region
    }

    /// Bytes of the regions of all steps in flight.
    pub fn total(&self) -> usize {
        self.in_flight * self.region
    }

    /// Offset of a step's region in the step buffer, in bytes.
    pub fn region_at(&self, ticket: u64) -> usize {
        (ticket % self.in_flight as u64) as usize * self.region
    }

    /// Bytes of the masks, `(in_flight, max_outputs, mask_words)` u32.
    pub fn mask_bytes(&self) -> usize {
        self.in_flight * self.max_outputs * self.mask_words * 4
    }

    /// Index of the first word of the mask of an output of a step.
    pub fn mask_at(&self, ticket: u64, output: u32) -> usize {
        let region = (ticket % self.in_flight as u64) as usize;
        (region * self.max_outputs + output as usize) * self.mask_words
    }

    /// Steps whose chosen tokens are kept. A step may link to the step that was waited for last
    /// when it was submitted, `in_flight` steps before it. It may do so until it is waited for
    /// itself, when `in_flight - 1` later ones have been submitted.
    pub fn n_kept(&self) -> usize {
        2 * self.in_flight
    }

    /// Index of the token of an output of a step among the chosen tokens.
    pub fn chosen_at(&self, ticket: u64, output: u32) -> u32 {
        (ticket % self.n_kept() as u64) as u32 * self.max_outputs as u32 + output
    }

    /// Bytes of the chosen tokens, `(n_kept, max_outputs)` u32.
    pub fn chosen_bytes(&self) -> usize {
        self.n_kept() * self.max_outputs * 4
    }
}

/// Bytes of the parts of scratch, which units use for what no value holds. Each part is as large as
/// the unit that needs most of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parts<const N: usize>(pub [usize; N]);

impl<const N: usize> Default for Parts<N> {
    fn default() -> Parts<N> {
        Parts([0; N])
    }
}

impl<const N: usize> Parts<N> {
    /// Makes a part at least as large as `bytes`.
    pub fn raise(&mut self, part: usize, bytes: usize) {
        self.0[part] = self.0[part].max(bytes);
    }

    /// The larger of each part.
    pub fn max(self, other: Parts<N>) -> Parts<N> {
        Parts(std::array::from_fn(|part| self.0[part].max(other.0[part])))
    }

    /// Offset of a part, in bytes.
    pub fn at(&self, part: usize) -> usize {
        self.0[..part].iter().map(|bytes| bytes.next_multiple_of(ALIGN)).sum()
    }

    /// Bytes of all parts.
    pub fn total(&self) -> usize {
        self.at(N)
    }
}

//! The sizes of everything that a program takes, computed once: the memory plan prints them,
//! compiling allocates them.

use crate::arguments::{Bias, Choice, Span};
use crate::packs::experts;
use crate::products::{Experts, Products, k_tiles, partial_floats};
use crate::profile::Profile;
use device::{Limits, Needs, Op, Plan};
use device_lower::ahead::{MOST_BIASES, MOST_PENALISED};
use device_lower::lifetimes::{max_rows, value_bytes};
use device_lower::units::{LoweredUnit, Unit};

/// Alignment of values and of parts of buffers.
pub const ALIGN: usize = 256;

/// Parts of a row of logits whose bests are found side by side (`BEST_PARTS`, arguments.h).
pub const BEST_PARTS: usize = 32;

/// Where the parts of a step lie, in bytes: in the GPU's step buffer, and in the pinned region of each step that may be in
/// flight.
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
    /// `(max_spans, n_groups, pages_per_table)` u32
    pub page_tables: usize,
    /// As many f32 as the largest input has.
    pub input: usize,
    /// `(n_recent)` u32: tokens that have penalties.
    pub recent: usize,
    /// `(n_pending)` u32: places of more of them among the chosen tokens.
    pub pending: usize,
    /// `(n_biases)` of [`Bias`]
    pub biases: usize,
    /// Recent tokens of a step, at most.
    pub n_recent: usize,
    /// Pending tokens of a step, at most.
    pub n_pending: usize,
    /// Biases of a step, at most.
    pub n_biases: usize,
    /// Words of the mask of an output; 0: no plan chooses tokens.
    pub mask_words: usize,
    /// Outputs of a step, at most.
    pub max_outputs: usize,
    /// Steps that may be in flight.
    pub in_flight: usize,
    /// Bytes of a region.
    pub region: usize,
    /// Entries of a page table.
    pub pages_per_table: usize,
    /// KV groups.
    pub n_groups: usize,
}

impl StepLayout {
    /// For the plans of a program of which so many steps may be in flight.
    pub fn new(plans: &[Plan], limits: &Limits, in_flight: usize) -> StepLayout {
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
        let mut at = 0;
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
            page_tables: take(limits.max_spans * kv.groups.len() * pages_per_table * 4),
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
            n_groups: kv.groups.len(),
        }
    }

    /// Entries from a span's page tables to the next one's.
    pub fn table_stride(&self) -> u32 {
        (self.n_groups * self.pages_per_table) as u32
    }

    /// Bytes of the step buffer: a region for each step of a launch that computes several, so many at most.
    pub fn buffer_bytes(&self, chained_steps: usize) -> usize {
        chained_steps.clamp(1, self.in_flight) * self.region
    }

    /// Bytes of pinned memory.
    pub fn total(&self) -> usize {
        self.in_flight * self.region
    }

    /// Bytes of the masks, `(in_flight, max_outputs, mask_words)` u32, in pinned memory.
    pub fn mask_bytes(&self) -> usize {
        self.in_flight * self.max_outputs * self.mask_words * 4
    }

    /// Where the mask of an output of a step begins among them, in words.
    pub fn mask_at(&self, ticket: u64, output: u32) -> usize {
        let region = (ticket % self.in_flight as u64) as usize;
        (region * self.max_outputs + output as usize) * self.mask_words
    }

    /// Steps whose chosen tokens are kept. A step may ask for those of the step that was waited for last
    /// when it was submitted, `in_flight` steps before it, until it is waited for itself, when
    /// `in_flight - 1` later ones have been submitted.
    pub fn n_kept(&self) -> usize {
        2 * self.in_flight
    }

    /// Where the token of an output of a step lies among the chosen tokens.
    pub fn chosen_at(&self, ticket: u64, output: u32) -> u32 {
        (ticket % self.n_kept() as u64) as u32 * self.max_outputs as u32 + output
    }

    /// Bytes of the chosen tokens, `(n_kept, max_outputs)` u32.
    pub fn chosen_bytes(&self) -> usize {
        self.n_kept() * self.max_outputs * 4
    }
}

/// Scratch of the units of all plans: bytes that no value has, one part after the other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scratch {
    /// Partial sums of rows whose positions are split.
    pub partials: usize,
    /// Their totals.
    pub totals: usize,
    /// The best of each part of a row of logits.
    pub bests: usize,
    /// Rows in halves, for the products of many.
    pub halves: usize,
    /// Their scales.
    pub scales: usize,
    /// Partial sums of products that are split over K.
    pub sums: usize,
    /// How many of a tile's parts are there.
    pub counters: usize,
    /// Rows in the order of their experts.
    pub pairs: usize,
    /// The number of the experts' tiles, in [`TILES_AT`] bytes, and the tiles.
    pub tiles: usize,
}

/// Where the tiles of experts begin, after their number.
pub const TILES_AT: usize = 16;

impl Scratch {
    /// Of the units of a plan.
    pub fn new(plan: &Plan, units: &[LoweredUnit], limits: &Limits, profile: &Profile) -> Scratch {
        let mut scratch = Scratch::default();
        for LoweredUnit { unit, .. } in units {
            if let Some((n_heads, layer)) = unit.attention() {
                let head_dim = plan.kv.layer(layer).head_dim;
                let n = profile.most_split_rows.min(limits.max_rows) * n_heads * profile.most_splits;
                scratch =
                    scratch.max(Scratch { partials: n * head_dim * 4, totals: n * 8, ..Scratch::default() });
            }
            if let Unit::Primitive(Op::Argmax { x, .. }) = unit {
                let bests = max_rows(limits, plan.value(*x).rows) * BEST_PARTS * 8;
                scratch = scratch.max(Scratch { bests, ..Scratch::default() });
            }
            // Whole groups of 8 rows and tiles of 64 columns, as the input of packed products is laid out.
            let input = |rows: usize, cols: usize| {
                let (rows, cols) = (rows.next_multiple_of(8), 64 * k_tiles(cols));
                Scratch { halves: rows * cols * 2, scales: rows * 4, ..Scratch::default() }
            };
            if let Some((stacks, ids)) = experts(unit).filter(|_| profile.products != Products::Planes) {
                let (weight, ids) = (plan.weight(stacks[0]), plan.value(ids));
                let (n, rows) = (weight.parts.len(), max_rows(limits, ids.rows));
                let packed = Experts::packed_rows(n, ids.cols, rows);
                // Of the narrowest tile.
                let tiles = TILES_AT + 16 * (rows * ids.cols / 8 + n);
                let of_experts = Scratch { pairs: 4 * packed, tiles, ..input(packed, weight.n_cols()) };
                scratch = scratch.max(of_experts);
            }
            if let Unit::Projection(p) = unit {
                let value = plan.value(p.x);
                scratch = scratch.max(input(max_rows(limits, value.rows), value.cols));
                if profile.products != Products::Planes {
                    let sums = 4 * partial_floats(profile.n_processors);
                    let counters = 4 * profile.n_processors;
                    scratch = scratch.max(Scratch { sums, counters, ..Scratch::default() });
                }
            }
        }
        scratch
    }

    /// The larger of each.
    pub fn max(self, other: Scratch) -> Scratch {
        Scratch {
            partials: self.partials.max(other.partials),
            totals: self.totals.max(other.totals),
            bests: self.bests.max(other.bests),
            halves: self.halves.max(other.halves),
            scales: self.scales.max(other.scales),
            sums: self.sums.max(other.sums),
            counters: self.counters.max(other.counters),
            pairs: self.pairs.max(other.pairs),
            tiles: self.tiles.max(other.tiles),
        }
    }

    /// Where each part begins: in the order of the fields, then the end.
    pub fn places(&self) -> [usize; 10] {
        let mut at = 0;
        let mut places = [0; 10];
        let sizes = [
            self.partials,
            self.totals,
            self.bests,
            self.halves,
            self.scales,
            self.sums,
            self.counters,
            self.pairs,
            self.tiles,
        ];
        for (place, size) in places[1..].iter_mut().zip(sizes) {
            at += size.next_multiple_of(ALIGN);
            *place = at;
        }
        places
    }

    /// Bytes of all.
    pub fn total(&self) -> usize {
        self.places()[9]
    }
}

/// Bytes of a plan's logits.
pub fn logits_bytes(plan: &Plan, limits: &Limits) -> usize {
    value_bytes(plan.value(plan.output), limits)
}

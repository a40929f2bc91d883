//! The sizes of everything that a program takes, computed once: the memory plan prints them,
//! compiling allocates them.

use crate::arguments;
use crate::geometry::{BEST_BYTES, GEMV_ROWS, TILE_BYTES, n_tiles, partial_bytes};
use device::{Limits, Needs, Op, Plan};
use device_lower::ahead::MOST_PENALISED;
use device_lower::lifetimes::value_bytes;
use device_lower::units::{LoweredUnit, Unit};

/// Alignment of values and of parts of buffers.
pub const ALIGN: usize = 256;

/// Bytes of an entry of a page table: an address.
pub const PAGE_ENTRY_BYTES: usize = 8;

/// Where the parts of a step lie in its region, in bytes. The step buffer has a region for each step
/// that may be in flight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepLayout {
    /// `(max_rows)` u32
    pub tokens: usize,
    /// `(max_rows)` u32
    pub positions: usize,
    /// `(max_rows)` u32
    pub row_spans: usize,
    /// `(max_spans)` of [`arguments::Span`]
    pub spans: usize,
    /// `(max_outputs)` u32
    pub outputs: usize,
    /// `(max_spans, n_groups, pages_per_table)` u64: addresses of pages.
    pub page_tables: usize,
    /// As many f32 as the largest input has.
    pub input: usize,
    /// `(max_outputs)` of [`arguments::Choice`]
    pub choices: usize,
    /// `(n_recent)` u32: tokens that have penalties.
    pub recent: usize,
    /// `(n_pending)` u32: places of more of them among the chosen tokens.
    pub pending: usize,
    /// Recent tokens of a step, at most.
    pub n_recent: usize,
    /// Pending tokens of a step, at most.
    pub n_pending: usize,
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
        let mut at = size_of::<arguments::Step>().next_multiple_of(ALIGN);
        let mut take = |bytes: usize| {
            let start = at;
            at += bytes.max(4).next_multiple_of(ALIGN);
            start
        };
        StepLayout {
            tokens: take(limits.max_rows * 4),
            positions: take(limits.max_rows * 4),
            row_spans: take(limits.max_rows * 4),
            spans: take(limits.max_spans * size_of::<arguments::Span>()),
            outputs: take(limits.max_outputs * 4),
            page_tables: take(limits.max_spans * kv.groups.len() * pages_per_table * PAGE_ENTRY_BYTES),
            input: take(input * 4),
            choices: take(limits.max_outputs * size_of::<arguments::Choice>()),
            recent: take(n_recent * 4),
            pending: take(n_pending * 4),
            n_recent,
            n_pending,
            max_outputs: limits.max_outputs,
            in_flight,
            region: at,
            pages_per_table,
            n_groups: kv.groups.len(),
        }
    }

    /// Bytes of the step buffer.
    pub fn total(&self) -> usize {
        self.in_flight * self.region
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
    /// Pairs of rows and experts in the order of the experts, u32.
    pub order: usize,
    /// Tiles of these.
    pub tiles: usize,
    /// Partial sums of rows whose positions are split.
    pub partials: usize,
    /// Their totals.
    pub totals: usize,
    /// The largest product of each threadgroup of a head of one row, 8 bytes each.
    pub bests: usize,
}

impl Scratch {
    /// Of the units of a plan.
    pub fn new(plan: &Plan, units: &[LoweredUnit], limits: &Limits) -> Scratch {
        let mut scratch = Scratch::default();
        for LoweredUnit { unit, .. } in units {
            if let Some((n_heads, layer)) = unit.attention() {
                let head_dim = plan.kv.layer(layer).head_dim;
                let (partials, totals) = partial_bytes(limits.max_rows, n_heads, head_dim);
                scratch = scratch.max(Scratch { partials, totals, ..Scratch::default() });
            }
            if let Unit::Primitive(Op::Argmax { x, .. }) = unit {
                // As many as SIMD-groups at most.
                let bests = plan.value(*x).cols.div_ceil(GEMV_ROWS) * BEST_BYTES;
                scratch = scratch.max(Scratch { bests, ..Scratch::default() });
            }
            if let Some((ids, weight)) = unit.experts() {
                let order = value_bytes(plan.value(ids), limits);
                let tiles = n_tiles(plan.weight(weight).parts.len(), order / 4) * TILE_BYTES;
                scratch = scratch.max(Scratch { order, tiles, ..Scratch::default() });
            }
        }
        scratch
    }

    /// The larger of each.
    pub fn max(self, other: Scratch) -> Scratch {
        Scratch {
            order: self.order.max(other.order),
            tiles: self.tiles.max(other.tiles),
            partials: self.partials.max(other.partials),
            totals: self.totals.max(other.totals),
            bests: self.bests.max(other.bests),
        }
    }

    /// Where the order begins.
    pub fn order_at(&self) -> usize {
        0
    }

    /// Where the tiles begin.
    pub fn tiles_at(&self) -> usize {
        self.order.next_multiple_of(ALIGN)
    }

    /// Where the partial sums begin.
    pub fn partials_at(&self) -> usize {
        self.tiles_at() + self.tiles.next_multiple_of(ALIGN)
    }

    /// Where the totals begin.
    pub fn totals_at(&self) -> usize {
        self.partials_at() + self.partials.next_multiple_of(ALIGN)
    }

    /// Where the largest products begin.
    pub fn bests_at(&self) -> usize {
        self.totals_at() + self.totals.next_multiple_of(ALIGN)
    }

    /// Bytes of all.
    pub fn total(&self) -> usize {
        self.bests_at() + self.bests.next_multiple_of(ALIGN)
    }
}

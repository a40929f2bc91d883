//! The sizes of everything that a program takes, computed once: the memory plan prints them, compiling allocates them.

use crate::arguments;
use crate::compile::{attention, experts, linear};
use crate::lower::{Join, Lowered, Unit, norms_behind, parts_of, reader_behind};
use device::arena::{self, Arena};
use device::{DType, KvLayerId, Limits, Needs, Node, Op, Plan, Rows, Value, ValueId};
use std::collections::HashSet;

/// Alignment of values and of parts of buffers.
pub const ALIGN: usize = 256;

/// Tokens that a chain may have, at most.
pub const MOST_CHAINED: usize = 128;

/// Tokens before a chain that may have penalties, at most.
pub const MOST_RECENT: usize = 4096;

/// How many rows a value can have.
pub fn max_rows(limits: &Limits, rows: Rows) -> usize {
    rows.count(limits.max_rows, limits.max_outputs)
}

/// Where the parts of a step lie in its buffer, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepLayout {
    /// `(max_rows)` u32
    pub tokens: usize,
    /// `(max_rows)` u32
    pub positions: usize,
    /// `(max_rows)` u32
    pub row_spans: usize,
    /// `(max_spans)` of 16 bytes
    pub spans: usize,
    /// `(max_outputs)` u32
    pub outputs: usize,
    /// `(max_spans, n_groups, pages_per_table)` u32
    pub page_tables: usize,
    /// As many f32 as the largest input has.
    pub input: usize,
    /// `(MOST_CHAINED)` u32
    pub chosen: usize,
    /// [`arguments::Sampling`]
    pub sampling: usize,
    /// `(MOST_CHAINED)` u64, in 2^-64
    pub randoms: usize,
    /// `(MOST_RECENT + MOST_CHAINED)` u32
    pub recent: usize,
    /// Size of the whole.
    pub total: usize,
    /// Entries of a page table.
    pub pages_per_table: usize,
    /// KV groups.
    pub n_groups: usize,
}

impl StepLayout {
    /// For the plans of a program.
    pub fn new(plans: &[Plan], limits: &Limits) -> StepLayout {
        let kv = plans.first().map(|plan| plan.kv.clone()).unwrap_or_default();
        let memory = kv.groups.iter().filter_map(|group| group.memory).max().unwrap_or(0);
        let pages_per_table = limits.n_ctx.max(memory).div_ceil(limits.page_len);
        let input = |plan: &Plan| Needs::new(plan, limits).input_len(limits.max_rows, limits.max_outputs);
        let input = plans.iter().map(input).max().unwrap_or(0);
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
            page_tables: take(limits.max_spans * kv.groups.len() * pages_per_table * 4),
            input: take(input * 4),
            chosen: take(MOST_CHAINED * 4),
            sampling: take(size_of::<arguments::Sampling>()),
            randoms: take(MOST_CHAINED * 8),
            recent: take((MOST_RECENT + MOST_CHAINED) * 4),
            total: at,
            pages_per_table,
            n_groups: kv.groups.len(),
        }
    }
}

/// Bytes of a value as large as it can be.
pub fn value_bytes(value: &Value, limits: &Limits) -> usize {
    max_rows(limits, value.rows) * value.cols * 4
}

/// A place for every value that some schedule writes.
pub fn arena_of(plan: &Plan, lowered: &[Lowered], limits: &Limits) -> Arena {
    let written: HashSet<ValueId> = lowered.iter().flat_map(|l| l.unit.writes()).collect();
    let needs_internal = |_: &Op, id: ValueId| written.contains(&id);
    let options = arena::Options { align: ALIGN, in_place: true, needs_internal: &needs_internal };
    // With one row, what SelectRows writes is not copied: its readers read what it reads, which so must live as long.
    let selections = selections(plan);
    let mut lasting: Vec<(ValueId, usize)> = Vec::new();
    for (x, out) in &selections {
        let last = plan.nodes.iter().rposition(|node| node.op.reads().contains(out));
        lasting.extend(last.map(|last| (*x, last)));
    }
    // What a unit of several nodes reads must be there until the last, and what it reads to make a norm that others make too. What a branch
    // adds may be added by what reads the sum, and may be the sum of parts; norms of the sum may be made with it.
    let behind = |join: &Join, last: usize, rest: &[Lowered]| {
        reader_behind(join.out, rest).map_or(last, |(reader, _)| reader)
    };
    let mut early: Vec<(Op, usize)> = Vec::new();
    for (index, Lowered { node, last, unit }) in lowered.iter().enumerate() {
        let rest = &lowered[index + 1..];
        let mut until = *last;
        if let Unit::Join(Join { out: sum, .. }) | Unit::ExpertDownSum { residual: Some(_), out: sum, .. } =
            unit
        {
            let norms = norms_behind(*sum, rest).into_iter();
            early.extend(norms.map(|(_, out)| (Op::Columns { x: *sum, first: 0, out }, *last)));
        }
        if let Unit::Join(join) = unit {
            until = behind(join, *last, rest);
        }
        if let (Some((parts, weights)), [Lowered { unit: Unit::Join(join), last, .. }, rest @ ..]) =
            (parts_of(unit, rest), rest)
        {
            let until = behind(join, *last, rest);
            lasting.extend([(parts, until), (weights, until)]);
        }
        let of_node = plan.nodes[*node].op.reads();
        let reads = unit.reads().into_iter();
        lasting.extend(reads.filter(|x| until > *node || !of_node.contains(x)).map(|x| (x, until)));
    }
    let selected_from = |id| selections.iter().find(|(_, out)| *out == id).map(|(x, _)| *x);
    let also: Vec<_> = lasting.iter().filter_map(|(id, last)| Some((selected_from(*id)?, *last))).collect();
    lasting.extend(also);
    let mut kept = plan.clone();
    let keepers = lasting.into_iter().map(|(x, last)| (keeper(&mut kept, x), last));
    let mut inserted: Vec<(Op, usize)> = keepers.collect();
    inserted.extend(early);
    inserted.sort_by_key(|(_, last)| std::cmp::Reverse(*last));
    for (op, last) in inserted {
        kept.nodes.insert(last + 1, Node { op, layer: None });
    }
    let first_dummy = plan.values.len();
    let mut arena = arena::plan_with(
        &kept,
        |value| if value.name == KEEPER { 0 } else { value_bytes(value, limits) },
        &options,
    );
    arena.offset.truncate(first_dummy);
    arena
}

/// The inputs and outputs of SelectRows, but for those that the caller reads.
pub fn selections(plan: &Plan) -> Vec<(ValueId, ValueId)> {
    let pair = |op: &Op| match op {
        Op::SelectRows { x, out } if !plan.results().any(|id| id == *out) => Some((*x, *out)),
        _ => None,
    };
    plan.primitives().filter_map(pair).collect()
}

/// Name of a value without bytes, which only keeps others alive.
const KEEPER: &str = "keeper";

/// A node that makes `x` live as long as it stands behind others.
fn keeper(plan: &mut Plan, x: ValueId) -> Op {
    let (rows, out) = (plan.value(x).rows, ValueId(plan.values.len() as u32));
    plan.values.push(Value { name: KEEPER.to_owned(), rows, cols: 1, dtype: DType::F32 });
    Op::Columns { x, first: 0, out }
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
    pub fn new(plan: &Plan, lowered: &[Lowered], limits: &Limits) -> Scratch {
        let mut scratch = Scratch::default();
        for Lowered { unit, .. } in lowered {
            let heads = |n_heads: usize, layer: KvLayerId| (n_heads, plan.kv.layer(layer).head_dim);
            let split = match unit {
                Unit::Primitive(Op::Attention { n_heads, layer, .. })
                | Unit::Primitive(Op::CrossAttention { n_heads, layer, .. }) => Some(heads(*n_heads, *layer)),
                Unit::QkRopeKv(h) => h.chains.attention.map(|a| heads(a.n_heads, h.chains.layer)),
                Unit::QRope(q) => Some(heads(q.attention.n_heads, q.layer)),
                _ => None,
            };
            if let Some((n_heads, head_dim)) = split {
                let (partials, totals) = attention::partial_bytes(limits.max_rows, n_heads, head_dim);
                scratch = scratch.max(Scratch { partials, totals, ..Scratch::default() });
            }
            if let Unit::Primitive(Op::Argmax { x, .. }) = unit {
                // As many as SIMD-groups at most.
                let bests = plan.value(*x).cols.div_ceil(linear::GEMV_ROWS) * linear::BEST_BYTES;
                scratch = scratch.max(Scratch { bests, ..Scratch::default() });
            }
            let (ids, weight) = match unit {
                Unit::Primitive(Op::ExpertLinear { ids, weight, .. }) => (ids, weight),
                Unit::ExpertGateUp { ids, gate, .. } => (ids, gate),
                Unit::ExpertDownSum { ids, weight, .. } => (ids, weight),
                _ => continue,
            };
            let order = value_bytes(plan.value(*ids), limits);
            let n_tiles = experts::n_tiles(plan.weight(*weight).parts.len(), order / 4);
            let tiles = n_tiles * experts::TILE_BYTES;
            scratch = scratch.max(Scratch { order, tiles, ..Scratch::default() });
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lower::lower;
    use device::testing::{PlanBuilder, limits, mini_transformer};
    use device::{Activation, arena::NO_PLACE, fusion};
    use formats::BlockType;
    use std::ops::Range;

    fn place(plan: &Plan, arena: &Arena, limits: &Limits, id: ValueId) -> Range<usize> {
        let start = arena.offset[id.0 as usize];
        assert_ne!(start, NO_PLACE, "{}", plan.value(id).name);
        start..start + value_bytes(plan.value(id), limits)
    }

    /// With one row, what reads selected rows reads what they are selected from; nothing may lie over it until then.
    #[test]
    fn what_is_selected_from_lives_as_long_as_what_is_selected() {
        let plan = fusion::fuse(&mini_transformer(1, BlockType::F32), fusion::ALL);
        let limits = limits(&plan.kv);
        let arena = arena_of(&plan, &lower(&plan), &limits);
        let has_place = |id: &ValueId| arena.offset[id.0 as usize] != NO_PLACE;
        let place = |id: ValueId| place(&plan, &arena, &limits, id);
        let (mut n_selections, mut n_between) = (0, 0);
        for (from, out) in selections(&plan) {
            let x = place(from);
            let position =
                |wanted: &dyn Fn(&Op) -> bool| plan.nodes.iter().rposition(|node| wanted(&node.op));
            let select = position(&|op| op.writes().contains(&out)).unwrap();
            let last = position(&|op| op.reads().contains(&out)).unwrap();
            for other in plan.nodes[select..=last].iter().flat_map(|node| node.op.writes()).filter(has_place)
            {
                let other = place(other);
                assert!(x.end <= other.start || other.end <= x.start, "{x:?} {other:?}");
                n_between += 1;
            }
            n_selections += 1;
        }
        assert_eq!(n_selections, 2, "of the residual stream and of attention");
        assert!(n_between > n_selections);
        assert_eq!(arena.offset.len(), plan.values.len());
    }

    /// Each reader of a norm makes it for itself with few rows: what is normalised must be there until the last.
    #[test]
    fn what_several_normalise_lives_until_the_last() {
        let mut b = PlanBuilder::new(5, 64);
        let x = b.embed(64);
        let norm = b.rms_norm(x, 64);
        let router = b.linear(norm, 64, BlockType::F32, false);
        let (ids, weights) = b.route(router, 3, true, 1.0, false);
        let gate = b.expert_linear((norm, false), ids, (64, 64), BlockType::F32);
        let up = b.expert_linear((norm, false), ids, (64, 64), BlockType::F32);
        let y = b.gate(gate, up, Activation::Silu);
        // Of another type, so not with the experts' own; and a single node.
        let (gate, up) =
            (b.linear(norm, 64, BlockType::Q8_0, false), b.linear(norm, 64, BlockType::Q8_0, false));
        let dense = b.gate(gate, up, Activation::Silu);
        let y = b.expert_linear((y, true), ids, (64, 64), BlockType::F32);
        let y = b.expert_sum(y, weights);
        let y = b.add(y, dense);
        let plan = fusion::fuse(&b.finish(y), fusion::ALL);
        let limits = limits(&plan.kv);
        let lowered = lower(&plan);
        let arena = arena_of(&plan, &lowered, &limits);
        let place = |id: ValueId| place(&plan, &arena, &limits, id);
        let reads = |l: &Lowered| l.unit.reads().contains(&x);
        let (first, last) =
            (lowered.iter().position(reads).unwrap(), lowered.iter().rposition(reads).unwrap());
        assert!(last > first + 1, "{lowered:?}");
        for out in lowered[first..=last].iter().flat_map(|l| l.unit.writes()) {
            let (x, out) = (place(x), place(out));
            assert!(x.end <= out.start || out.end <= x.start, "{x:?} {out:?}");
        }
    }

    /// One dispatch makes what several nodes made: it must not write over what it reads.
    #[test]
    fn what_a_joined_unit_reads_is_apart_from_what_it_writes() {
        let mut b = PlanBuilder::new(3, 64);
        let mut x = b.embed(64);
        for layer in 0..2 {
            b.layer(Some(layer));
            let norm = b.rms_norm(x, 64);
            let router = b.linear(norm, 9, BlockType::F32, false);
            let (ids, weights) = b.route(router, 3, true, 1.0, false);
            let gate = b.expert_linear((norm, false), ids, (9, 64), BlockType::F32);
            let up = b.expert_linear((norm, false), ids, (9, 64), BlockType::F32);
            let y = b.gate(gate, up, Activation::Silu);
            let y = b.expert_linear((y, true), ids, (9, 64), BlockType::F32);
            let y = b.expert_sum(y, weights);
            x = if layer == 0 { b.add(x, y) } else { b.rms_norm(y, 64) };
        }
        let plan = b.finish(x);
        let limits = limits(&plan.kv);
        let lowered = lower(&plan);
        let arena = arena_of(&plan, &lowered, &limits);
        let place = |id: ValueId| place(&plan, &arena, &limits, id);
        let mut n = 0;
        for Lowered { unit, .. } in lowered.iter().filter(|l| l.last > l.node) {
            for (x, out) in
                unit.reads().into_iter().flat_map(|x| unit.writes().into_iter().map(move |y| (x, y)))
            {
                let (x, out) = (place(x), place(out));
                assert!(x == out || x.end <= out.start || out.end <= x.start, "{x:?} {out:?}");
            }
            n += 1;
        }
        assert_eq!(n, 4);
    }
}

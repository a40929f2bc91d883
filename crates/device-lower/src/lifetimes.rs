//! Places in one arena for every value that some schedule of some unit writes.
//!
//! A value must live as long as any schedule reads it, which can be longer than the plan says. A
//! unit made from several nodes reads all its inputs until its last node, and some work moves into
//! a later dispatch (end of `units`). The lifetimes that [`crate::arena`] derives from a plan are
//! extended by nodes of size 0, which only read.

use crate::arena::{self, Arena};
use crate::units::{Join, LoweredUnit, Unit, next_reader, norms_of_sum, parts_of};
use device::{DType, Limits, Node, Op, Plan, RowCount, Value, ValueId};
use std::collections::HashSet;

/// Largest number of rows of a value.
pub fn max_rows(limits: &Limits, rows: RowCount) -> usize {
    rows.count(limits.max_rows, limits.max_outputs)
}

/// Bytes of a value with its largest number of rows.
pub fn value_bytes(value: &Value, limits: &Limits) -> usize {
    max_rows(limits, value.rows) * value.cols * 4
}

/// Places for every value that some schedule writes, at multiples of `align` bytes.
pub fn arena_of(plan: &Plan, units: &[LoweredUnit], limits: &Limits, align: usize) -> Arena {
    let written: HashSet<ValueId> = units.iter().flat_map(|l| l.unit.writes()).collect();
    let needs_internal = |_: &Op, id: ValueId| written.contains(&id);
    let options = arena::Options { align, in_place: true, needs_internal: &needs_internal };
    // With one row, SelectRows copies nothing: the readers of its output read its input, which must
    // live equally long.
    let selections = selections(plan);
    let mut lasting: Vec<(ValueId, usize)> = Vec::new();
    for (x, out) in &selections {
        let last = plan.nodes.iter().rposition(|node| node.op.reads().contains(out));
        lasting.extend(last.map(|last| (*x, last)));
    }
    // The inputs of a unit must live until its last node, and the input of a norm that several
    // readers recompute must live until the last reader. The reader of a sum may add the branch
    // itself, and the branch may be a sum of parts. Norms of the sum may be computed in the same
    // dispatch.
    let until_read = |join: &Join, last: usize, rest: &[LoweredUnit]| {
        next_reader(join.out, rest).map_or(last, |(reader, _)| reader)
    };
    let mut early: Vec<(Op, usize)> = Vec::new();
    for (index, LoweredUnit { node, last, unit }) in units.iter().enumerate() {
        let rest = &units[index + 1..];
        let mut until = *last;
        if let Unit::Join(Join { out: sum, .. }) | Unit::ExpertDownSum { residual: Some(_), out: sum, .. } =
            unit
        {
            let norms = norms_of_sum(*sum, rest);
            // The dispatch that writes the norms also reads the terms of the sum, including the
            // unit's own parts.
            if !norms.is_empty() {
                lasting.extend(unit.reads().into_iter().chain(unit.writes()).map(|x| (x, *last)));
            }
            early.extend(norms.into_iter().map(|(_, out)| {
                (Op::Columns { x: *sum, first: 0, group: plan.value(*sum).cols, out }, *last)
            }));
        }
        if let Unit::Join(join) = unit {
            until = until_read(join, *last, rest);
        }
        if let (Some((parts, weights)), [LoweredUnit { unit: Unit::Join(join), last, .. }, rest @ ..]) =
            (parts_of(unit, rest), rest)
        {
            let until = until_read(join, *last, rest);
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
        kept.nodes.insert(last + 1, Node { op, layer: None, place: None });
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

/// Inputs and outputs of SelectRows, except outputs that the caller reads.
pub fn selections(plan: &Plan) -> Vec<(ValueId, ValueId)> {
    let pair = |op: &Op| {
        let Op::SelectRows { x, out } = op else { return None };
        (!plan.results().any(|id| id == *out)).then_some((*x, *out))
    };
    plan.primitives().filter_map(pair).collect()
}

/// Name of a value of size 0, which only extends the lifetime of other values.
const KEEPER: &str = "keeper";

/// A node that keeps `x` alive until the place where it is inserted.
fn keeper(plan: &mut Plan, x: ValueId) -> Op {
    let (rows, out) = (plan.value(x).rows, ValueId(plan.values.len() as u32));
    plan.values.push(Value { name: KEEPER.to_owned(), rows, cols: 1, dtype: DType::F32 });
    Op::Columns { x, first: 0, group: plan.value(x).cols, out }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arena::NO_PLACE;
    use crate::fusion;
    use crate::passes::{ALL, lower};
    use device::Activation;
    use device_testing::{PlanBuilder, limits, mini_transformer};
    use std::ops::Range;
    use weights::BlockType;

    const ALIGN: usize = 256;

    fn place(plan: &Plan, arena: &Arena, limits: &Limits, id: ValueId) -> Range<usize> {
        let start = arena.offset[id.0 as usize];
        assert_ne!(start, NO_PLACE, "{}", plan.value(id).name);
        start..start + value_bytes(plan.value(id), limits)
    }

    /// With one row, readers of selected rows read the original rows, which nothing may overwrite
    /// before.
    #[test]
    fn selected_rows_keep_the_original_rows_alive() {
        let plan = fusion::fuse(&mini_transformer(1, BlockType::F32), fusion::ALL);
        let limits = limits(&plan.kv);
        let arena = arena_of(&plan, &lower(&plan, ALL), &limits, ALIGN);
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

    /// One dispatch adds the products of experts to the residual stream and normalises the sum. No
    /// norm may overwrite what other rows of that dispatch still read.
    #[test]
    fn norms_computed_with_a_sum_do_not_overwrite_its_terms() {
        let mut n_sums = 0;
        for case in device_testing::check_op_cases() {
            for plan in &case.plans {
                let plan = fusion::fuse(plan, fusion::ALL);
                let units = lower(&plan, ALL);
                let arena = arena_of(&plan, &units, &case.limits, ALIGN);
                let place = |id: ValueId| place(&plan, &arena, &case.limits, id);
                for (index, LoweredUnit { unit, .. }) in units.iter().enumerate() {
                    let (Unit::ExpertDownSum { residual: Some(_), out: sum, .. }
                    | Unit::Join(Join { out: sum, .. })) = unit
                    else {
                        continue;
                    };
                    for (_, norm) in norms_of_sum(*sum, &units[index + 1..]) {
                        let norm = place(norm);
                        for x in unit.reads().into_iter().chain(unit.writes()) {
                            let x = place(x);
                            assert!(
                                x.end <= norm.start || norm.end <= x.start,
                                "{}: {x:?} {norm:?}",
                                case.name
                            );
                        }
                        n_sums += 1;
                    }
                }
            }
        }
        assert!(n_sums > 10, "{n_sums}");
    }

    /// With few rows each reader recomputes the norm, so the norm's input must live until the last
    /// reader.
    #[test]
    fn the_input_of_a_norm_lives_until_its_last_reader() {
        let mut b = PlanBuilder::new(5, 64);
        let x = b.embed(64);
        let norm = b.rms_norm(x, 64);
        let router = b.linear(norm, 64, BlockType::F32, false);
        let (ids, weights) = b.route(router, 3, true, 1.0, false);
        let gate = b.expert_linear((norm, false), ids, (64, 64), BlockType::F32);
        let up = b.expert_linear((norm, false), ids, (64, 64), BlockType::F32);
        let y = b.gate(gate, up, Activation::Silu);
        // A matrix of another type does not run beside the experts; and a single node.
        let (gate, up) =
            (b.linear(norm, 64, BlockType::Q8_0, false), b.linear(norm, 64, BlockType::Q8_0, false));
        let dense = b.gate(gate, up, Activation::Silu);
        let y = b.expert_linear((y, true), ids, (64, 64), BlockType::F32);
        let y = b.expert_sum(y, weights);
        let y = b.add(y, dense);
        let plan = fusion::fuse(&b.finish(y), fusion::ALL);
        let limits = limits(&plan.kv);
        let lowered = lower(&plan, ALL);
        let arena = arena_of(&plan, &lowered, &limits, ALIGN);
        let place = |id: ValueId| place(&plan, &arena, &limits, id);
        let reads = |l: &LoweredUnit| l.unit.reads().contains(&x);
        let (first, last) =
            (lowered.iter().position(reads).unwrap(), lowered.iter().rposition(reads).unwrap());
        assert!(last > first + 1, "{lowered:?}");
        for out in lowered[first..=last].iter().flat_map(|l| l.unit.writes()) {
            let (x, out) = (place(x), place(out));
            assert!(x.end <= out.start || out.end <= x.start, "{x:?} {out:?}");
        }
    }

    /// One dispatch does the work of several nodes: it must not overwrite its inputs.
    #[test]
    fn inputs_and_outputs_of_a_joined_unit_do_not_overlap() {
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
        let lowered = lower(&plan, ALL);
        let arena = arena_of(&plan, &lowered, &limits, ALIGN);
        let place = |id: ValueId| place(&plan, &arena, &limits, id);
        let mut n = 0;
        for LoweredUnit { unit, .. } in lowered.iter().filter(|l| l.last > l.node) {
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

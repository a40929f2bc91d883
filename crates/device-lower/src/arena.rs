//! Placement of activations in one block of memory, with offsets planned from lifetimes.
//!
//! A value lives from the node that writes it to the last node that reads it, both included. So the
//! outputs of a node never overlap its inputs, unless [`Options::in_place`] lets an element-wise
//! output replace its input. Offsets are assigned greedily, the largest value first. Each value
//! goes into the smallest gap that it fits. Gaps are between placed values with overlapping
//! lifetimes (Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net Inference", 2020,
//! section 5.2).
//!
//! Rows are symbolic in a plan, so the caller provides sizes: usually `max_rows * cols * 4` bytes
//! for values of tokens and `max_outputs * cols * 4` for values of outputs.

use device::{Op, Plan, Value, ValueId};

/// The offset of a value that has no place.
pub const NO_PLACE: usize = usize::MAX;

/// A place for every value of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arena {
    /// Offset of each value, in the unit of the sizes. [`NO_PLACE`] if no node writes the value, or
    /// if it needs no memory.
    pub offset: Vec<usize>,
    /// Size of the arena.
    pub total: usize,
}

/// Requirements of a device on its arena.
pub struct Options<'a> {
    /// Alignment of the offsets.
    pub align: usize,
    /// True if an element-wise Op outside a fused Op (Add, Scale, Activate, Gate, Rope, Softcap)
    /// may write over an input that no later node reads. Input and output then have the same
    /// offset.
    pub in_place: bool,
    /// Returns true if a value that only the parts of this fused Op use needs memory while the Op
    /// runs.
    pub needs_internal: &'a dyn Fn(&Op, ValueId) -> bool,
}

impl Default for Options<'_> {
    /// Alignment 64, nothing in place, and memory for internal values.
    fn default() -> Self {
        Options { align: 64, in_place: false, needs_internal: &|_, _| true }
    }
}

/// First and last node that use a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lifetime {
    /// The node that writes it.
    pub first: usize,
    /// The last node that reads it; the number of nodes for results, which the caller reads.
    pub last: usize,
}

impl Lifetime {
    /// Returns true if some node uses both values.
    pub fn overlaps(&self, other: &Lifetime) -> bool {
        self.first <= other.last && other.first <= self.last
    }
}

/// Lifetime of each value, from the first node that writes it; `None` if no node does.
pub fn lifetimes(plan: &Plan) -> Vec<Option<Lifetime>> {
    let mut lifetimes: Vec<Option<Lifetime>> = vec![None; plan.values.len()];
    for (index, node) in plan.nodes.iter().enumerate() {
        for id in node.op.writes() {
            let lifetime = lifetimes[id.0 as usize].get_or_insert(Lifetime { first: index, last: index });
            lifetime.last = index;
        }
        for id in node.op.reads() {
            if let Some(lifetime) = &mut lifetimes[id.0 as usize] {
                lifetime.last = index;
            }
        }
    }
    for id in plan.results() {
        if let Some(lifetime) = &mut lifetimes[id.0 as usize] {
            lifetime.last = plan.nodes.len();
        }
    }
    lifetimes
}

/// A value with a place, or several values that share one place.
struct Tenant {
    values: Vec<usize>,
    lifetime: Lifetime,
    size: usize,
}

/// Plans with the default [`Options`]. `size_of` returns the bytes (or any unit) of a value.
pub fn plan(plan: &Plan, size_of: impl Fn(&Value) -> usize) -> Arena {
    plan_with(plan, size_of, &Options::default())
}

/// A place for every value of a checked plan, fused or not. Several nodes may write a value, if a
/// device moves some of them.
pub fn plan_with(plan: &Plan, size_of: impl Fn(&Value) -> usize, options: &Options) -> Arena {
    let mut tenants = tenants(plan, size_of, options);
    tenants.sort_by_key(|t| (std::cmp::Reverse(t.size), t.lifetime.first));
    let mut arena = Arena { offset: vec![NO_PLACE; plan.values.len()], total: 0 };
    // by offset, ascending
    let mut placed: Vec<(usize, Tenant)> = Vec::with_capacity(tenants.len());
    for tenant in tenants {
        let offset = best_gap(&placed, &tenant, options.align.max(1));
        for value in &tenant.values {
            arena.offset[*value] = offset;
        }
        arena.total = arena.total.max(offset + tenant.size);
        let at = placed.partition_point(|(other, _)| *other <= offset);
        placed.insert(at, (offset, tenant));
    }
    arena
}

/// Offset of the smallest gap that the tenant fits, between placed tenants with overlapping
/// lifetimes, or the offset after all of them.
fn best_gap(placed: &[(usize, Tenant)], tenant: &Tenant, align: usize) -> usize {
    let mut best: Option<(usize, usize)> = None; // (size of the gap, offset)
    let mut end = 0usize;
    for (offset, other) in placed.iter().filter(|(_, other)| other.lifetime.overlaps(&tenant.lifetime)) {
        let start = end.next_multiple_of(align);
        if start + tenant.size <= *offset && best.is_none_or(|(size, _)| offset - start < size) {
            best = Some((offset - start, start));
        }
        end = end.max(offset + other.size);
    }
    best.map_or(end.next_multiple_of(align), |(_, offset)| offset)
}

fn tenants(plan: &Plan, size_of: impl Fn(&Value) -> usize, options: &Options) -> Vec<Tenant> {
    let lifetimes = lifetimes(plan);
    let mut tenants: Vec<Tenant> = Vec::new();
    let mut tenant_of: Vec<Option<usize>> = vec![None; plan.values.len()];
    for ((index, node), escaping) in plan.nodes.iter().enumerate().zip(plan.escaping()) {
        for id in node.op.writes() {
            let value = id.0 as usize;
            let Some(lifetime) = lifetimes[value] else { continue };
            if tenant_of[value].is_some() {
                continue;
            }
            let internal = matches!(node.op, Op::Fused { .. }) && !escaping.contains(&id);
            if internal && !(options.needs_internal)(&node.op, id) {
                continue;
            }
            let size = size_of(plan.value(id));
            let dying = |input: &ValueId| {
                let tenant = tenant_of[input.0 as usize]?;
                (tenants[tenant].lifetime.last == index && tenants[tenant].size == size).then_some(tenant)
            };
            let over = if options.in_place { replaceable(&node.op).iter().find_map(dying) } else { None };
            let tenant = over.unwrap_or(tenants.len());
            match over {
                Some(tenant) => {
                    tenants[tenant].values.push(value);
                    tenants[tenant].lifetime.last = lifetime.last;
                }
                None => tenants.push(Tenant { values: vec![value], lifetime, size }),
            }
            tenant_of[value] = Some(tenant);
        }
    }
    tenants
}

/// The inputs that the output of an Op may replace.
fn replaceable(op: &Op) -> Vec<ValueId> {
    if op.facts().may_write_over { op.reads() } else { vec![] }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fusion::{self, fuse};
    use device::{Activation, RowCount};
    use device_testing::{PlanBuilder, Rng, mini_transformer};
    use weights::BlockType;

    fn size_of(value: &Value) -> usize {
        let rows = if value.rows == RowCount::Tokens { 8 } else { 3 };
        rows * value.cols * 4
    }

    /// Asserts that two values with overlapping lifetimes do not overlap in memory, unless an
    /// output replaces the input that dies with it.
    fn check(plan: &Plan, arena: &Arena, options: &Options) {
        let lifetimes = lifetimes(plan);
        let mut live_bytes = vec![0; plan.nodes.len() + 1];
        let mut sum = 0;
        for (a, lifetime) in lifetimes.iter().enumerate() {
            let (Some(lifetime), offset) = (lifetime, arena.offset[a]) else { continue };
            if offset == NO_PLACE {
                continue;
            }
            let size = size_of(&plan.values[a]);
            assert!(offset.is_multiple_of(options.align) && offset + size <= arena.total);
            sum += size.next_multiple_of(options.align);
            // With `in_place`, an input frees its memory at the last node that reads it.
            let last =
                if options.in_place { lifetime.last.max(lifetime.first + 1) } else { lifetime.last + 1 };
            live_bytes[lifetime.first..last.min(plan.nodes.len() + 1)].iter_mut().for_each(|b| *b += size);
            for (b, other) in lifetimes.iter().enumerate().skip(a + 1) {
                let (Some(other), other_offset) = (other, arena.offset[b]) else { continue };
                if other_offset == NO_PLACE || !lifetime.overlaps(other) {
                    continue;
                }
                let other_size = size_of(&plan.values[b]);
                let apart = offset + size <= other_offset || other_offset + other_size <= offset;
                let taken_over = options.in_place
                    && offset == other_offset
                    && size == other_size
                    && lifetime.last == other.first
                    && replaceable(&plan.nodes[other.first].op).contains(&ValueId(a as u32));
                assert!(apart || taken_over, "v{a} and v{b} overlap");
            }
        }
        assert!(arena.total <= sum, "no more than all of them apart");
        assert!(arena.total >= live_bytes.into_iter().max().unwrap_or(0), "no less than what lives at once");
    }

    /// A random graph of odd widths: values are read soon, late, or never.
    fn random_plan(seed: u64) -> Plan {
        let mut rng = Rng::new(seed);
        let mut b = PlanBuilder::new(seed, 40);
        let mut values = vec![b.embed(8), b.embed(17)];
        for _ in 0..rng.below(40) {
            let x = values[rng.below(values.len())];
            let cols = b.cols(x);
            let y = match rng.below(6) {
                0 => b.linear(x, 1 + rng.below(33), BlockType::F32, false),
                1 => b.rms_norm(x, cols),
                2 => b.scale(x, 2.0),
                3 => b.activate(x, Activation::Relu),
                4 => b.add(x, x),
                _ => {
                    let same: Vec<_> = values.iter().copied().filter(|v| b.cols(*v) == cols).collect();
                    b.gate(x, same[rng.below(same.len())], Activation::Silu)
                }
            };
            values.push(y);
        }
        b.finish(values[values.len() - 1])
    }

    #[test]
    fn random_plans_never_overlap() {
        for seed in 0..200 {
            let plain = random_plan(seed);
            for graph in [fuse(&plain, fusion::ALL), plain] {
                graph.check().unwrap();
                for (align, in_place) in [(1, false), (64, false), (64, true), (4, true)] {
                    let options = Options { align, in_place, ..Options::default() };
                    check(&graph, &plan_with(&graph, size_of, &options), &options);
                }
            }
        }
    }

    #[test]
    fn a_transformer_takes_little_more_than_what_lives_at_once() {
        let graph = mini_transformer(2, BlockType::F32);
        let arena = plan(&graph, size_of);
        check(&graph, &arena, &Options::default());
        let sum: usize = graph.values.iter().map(size_of).sum();
        assert!(arena.total * 3 < sum, "{} of {sum} bytes", arena.total);
        let in_place = plan_with(&graph, size_of, &Options { in_place: true, ..Options::default() });
        assert!(in_place.total <= arena.total);
    }

    #[test]
    fn in_place_takes_over_a_dying_input_only() {
        let mut b = PlanBuilder::new(1, 16);
        let x = b.embed(8);
        let a = b.scale(x, 2.0);
        let c = b.scale(x, 3.0);
        let y = b.add(a, c);
        let graph = b.finish(y);
        let options = Options { in_place: true, ..Options::default() };
        let arena = plan_with(&graph, size_of, &options);
        let at = |id: ValueId| arena.offset[id.0 as usize];
        assert_ne!(at(a), at(x), "x is needed once more");
        assert_eq!(at(c), at(x));
        assert_eq!(at(y), at(a));
    }

    #[test]
    fn internal_values_take_a_place_only_when_needed() {
        let mut b = PlanBuilder::new(1, 16);
        let x = b.embed(8);
        let norm = b.rms_norm(x, 8);
        let y = b.linear(norm, 8, BlockType::F32, false);
        let graph = fuse(&b.finish(y), fusion::ALL);
        let options = Options { needs_internal: &|_, _| false, ..Options::default() };
        assert_eq!(plan_with(&graph, size_of, &options).offset[norm.0 as usize], NO_PLACE);
        assert_ne!(plan(&graph, size_of).offset[norm.0 as usize], NO_PLACE);
        assert_ne!(plan_with(&graph, size_of, &options).offset[y.0 as usize], NO_PLACE);
    }
}

//! Division of a plan among ranks, by rules on its Ops.
//!
//! A value is whole on each rank, divided by columns, or partial: the sum over the ranks
//! ([`Spread`]). A Linear of a whole value may divide its weight's rows, and so its output's
//! columns. A Linear of a divided value divides its weight's columns, and its output is partial.
//! Ops between the two compute each column, or each head, by itself. Attention is divided by heads,
//! and an expert's matrices like a Linear's. Where an Op needs a whole row, an AllReduce adds
//! partial values, and an AllGather collects heads and logits.
//!
//! The uses of a value decide whether to divide it. So a plan is walked several times. At first
//! every possible value is divided, and values that an Op needs whole are not divided in the next
//! walk ([`Bans`]). Attention is always divided, since keys and values are.
//!
//! A sum stays partial as long as Ops are linear in it. Only the first rank adds whole values
//! (residuals, biases) to it.

use device::{CollectiveKind, KvLayerId, Node, Op, Place, Plan, Value, ValueId, Weight, WeightId};

use crate::heads::{Heads, layout};
use crate::slice::{Cut, has_columns};
use crate::spread::Spread;

/// Values of a plan that may not be divided by columns, unless they belong to attention.
pub struct Bans {
    of: Vec<bool>,
    changed: bool,
}

/// Plan of a rank. Its weights are still whole.
pub struct Ranked {
    /// The plan, with the whole weights.
    pub plan: Plan,
    /// The rank's part of each weight.
    pub cuts: Vec<Cut>,
    /// Placement of each value of the original plan.
    pub spread: Vec<Spread>,
    /// Id on this rank of each value of the original plan; other ranks may use another id.
    pub local: Vec<ValueId>,
    /// Number of nodes of this plan that complete each node of the original plan.
    pub ends: Vec<usize>,
}

/// The plans of all ranks. `flat` has no fused nodes.
pub fn shard(flat: &Plan, heads: &[Heads], n: usize) -> Vec<Ranked> {
    let mut bans = Bans { of: vec![false; flat.values.len()], changed: true };
    let mut first = None;
    while std::mem::take(&mut bans.changed) {
        first = Some(Walk::new(flat, heads, (0, n), &mut bans).run());
    }
    let others = (1..n).map(|rank| Walk::new(flat, heads, (rank, n), &mut bans).run()).collect::<Vec<_>>();
    first.into_iter().chain(others).collect()
}

/// One walk through a plan, for one rank.
struct Walk<'a> {
    flat: &'a Plan,
    heads: &'a [Heads],
    rank: usize,
    n: usize,
    bans: &'a mut Bans,
    plan: Plan,
    /// Weights of the rank's plan: the original weight, and the part of it.
    weights: Vec<(WeightId, Cut)>,
    spread: Vec<Spread>,
    local: Vec<ValueId>,
    /// Id of each value as a whole, once it exists.
    whole: Vec<Option<ValueId>>,
    /// Id of the rank's columns of each value that is not divided, once they exist.
    part: Vec<Option<ValueId>>,
    /// Ids of each Ordinals value that are written: in full, and for the rank's heads.
    ordinals: Vec<Option<[Option<ValueId>; 2]>>,
    /// Layer and place of the node that is divided.
    of: (Option<u32>, Option<Place>),
}

impl<'a> Walk<'a> {
    fn new(flat: &'a Plan, heads: &'a [Heads], (rank, n): (usize, usize), bans: &'a mut Bans) -> Walk<'a> {
        let n_values = flat.values.len();
        Walk {
            flat,
            heads,
            rank,
            n,
            bans,
            plan: Plan {
                nodes: Vec::new(),
                weights: Vec::new(),
                kv: layout(&flat.kv, heads, n),
                ..flat.clone()
            },
            weights: Vec::new(),
            spread: vec![Spread::Whole; n_values],
            local: (0..n_values as u32).map(ValueId).collect(),
            whole: vec![None; n_values],
            part: vec![None; n_values],
            ordinals: vec![None; n_values],
            of: (None, None),
        }
    }

    fn run(mut self) -> Ranked {
        let mut ends = Vec::with_capacity(self.flat.nodes.len());
        for node in &self.flat.nodes {
            self.of = (node.layer, node.place);
            self.op(&node.op);
            ends.push(self.plan.nodes.len());
        }
        self.of = (None, None);
        for index in 0..self.flat.kept.len() {
            self.plan.kept[index] = self.whole(self.flat.kept[index]);
        }
        // The Argmax came last, and reads the same value.
        self.plan.output = self.result(self.flat.output);
        let of = |(id, _): &(WeightId, Cut)| self.flat.weight(*id).clone();
        self.plan.weights = self.weights.iter().map(of).collect::<Vec<Weight>>();
        Ranked {
            cuts: self.weights.into_iter().map(|(_, cut)| cut).collect(),
            plan: self.plan,
            spread: self.spread,
            local: self.local,
            ends,
        }
    }

    fn cols(&self, id: ValueId) -> usize {
        self.flat.value(id).cols
    }

    fn push(&mut self, op: Op) {
        let (layer, place) = self.of;
        self.plan.nodes.push(Node { op, layer, place });
    }

    /// A new value of the rank's plan, derived from a value of the original plan.
    fn beside(&mut self, id: ValueId, what: &str, cols: usize) -> ValueId {
        let Value { name, rows, dtype, .. } = self.flat.value(id);
        let value = Value { name: format!("{name}, {what}"), rows: *rows, cols, dtype: *dtype };
        self.plan.values.push(value);
        ValueId(self.plan.values.len() as u32 - 1)
    }

    fn weight(&mut self, id: WeightId, cut: Cut) -> WeightId {
        let index = self.weights.iter().position(|known| *known == (id, cut)).unwrap_or_else(|| {
            self.weights.push((id, cut));
            self.weights.len() - 1
        });
        WeightId(index as u32)
    }

    fn ban(&mut self, id: ValueId) {
        self.bans.changed |= !std::mem::replace(&mut self.bans.of[id.0 as usize], true);
    }

    fn may_divide(&self, id: ValueId) -> bool {
        !self.bans.of[id.0 as usize]
    }

    /// Groups by which a value is divided, for Ops that continue with its columns.
    fn columns_of(&self, id: ValueId) -> Option<usize> {
        match self.spread[id.0 as usize] {
            Spread::Columns(groups) => Some(groups).filter(|_| self.may_divide(id)),
            Spread::Whole | Spread::Partial => None,
        }
    }

    /// Returns true if a value is partial and no Op has reduced it yet.
    fn is_partial(&self, id: ValueId) -> bool {
        self.spread[id.0 as usize] == Spread::Partial && self.whole[id.0 as usize].is_none()
    }

    /// Id of a whole value. The value should not be divided.
    fn whole(&mut self, id: ValueId) -> ValueId {
        if self.columns_of(id).is_some() {
            self.ban(id);
        }
        self.gathered(id)
    }

    /// Id of a whole value that may be divided in one group: all ranks share the head of a large
    /// vocabulary, and logits are gathered.
    fn result(&mut self, id: ValueId) -> ValueId {
        if self.columns_of(id) == Some(1) { self.gathered(id) } else { self.whole(id) }
    }

    /// Id of a whole value, after a collective if it is divided or partial.
    fn gathered(&mut self, id: ValueId) -> ValueId {
        let index = id.0 as usize;
        if let Some(whole) = self.whole[index] {
            return whole;
        }
        let x = self.local[index];
        let (kind, what) = match self.spread[index] {
            Spread::Whole => return x,
            Spread::Partial => (CollectiveKind::AllReduce, "reduced"),
            Spread::Columns(_) => (CollectiveKind::AllGather, "gathered"),
        };
        let out = self.beside(id, what, self.cols(id));
        self.push(Op::Collective { kind, x, out });
        self.whole[index] = Some(out);
        out
    }

    /// Id of the rank's columns of a value, as one group.
    fn part(&mut self, id: ValueId) -> ValueId {
        let index = id.0 as usize;
        if matches!(self.spread[index], Spread::Columns(_)) {
            return self.local[index];
        }
        if let Some(part) = self.part[index] {
            return part;
        }
        let cols = self.cols(id) / self.n;
        let x = self.whole(id);
        let out = self.beside(id, "part", cols);
        self.push(Op::Columns { x, first: self.rank * cols, group: self.cols(id), out });
        self.part[index] = Some(out);
        out
    }

    /// Id of the KV head that this rank shares with others, taken from a value with all heads.
    fn shared_head(&mut self, id: ValueId, n_kv_heads: usize) -> ValueId {
        let x = self.whole(id);
        if n_kv_heads == 1 {
            return x;
        }
        let index = id.0 as usize;
        if let Some(part) = self.part[index] {
            return part;
        }
        let cols = self.cols(id) / n_kv_heads;
        let out = self.beside(id, "shared head", cols);
        let first = self.rank * n_kv_heads / self.n * cols;
        self.push(Op::Columns { x, first, group: self.cols(id), out });
        self.part[index] = Some(out);
        out
    }

    /// Records the placement of an Op's output.
    fn writes(&mut self, id: ValueId, spread: Spread) {
        self.spread[id.0 as usize] = spread;
        if matches!(spread, Spread::Columns(_)) {
            self.plan.values[id.0 as usize].cols = self.cols(id) / self.n;
        }
    }

    /// Pushes an Op that reads `reads` instead of its original inputs, and whole weights.
    fn emit(&mut self, op: &Op, reads: &[ValueId]) {
        self.emit_cut(op, reads, &|_| Cut::Whole);
    }

    fn emit_cut(&mut self, op: &Op, reads: &[ValueId], cut: &dyn Fn(WeightId) -> Cut) {
        let before = op.reads();
        let mut values = |id: ValueId| {
            let found = before.iter().position(|other| *other == id);
            found.and_then(|index| reads.get(index)).copied().unwrap_or(id)
        };
        let op = op.with_operands(&mut values, &mut |id| self.weight(id, cut(id)));
        self.push(op);
    }

    /// Runs an Op on whole rows.
    fn plain(&mut self, op: &Op) {
        let reads: Vec<ValueId> = op.reads().into_iter().map(|id| self.whole(id)).collect();
        self.emit(op, &reads);
    }

    /// Divides an Op that computes each column by itself, if one of its inputs is divided and all
    /// may be.
    fn each_column(&mut self, op: &Op, out: ValueId) {
        let reads = op.reads();
        let groups = reads.iter().find_map(|id| self.columns_of(*id));
        // A whole value can be divided in one group.
        let fits = |groups: usize, id: &ValueId| {
            self.columns_of(*id) == Some(groups) || (groups == 1 && self.columns_of(*id).is_none())
        };
        match groups.filter(|groups| self.may_divide(out) && reads.iter().all(|id| fits(*groups, id))) {
            Some(groups) => {
                let reads: Vec<ValueId> = reads.into_iter().map(|id| self.part(id)).collect();
                self.emit(op, &reads);
                self.writes(out, Spread::Columns(groups));
            }
            None => self.plain(op),
        }
    }

    /// Divides an Op that computes each unit of `unit` neighbouring columns by itself. `cut` is the
    /// rank's part of its weights.
    fn each_unit(&mut self, op: &Op, x: ValueId, unit: usize, cut: Cut, out: ValueId) {
        let divides = self.cols(x).is_multiple_of(self.n * unit);
        if self.columns_of(x) == Some(1) && self.may_divide(out) && divides {
            let x = self.part(x);
            self.emit_cut(op, &[x], &|_| cut);
            self.writes(out, Spread::Columns(1));
        } else {
            self.plain(op);
        }
    }

    /// Divides an Op of one value that is linear in it.
    fn linear_in(&mut self, op: &Op, x: ValueId, out: ValueId) {
        if self.is_partial(x) {
            self.emit(op, &[self.local[x.0 as usize]]);
            self.writes(out, Spread::Partial);
        } else {
            self.each_column(op, out);
        }
    }

    /// Divides an Op that adds something whole to `x`: only the first rank adds it to a partial
    /// value.
    fn adds_to(&mut self, op: &Op, x: ValueId, reads: &[ValueId], out: ValueId) {
        if self.rank == 0 {
            self.emit(op, reads);
        } else {
            self.local[out.0 as usize] = self.local[x.0 as usize];
        }
        self.writes(out, Spread::Partial);
    }

    /// Divides an Op by its rule. An Op without a rule runs whole on every rank, which is always
    /// right.
    fn op(&mut self, op: &Op) {
        if self.matrix(op) || self.columns(op) || self.heads(op) {
            return;
        }
        if let Op::Ordinals { out } = op {
            // The Op is pushed when another Op reads its output.
            self.ordinals[out.0 as usize] = Some([None, None]);
        } else if let Op::Argmax { x, .. } = op {
            let x = self.result(*x);
            self.emit(op, &[x]);
        } else {
            self.plain(op);
        }
    }

    /// Divides an Op of matrices, or of a mixture of experts. Returns false for other Ops.
    fn matrix(&mut self, op: &Op) -> bool {
        if let &Op::Linear { x, weight, bias, out } = op {
            self.linear(x, weight, bias, out);
        } else if let &Op::ExpertLinear { x, ids, weight, out } = op {
            self.expert_linear(op, x, ids, weight, out);
        } else if let &Op::ExpertBias { x, ids, bias, out } = op {
            self.expert_bias(op, x, ids, bias, out);
        } else if let &Op::ExpertSum { x, weights, out } = op {
            self.expert_sum(op, x, weights, out);
        } else {
            return false;
        }
        true
    }

    /// Divides an Op that computes each column, or each unit of columns, by itself. Returns false
    /// for other Ops.
    fn columns(&mut self, op: &Op) -> bool {
        if let &Op::Add { a, b, out } = op {
            self.add(op, a, b, out);
        } else if let &Op::Scale { x, out, .. } | &Op::SelectRows { x, out } = op {
            self.linear_in(op, x, out);
        } else if let &Op::RmsNorm { x, weight, group, out, .. } = op {
            let each_its_own = weight.is_some_and(|id| self.flat.weight(id).n_cols() != group);
            let cut = if each_its_own { Cut::Elements(1) } else { Cut::Whole };
            self.each_unit(op, x, group, cut, out);
        } else if let &Op::Rope { x, head_dim: unit, out, .. } | &Op::Columns { x, group: unit, out, .. } = op
        {
            self.each_unit(op, x, unit, Cut::Whole, out);
        } else if op.facts().is_element_wise {
            op.facts().written().for_each(|out| self.each_column(op, out));
        } else {
            return false;
        }
        true
    }

    /// Divides an Op of heads. Returns false for other Ops.
    fn heads(&mut self, op: &Op) -> bool {
        if let &Op::Join { n_heads, out, .. } = op {
            self.join(op, n_heads, out);
        } else if let &Op::KvWrite { k, v, layer } = op {
            self.kv_write(op, k, v, layer);
        } else if let &Op::Attention { q, layer, n_heads, out, .. }
        | &Op::CrossAttention { q, layer, n_heads, out, .. } = op
        {
            self.attention(op, q, layer, n_heads, out);
        } else if let &Op::SelfAttention { q, k, n_heads, out, .. } = op {
            self.self_attention(op, q, k, n_heads, out);
        } else {
            return false;
        }
        true
    }

    fn linear(&mut self, x: ValueId, weight: WeightId, bias: Option<WeightId>, out: ValueId) {
        let whole = self.flat.weight(weight);
        if self.columns_of(x) == Some(1) && has_columns(whole, self.n) {
            let (x, weight) = (self.part(x), self.weight(weight, Cut::Columns));
            let bias = bias.filter(|_| self.rank == 0).map(|id| self.weight(id, Cut::Whole));
            self.push(Op::Linear { x, weight, bias, out });
            self.writes(out, Spread::Partial);
            return;
        }
        let x = self.whole(x);
        let divides = self.may_divide(out) && whole.n_rows().is_multiple_of(self.n);
        let (rows, elements) = if divides { (Cut::Rows, Cut::Elements(1)) } else { (Cut::Whole, Cut::Whole) };
        let (weight, bias) = (self.weight(weight, rows), bias.map(|id| self.weight(id, elements)));
        self.push(Op::Linear { x, weight, bias, out });
        if divides {
            self.writes(out, Spread::Columns(1));
        }
    }

    /// Expert ids as an Op reads them; with `for_heads` the ids of matrices that belong to the
    /// rank's heads.
    fn ids(&mut self, ids: ValueId, for_heads: bool) -> ValueId {
        let Some(written) = self.ordinals[ids.0 as usize] else { return self.whole(ids) };
        if let Some(id) = written[usize::from(for_heads)] {
            return id;
        }
        let out = match for_heads {
            true => self.beside(ids, "of the rank", self.cols(ids) / self.n),
            false => ids,
        };
        self.push(Op::Ordinals { out });
        self.ordinals[ids.0 as usize] = Some(match for_heads {
            true => [written[0], Some(out)],
            false => [Some(out), written[1]],
        });
        out
    }

    fn expert_linear(&mut self, op: &Op, x: ValueId, ids: ValueId, weight: WeightId, out: ValueId) {
        let (k, n) = (self.cols(ids), self.n);
        let whole = self.flat.weight(weight);
        let own = self.cols(x) == k * whole.n_cols();
        let of = self.columns_of(x);
        if self.ordinals[ids.0 as usize].is_some() {
            // There is a matrix for each head.
            if of == Some(1) && own && k.is_multiple_of(n) && self.may_divide(out) {
                let reads = [self.part(x), self.ids(ids, true)];
                self.emit_cut(op, &reads, &|_| Cut::Matrices);
                self.writes(out, Spread::Columns(1));
            } else {
                let reads = [self.whole(x), self.ids(ids, false)];
                self.emit(op, &reads);
            }
            return;
        }
        if of == Some(k) && own && has_columns(whole, n) {
            let reads = [self.part(x), self.whole(ids)];
            self.emit_cut(op, &reads, &|_| Cut::Columns);
            self.writes(out, Spread::Partial);
            return;
        }
        let reads = [self.whole(x), self.whole(ids)];
        let n_out = self.cols(out) / k;
        if self.may_divide(out) && n_out.is_multiple_of(n) {
            self.emit_cut(op, &reads, &|_| Cut::Rows);
            self.writes(out, Spread::Columns(k));
        } else {
            self.emit(op, &reads);
        }
    }

    fn expert_bias(&mut self, op: &Op, x: ValueId, ids: ValueId, bias: WeightId, out: ValueId) {
        let k = self.cols(ids);
        let for_heads = self.ordinals[ids.0 as usize].is_some();
        if self.is_partial(x) && !for_heads {
            let reads = [self.local[x.0 as usize], self.whole(ids)];
            return self.adds_to(op, x, &reads, out);
        }
        let groups = if for_heads { 1 } else { k };
        if self.columns_of(x) == Some(groups) && self.may_divide(out) {
            let reads = [self.part(x), self.ids(ids, for_heads)];
            let n_experts = self.flat.weight(bias).n_cols() / (self.cols(x) / k);
            let cut = Cut::Elements(if for_heads { 1 } else { n_experts });
            self.emit_cut(op, &reads, &|_| cut);
            self.writes(out, Spread::Columns(groups));
        } else {
            let reads = [self.whole(x), self.ids(ids, false)];
            self.emit(op, &reads);
        }
    }

    fn expert_sum(&mut self, op: &Op, x: ValueId, weights: ValueId, out: ValueId) {
        let k = self.cols(weights);
        let weights = self.whole(weights);
        if self.is_partial(x) {
            self.emit(op, &[self.local[x.0 as usize], weights]);
            self.writes(out, Spread::Partial);
        } else if self.columns_of(x) == Some(k) && self.may_divide(out) {
            let x = self.part(x);
            self.emit(op, &[x, weights]);
            self.writes(out, Spread::Columns(1));
        } else {
            let x = self.whole(x);
            self.emit(op, &[x, weights]);
        }
    }

    fn add(&mut self, op: &Op, a: ValueId, b: ValueId, out: ValueId) {
        if self.columns_of(a).or(self.columns_of(b)).is_some() {
            return self.each_column(op, out);
        }
        match (self.is_partial(a), self.is_partial(b)) {
            (false, false) => self.plain(op),
            (true, true) => {
                self.emit(op, &[self.local[a.0 as usize], self.local[b.0 as usize]]);
                self.writes(out, Spread::Partial);
            }
            (true, false) => {
                let reads = [self.local[a.0 as usize], self.whole(b)];
                self.adds_to(op, a, &reads, out);
            }
            (false, true) => {
                let reads = [self.whole(a), self.local[b.0 as usize]];
                self.adds_to(op, b, &reads, out);
            }
        }
    }

    fn join(&mut self, op: &Op, n_heads: usize, out: ValueId) {
        let reads = op.reads();
        let divided = reads.iter().any(|id| self.columns_of(*id).is_some());
        let fits = reads.iter().all(|id| matches!(self.columns_of(*id), None | Some(1)));
        if !(divided && fits && n_heads.is_multiple_of(self.n) && self.may_divide(out)) {
            return self.plain(op);
        }
        let reads: Vec<ValueId> = reads.into_iter().map(|id| self.part(id)).collect();
        let mut mine = op.clone();
        if let Op::Join { n_heads, .. } = &mut mine {
            *n_heads /= self.n;
        }
        self.emit(&mine, &reads);
        self.writes(out, Spread::Columns(1));
    }

    fn kv_write(&mut self, op: &Op, k: ValueId, v: ValueId, layer: KvLayerId) {
        let n_kv_heads = self.flat.kv.layer(layer).n_kv_heads;
        let mut of = |id: ValueId| match self.heads[layer.0 as usize] {
            Heads::Whole => self.whole(id),
            Heads::Divided => self.part(id),
            Heads::Shared => self.shared_head(id, n_kv_heads),
        };
        let reads = [of(k), of(v)];
        self.emit(op, &reads);
    }

    fn attention(&mut self, op: &Op, q: ValueId, layer: KvLayerId, n_heads: usize, out: ValueId) {
        if self.heads[layer.0 as usize] == Heads::Whole {
            return self.plain(op);
        }
        let mine = n_heads / self.n;
        let mut op = op.clone();
        if let Op::Attention { n_heads, .. } | Op::CrossAttention { n_heads, .. } = &mut op {
            *n_heads = mine;
        }
        let q = self.part(q);
        self.emit_cut(&op, &[q], &|_| Cut::Elements(1));
        self.writes(out, Spread::Columns(1));
    }

    fn self_attention(&mut self, op: &Op, q: ValueId, k: ValueId, n_heads: usize, out: ValueId) {
        let n_kv_heads = self.cols(k) * n_heads / self.cols(q);
        let divides = n_heads.is_multiple_of(self.n) && n_kv_heads.is_multiple_of(self.n);
        if !(divides && self.columns_of(q) == Some(1) && self.may_divide(out)) {
            return self.plain(op);
        }
        let reads: Vec<ValueId> = op.reads().into_iter().map(|id| self.part(id)).collect();
        let mut op = op.clone();
        if let Op::SelfAttention { n_heads, .. } = &mut op {
            *n_heads /= self.n;
        }
        self.emit(&op, &reads);
        self.writes(out, Spread::Columns(1));
    }
}

//! Checks of each Op's values and weights.
//!
//! Past 600 lines: every Op is an arm of one match.

use std::fmt::Display;

use weights::{BlockType, Planes};

use super::{Result, Seen, written_layers};
use crate::{
    CollectiveKind, DType, KvLayer, KvLayerId, Op, OutputKind, Plan, PlanError, RowCount, StateId, Value,
    ValueId, Weight, WeightId,
};

/// A primitive and its place in the plan.
#[derive(Clone, Copy)]
pub(super) struct At<'a> {
    pub(super) plan: &'a Plan,
    pub(super) node: usize,
    pub(super) op: &'a Op,
}

impl<'a> At<'a> {
    #[cold]
    pub(super) fn fail<T>(&self, found: impl Display, expected: impl Display) -> Result<T> {
        let op = self.plan.show(self.op).to_string();
        Err(PlanError { node: self.node, op, found: found.to_string(), expected: expected.to_string() })
    }

    fn require(&self, holds: bool, found: impl FnOnce() -> String, expected: impl Display) -> Result<()> {
        if holds { Ok(()) } else { self.fail(found(), expected) }
    }

    pub(super) fn check(self, seen: &mut Seen) -> Result<()> {
        for id in self.op.reads() {
            let value = self.value(id)?;
            let written = seen.written[id.0 as usize];
            self.require(
                written,
                || format!("{id} {}, not written yet", value.name),
                "a value of an earlier op",
            )?;
        }
        self.shapes(seen)?;
        for id in self.op.writes() {
            let value = self.value(id)?;
            let written = std::mem::replace(&mut seen.written[id.0 as usize], true);
            self.require(!written, || format!("{id} {}, written before", value.name), "a value of its own")?;
        }
        Ok(())
    }

    fn shapes(self, seen: &mut Seen) -> Result<()> {
        match self.op {
            Op::Embed { table, scale, out } => {
                let out = self.float(*out)?;
                let table = self.matrix(*table, out.cols)?;
                self.rows(out, RowCount::Tokens)?;
                self.finite("scale", *scale)?;
                // Sampled tokens are columns of the logits, and rows of the embedding table in the
                // next step.
                let n_vocab = self.plan.values.get(self.plan.output.0 as usize).map_or(0, |v| v.cols);
                self.require(
                    table.n_rows() >= n_vocab || self.plan.output_kind == OutputKind::Hidden,
                    || format!("a table of {} rows", table.n_rows()),
                    format_args!("one for each of the {n_vocab} logits"),
                )
            }
            Op::RmsNorm { x, weight, eps, group, out } => {
                let x = self.same(*x, *out)?;
                self.require(
                    *group > 0 && x.cols.is_multiple_of(*group),
                    || format!("group {group}"),
                    format_args!("a divisor of the {} columns", x.cols),
                )?;
                self.require(
                    *eps >= 0.0 && eps.is_finite(),
                    || format!("eps {eps}"),
                    "a small number, not negative",
                )?;
                let len = weight.map(|w| self.weight(w)).transpose()?.map(|w| w.n_cols());
                weight.map_or(Ok(()), |w| self.vector(w, if len == Some(x.cols) { x.cols } else { *group }))
            }
            Op::Linear { x, weight, bias, out } => {
                let (x, out) = (self.float(*x)?, self.float(*out)?);
                let weight = self.matrix(*weight, x.cols)?;
                self.require(
                    out.cols == weight.n_rows(),
                    || format!("an output of {} columns", out.cols),
                    format_args!("one for each of the {} rows of {}", weight.n_rows(), weight.name),
                )?;
                self.rows(out, x.rows)?;
                bias.map_or(Ok(()), |b| self.vector(b, out.cols))
            }
            Op::Rope { x, head_dim, n_dims, frequencies, scale, out, .. } => {
                let x = self.same(*x, *out)?;
                self.rows(x, RowCount::Tokens)?;
                self.require(
                    *head_dim > 0 && x.cols.is_multiple_of(*head_dim),
                    || format!("head_dim {head_dim}"),
                    format_args!("a divisor of the {} columns", x.cols),
                )?;
                self.require(
                    *n_dims > 0 && n_dims.is_multiple_of(2) && n_dims <= head_dim,
                    || format!("n_dims {n_dims}"),
                    format_args!("an even number up to head_dim {head_dim}"),
                )?;
                self.finite("scale", *scale)?;
                self.vector(*frequencies, n_dims / 2)
            }
            Op::KvWrite { k, v, layer } => {
                let kv = self.kv_layer(*layer)?;
                for id in [*k, *v] {
                    let value = self.float(id)?;
                    self.rows(value, RowCount::Tokens)?;
                    self.columns(value, kv.n_kv_heads, kv.head_dim)?;
                }
                self.require(
                    !kv.values_are_keys || k == v,
                    || format!("values {v} beside keys {k}"),
                    "keys twice, in a layer whose values are its keys",
                )?;
                let written = std::mem::replace(&mut seen.kv[layer.0 as usize], true);
                self.require(!written, || format!("{layer}, written before"), "a layer of its own")
            }
            Op::Attention { q, layer, n_heads, scale, softcap, window, chunked, both_ways, sinks, out } => {
                let kv = self.kv_layer(*layer)?;
                self.require(
                    kv.encoder_states.is_none(),
                    || format!("{layer}, of encoder states"),
                    "positions of the sequence itself",
                )?;
                self.require(
                    seen.kv[layer.0 as usize],
                    || format!("{layer}, not written yet"),
                    "a kv_write before",
                )?;
                let q = self.same(*q, *out)?;
                self.heads(q, *n_heads, kv)?;
                self.finite("scale", *scale)?;
                if let Some(cap) = softcap {
                    self.require(
                        *cap > 0.0 && cap.is_finite(),
                        || format!("softcap {cap}"),
                        "a positive number",
                    )?;
                }
                // Positions outside the layer's window are gone from its pages.
                let kept = match (window, kv.window) {
                    (Some(0), _) | (None, Some(_)) => false,
                    (Some(seen), Some(kept)) => *seen <= kept,
                    (_, None) => true,
                };
                self.require(
                    kept,
                    || format!("window {window:?}"),
                    format_args!("at least 1 and within the layer's window {:?}", kv.window),
                )?;
                self.require(
                    !chunked || window.is_some(),
                    || "chunks without a length".to_owned(),
                    "a window of theirs",
                )?;
                self.require(
                    !(*chunked && *both_ways),
                    || "chunks that are seen both ways".to_owned(),
                    "one of the two",
                )?;
                sinks.map_or(Ok(()), |s| self.vector(s, *n_heads))
            }
            Op::Activate { x, out, .. } => self.same(*x, *out).map(drop),
            Op::Gate { gate: a, up: b, out, .. } | Op::Add { a, b, out } => {
                self.same(*a, *out)?;
                self.same(*b, *out).map(drop)
            }
            Op::Scale { x, factor, out } => {
                self.same(*x, *out)?;
                self.finite("factor", *factor)
            }
            Op::Softcap { x, cap, out } => {
                self.same(*x, *out)?;
                self.require(*cap > 0.0 && cap.is_finite(), || format!("cap {cap}"), "a positive number")
            }
            Op::Clamp { x, min, max, out } => {
                self.same(*x, *out)?;
                self.finite("min", *min)?;
                self.finite("max", *max)?;
                self.require(min <= max, || format!("from {min} to {max}"), "the least first")
            }
            Op::Columns { x, first, group, out } => {
                let (x, out) = (self.float(*x)?, self.float(*out)?);
                self.rows(out, x.rows)?;
                self.require(
                    *group > 0 && x.cols.is_multiple_of(*group),
                    || format!("groups of {group}"),
                    format_args!("a divisor of the {} columns of {}", x.cols, x.name),
                )?;
                let n_groups = x.cols / group;
                self.require(
                    out.cols.is_multiple_of(n_groups)
                        && first.checked_add(out.cols / n_groups).is_some_and(|end| end <= *group),
                    || format!("{} columns, of each of {n_groups} groups from {first} on", out.cols),
                    format_args!("some of the {} of {}", x.cols, x.name),
                )
            }
            Op::Route { x, factor, bias, groups, scales, ids, weights, .. } => {
                let (x, weights) = (self.float(*x)?, self.float(*weights)?);
                let ids = self.ids(*ids)?;
                self.rows(ids, x.rows)?;
                self.rows(weights, x.rows)?;
                self.columns(weights, 1, ids.cols)?;
                self.require(
                    ids.cols <= x.cols && x.cols <= u32::MAX as usize,
                    || format!("{} of {} experts", ids.cols, x.cols),
                    "at most all of them",
                )?;
                self.finite("factor", *factor)?;
                if let Some(groups) = groups {
                    let fit = groups.n > 0
                        && x.cols.is_multiple_of(groups.n)
                        && (1..=groups.n).contains(&groups.n_used)
                        && (1..=x.cols / groups.n).contains(&groups.n_best)
                        && ids.cols <= x.cols / groups.n * groups.n_used;
                    self.require(
                        fit,
                        || format!("{groups:?} of {} experts", x.cols),
                        "groups of equal size, with experts enough in those that are used",
                    )?;
                }
                bias.map_or(Ok(()), |b| self.vector(b, x.cols))?;
                scales.map_or(Ok(()), |s| self.vector(s, x.cols))
            }
            Op::ExpertLinear { x, ids, weight, out } => {
                let (x, ids, out) = (self.float(*x)?, self.ids(*ids)?, self.float(*out)?);
                self.rows(ids, x.rows)?;
                self.rows(out, x.rows)?;
                let weight = self.weight(*weight)?;
                let [n_experts, n_out, n_in] = weight.shape[..] else {
                    return self.fail(
                        format_args!("{} of shape {:?}", weight.name, weight.shape),
                        "a stack of matrices",
                    );
                };
                self.require(
                    x.cols == n_in || n_in.checked_mul(ids.cols) == Some(x.cols),
                    || format!("{} of {} columns", x.name, x.cols),
                    format_args!("{n_in}, or that for each of {} experts", ids.cols),
                )?;
                self.columns(out, ids.cols, n_out)?;
                // Ids are below the number of columns of the Route that chose them.
                let router = self.plan.primitives().find_map(|op| {
                    let Op::Route { x, ids: chosen, .. } = op else { return None };
                    std::ptr::eq(self.plan.value(*chosen), ids).then_some(*x)
                });
                let counted = self.plan.primitives().find_map(|op| {
                    let (n, out) = if let Op::Ordinals { out } = op {
                        (ids.cols, out)
                    } else if let Op::Adapters { n, out } = op {
                        (*n, out)
                    } else {
                        return None;
                    };
                    std::ptr::eq(self.plan.value(*out), ids).then_some(n)
                });
                let n_routed = router.and_then(|x| self.plan.values.get(x.0 as usize)).map(|x| x.cols);
                let n_routed = counted.or(n_routed);
                self.require(
                    n_routed == Some(n_experts),
                    || format!("{} of {n_experts} experts", weight.name),
                    format_args!("{n_routed:?}, the number of experts of the router"),
                )
            }
            Op::ExpertBias { x, ids, bias, out } => {
                let (x, ids) = (self.same(*x, *out)?, self.ids(*ids)?);
                self.rows(ids, x.rows)?;
                let k = ids.cols;
                self.require(
                    k > 0 && x.cols.is_multiple_of(k),
                    || format!("{} columns", x.cols),
                    format_args!("parts for each of {k} experts"),
                )?;
                let n_experts = self.plan.primitives().find_map(|op| {
                    let (n, written) = if let Op::Route { x, ids, .. } = op {
                        (self.plan.values.get(x.0 as usize)?.cols, ids)
                    } else if let Op::Ordinals { out } = op {
                        (k, out)
                    } else {
                        return None;
                    };
                    std::ptr::eq(self.plan.values.get(written.0 as usize)?, ids).then_some(n)
                });
                self.require(
                    n_experts.is_some(),
                    || "ids of no router".to_owned(),
                    "those that a route or ordinals wrote",
                )?;
                self.vector(*bias, n_experts.unwrap_or(0) * (x.cols / k))
            }
            Op::GateClamped { gate, up, alpha, limit, out } => {
                self.same(*gate, *out)?;
                self.same(*up, *out)?;
                self.finite("alpha", *alpha)?;
                self.require(
                    *limit > 0.0 && limit.is_finite(),
                    || format!("limit {limit}"),
                    "a positive number",
                )
            }
            Op::Join { a, b, n_heads, out } => {
                let (a, b, out) = (self.float(*a)?, self.float(*b)?, self.float(*out)?);
                self.rows(b, a.rows)?;
                self.rows(out, a.rows)?;
                self.require(
                    *n_heads > 0 && a.cols.is_multiple_of(*n_heads) && b.cols.is_multiple_of(*n_heads),
                    || format!("{n_heads} heads"),
                    format_args!("a divisor of the {} and {} columns", a.cols, b.cols),
                )?;
                self.columns(out, 1, a.cols + b.cols)
            }
            Op::Ordinals { out } => self.ids(*out).map(drop),
            Op::Collective { kind: CollectiveKind::AllReduce, x, out } => self.same(*x, *out).map(drop),
            Op::Collective { kind: CollectiveKind::AllGather, x, out } => {
                let (x, out) = (self.float(*x)?, self.float(*out)?);
                self.rows(out, x.rows)?;
                self.require(
                    x.cols > 0 && out.cols.is_multiple_of(x.cols),
                    || format!("an output of {} columns", out.cols),
                    format_args!("{} for each rank", x.cols),
                )
            }
            Op::Adapters { n, out } => {
                let out = self.ids(*out)?;
                self.columns(out, 1, 1)?;
                self.require(
                    matches!(out.rows.per_token(), None | Some(1)),
                    || format!("{} of {:?}", out.name, out.rows),
                    "rows of tokens or outputs",
                )?;
                let others = self
                    .plan
                    .primitives()
                    .filter_map(|op| if let Op::Adapters { n, .. } = op { Some(*n) } else { None });
                self.require(
                    *n > 0 && { others }.all(|other| other == *n),
                    || format!("{n} adapters"),
                    "at least one, and the same number in every op",
                )
            }
            Op::ExpertSum { x, weights, out } => {
                let (x, weights, out) = (self.float(*x)?, self.float(*weights)?, self.float(*out)?);
                self.rows(weights, x.rows)?;
                self.rows(out, x.rows)?;
                self.columns(x, weights.cols, out.cols)
            }
            Op::SelectRows { x, out } => {
                let (x, out) = (self.float(*x)?, self.float(*out)?);
                self.rows(x, RowCount::Tokens)?;
                self.rows(out, RowCount::Outputs)?;
                self.columns(out, 1, x.cols)
            }
            Op::Argmax { x, out } => {
                let (x, out) = (self.float(*x)?, self.value(*out)?);
                self.rows(x, RowCount::Outputs)?;
                self.rows(out, RowCount::Outputs)?;
                self.require(
                    out.cols == 1 && out.dtype == DType::U32 && x.cols <= u32::MAX as usize,
                    || format!("({}, {}) {:?} of {} columns", out.rows, out.cols, out.dtype, x.cols),
                    "(outputs, 1) U32",
                )
            }
            Op::Fused { .. } => self.fail("a fused op inside a fused op", "primitives"),
            Op::LayerNorm { x, weight, bias, eps, out } => {
                let x = self.same(*x, *out)?;
                self.require(
                    *eps >= 0.0 && eps.is_finite(),
                    || format!("eps {eps}"),
                    "a small number, not negative",
                )?;
                self.vector(*weight, x.cols)?;
                bias.map_or(Ok(()), |b| self.vector(b, x.cols))
            }
            Op::EmbedPositions { table, out } => {
                let out = self.float(*out)?;
                self.rows(out, RowCount::Tokens)?;
                self.matrix(*table, out.cols).map(drop)
            }
            Op::SelfAttention { q, k, v, n_heads, scale, out, .. } => {
                let (value, keys) = (self.same(*q, *out)?, self.same(*k, *v)?);
                self.rows(value, RowCount::Tokens)?;
                self.rows(keys, RowCount::Tokens)?;
                let out = self.float(*out)?;
                let head_dim = out.cols.checked_div(*n_heads).unwrap_or(0).max(1);
                let n_kv_heads = keys.cols / head_dim;
                self.require(
                    keys.cols.is_multiple_of(head_dim)
                        && n_kv_heads > 0
                        && n_heads.is_multiple_of(n_kv_heads),
                    || format!("{} columns of keys", keys.cols),
                    format_args!("columns of KV heads of {head_dim} whose number divides {n_heads}"),
                )?;
                self.require(
                    *n_heads > 0 && out.cols.is_multiple_of(*n_heads),
                    || format!("{n_heads} heads"),
                    format_args!("a divisor of the {} columns", out.cols),
                )?;
                self.finite("scale", *scale)
            }
            Op::Pool { x, out, .. } => {
                let (x, out) = (self.float(*x)?, self.float(*out)?);
                self.rows(x, RowCount::Tokens)?;
                self.rows(out, RowCount::Outputs)?;
                self.columns(out, 1, x.cols)
            }
            Op::Input { out } => {
                self.float(*out)?;
                let second = std::mem::replace(&mut seen.input, true);
                self.require(!second, || "a second input".to_owned(), "at most one")
            }
            Op::Unfold { x, size, stride, out } => {
                let (x, out) = (self.float(*x)?, self.float(*out)?);
                self.require(
                    *size > 0 && *stride > 0,
                    || format!("size {size}, stride {stride}"),
                    "at least 1 of each",
                )?;
                self.columns(out, x.cols, *size)?;
                let rows = out.rows.times(*stride);
                self.require(
                    rows == Some(x.rows) && x.rows != RowCount::Outputs,
                    || format!("{} ({}, {})", x.name, x.rows, x.cols),
                    format_args!("{stride} rows for each of the output's {}", out.rows),
                )
            }
            Op::CrossAttention { q, layer, n_heads, scale, out } => {
                let kv = self.encoder_states(*layer)?.0;
                let q = self.same(*q, *out)?;
                self.heads(q, *n_heads, kv)?;
                self.finite("scale", *scale)
            }
            Op::CrossScores { q, layer, n_heads, heads, scale, out } => {
                let (kv, n) = self.encoder_states(*layer)?;
                let (q, out) = (self.float(*q)?, self.float(*out)?);
                self.heads(q, *n_heads, kv)?;
                self.require(
                    !heads.is_empty() && heads.iter().all(|head| head < n_heads),
                    || format!("heads {heads:?}"),
                    format_args!("some of {n_heads}"),
                )?;
                self.rows(out, RowCount::Tokens)?;
                self.columns(out, heads.len(), n)?;
                self.finite("scale", *scale)
            }
            Op::ShortConv { x, weight, bias, state, out } => {
                let x = self.same(*x, *out)?;
                self.rows(x, RowCount::Tokens)?;
                let size = self.weight(*weight)?.shape.last().copied().unwrap_or(0);
                let weight = self.matrix(*weight, size)?;
                self.require(
                    size >= 2 && weight.n_rows() == x.cols && weight.block == BlockType::F32,
                    || format!("{} {:?} of {}", weight.name, weight.shape, weight.block),
                    format_args!("({}, at least 2) of F32", x.cols),
                )?;
                bias.map_or(Ok(()), |bias| self.vector(bias, x.cols))?;
                self.state(*state, (size - 1).checked_mul(x.cols), seen)
            }
            Op::GatedDelta { q, k, v, step, beta, rate, n_key_heads, n_heads, scale, state, out, .. } => {
                let (q, v) = (self.same(*q, *k)?, self.same(*v, *out)?);
                let (step, beta) = (self.float(*step)?, self.float(*beta)?);
                [q, v, step, beta].into_iter().try_for_each(|value| self.rows(value, RowCount::Tokens))?;
                let key_dim = self.shared_heads(q, *n_key_heads, *n_heads)?;
                let value_dim = self.head_columns(v, *n_heads)?;
                self.require(
                    step.cols == *n_heads || Some(step.cols) == n_heads.checked_mul(key_dim),
                    || format!("{} of {} columns", step.name, step.cols),
                    format_args!("{n_heads}, or {n_heads} x {key_dim}"),
                )?;
                self.columns(beta, *n_heads, 1)?;
                self.vector(*rate, *n_heads)?;
                self.finite("scale", *scale)?;
                self.state(*state, v.cols.checked_mul(key_dim), seen)?;
                self.require(
                    value_dim > 0,
                    || format!("{} of {} columns", v.name, v.cols),
                    format_args!("a multiple of {n_heads}"),
                )
            }
            Op::SelectiveScan { x, b, c, step, rate, skip, n_groups, n_heads, state, out } => {
                let (x, b) = (self.same(*x, *out)?, self.same(*b, *c)?);
                let step = self.float(*step)?;
                [x, b, step].into_iter().try_for_each(|value| self.rows(value, RowCount::Tokens))?;
                let state_dim = self.shared_heads(b, *n_groups, *n_heads)?;
                self.head_columns(x, *n_heads)?;
                self.columns(step, *n_heads, 1)?;
                self.vector(*rate, *n_heads)?;
                skip.map_or(Ok(()), |skip| self.vector(skip, *n_heads))?;
                self.state(*state, x.cols.checked_mul(state_dim), seen)
            }
        }
    }

    /// Columns of each of `n` heads.
    fn head_columns(&self, value: &Value, n: usize) -> Result<usize> {
        self.require(
            n > 0 && value.cols.is_multiple_of(n),
            || format!("{n} heads of {}", value.name),
            format_args!("a divisor of its {} columns", value.cols),
        )?;
        Ok(value.cols / n)
    }

    /// Columns of each of `n_shared` heads, which `n_heads` share.
    fn shared_heads(&self, value: &Value, n_shared: usize, n_heads: usize) -> Result<usize> {
        let cols = self.head_columns(value, n_shared)?;
        self.require(
            n_heads > 0 && n_heads.is_multiple_of(n_shared),
            || format!("{n_heads} heads"),
            format_args!("a multiple of the {n_shared} of {}", value.name),
        )?;
        Ok(cols)
    }

    /// Checks that a state has `len` numbers and that no other Op has it.
    fn state(&self, state: StateId, len: Option<usize>, seen: &mut Seen) -> Result<()> {
        let n = self.plan.kv.states.get(state.0 as usize).copied();
        self.require(
            n.is_some() && n == len,
            || format!("state {} of {n:?} numbers", state.0),
            format_args!("one of {}", len.unwrap_or(usize::MAX)),
        )?;
        let written = std::mem::replace(&mut seen.states[state.0 as usize], true);
        self.require(!written, || format!("state {}, used before", state.0), "a state of its own")
    }

    /// Checks that query heads fit a KV layer.
    fn heads(&self, q: &Value, n_heads: usize, kv: &KvLayer) -> Result<()> {
        self.rows(q, RowCount::Tokens)?;
        self.require(
            n_heads > 0 && n_heads.is_multiple_of(kv.n_kv_heads),
            || format!("{n_heads} heads"),
            format_args!("a multiple of the {} KV heads", kv.n_kv_heads),
        )?;
        self.columns(q, n_heads, kv.head_dim)
    }

    /// A layer of encoder states that another plan writes, and the number of these states.
    fn encoder_states(&self, id: KvLayerId) -> Result<(&'a KvLayer, usize)> {
        let layer = self.kv_layer(id)?;
        let Some(n) = layer.encoder_states else {
            return self
                .fail(format_args!("{id}, of the sequence's own positions"), "a layer of encoder states");
        };
        self.require(
            written_layers(self.plan).all(|layer| layer != id),
            || format!("{id}, written by this plan"),
            "encoder states that another plan writes",
        )?;
        Ok((layer, n))
    }

    fn value(&self, id: ValueId) -> Result<&'a Value> {
        match self.plan.values.get(id.0 as usize) {
            Some(value) if value.cols > 0 => Ok(value),
            Some(value) => self.fail(format_args!("{id} {} of 0 columns", value.name), "at least 1"),
            None => self.fail(
                format_args!("{id}"),
                format_args!("one of the plan's {} values", self.plan.values.len()),
            ),
        }
    }

    fn float(&self, id: ValueId) -> Result<&'a Value> {
        let value = self.value(id)?;
        self.require(
            value.dtype == DType::F32,
            || format!("{id} {} of {:?}", value.name, value.dtype),
            "F32",
        )?;
        Ok(value)
    }

    fn ids(&self, id: ValueId) -> Result<&'a Value> {
        let value = self.value(id)?;
        self.require(
            value.dtype == DType::U32,
            || format!("{id} {} of {:?}", value.name, value.dtype),
            "U32",
        )?;
        Ok(value)
    }

    fn finite(&self, what: &str, number: f32) -> Result<()> {
        self.require(number.is_finite(), || format!("{what} {number}"), "a finite number")
    }

    fn rows(&self, value: &Value, rows: RowCount) -> Result<()> {
        self.require(
            value.rows == rows,
            || format!("{} with a row for each of the {}", value.name, value.rows),
            rows,
        )
    }

    fn columns(&self, value: &Value, n_heads: usize, head_dim: usize) -> Result<()> {
        self.require(
            n_heads.checked_mul(head_dim) == Some(value.cols),
            || format!("{} of {} columns", value.name, value.cols),
            format_args!("{n_heads} x {head_dim}"),
        )
    }

    /// Checks that input and output have the same shape.
    fn same(&self, x: ValueId, out: ValueId) -> Result<&'a Value> {
        let (x, out) = (self.float(x)?, self.float(out)?);
        self.require(
            x.rows == out.rows && x.cols == out.cols,
            || format!("{} ({}, {})", x.name, x.rows, x.cols),
            format_args!("the output's ({}, {})", out.rows, out.cols),
        )?;
        Ok(x)
    }

    /// A weight whose bytes are exactly those of its shape.
    fn weight(&self, id: WeightId) -> Result<&'a Weight> {
        let Some(weight) = self.plan.weights.get(id.0 as usize) else {
            return self.fail(
                format_args!("{id}"),
                format_args!("one of the plan's {} weights", self.plan.weights.len()),
            );
        };
        let Weight { name, shape, block, data, planes, parts } = weight;
        let found = || format!("{name} of shape {shape:?}");
        self.require(!shape.is_empty() && !shape.contains(&0), found, "dimensions of at least 1")?;
        self.require(
            weight.n_cols().is_multiple_of(block.block_len()),
            found,
            format_args!("a last dimension in whole {block} blocks of {}", block.block_len()),
        )?;
        // Checked arithmetic: the shape may come from a hostile file.
        let n_values = shape.iter().try_fold(1usize, |n, dim| n.checked_mul(*dim));
        let n_bytes = n_values.and_then(|n| (n / block.block_len()).checked_mul(block.block_bytes()));
        // A stack has one part for each matrix, all of the same size.
        let n_parts = if let [n, _, _] = shape[..] { n } else { 1 };
        let part = n_bytes.map(|n| n / n_parts);
        let whole = match n_parts {
            1 if parts.is_empty() => n_bytes == Some(data.len()),
            n => data.is_empty() && parts.len() == n && parts.iter().all(|p| Some(p.data.len()) == part),
        };
        if !whole {
            let found = format!("{name} of {} bytes in {} parts", weight.n_bytes(), parts.len());
            let n_bytes = n_bytes.map_or("more than fit".to_owned(), |n| n.to_string());
            return self.fail(found, format_args!("{n_bytes} for {shape:?} in {block}"));
        }
        let (n_rows, n_cols) = (weight.n_rows(), weight.n_cols());
        let planes_fit = match n_parts {
            1 if parts.is_empty() => planes.fit(*block, n_rows, n_cols),
            n => planes.n_bytes() == 0 && parts.iter().all(|p| p.planes.fit(*block, n_rows / n, n_cols)),
        };
        self.require(
            planes_fit,
            || {
                let all = parts.iter().map(|p| &p.planes).chain([planes]);
                format!("{name} with scales and offsets of {} bytes", all.map(Planes::n_bytes).sum::<usize>())
            },
            format_args!(
                "for each of {n_rows} rows {} of scales and {} of offsets",
                block.row_scale_bytes(n_cols),
                block.row_bias_bytes(n_cols)
            ),
        )?;
        Ok(weight)
    }

    fn matrix(&self, id: WeightId, n_cols: usize) -> Result<&'a Weight> {
        let weight = self.weight(id)?;
        self.require(
            weight.shape.len() == 2 && weight.n_cols() == n_cols && weight.parts.is_empty(),
            || format!("{} of shape {:?}", weight.name, weight.shape),
            format_args!("a matrix of {n_cols} columns"),
        )?;
        Ok(weight)
    }

    fn vector(&self, id: WeightId, len: usize) -> Result<()> {
        let weight = self.weight(id)?;
        self.require(
            weight.shape == [len] && weight.block == BlockType::F32 && weight.parts.is_empty(),
            || format!("{} {} {:?}", weight.name, weight.block, weight.shape),
            format_args!("F32 [{len}]"),
        )
    }

    fn kv_layer(&self, id: KvLayerId) -> Result<&'a KvLayer> {
        let Some(layer) = self.plan.kv.layers.get(id.0 as usize) else {
            return self.fail(
                format_args!("{id}"),
                format_args!("one of the cache's {} layers", self.plan.kv.layers.len()),
            );
        };
        Ok(layer)
    }
}

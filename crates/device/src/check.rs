//! [`Plan::check`]: the one place where a plan is validated. Devices trust what passed.

use formats::BlockType;

use crate::{
    DType, KvGroup, KvLayer, KvLayerId, Op, Output, Plan, PlanError, Rows, Value, ValueId, Weight, WeightId,
};

type Result<T> = std::result::Result<T, PlanError>;

impl Plan {
    /// Whether the plan is consistent: every id is in range, every value is written once and before it is read, the
    /// shapes and rows of every Op fit, every weight that is used holds exactly the bytes of its shape, every layer's keys
    /// are written before attention reads them, and logits and argmax are what they should be.
    ///
    /// # Errors
    /// The first Op that does not fit, with what was found and what was expected.
    pub fn check(&self) -> Result<()> {
        self.check_kv()?;
        let mut seen =
            Seen { written: vec![false; self.values.len()], kv: vec![false; self.kv.layers.len()] };
        for (index, node) in self.nodes.iter().enumerate() {
            if let Op::Fused { parts, .. } = &node.op {
                let at = At { plan: self, node: index, op: &node.op };
                if parts.len() < 2 {
                    return at.fail(format!("{} parts", parts.len()), "at least 2 primitives");
                }
                if let Some(part) = parts.iter().find(|p| matches!(p, Op::Fused { .. })) {
                    return at.fail(format!("a part {}", part.kind()), "primitives");
                }
            }
            for op in node.op.primitives() {
                At { plan: self, node: index, op }.check(&mut seen)?;
            }
        }
        self.check_result(&seen, self.logits, "logits", DType::F32)?;
        self.check_result(&seen, self.argmax, "argmax", DType::U32)
    }

    /// Every layer of the KV cache has heads and belongs to the one group of its window.
    fn check_kv(&self) -> Result<()> {
        let fail = |found: String, expected: String| {
            Err(PlanError { node: self.nodes.len(), op: "kv layout".to_owned(), found, expected })
        };
        let grouped = self.kv.groups.iter().flat_map(|g| &g.layers);
        if let Some(id) = grouped.into_iter().find(|id| id.0 as usize >= self.kv.layers.len()) {
            return fail(format!("{id} in a group"), format!("one of {} layers", self.kv.layers.len()));
        }
        for (index, layer) in self.kv.layers.iter().enumerate() {
            if layer.n_kv_heads == 0 || layer.head_dim == 0 || layer.window == Some(0) {
                return fail(format!("{layer:?}"), "at least 1 of each".to_owned());
            }
            let id = KvLayerId(index as u32);
            let windows_of =
                |g: &KvGroup| g.layers.iter().filter(|l| **l == id).map(|_| g.window).collect::<Vec<_>>();
            let windows: Vec<_> = self.kv.groups.iter().flat_map(windows_of).collect();
            if windows != [layer.window] {
                let expected = format!("one group of window {:?}", layer.window);
                return fail(format!("{id} in groups of windows {windows:?}"), expected);
            }
        }
        Ok(())
    }

    /// Logits and argmax are written, have a row for each output, and hold floats and token ids.
    fn check_result(&self, seen: &Seen, id: ValueId, what: &str, dtype: DType) -> Result<()> {
        let fail = |found: String, expected: &str| {
            Err(PlanError {
                node: self.nodes.len(),
                op: what.to_owned(),
                found,
                expected: expected.to_owned(),
            })
        };
        let Some(value) = self.values.get(id.0 as usize) else {
            return fail(format!("{id}"), "a value of the plan");
        };
        if seen.written.get(id.0 as usize) != Some(&true) {
            return fail(format!("{id} {}, which no op writes", value.name), "a written value");
        }
        if value.rows != Rows::Outputs || value.dtype != dtype || value.cols == 0 {
            return fail(
                format!("({}, {}) {:?}", value.rows, value.cols, value.dtype),
                if dtype == DType::F32 { "(outputs, n_vocab) F32" } else { "(outputs, 1) U32" },
            );
        }
        Ok(())
    }
}

/// What the Ops so far have written.
struct Seen {
    /// By value.
    written: Vec<bool>,
    /// By KV layer.
    kv: Vec<bool>,
}

/// A primitive and where it stands.
#[derive(Clone, Copy)]
struct At<'a> {
    plan: &'a Plan,
    node: usize,
    op: &'a Op,
}

impl<'a> At<'a> {
    fn fail<T>(&self, found: impl Into<String>, expected: impl Into<String>) -> Result<T> {
        let op = self.plan.show(self.op).to_string();
        Err(PlanError { node: self.node, op, found: found.into(), expected: expected.into() })
    }

    fn require(
        &self,
        holds: bool,
        found: impl FnOnce() -> String,
        expected: impl Into<String>,
    ) -> Result<()> {
        if holds { Ok(()) } else { self.fail(found(), expected) }
    }

    fn check(self, seen: &mut Seen) -> Result<()> {
        for id in self.op.reads() {
            let value = self.float(id)?;
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
                self.rows(out, Rows::Tokens)?;
                self.finite("scale", *scale)?;
                // Sampled tokens are columns of the logits, and come back as rows of the table.
                let n_vocab = self.plan.values.get(self.plan.logits.0 as usize).map_or(0, |v| v.cols);
                self.require(
                    table.n_rows() >= n_vocab || self.plan.output == Output::Hidden,
                    || format!("a table of {} rows", table.n_rows()),
                    format!("one for each of the {n_vocab} logits"),
                )
            }
            Op::RmsNorm { x, weight, eps, group, out } => {
                let x = self.same(*x, *out)?;
                self.require(
                    *group > 0 && x.cols.is_multiple_of(*group),
                    || format!("group {group}"),
                    format!("a divisor of the {} columns", x.cols),
                )?;
                self.require(
                    *eps >= 0.0 && eps.is_finite(),
                    || format!("eps {eps}"),
                    "a small number, not negative",
                )?;
                weight.map_or(Ok(()), |w| self.vector(w, *group))
            }
            Op::Linear { x, weight, bias, out } => {
                let (x, out) = (self.float(*x)?, self.float(*out)?);
                let weight = self.matrix(*weight, x.cols)?;
                self.require(
                    out.cols == weight.n_rows(),
                    || format!("an output of {} columns", out.cols),
                    format!("one for each of the {} rows of {}", weight.n_rows(), weight.name),
                )?;
                self.rows(out, x.rows)?;
                bias.map_or(Ok(()), |b| self.vector(b, out.cols))
            }
            Op::Rope { x, head_dim, n_dims, frequencies, scale, out, .. } => {
                let x = self.same(*x, *out)?;
                self.rows(x, Rows::Tokens)?;
                self.require(
                    *head_dim > 0 && x.cols.is_multiple_of(*head_dim),
                    || format!("head_dim {head_dim}"),
                    format!("a divisor of the {} columns", x.cols),
                )?;
                self.require(
                    *n_dims > 0 && n_dims.is_multiple_of(2) && n_dims <= head_dim,
                    || format!("n_dims {n_dims}"),
                    format!("an even number up to head_dim {head_dim}"),
                )?;
                self.finite("scale", *scale)?;
                self.vector(*frequencies, n_dims / 2)
            }
            Op::KvWrite { k, v, layer } => {
                let kv = self.kv_layer(*layer)?;
                for id in [*k, *v] {
                    let value = self.float(id)?;
                    self.rows(value, Rows::Tokens)?;
                    self.columns(value, kv.n_kv_heads, kv.head_dim)?;
                }
                let written = std::mem::replace(&mut seen.kv[layer.0 as usize], true);
                self.require(!written, || format!("{layer}, written before"), "a layer of its own")
            }
            Op::Attention { q, layer, n_heads, scale, softcap, window, sinks, out } => {
                let kv = self.kv_layer(*layer)?;
                self.require(
                    seen.kv[layer.0 as usize],
                    || format!("{layer}, not written yet"),
                    "a kv_write before",
                )?;
                let q = self.same(*q, *out)?;
                self.rows(q, Rows::Tokens)?;
                self.require(
                    *n_heads > 0 && n_heads.is_multiple_of(kv.n_kv_heads),
                    || format!("{n_heads} heads"),
                    format!("a multiple of the {} KV heads", kv.n_kv_heads),
                )?;
                self.columns(q, *n_heads, kv.head_dim)?;
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
                    format!("at least 1 and within the layer's window {:?}", kv.window),
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
            Op::SelectRows { x, out } => {
                let (x, out) = (self.float(*x)?, self.float(*out)?);
                self.rows(x, Rows::Tokens)?;
                self.rows(out, Rows::Outputs)?;
                self.columns(out, 1, x.cols)
            }
            Op::Argmax { x, out } => {
                let (x, out) = (self.float(*x)?, self.value(*out)?);
                self.rows(x, Rows::Outputs)?;
                self.rows(out, Rows::Outputs)?;
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
                self.rows(out, Rows::Tokens)?;
                self.matrix(*table, out.cols).map(drop)
            }
            Op::SelfAttention { q, k, v, n_heads, scale, out } => {
                for id in [*q, *k, *v] {
                    let value = self.same(id, *out)?;
                    self.rows(value, Rows::Tokens)?;
                }
                let out = self.float(*out)?;
                self.require(
                    *n_heads > 0 && out.cols.is_multiple_of(*n_heads),
                    || format!("{n_heads} heads"),
                    format!("a divisor of the {} columns", out.cols),
                )?;
                self.finite("scale", *scale)
            }
            Op::Pool { x, out, .. } => {
                let (x, out) = (self.float(*x)?, self.float(*out)?);
                self.rows(x, Rows::Tokens)?;
                self.rows(out, Rows::Outputs)?;
                self.columns(out, 1, x.cols)
            }
        }
    }

    fn value(&self, id: ValueId) -> Result<&'a Value> {
        match self.plan.values.get(id.0 as usize) {
            Some(value) if value.cols > 0 => Ok(value),
            Some(value) => self.fail(format!("{id} {} of 0 columns", value.name), "at least 1"),
            None => {
                self.fail(format!("{id}"), format!("one of the plan's {} values", self.plan.values.len()))
            }
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

    fn finite(&self, what: &str, number: f32) -> Result<()> {
        self.require(number.is_finite(), || format!("{what} {number}"), "a finite number")
    }

    fn rows(&self, value: &Value, rows: Rows) -> Result<()> {
        self.require(
            value.rows == rows,
            || format!("{} with a row for each of the {}", value.name, value.rows),
            rows.to_string(),
        )
    }

    fn columns(&self, value: &Value, n_heads: usize, head_dim: usize) -> Result<()> {
        self.require(
            n_heads.checked_mul(head_dim) == Some(value.cols),
            || format!("{} of {} columns", value.name, value.cols),
            format!("{n_heads} x {head_dim}"),
        )
    }

    /// Input and output of the same shape.
    fn same(&self, x: ValueId, out: ValueId) -> Result<&'a Value> {
        let (x, out) = (self.float(x)?, self.float(out)?);
        self.require(
            x.rows == out.rows && x.cols == out.cols,
            || format!("{} ({}, {})", x.name, x.rows, x.cols),
            format!("the output's ({}, {})", out.rows, out.cols),
        )?;
        Ok(x)
    }

    /// A weight whose bytes are exactly those of its shape.
    fn weight(&self, id: WeightId) -> Result<&'a Weight> {
        let Some(weight) = self.plan.weights.get(id.0 as usize) else {
            return self
                .fail(format!("{id}"), format!("one of the plan's {} weights", self.plan.weights.len()));
        };
        let Weight { name, shape, block, data } = weight;
        let found = || format!("{name} of shape {shape:?}");
        self.require(!shape.is_empty() && !shape.contains(&0), found, "dimensions of at least 1")?;
        self.require(
            weight.n_cols().is_multiple_of(block.block_len()),
            found,
            format!("a last dimension in whole {block} blocks of {}", block.block_len()),
        )?;
        // Checked: the shape may come from a hostile file.
        let n_values = shape.iter().try_fold(1usize, |n, dim| n.checked_mul(*dim));
        let n_bytes = n_values.and_then(|n| (n / block.block_len()).checked_mul(block.block_bytes()));
        self.require(
            n_bytes == Some(data.len()),
            || format!("{name} of {} bytes", data.len()),
            format!(
                "{} for {shape:?} in {block}",
                n_bytes.map_or("more than fit".to_owned(), |n| n.to_string())
            ),
        )?;
        Ok(weight)
    }

    fn matrix(&self, id: WeightId, n_cols: usize) -> Result<&'a Weight> {
        let weight = self.weight(id)?;
        self.require(
            weight.shape.len() == 2 && weight.n_cols() == n_cols,
            || format!("{} of shape {:?}", weight.name, weight.shape),
            format!("a matrix of {n_cols} columns"),
        )?;
        Ok(weight)
    }

    fn vector(&self, id: WeightId, len: usize) -> Result<()> {
        let weight = self.weight(id)?;
        self.require(
            weight.shape == [len] && weight.block == BlockType::F32,
            || format!("{} {} {:?}", weight.name, weight.block, weight.shape),
            format!("F32 [{len}]"),
        )
    }

    fn kv_layer(&self, id: KvLayerId) -> Result<&'a KvLayer> {
        let Some(layer) = self.plan.kv.layers.get(id.0 as usize) else {
            return self
                .fail(format!("{id}"), format!("one of the cache's {} layers", self.plan.kv.layers.len()));
        };
        Ok(layer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{PlanBuilder, mini_transformer};
    use crate::{FusedKind, KvLayout};
    use formats::Bytes;

    fn good() -> Plan {
        mini_transformer(3, BlockType::F32)
    }

    /// The plan after an edit fails, and the message holds `part`.
    fn rejects(edit: impl FnOnce(&mut Plan), part: &str) {
        let mut plan = good();
        edit(&mut plan);
        let error = plan.check().unwrap_err().to_string();
        assert!(error.contains(part), "{error}\nshould say: {part}");
    }

    /// The first Op of the plan for which `pick` returns something.
    fn first<'a, T>(plan: &'a mut Plan, pick: impl Fn(&'a mut Op) -> Option<T>) -> T {
        plan.nodes.iter_mut().find_map(|n| pick(&mut n.op)).unwrap()
    }

    #[test]
    fn a_consistent_plan_passes() {
        good().check().unwrap();
    }

    #[test]
    fn order_and_single_assignment() {
        rejects(|p| p.nodes.swap(1, 2), "not written yet");
        rejects(|p| p.nodes.insert(1, p.nodes[0].clone()), "written before");
        rejects(
            |p| {
                let write = p.nodes.iter().position(|n| matches!(n.op, Op::KvWrite { .. })).unwrap();
                p.nodes.remove(write);
            },
            "a kv_write before",
        );
        rejects(|p| p.nodes.truncate(3), "logits");
        rejects(|p| p.argmax = p.logits, "(outputs, 1) U32");
        rejects(|p| p.logits = ValueId(9999), "v9999");
    }

    #[test]
    fn ids_out_of_range() {
        rejects(|p| p.values.truncate(2), "one of the plan's 2 values");
        rejects(|p| p.weights.truncate(2), "one of the plan's 2 weights");
        rejects(|p| p.kv = KvLayout::default(), "one of the cache's 0 layers");
        rejects(|p| p.kv.groups.clear(), "one group of window");
    }

    #[test]
    fn shapes() {
        rejects(|p| p.values[1].cols += 1, "the output's (tokens, 65)");
        rejects(|p| p.values[1].rows = Rows::Outputs, "the output's (outputs,");
        rejects(
            |p| {
                *first(p, |op| if let Op::RmsNorm { group, .. } = op { Some(group) } else { None }) = 5;
            },
            "a divisor of the",
        );
        rejects(
            |p| {
                *first(p, |op| if let Op::Rope { n_dims, .. } = op { Some(n_dims) } else { None }) = 3;
            },
            "an even number up to head_dim",
        );
        rejects(
            |p| {
                *first(p, |op| if let Op::Attention { n_heads, .. } = op { Some(n_heads) } else { None }) = 5;
            },
            "a multiple of the",
        );
        rejects(
            |p| {
                *first(p, |op| if let Op::Attention { window, .. } = op { Some(window) } else { None }) =
                    Some(0);
            },
            "within the layer's window",
        );
        rejects(|p| p.values[p.argmax.0 as usize].dtype = DType::F32, "(outputs, 1) U32");
    }

    #[test]
    fn weights_hold_the_bytes_of_their_shape() {
        let weight =
            |op: &mut Op| if let Op::Linear { weight, .. } = op { Some(weight.0 as usize) } else { None };
        let edit = |change: fn(&mut Weight)| {
            move |p: &mut Plan| {
                let index = first(p, weight);
                change(&mut p.weights[index]);
            }
        };
        rejects(edit(|w| w.data = Bytes::from_slice(&w.data[1..])), "bytes");
        rejects(edit(|w| w.shape = vec![usize::MAX, usize::MAX]), "more than fit");
        rejects(edit(|w| w.shape = vec![0, 8]), "dimensions of at least 1");
        rejects(edit(|w| w.shape = vec![]), "dimensions of at least 1");
        rejects(edit(|w| w.block = BlockType::Q4_K), "whole Q4_K blocks of 256");
        rejects(edit(|w| w.block = BlockType::F16), "bytes");
        let norm = |op: &mut Op| {
            if let Op::RmsNorm { weight: Some(w), .. } = op { Some(w.0 as usize) } else { None }
        };
        rejects(
            |p| {
                let index = first(p, norm);
                p.weights[index] = Weight::vector("short", &[1.0; 3]);
            },
            "F32 [",
        );
    }

    #[test]
    fn a_table_smaller_than_the_logits_is_rejected() {
        let mut b = PlanBuilder::new(1, 10);
        let x = b.embed(4);
        let y = b.linear(x, 11, BlockType::F32, false);
        let mut plan = b.finish(y);
        plan.weights[0] =
            Weight { shape: vec![10, 4], data: Bytes::from_slice(&[0; 160]), ..plan.weights[0].clone() };
        let error = plan.check().unwrap_err().to_string();
        assert!(error.contains("a table of 10 rows") && error.contains("11 logits"), "{error}");
    }

    #[test]
    fn fused_ops_hold_primitives() {
        rejects(|p| p.nodes[0].op = Op::Fused { kind: FusedKind::NormAdd, parts: vec![] }, "at least 2");
        rejects(
            |p| {
                let fused = Op::Fused { kind: FusedKind::NormAdd, parts: vec![] };
                p.nodes[0].op =
                    Op::Fused { kind: FusedKind::NormAdd, parts: vec![p.nodes[0].op.clone(), fused] };
            },
            "primitives",
        );
    }
}

//! [`Plan::check`] and [`check_plans`]: the one place where plans are validated. Devices trust
//! plans that passed.

mod ops;

use crate::{DType, KvGroup, KvLayerId, Op, Plan, PlanError, RowCount, Value, ValueId};
use ops::At;

type Result<T> = std::result::Result<T, PlanError>;

/// Checks that plans can be one program. There is at least one, each is consistent, all have the
/// same KV layout, and one of them writes the encoder states of each layer that another reads.
///
/// # Errors
/// As [`Plan::check`]; or the plan that does not fit the others.
pub fn check_plans(plans: &[Plan]) -> Result<()> {
    let fail = |node: usize, op: String, found: String, expected: &str| {
        Err(PlanError { node, op, found, expected: expected.to_owned() })
    };
    let Some(first) = plans.first() else {
        return fail(0, "program".to_owned(), "no plan".to_owned(), "at least one");
    };
    let written: Vec<KvLayerId> = plans.iter().flat_map(written_layers).collect();
    for (index, plan) in plans.iter().enumerate() {
        plan.check()?;
        if plan.kv != first.kv {
            let (op, found) = (format!("kv layout of plan {index}"), format!("{:?}", plan.kv));
            return fail(plan.nodes.len(), op, found, "that of plan 0");
        }
        for (node, n) in plan.nodes.iter().enumerate() {
            for op in n.op.primitives() {
                let (Op::CrossAttention { layer, .. } | Op::CrossScores { layer, .. }) = op else { continue };
                if !written.contains(layer) {
                    let found = format!("{layer}, which no plan writes");
                    return fail(node, plan.show(op).to_string(), found, "a layer that another plan writes");
                }
            }
        }
    }
    Ok(())
}

fn written_layers(plan: &Plan) -> impl Iterator<Item = KvLayerId> {
    plan.primitives().filter_map(|op| if let Op::KvWrite { layer, .. } = op { Some(*layer) } else { None })
}

impl Plan {
    /// Checks that the plan is consistent:
    ///
    /// - every id is in range, and every value is written once, before it is read;
    /// - shapes and rows of every Op fit;
    /// - every weight in use holds exactly the bytes of its shape;
    /// - keys of every layer are written before attention reads them;
    /// - logits and argmax have the right rows and types.
    ///
    /// # Errors
    /// The first Op that does not fit, with what was found and what was expected.
    pub fn check(&self) -> Result<()> {
        self.check_kv()?;
        self.check_rows()?;
        let mut seen = Seen {
            written: vec![false; self.values.len()],
            kv: vec![false; self.kv.layers.len()],
            states: vec![false; self.kv.states.len()],
            input: false,
        };
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
        self.check_result(&seen, self.output, "output", DType::F32)?;
        self.check_result(&seen, self.argmax, "argmax", DType::U32)?;
        for id in &self.kept {
            let value = self.values.get(id.0 as usize);
            let written = seen.written.get(id.0 as usize) == Some(&true);
            if !written || value.is_none_or(|value| value.dtype != DType::F32) {
                return Err(PlanError {
                    node: self.nodes.len(),
                    op: "kept".to_owned(),
                    found: format!("{id}"),
                    expected: "an F32 value that an op writes".to_owned(),
                });
            }
        }
        Ok(())
    }

    /// Checks that every value has at least one row for each token, and fewer than 2^32.
    fn check_rows(&self) -> Result<()> {
        let odd = |value: &&Value| value.rows.per_token().is_some_and(|k| k == 0 || k > MAX_ROWS_PER_TOKEN);
        let Some(value) = self.values.iter().find(odd) else { return Ok(()) };
        Err(PlanError {
            node: self.nodes.len(),
            op: value.name.clone(),
            found: value.rows.to_string(),
            expected: format!("1 to {MAX_ROWS_PER_TOKEN} for each token"),
        })
    }

    /// Checks that every layer of the KV cache has heads and belongs to the one group of its
    /// encoder states and window.
    fn check_kv(&self) -> Result<()> {
        let fail = |found: String, expected: String| {
            Err(PlanError { node: self.nodes.len(), op: "kv layout".to_owned(), found, expected })
        };
        let grouped = self.kv.groups.iter().flat_map(|g| &g.layers);
        if let Some(id) = grouped.into_iter().find(|id| id.0 as usize >= self.kv.layers.len()) {
            return fail(format!("{id} in a group"), format!("one of {} layers", self.kv.layers.len()));
        }
        for (index, layer) in self.kv.layers.iter().enumerate() {
            let lengths = [layer.window, layer.encoder_states];
            if layer.n_kv_heads == 0 || layer.head_dim == 0 || lengths.contains(&Some(0)) {
                return fail(format!("{layer:?}"), "at least 1 of each".to_owned());
            }
            if layer.window.is_some() && layer.encoder_states.is_some() {
                return fail(format!("{layer:?}"), "encoder states without a window".to_owned());
            }
            if layer.encoder_states.is_some_and(|n| u32::try_from(n).is_err()) {
                return fail(format!("{layer:?}"), "fewer than 2^32 encoder states".to_owned());
            }
            let id = KvLayerId(index as u32);
            let kinds_of = |g: &KvGroup| {
                g.layers
                    .iter()
                    .filter(|l| **l == id)
                    .map(|_| (g.encoder_states, g.window))
                    .collect::<Vec<_>>()
            };
            let kinds: Vec<_> = self.kv.groups.iter().flat_map(kinds_of).collect();
            if kinds != [(layer.encoder_states, layer.window)] {
                let expected = format!(
                    "one group of window {:?} and encoder states {:?}",
                    layer.window, layer.encoder_states
                );
                return fail(format!("{id} in groups of (encoder states, window) {kinds:?}"), expected);
            }
        }
        Ok(())
    }

    /// Checks that logits and argmax are written, have a row for each output, and hold floats and
    /// token ids.
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
        if value.rows != RowCount::Outputs || value.dtype != dtype || value.cols == 0 {
            return fail(
                format!("({}, {}) {:?}", value.rows, value.cols, value.dtype),
                if dtype == DType::F32 { "(outputs, n_vocab) F32" } else { "(outputs, 1) U32" },
            );
        }
        Ok(())
    }
}

/// Everything that the Ops so far have written.
struct Seen {
    /// True for values that are written.
    written: Vec<bool>,
    /// True for KV layers that are written.
    kv: Vec<bool>,
    /// True for states of recurrent layers that an Op has.
    states: Vec<bool>,
    /// True after an Input.
    input: bool,
}

/// Limit of [`RowCount::PerToken`]: far more than any model has, and few enough that row counts fit
/// in 64 bits.
const MAX_ROWS_PER_TOKEN: usize = 1 << 20;

//! Two devices compared command by command. Each runs the same step up to a node of its own plan;
//! the values that both have in memory are then compared.

use std::sync::Arc;

use device::{Device, KvType, Limits, Node, PAGE_NONE, Plan, Program, Span, Step, ValueId, Want};

use crate::{Error, LoadOptions, Model, Result, load};

/// Difference of a value between two devices.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct ValueDiff {
    /// Index of the node of the first device's fused plan that writes it.
    pub node: usize,
    /// Operation of that node.
    pub op: String,
    /// The layer, if the node belongs to one.
    pub layer: Option<u32>,
    /// The value's name in the plan: `layer 3 q`.
    pub value: String,
    /// Root mean square of the difference, relative to the root mean square of the value on the
    /// second device.
    pub rms: f64,
    /// Row and column of the largest difference.
    pub at: (usize, usize),
    /// Values of the first and the second device at that place.
    pub found: (f32, f32),
}

/// One device with a plan that it fused and compiled.
struct Side {
    plan: Plan,
    program: Box<dyn Program>,
    limits: Limits,
}

impl Side {
    fn new(model: &Model, device: &Arc<dyn Device>, options: &LoadOptions) -> Result<Side> {
        let limits = load::limits(model, device.as_ref(), options)?;
        let plan = device_lower::fusion::fuse(&model.plan_for_context(limits.n_ctx)?, device.fusion());
        let mut program = device.compile(std::slice::from_ref(&plan), &limits)?;
        program.commit_all()?;
        Ok(Side { plan, program, limits })
    }

    /// The value after the node that writes it; `None` if this device never has it in memory.
    fn value(&mut self, tokens: &[u32], value: ValueId) -> Result<Option<Vec<f32>>> {
        let writes = |node: &Node| node.op.writes().contains(&value);
        let Some(node) = self.plan.nodes.iter().position(writes) else { return Ok(None) };
        let pages_per_table = self.limits.n_ctx.div_ceil(self.limits.page_len);
        let of_group = |n_pages: &usize| {
            let n = pages_per_table.min(*n_pages) as u32;
            (0..n).chain(std::iter::repeat_n(PAGE_NONE, pages_per_table - n as usize))
        };
        let page_tables: Vec<u32> = self.limits.n_pages.iter().flat_map(of_group).collect();
        let step = Step {
            tokens,
            spans: &[Span { slot: 0, first_row: 0, n_rows: tokens.len() as u32, first_position: 0 }],
            page_tables: &page_tables,
            pages_per_table,
            outputs: &[tokens.len() as u32 - 1],
            wants: &[Want::LOGITS],
            ..Step::default()
        };
        self.program.run_until(&step, node)?;
        Ok(self.program.read(value))
    }
}

/// Compute `tokens` as one step on both devices, and compare every value that both have, in the
/// order of the first one's plan. `visit` receives each difference, and returns false to stop.
///
/// Keys and values are stored in F32 if both devices support it, otherwise in the given type.
///
/// # Errors
/// No tokens, or more than the context has; a device cannot run the model; or as `visit`.
pub fn diff(
    model: &Model,
    devices: [&Arc<dyn Device>; 2],
    options: &LoadOptions,
    tokens: &[u32],
    visit: &mut dyn FnMut(ValueDiff) -> Result<bool>,
) -> Result<()> {
    if tokens.is_empty() {
        return Err(Error::EmptyPrompt);
    }
    let both = |kv_type| devices.iter().all(|device| device.kv_types().contains(&kv_type));
    let kv_type = options.kv_type.or(both(KvType::F32).then_some(KvType::F32));
    let options = LoadOptions {
        kv_type,
        chunk: Some(tokens.len()),
        n_ctx: Some(options.n_ctx.unwrap_or(0).max(tokens.len()).max(2)),
        n_sequences: 1,
        n_outputs: None,
        ..options.clone()
    };
    let [first, second] = devices;
    let mut sides = [Side::new(model, first, &options)?, Side::new(model, second, &options)?];
    let nodes = sides[0].plan.nodes.clone();
    for (index, node) in nodes.iter().enumerate() {
        for id in node.op.writes() {
            let Some(a) = sides[0].value(tokens, id)? else { continue };
            let Some(b) = sides[1].value(tokens, id)? else { continue };
            let plan = &sides[0].plan;
            let value = plan.value(id);
            if a.len() != b.len() {
                let what = format!(
                    "{} has {} numbers on one device and {} on the other",
                    value.name,
                    a.len(),
                    b.len()
                );
                return Err(Error::Integrity { what });
            }
            let (rms, worst) = difference(&a, &b);
            let diff = ValueDiff {
                node: index,
                op: plan.show(&node.op).to_string().lines().next().unwrap_or_default().trim().to_owned(),
                layer: node.layer,
                value: value.name.clone(),
                rms,
                at: (worst / value.cols.max(1), worst % value.cols.max(1)),
                found: a.get(worst).copied().zip(b.get(worst).copied()).unwrap_or_default(),
            };
            if !visit(diff)? {
                return Ok(());
            }
        }
    }
    Ok(())
}

/// Root mean square of `a - b` relative to that of `b` (to 1e-6, if `b` is smaller), and the index
/// of the largest difference. Equal infinities differ by 0; a NaN on one side only differs
/// infinitely.
fn difference(a: &[f32], b: &[f32]) -> (f64, usize) {
    let (mut sum, mut size, mut worst, mut largest) = (0.0, 0.0, 0, 0.0);
    for (at, (&a, &b)) in a.iter().zip(b).enumerate() {
        let same = a == b || (a.is_nan() && b.is_nan());
        let d = if same { 0.0 } else { (f64::from(a) - f64::from(b)).abs() };
        let d = if d.is_nan() { f64::INFINITY } else { d };
        if d > largest {
            (worst, largest) = (at, d);
        }
        sum += d * d;
        size += if b.is_finite() { f64::from(b) * f64::from(b) } else { 0.0 };
    }
    let n = a.len().max(1) as f64;
    ((sum / n).sqrt() / (size / n).sqrt().max(1e-6), worst)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_are_relative_and_not_numbers_are_infinite() {
        assert_eq!(difference(&[1.0, 2.0], &[1.0, 2.0]), (0.0, 0));
        assert_eq!(difference(&[3.0, 5.0], &[3.0, 4.0]).1, 1);
        assert!((difference(&[1.1, -1.1], &[1.0, -1.0]).0 - 0.1).abs() < 1e-6);
        assert_eq!(difference(&[f32::NAN], &[1.0]).0, f64::INFINITY);
        assert_eq!(difference(&[f32::NAN, f32::INFINITY], &[f32::NAN, f32::INFINITY]).0, 0.0);
    }
}

//! Checks for the owner of a Mac: every kernel against the CPU, and each kernel's rate against the
//! memory's bandwidth. The command is `ingle metal-selftest`.

mod ahead;
mod bisect;
mod probes;
mod timing;

pub use ahead::check_ahead;
pub use bisect::{MakeGpu, Variant, bisect, check_case};
pub use probes::{Probed, probe};
pub use timing::{Decoder, Effort, sweep, time_attention, time_overheads, time_product};

use crate::MetalDevice;
use crate::gpu::MetalGpu;
use device::{Activation, KvLayer, Op, OpKind, OutputKind, Plan, RopeStyle, Weight};
use device_check::{AttentionOptions, Case, PlanBuilder, Rng, check_op_cases, stored};
use weights::{BlockType, Bytes, Planes};

/// Ops that multiply in tiles.
const TILES: [OpKind; 5] =
    [OpKind::Linear, OpKind::ExpertLinear, OpKind::Attention, OpKind::CrossAttention, OpKind::SelfAttention];

/// The largest difference of a case from the interpreter.
///
/// Sums in other orders stay within a few times the rounding of f32. So do exponentials and roots
/// that are exact to a few units in the last place. Tiles of matrices multiply in halves. A
/// rounding step is 2^-11 of a number, and a product has two factors, so an element may be off by
/// 2^-10 of its size. That size may be six times the one by which differences are measured. Several
/// tiles in sequence accumulate this error.
pub fn tolerance(case: &Case) -> f32 {
    let ops = case.plans.iter().flat_map(Plan::primitives);
    let n_tiles = ops.filter(|op| TILES.contains(&op.kind())).count();
    4.0 * case.tolerance + 6e-3 * (n_tiles as f32).min(4.0)
}

/// The cases of one kind of Op.
#[derive(Clone, Debug)]
pub struct Checked {
    /// The kind of Op.
    pub kind: OpKind,
    /// Number of cases that ran.
    pub n_cases: usize,
    /// Differences, in words.
    pub failures: Vec<String>,
}

/// Positions after which sequences are split, in tests of splitting.
pub const SHORTEST_SPLIT: usize = 7;

/// Returns true if a case has attentions that split long sequences.
pub fn may_split(case: &Case) -> bool {
    let splits = |op: &Op| matches!(op.kind(), OpKind::Attention | OpKind::CrossAttention);
    case.plans.iter().flat_map(Plan::primitives).any(splits)
}

/// Compare every kernel with the interpreter: every case of a KV type that it has, unfused and
/// fused, whole and row by row. Those with attention run again with sequences that are split over
/// threadgroups after a few positions, as long ones are. `progress` is called before each case.
/// `every` selects each n-th case.
pub fn check<G: MetalGpu>(
    device: &MetalDevice<G>,
    every: usize,
    progress: &mut dyn FnMut(usize, usize, &str),
) -> Vec<Checked> {
    let cases = check_op_cases().into_iter().filter(|case| case.runs_on(device));
    let cases: Vec<Case> = cases.step_by(every.max(1)).collect();
    let n = cases.len();
    let mut checked: Vec<Checked> = vec![];
    for (index, case) in cases.into_iter().enumerate() {
        progress(index, n, &case.name);
        let at = checked.iter().position(|c| c.kind == case.kind).unwrap_or_else(|| {
            checked.push(Checked { kind: case.kind, n_cases: 0, failures: vec![] });
            checked.len() - 1
        });
        let result = check_case(device, &case);
        checked[at].n_cases += 1;
        checked[at].failures.extend(result.err());
    }
    checked
}

/// Number of distinct rows of a matrix. The other rows repeat them, since quantising is slow.
const N_DIFFERENT: usize = 64;

/// A product by a matrix of a type: too large for caches where `n_out` is.
fn product(block: BlockType, n_out: usize, n_in: usize) -> Plan {
    let mut b = PlanBuilder::new(1, 64);
    let x = b.embed(n_in);
    let y = b.linear(x, N_DIFFERENT.min(n_out), BlockType::F32, false);
    // Its columns are no tokens.
    let mut plan = Plan { output_kind: OutputKind::Hidden, ..b.finish(y) };
    let weight = stored(&mut Rng::new(3), "matrix", N_DIFFERENT.min(n_out), n_in, block, 0.1);
    let repeated = |bytes: &Bytes, row: usize| {
        let bytes: Vec<u8> = bytes.iter().copied().cycle().take(n_out * row).collect();
        Bytes::from_slice(&bytes)
    };
    let planes = &weight.planes;
    let weight = Weight {
        shape: vec![n_out, n_in],
        data: repeated(&weight.data, weight.row_bytes()),
        planes: Planes {
            scales: planes.scales.as_ref().map(|plane| repeated(plane, block.row_scale_bytes(n_in))),
            biases: planes.biases.as_ref().map(|plane| repeated(plane, block.row_bias_bytes(n_in))),
        },
        ..weight
    };
    for node in &plan.nodes {
        if let Op::Linear { weight: id, out, .. } = node.op {
            plan.weights[id.0 as usize] = weight.clone();
            plan.values[out.0 as usize].cols = n_out;
        }
        if let Op::SelectRows { out, .. } = node.op {
            plan.values[out.0 as usize].cols = n_out;
        }
    }
    plan
}

/// Columns of a head of [`model`].
const HEAD_DIM: usize = 64;

/// A dense model: four query heads to a KV head, `4 * hidden` columns inside and tokens.
fn model_of(hidden: usize, n_layers: usize) -> Plan {
    let block = BlockType::Q4_0;
    let mut b = PlanBuilder::new(1, 4 * hidden);
    let mut x = b.embed_from(hidden, block, 1.0);
    let n_kv_heads = n_kv_heads(hidden);
    for index in 0..n_layers {
        b.layer(Some(index as u32));
        let layer = KvLayer {
            n_kv_heads,
            head_dim: HEAD_DIM,
            window: None,
            encoder_states: None,
            values_are_keys: false,
        };
        let layer = b.kv_layer(layer);
        let norm = b.rms_norm(x, hidden);
        let [q, k, v] = [4, 1, 1].map(|n| b.linear(norm, n * n_kv_heads * HEAD_DIM, block, false));
        let [q, k] = [q, k].map(|x| b.rope(x, HEAD_DIM, HEAD_DIM, RopeStyle::Half));
        b.kv_write(k, v, layer);
        let y = b.attention(q, layer, 4 * n_kv_heads, AttentionOptions::default());
        let y = b.linear(y, hidden, block, false);
        x = b.add(x, y);
        let norm = b.rms_norm(x, hidden);
        let [gate, up] = [0, 1].map(|_| b.linear(norm, 4 * hidden, block, false));
        let y = b.gate(gate, up, Activation::Silu);
        let y = b.linear(y, hidden, block, false);
        x = b.add(x, y);
    }
    b.layer(None);
    let x = b.select_rows(x);
    let x = b.rms_norm(x, hidden);
    let logits = b.linear(x, 4 * hidden, block, false);
    b.finish(logits)
}

fn n_kv_heads(hidden: usize) -> usize {
    (hidden / HEAD_DIM / 4).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use device_check::block_types;

    /// Products of every type are timed, matrices of types with planes too.
    #[test]
    fn products_of_every_type_can_be_made() {
        for block in block_types() {
            let plan = product(block, 200, 512);
            let matrix = plan.weights.iter().find(|weight| weight.name == "matrix").unwrap();
            assert_eq!((matrix.block, matrix.n_rows()), (block, 200));
        }
    }

    #[test]
    fn the_model_is_one() {
        model_of(256, 2).check().unwrap();
    }
}

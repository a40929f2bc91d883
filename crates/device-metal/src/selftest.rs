//! What an owner of a Mac can find out: whether every kernel agrees with the CPU, and how near each
//! comes to the memory's bandwidth. Behind `ingle metal-selftest`.

mod ahead;

pub use ahead::check_ahead;

use crate::MetalDevice;
use crate::gpu::Gpu;
use device::{
    Activation, CommandInfo, Device, KvLayer, KvType, Limits, Op, OpKind, OwnedStep, Peaks, Plan, Program,
    RopeStyle, Span, Timing, Want, Weight,
};
use device_lower::fusion;
use device_testing::{
    AttentionOptions, Case, PlanBuilder, Rng, block_types, check_op_cases, compare, compare_chunks, limits,
    one_sequence, stored,
};
use weights::{BlockType, Bytes, Planes};

/// Ops that multiply in tiles.
const TILES: [OpKind; 5] =
    [OpKind::Linear, OpKind::ExpertLinear, OpKind::Attention, OpKind::CrossAttention, OpKind::SelfAttention];

/// How far a case may be from the interpreter.
///
/// Sums in other orders, and exponentials and roots good to a few units in the last place, stay
/// within a few times what f32 needs in any order. Tiles of matrices multiply in halves: a step is
/// 2^-11 of a number, and a product has two, so that an element may be off by 2^-10 of what it is;
/// it may be six times the size that differences are measured by. What several tiles make, one
/// after the other, carries it on.
pub fn tolerance(case: &Case) -> f32 {
    let ops = case.plans.iter().flat_map(Plan::primitives);
    let n_tiles = ops.filter(|op| TILES.contains(&op.kind())).count();
    4.0 * case.tolerance + 6e-3 * (n_tiles as f32).min(4.0)
}

/// The cases of one kind of Op.
#[derive(Clone, Debug)]
pub struct Checked {
    /// Which.
    pub kind: OpKind,
    /// How many ran.
    pub n_cases: usize,
    /// What differed, in words.
    pub failures: Vec<String>,
}

/// Positions after which sequences are split where that is what is tested.
pub const SHORTEST_SPLIT: usize = 7;

/// Whether a case has sequences whose positions are split where they are long.
pub fn may_split(case: &Case) -> bool {
    let splits = |op: &Op| matches!(op.kind(), OpKind::Attention | OpKind::CrossAttention);
    case.plans.iter().flat_map(Plan::primitives).any(splits)
}

/// Compare every kernel with the interpreter: every case of a KV type that it has, unfused and
/// fused, whole and row by row. Those with attention run again with sequences that are split over
/// threadgroups after a few positions, as long ones are. `progress` is told of each case before it
/// runs; `every` takes only each n-th.
pub fn check<G: Gpu>(
    device: &MetalDevice<G>,
    every: usize,
    progress: &mut dyn FnMut(usize, usize, &str),
) -> Vec<Checked> {
    let cases = check_op_cases().into_iter().filter(|case| case.runs_on(device));
    let cases: Vec<Case> = cases.step_by(every.max(1)).collect();
    let n = cases.len();
    let splitting = device.splitting(SHORTEST_SPLIT);
    let mut checked: Vec<Checked> = vec![];
    for (index, case) in cases.into_iter().enumerate() {
        progress(index, n, &case.name);
        let at = checked.iter().position(|c| c.kind == case.kind).unwrap_or_else(|| {
            checked.push(Checked { kind: case.kind, n_cases: 0, failures: vec![] });
            checked.len() - 1
        });
        let bound = tolerance(&case);
        let mut result = compare(device, &case, bound).and_then(|()| compare_chunks(device, &case, bound));
        if result.is_ok() && may_split(&case) {
            result = compare(&splitting, &case, bound).map_err(|failure| format!("split: {failure}"));
        }
        checked[at].n_cases += 1;
        checked[at].failures.extend(result.err());
    }
    checked
}

/// A kernel's time.
#[derive(Clone, Debug)]
pub struct Timed {
    /// The kernel, as profiles name it.
    pub kernel: String,
    /// Rows of the step.
    pub n_rows: usize,
    /// Seconds, the shortest of several.
    pub seconds: f64,
    /// Bytes of weights, keys and values that it must read.
    pub bytes: u64,
    /// Operations of a product: a multiply and an add are two; 0: not counted.
    pub ops: u64,
}

impl Timed {
    /// Of the bandwidth that was measured.
    pub fn of_bandwidth(&self, peaks: &Peaks) -> f64 {
        self.bytes as f64 / self.seconds / peaks.read_bytes_per_second
    }

    /// Of the operations that were measured.
    pub fn of_ops(&self, peaks: &Peaks) -> f64 {
        self.ops as f64 / self.seconds / peaks.f32_ops_per_second
    }
}

/// Rows of a matrix that differ; the others repeat them, for quantising takes long.
const N_DIFFERENT: usize = 64;

/// A product by a matrix of a type: too large for caches where `n_out` is.
fn product(block: BlockType, n_out: usize, n_in: usize) -> Plan {
    let mut b = PlanBuilder::new(1, 64);
    let x = b.embed(n_in);
    let y = b.linear(x, N_DIFFERENT.min(n_out), BlockType::F32, false);
    let mut plan = b.finish(y);
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

/// Time the products of each type with one row and with many.
///
/// # Errors
/// The device refused or failed.
pub fn time<G: Gpu>(
    device: &MetalDevice<G>,
    n_out: usize,
    n_in: usize,
    rows: &[usize],
) -> device::Result<Vec<Timed>> {
    let mut timed = vec![];
    for block in block_types() {
        let plan = product(block, n_out, n_in);
        let max_rows = rows.iter().copied().max().unwrap_or(1);
        let limits = Limits { max_rows, max_outputs: max_rows, kv_type: KvType::F16, ..limits(&plan.kv) };
        let ops = plan.ops_per_token();
        let mut program = device.compile(&[plan], &limits)?;
        program.commit_all()?;
        for n_rows in rows {
            let step = OwnedStep {
                plan: 0,
                tokens: (0..*n_rows as u32).map(|row| row % 64).collect(),
                input: vec![],
                spans: vec![Span { slot: 0, first_row: 0, n_rows: *n_rows as u32, first_position: 0 }],
                page_tables: vec![],
                pages_per_table: 0,
                outputs: vec![0],
                wants: vec![Want::LOGITS],
                ..OwnedStep::default()
            };
            let product = |command: &CommandInfo| command.kernel.contains("linear");
            let commands = shortest(program.as_mut(), &step)?;
            timed.extend(commands.into_iter().find(|(command, _)| product(command)).map(
                |(command, seconds)| {
                    let (kernel, bytes) = (command.kernel, command.weight_bytes);
                    Timed { kernel, n_rows: *n_rows, seconds, bytes, ops: ops * *n_rows as u64 }
                },
            ));
        }
    }
    Ok(timed)
}

/// The commands of a step that ran, each with the shortest of a few times, in seconds.
fn shortest(program: &mut dyn Program, step: &OwnedStep) -> device::Result<Vec<(CommandInfo, f64)>> {
    let mut best: Vec<f64> = vec![];
    let mut timings: Vec<Timing> = vec![];
    for _ in 0..5 {
        timings.clear();
        program.run_timed(&step.borrow(), &mut timings)?;
        best.resize(best.len().max(timings.len()), f64::INFINITY);
        for timing in timings.iter().filter(|timing| timing.duration > 0.0) {
            best[timing.command] = best[timing.command].min(timing.duration);
        }
    }
    let commands = program.commands(step.plan, step.tokens.len()).into_iter().zip(best);
    Ok(commands.filter(|(_, seconds)| seconds.is_finite()).collect())
}

/// Columns of a head of [`model`].
const HEAD_DIM: usize = 64;

/// A dense model of one layer: four query heads to a KV head, `4 * hidden` columns inside and
/// tokens.
fn model(hidden: usize) -> Plan {
    let block = BlockType::Q4_0;
    let mut b = PlanBuilder::new(1, 4 * hidden);
    let x = b.embed_from(hidden, block, 1.0);
    b.layer(Some(0));
    let n_kv_heads = n_kv_heads(hidden);
    let layer = b.kv_layer(KvLayer {
        n_kv_heads,
        head_dim: HEAD_DIM,
        window: None,
        encoder_states: None,
        values_are_keys: false,
    });
    let norm = b.rms_norm(x, hidden);
    let [q, k, v] = [4, 1, 1].map(|n| b.linear(norm, n * n_kv_heads * HEAD_DIM, block, false));
    let [q, k] = [q, k].map(|x| b.rope(x, HEAD_DIM, HEAD_DIM, RopeStyle::Half));
    b.kv_write(k, v, layer);
    let y = b.attention(q, layer, 4 * n_kv_heads, AttentionOptions::default());
    let y = b.linear(y, hidden, block, false);
    let x = b.add(x, y);
    let norm = b.rms_norm(x, hidden);
    let [gate, up] = [0, 1].map(|_| b.linear(norm, 4 * hidden, block, false));
    let y = b.gate(gate, up, Activation::Silu);
    let y = b.linear(y, hidden, block, false);
    let x = b.add(x, y);
    b.layer(None);
    let x = b.select_rows(x);
    let x = b.rms_norm(x, hidden);
    let logits = b.linear(x, 4 * hidden, block, false);
    b.finish(logits)
}

fn n_kv_heads(hidden: usize) -> usize {
    (hidden / HEAD_DIM / 4).max(1)
}

/// Time every kernel of a model's layer, its embedding and its head: one row at the last of
/// `n_positions`, and a prompt of so many rows. `hidden` is a multiple of 256.
///
/// # Errors
/// The device refused or failed.
pub fn time_steps<G: Gpu>(
    device: &MetalDevice<G>,
    hidden: usize,
    n_positions: usize,
    n_rows: usize,
) -> device::Result<Vec<Timed>> {
    let plan = fusion::fuse(&model(hidden), device.fusion());
    let page_len = 64;
    let n_ctx = n_positions.max(n_rows).next_multiple_of(page_len);
    let limits = Limits {
        max_rows: n_rows,
        max_outputs: 1,
        max_spans: 1,
        n_ctx,
        page_len,
        n_pages: vec![n_ctx / page_len],
        n_states: 0,
        kv_type: KvType::F16,
        ..limits(&plan.kv)
    };
    let mut program = device.compile(std::slice::from_ref(&plan), &limits)?;
    program.commit_all()?;
    let mut timed = vec![];
    for (n_rows, first) in [(n_rows, 0), (1, n_positions - 1)] {
        let tokens: Vec<u32> = (0..n_rows as u32).map(|row| row % 64).collect();
        let step = one_sequence(&plan, &limits, &tokens, first as u32);
        let kv_bytes = 2 * n_kv_heads(hidden) * HEAD_DIM * 2 * (first + n_rows);
        for (command, seconds) in shortest(program.as_mut(), &step)? {
            let attends =
                ["attention_decode", "attention_prefill"].iter().any(|name| command.kernel.contains(name));
            let bytes = command.weight_bytes + if attends { kv_bytes as u64 } else { 0 };
            timed.push(Timed { kernel: command.kernel, n_rows, seconds, bytes, ops: 0 });
        }
    }
    Ok(timed)
}

#[cfg(test)]
mod tests {
    use super::*;

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
        model(256).check().unwrap();
    }
}

//! What an owner of a Mac can find out: whether every kernel agrees with the CPU, and how near each comes to the memory's
//! bandwidth. Behind `ingle metal-selftest`.

use crate::MetalDevice;
use crate::gpu::Gpu;
use device::testing::{Case, PlanBuilder, Rng, check_op_cases, compare, compare_chunks, limits, stored};
use device::{Device, KvType, Limits, Op, OpKind, OwnedStep, Peaks, Plan, Span, Timing, Want, Weight};
use formats::{BlockType, Bytes, Planes};

/// Ops that multiply in tiles.
const TILES: [OpKind; 5] =
    [OpKind::Linear, OpKind::ExpertLinear, OpKind::Attention, OpKind::CrossAttention, OpKind::SelfAttention];

/// How far a case may be from the interpreter.
///
/// Sums in other orders, and exponentials and roots good to a few units in the last place, stay within a few times what f32
/// needs in any order. Tiles of matrices multiply in halves: a step is 2^-11 of a number, and a product has two, so that an
/// element may be off by 2^-10 of what it is; it may be six times the size that differences are measured by. What several tiles
/// make, one behind the other, carries it on.
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

/// Compare every kernel with the interpreter: every case that every device must pass, unfused and fused, whole and row by row.
/// Those with attention run again with sequences that are split over threadgroups after a few positions, as long ones are.
/// `progress` is told of each case before it runs; `every` takes only each n-th.
pub fn check<G: Gpu>(
    device: &MetalDevice<G>,
    every: usize,
    progress: &mut dyn FnMut(usize, usize, &str),
) -> Vec<Checked> {
    let cases: Vec<Case> = check_op_cases().into_iter().step_by(every.max(1)).collect();
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
    /// Bytes of weights that it reads.
    pub bytes: u64,
    /// Operations: a multiply and an add are two.
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

/// The types whose products are timed.
const TIMED: [BlockType; 16] = [
    BlockType::Q4_0,
    BlockType::Q4_1,
    BlockType::Q5_0,
    BlockType::Q8_0,
    BlockType::Q4_K,
    BlockType::Q5_K,
    BlockType::Q6_K,
    BlockType::IQ4_XS,
    BlockType::IQ1_S,
    BlockType::IQ2_XS,
    BlockType::IQ3_S,
    BlockType::TQ2_0,
    BlockType::MXFP4,
    BlockType::NVFP4,
    BlockType::F16,
    BlockType::BF16,
];

/// Rows of a matrix that differ; the others repeat them, for quantising takes long.
const N_DIFFERENT: usize = 64;

/// A product by a matrix of a type: too large for caches where `n_out` is.
fn product(block: BlockType, n_out: usize, n_in: usize) -> Plan {
    let mut b = PlanBuilder::new(1, 64);
    let x = b.embed(n_in);
    let y = b.linear(x, N_DIFFERENT.min(n_out), BlockType::F32, false);
    let mut plan = b.finish(y);
    let weight = stored(&mut Rng::new(3), "matrix", N_DIFFERENT.min(n_out), n_in, block, 0.1);
    let data: Vec<u8> = weight.data.iter().copied().cycle().take(n_out * weight.row_bytes()).collect();
    let weight = Weight {
        shape: vec![n_out, n_in],
        data: Bytes::from_slice(&data),
        planes: Planes::default(),
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

/// Time the products of each type with one row and with many, and what stands beside them.
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
    for block in TIMED {
        let plan = product(block, n_out, n_in);
        let max_rows = rows.iter().copied().max().unwrap_or(1);
        let limits = Limits { max_rows, max_outputs: max_rows, kv_type: KvType::F16, ..limits(&plan.kv) };
        let ops = plan.ops_per_token();
        let mut program = device.compile(&[plan], &limits)?;
        for n_rows in rows {
            let step = OwnedStep {
                plan: 0,
                tokens: (0..*n_rows as u32).map(|row| row % 64).collect(),
                input: vec![],
                spans: vec![Span { slot: 0, first_row: 0, n_rows: *n_rows as u32, first_position: 0 }],
                page_tables: vec![],
                pages_per_table: 0,
                outputs: vec![0],
                want: Want::Logits,
            };
            let mut best: Option<Timed> = None;
            for _ in 0..5 {
                let mut timings: Vec<Timing> = vec![];
                program.run_timed(&step.borrow(), &mut timings)?;
                let commands = program.commands(0, *n_rows);
                let product = timings.iter().find_map(|timing| {
                    let command = commands.get(timing.command)?;
                    command.kernel.contains("linear").then_some((command, timing.duration))
                });
                let Some((command, seconds)) = product else { continue };
                if best.as_ref().is_none_or(|best| seconds < best.seconds) {
                    best = Some(Timed {
                        kernel: command.kernel.clone(),
                        n_rows: *n_rows,
                        seconds: seconds.max(1e-9),
                        bytes: command.weight_bytes,
                        ops: ops * *n_rows as u64,
                    });
                }
            }
            timed.extend(best);
        }
    }
    Ok(timed)
}

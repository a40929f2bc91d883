//! The interpreter's program: plans, their buffers, and the loop over Ops.

use std::ops::Range;
use std::time::Instant;

use device::key_bias::KnownKeys;
use device::{
    CommandInfo, Device, Error, Item, Limits, MemoryPlan, Op, Plan, Program, Residence, Result, Step, Timing,
    ValueId, WeightId,
};
use device_lower::hosted::{HostProgram, Hosted};
use device_lower::outputs::HostOutputs;

use crate::activations::{self, Activations};
use crate::forward::{Forward, rows};
use crate::kv_pages::KvPages;
use crate::{Rank, Reference};

pub const NAME: &str = "reference";

/// Pages of a granule.
const GRANULE: usize = 2;

/// Maximum number of steps in flight. One, since a step is computed during its submission.
const IN_FLIGHT: usize = 1;

/// Memory of the interpreter: weights in place, f32 copies of vectors, a buffer for each value, and
/// pages.
pub fn memory_plan(device: &Reference, plans: &[Plan], limits: &Limits) -> Result<MemoryPlan> {
    limits.check(device, plans)?;
    let vectors = |plan: &Plan| vector_ids(plan).map(|id| plan.weight(id).n_cols()).sum::<usize>();
    let of_plan = |plan: &Plan| activations::bytes(plan, limits) + 4 * vectors(plan) as u64;
    let rows = 8 * limits.max_rows as u64;
    let buffers = plans.iter().map(of_plan).sum::<u64>() + rows;
    let n_logits = plans.iter().map(|plan| plan.value(plan.output).cols).max().unwrap_or(0);
    let sampling = HostOutputs::bytes(n_logits, limits, IN_FLIGHT, 1);
    let mut memory = MemoryPlan::of_weights_and_kv(plans, limits, |_| true);
    for (what, bytes) in [("activations", buffers), ("sampling", sampling)] {
        memory.items.push(Item { what: what.to_owned(), bytes, residence: Residence::Committed });
    }
    Ok(memory)
}

/// Norm weights, biases, frequencies and sinks, which are decoded once.
fn vector_ids(plan: &Plan) -> impl Iterator<Item = WeightId> {
    let ids = plan.primitives().flat_map(|op| {
        if let Op::Embed { .. } | Op::EmbedPositions { .. } | Op::ExpertLinear { .. } = op {
            vec![]
        } else if let Op::Linear { bias, .. } | Op::ShortConv { bias, .. } = op {
            bias.iter().copied().collect()
        } else {
            op.weights()
        }
    });
    let mut ids: Vec<WeightId> = ids.collect();
    ids.sort();
    ids.dedup();
    ids.into_iter()
}

/// One primitive, and its node in the plan.
struct Command {
    op: Op,
    node: usize,
    layer: Option<u32>,
}

/// One of a program's plans.
struct Compiled {
    plan: Plan,
    commands: Vec<Command>,
    /// Decoded vectors by weight; empty for matrices.
    vectors: Vec<Vec<f32>>,
    activations: Activations,
}

impl Compiled {
    fn new(plan: &Plan, limits: &Limits) -> Result<Compiled> {
        let commands = plan.nodes.iter().enumerate().flat_map(|(node, n)| {
            n.op.primitives().iter().map(move |op| Command { op: op.clone(), node, layer: n.layer })
        });
        let mut vectors = vec![vec![]; plan.weights.len()];
        for id in vector_ids(plan) {
            let weight = plan.weight(id);
            let mut vector = vec![0.0; weight.n_cols()];
            weight.decode_rows(0..1, &mut vector);
            vectors[id.0 as usize] = vector;
        }
        Ok(Compiled {
            commands: commands.collect(),
            vectors,
            activations: Activations::new(plan, limits).map_err(|bytes| refused("activations", bytes))?,
            plan: plan.clone(),
        })
    }
}

fn refused(what: &str, bytes: u64) -> Error {
    Error::OutOfMemory { device: NAME, what: what.to_owned(), bytes }
}

/// The interpreter's [`Program`].
pub struct ReferenceProgram {
    plans: Vec<Compiled>,
    /// The plan of the last step.
    current: usize,
    n_threads: usize,
    rank: Option<Rank>,
    limits: Limits,
    pages: KvPages,
    /// `(n_states, state_len)`
    states: Vec<f32>,
    /// Position of each row of the step.
    positions: Vec<u32>,
    slots: Vec<u32>,
}

impl ReferenceProgram {
    /// Allocates the memory of a program.
    pub fn compile(device: &Reference, plans: &[Plan], limits: &Limits) -> Result<Box<dyn Program>> {
        limits.check(device, plans)?;
        let kv = plans.first().map(|plan| plan.kv.clone()).unwrap_or_default();
        let pages = KvPages::new(&kv, limits.kv_type, limits.page_len, &limits.n_pages).map_err(|_| {
            let groups = limits.n_pages.iter().enumerate();
            let bytes: usize =
                groups.map(|(g, n)| n * kv.page_bytes(g, limits.kv_type, limits.page_len)).sum();
            refused("KV pages", bytes as u64)
        })?;
        let pages = pages.without(KnownKeys::of_layers(plans, limits));
        let program = ReferenceProgram {
            plans: plans.iter().map(|plan| Compiled::new(plan, limits)).collect::<Result<_>>()?,
            current: 0,
            n_threads: device.n_threads(),
            rank: device.rank.clone(),
            limits: limits.clone(),
            pages,
            states: vec![0.0; limits.n_states * kv.state_len()],
            positions: Vec::with_capacity(limits.max_rows),
            slots: Vec::with_capacity(limits.max_rows),
        };
        Ok(Box::new(Hosted::new(program, plans.iter(), limits, IN_FLIGHT, 1)))
    }
}

impl HostProgram for ReferenceProgram {
    fn name(&self) -> &'static str {
        NAME
    }

    fn compute(
        &mut self,
        step: &Step,
        until: Option<usize>,
        mut timings: Option<&mut Vec<Timing>>,
    ) -> Result<()> {
        self.current = step.plan;
        (self.positions, self.slots) = rows(step.spans).unzip();
        let Compiled { plan, commands, vectors, activations } = &mut self.plans[step.plan];
        activations.clear();
        let mut forward = Forward {
            plan,
            vectors,
            activations,
            pages: &mut self.pages,
            states: &mut self.states,
            step,
            positions: &self.positions,
            slots: &self.slots,
            n_threads: self.n_threads,
            rank: self.rank.as_ref(),
        };
        let begun = Instant::now();
        let mut start = 0.0;
        for (index, command) in commands.iter().enumerate() {
            if until.is_some_and(|last| command.node > last) {
                break;
            }
            if step.is_stopped() {
                return Err(Error::Stopped { device: NAME });
            }
            forward.run(&command.op)?;
            if let Some(timings) = &mut timings {
                let end = begun.elapsed().as_secs_f64();
                timings.push(Timing { command: index, start, duration: end - start });
                start = end;
            }
        }
        Ok(())
    }

    fn logits(&self) -> &[f32] {
        let Compiled { plan, activations, .. } = &self.plans[self.current];
        activations.floats(plan.output)
    }

    fn kept(&self, index: usize) -> &[f32] {
        let Compiled { plan, activations, .. } = &self.plans[self.current];
        plan.kept.get(index).map_or(&[], |id| activations.floats(*id))
    }

    fn read(&self, value: ValueId) -> Option<Vec<f32>> {
        self.plans[self.current].activations.read(value)
    }

    fn copy_page(&mut self, group: usize, from: u32, to: u32) {
        self.pages.copy(group, from, to);
    }

    fn read_page(&self, group: usize, page: u32, bytes: &mut [u8]) -> Result<()> {
        if let Some(found) = self.pages.page(group, page) {
            bytes.copy_from_slice(found);
        }
        Ok(())
    }

    fn write_page(&mut self, group: usize, page: u32, bytes: &[u8]) -> Result<()> {
        if let Some(found) = self.pages.page_mut(group, page) {
            found.copy_from_slice(bytes);
        }
        Ok(())
    }

    fn granule(&self, _: usize) -> usize {
        GRANULE
    }

    /// Fills the pages with NaN and keeps their memory: reads of a decommitted page are noticed,
    /// even after the next commit.
    fn decommit(&mut self, group: usize, pages: Range<u32>) {
        pages.for_each(|page| self.pages.poison(group, page));
    }

    fn replace_plans(&mut self, plans: &[Plan]) -> Result<()> {
        self.plans = plans.iter().map(|plan| Compiled::new(plan, &self.limits)).collect::<Result<_>>()?;
        self.current = 0;
        Ok(())
    }

    fn commands(&self, plan: usize, _n_rows: usize) -> Vec<CommandInfo> {
        let Some(Compiled { plan, commands, .. }) = self.plans.get(plan) else { return vec![] };
        let info = |Command { op, node, layer }: &Command| {
            let kernel = if let Op::Linear { weight, .. } = op {
                format!("linear_{}", plan.weight(*weight).block.name().to_lowercase())
            } else {
                op.kind().to_string()
            };
            CommandInfo { kernel, node: *node, layer: *layer, weight_bytes: plan.weight_bytes_of(op) }
        };
        commands.iter().map(info).collect()
    }
}

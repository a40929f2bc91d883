//! The state while a table is written: the constant part is the [`Compiler`], and the [`Draft`]
//! holds what one unit passes to the next. [`Pipelines`] lists the kernels.

use super::call::{Bound, Call};
use crate::arguments::PagesArguments;
use crate::gpu::{Constant, Fewer, MetalGpu, Request};
use crate::kernels::Kernel;
use crate::layout::Scratch;
use crate::profile::Profile;
use crate::weights::{LookupTables, Weights};
use device::{
    CommandInfo, Error, KvLayerId, Limits, Numerics, Op, Plan, Result, RowCount, ValueId, WeightId,
};
use device_gpu::layout::StepLayout;
use device_gpu::replayer::{ARENA, CHOSEN, SCRATCH, STEP};
use device_lower::arena::{Arena, NO_PLACE};
use device_lower::lifetimes::value_bytes;
use device_lower::table::{Location, NewCommand, RowClass, Table, When};
use device_lower::units::{Join, LoweredUnit};
use std::collections::HashMap;
use weights::Bytes;

/// The constant inputs of the tables of a plan.
pub struct Compiler<'a, G: MetalGpu> {
    /// The GPU.
    pub gpu: &'a G,
    /// Its profile.
    pub profile: &'a Profile,
    /// Index of the plan.
    pub index: usize,
    /// The plan that was lowered.
    pub plan: &'a Plan,
    /// Its units.
    pub units: &'a [LoweredUnit],
    /// Places of its values.
    pub arena: &'a Arena,
    /// The limits.
    pub limits: &'a Limits,
    /// The layout of a step.
    pub step: StepLayout,
    /// Sizes of scratch.
    pub scratch: Scratch,
    /// Places of weights.
    pub weights: &'a Weights,
    /// Tables that kernels look up.
    pub tables: &'a LookupTables,
}

/// Function constants by index.
type Constants = Vec<(u16, Constant)>;

/// The kernels of a program with their constants, in the order of the numbers by which commands
/// name them.
#[derive(Default)]
pub struct Pipelines {
    requests: Vec<Request>,
    /// Constants and numbers of compiled kernels, by function and threads.
    indices: HashMap<(Kernel, u32), Vec<(Constants, u32)>>,
}

impl Pipelines {
    /// The number of a kernel, which is given one if it has none.
    fn index_of(&mut self, kernel: Kernel, constants: Constants, threads: u32, fewer: Fewer) -> u32 {
        let known = self.indices.entry((kernel.clone(), threads)).or_default();
        let is_same = |(other, index): &&(Constants, u32)| {
            *other == constants && self.requests[*index as usize].fewer == fewer
        };
        if let Some((_, index)) = known.iter().find(is_same) {
            return *index;
        }
        let index = self.requests.len() as u32;
        known.push((constants.clone(), index));
        self.requests.push(Request { kernel, constants, threads, fewer });
        index
    }

    /// The kernels by number.
    pub fn into_list(self) -> Vec<Request> {
        self.requests
    }
}

/// The partial results of an attention whose positions were split.
pub(super) struct AttentionParts {
    /// The value that they become.
    pub(super) out: ValueId,
    /// Query heads.
    pub(super) n_heads: usize,
    /// Columns of a head.
    pub(super) head_dim: usize,
    /// Parts of each head.
    pub(super) n_splits: usize,
    /// A logit of each head.
    pub(super) sinks: Option<WeightId>,
    /// `(n_heads, n_splits, head_dim)`, whole vectors, and its bytes.
    pub(super) partials: (Location, usize),
    /// `(n_heads, n_splits)` of two, and its bytes.
    pub(super) totals: (Location, usize),
    /// Steps in which there are parts.
    pub(super) when: When,
}

/// A schedule of a product.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Schedule {
    /// A GEMV of this many rows at a time.
    Gemv(u32),
    /// Tiles of this many rows.
    Gemm(u32),
}

/// A table as it is written.
pub(super) struct Draft<'a, G: MetalGpu> {
    /// Classes of rows of tokens and of outputs.
    pub(super) tokens: RowClass,
    pub(super) outputs: RowClass,
    pub(super) table: Table,
    pub(super) pipelines: &'a mut Pipelines,
    /// Values that are read where another one is.
    pub(super) alias: HashMap<ValueId, ValueId>,
    /// The ids by which pairs were put in order last.
    pub(super) ordered: Option<ValueId>,
    /// Index of the node, for the information.
    pub(super) node: usize,
    /// The units after the one that is made.
    pub(super) rest: &'a [LoweredUnit],
    /// Number of the following units that the current unit has already lowered.
    pub(super) n_done: usize,
    /// The place of the largest logit of each part of the head, and the number of parts.
    pub(super) bests: Option<(Location, usize)>,
    /// Partial results of an attention that the next unit merges.
    pub(super) parts: Option<AttentionParts>,
    /// A branch that the next projection adds to the residual.
    pub(super) join: Option<Join>,
    /// Places of norms that were already computed, with their sum or for an earlier reader.
    pub(super) normed: Vec<ValueId>,
    /// Products of experts that the next sum weighs and adds: the products, and their weights.
    pub(super) expert_parts: Option<(ValueId, ValueId)>,
    /// True if a dispatch writes the cosines and sines of the step's positions.
    pub(super) has_turns: bool,
    pub(super) compiler: &'a Compiler<'a, G>,
}

impl<'a, G: MetalGpu> Compiler<'a, G> {
    /// Returns true if the sums of a row must not depend on other rows of its step.
    pub(super) fn is_deterministic(&self) -> bool {
        self.limits.numerics == Numerics::Deterministic
    }

    pub(super) fn unsupported(&self, what: String, hint: &str) -> Error {
        Error::Unsupported { device: G::NAME, what, hint: hint.to_owned() }
    }

    /// Returns true if a single Op reads a value, and the caller does not.
    pub(super) fn is_read_once(&self, id: ValueId) -> bool {
        let n_readers = self.plan.primitives().flat_map(Op::reads).filter(|read| *read == id).count();
        n_readers == 1 && self.plan.results().all(|result| result != id)
    }

    /// The place of bytes of a weight.
    pub(super) fn bytes_of(&self, bytes: &Bytes) -> Result<Location> {
        self.weights.place(bytes).ok_or_else(|| Error::Failed {
            device: G::NAME,
            reason: format!("a weight of {} bytes has no place", bytes.len()),
        })
    }

    /// The place of a weight that is not a stack.
    pub(super) fn weight(&self, id: WeightId) -> Result<Location> {
        self.bytes_of(&self.plan.weight(id).data)
    }

    /// A weight's place, or anything if there is none.
    pub(super) fn weight_or_any(&self, id: Option<WeightId>) -> Result<Location> {
        id.map_or(Ok(self.anything()), |id| self.weight(id))
    }

    /// A place to bind to a parameter that a kernel's constants leave unused.
    pub(super) fn anything(&self) -> Location {
        Location { buffer: STEP, offset: 0 }
    }

    /// The tokens that outputs of the last steps chose.
    pub(super) fn chosen_tokens(&self) -> Location {
        Location { buffer: CHOSEN, offset: 0 }
    }

    /// The first byte of a part of scratch.
    pub(super) fn scratch_place(&self, part: usize) -> Location {
        Location { buffer: SCRATCH, offset: self.scratch.at(part) as u64 }
    }

    pub(super) fn step_place(&self, offset: usize) -> Location {
        Location { buffer: STEP, offset: offset as u64 }
    }

    pub(super) fn pages(&self, layer: KvLayerId) -> PagesArguments {
        let (kv, limits) = (&self.plan.kv, self.limits);
        let (group, place) = kv.group_of(layer);
        let bytes = |id: &KvLayerId| kv.layer_page_bytes(*id, limits.kv_type, limits.page_len);
        let offset = kv.groups[group].layers[..place].iter().map(bytes).sum();
        PagesArguments::new(offset, group, limits.page_len, kv.layer(layer))
    }

    pub(super) fn cols(&self, id: ValueId) -> usize {
        self.plan.value(id).cols
    }

    pub(super) fn rows(&self, id: ValueId) -> RowCount {
        self.plan.value(id).rows
    }
}

impl<G: MetalGpu> Draft<'_, G> {
    pub(super) fn push(&mut self, mut call: Call) -> Result<()> {
        let most = self.compiler.gpu.facts().max_threads / 32 * 32;
        if call.threads > most && call.fewer != Fewer::SameGroups {
            let what = format!("a threadgroup of {} threads for {}", call.threads, call.kernel.function);
            let hint =
                format!("this GPU runs at most {most} of them; please report it, and use --device cpu");
            return Err(self.compiler.unsupported(what, &hint));
        }
        let layer = self.compiler.plan.nodes.get(self.node).and_then(|n| n.layer);
        let kernel = call.name.take().unwrap_or_else(|| call.kernel.function.clone());
        let info = CommandInfo { kernel, node: self.node, layer, weight_bytes: call.weight_bytes };
        let threads = call.threads.min(most);
        let new = NewCommand {
            kernel: self.pipelines.index_of(call.kernel, call.constants, threads, call.fewer),
            operands: &call.operands,
            parameters: &call.parameters,
            reads: &call.reads,
            writes: &call.writes,
            values: &call.values,
            grid: call.grid,
            threads,
            threadgroup_bytes: call.threadgroup_bytes.next_multiple_of(16),
            when: call.when,
        };
        self.table.push(new, info);
        Ok(())
    }

    /// The class of the rows of a value.
    pub(super) fn class(&self, id: ValueId) -> RowClass {
        match self.compiler.rows(id).per_token() {
            Some(k) => self.tokens.times(k),
            None => self.outputs,
        }
    }

    /// The place and the bytes of a value.
    pub(super) fn value(&self, id: ValueId) -> Bound {
        let id = self.alias.get(&id).copied().unwrap_or(id);
        let offset = match self.compiler.arena.offset[id.0 as usize] {
            NO_PLACE => 0,
            offset => offset,
        };
        let location = Location { buffer: ARENA, offset: offset as u64 };
        let bytes = value_bytes(self.compiler.plan.value(id), self.compiler.limits);
        Bound { location, bytes, value: Some(id) }
    }

    /// The place of a column in the first row of a value, and the bytes from there.
    pub(super) fn columns_from(&self, id: ValueId, first: usize) -> Bound {
        let Bound { location, bytes, value } = self.value(id);
        let location = Location { offset: location.offset + 4 * first as u64, ..location };
        Bound { location, bytes: bytes - 4 * first, value }
    }

    /// A kernel of single Ops, with the step bound.
    pub(super) fn step_call<A: bytemuck::Pod>(&self, file: &'static str, arguments: &A) -> Call {
        Call::new(Kernel::of(file), arguments).bind(1, self.compiler.step_place(0))
    }

    /// The schedule of products with the rows of this value.
    pub(super) fn schedule(&self, x: ValueId) -> Schedule {
        match self.class(x) {
            RowClass::One => Schedule::Gemv(1),
            RowClass::Two => Schedule::Gemv(2),
            RowClass::Four => Schedule::Gemv(4),
            RowClass::Eight => Schedule::Gemv(8),
            // Tiles add in another order than single rows.
            RowClass::Tile | RowClass::Many if self.compiler.is_deterministic() => Schedule::Gemv(8),
            RowClass::Tile => Schedule::Gemm(32),
            RowClass::Many => Schedule::Gemm(self.compiler.profile.tile_rows),
        }
    }
}

//! Compiles units to tables: chooses a kernel for each unit and class of rows, and fills its
//! arguments. `primitives` compiles single Ops, `linear` products with weights, `experts` products
//! with the matrices of each row's experts, and `attention` the Ops that read KV pages.

mod attention;
mod experts;
mod linear;
mod primitives;

pub(crate) use primitives::activation;

use crate::arguments::{Choice, EmbedArguments, PagesArguments, PersistentArguments};
use crate::driver::{Address, NAME};
use crate::group::Rank;
use crate::layout::{Scratch, StepLayout};
use crate::packs::Packs;
use crate::persistent::{Persistent, PhasePlaces, Rows, THREADS};
use crate::products::AtLaunch;
use crate::profile::Profile;
use crate::stored::Kind;
use crate::weights::Weights;
use bytemuck::Pod;
use device::{
    CommandInfo, Error, KvLayerId, KvType, Limits, Numerics, Op, Plan, Result, RowCount, ValueId, WeightId,
};
use device_lower::arena::{Arena, NO_PLACE};
use device_lower::lifetimes::value_bytes;
use device_lower::table::{Extent, Location, NewCommand, Region, RowClass, Table, When};
use device_lower::units::{LoweredUnit, Unit};
use std::sync::Arc;

/// Addresses of a program's memory.
#[derive(Clone, Default)]
pub struct Places {
    /// The arena.
    pub arena: Address,
    /// The step buffer.
    pub step: Address,
    /// The chosen tokens.
    pub chosen: Address,
    /// The chosen tokens in pinned memory.
    pub host_chosen: Address,
    /// The masks of steps, in pinned memory; 0: there are none.
    pub masks: Address,
    /// Scratch.
    pub scratch: Address,
    /// Lists of the heads of CrossScores.
    pub heads: Address,
    /// States of recurrent layers.
    pub states: Address,
    /// Address, for each KV layer, of the biases that are subtracted from keys before the store. 0,
    /// or no entry: none.
    pub known: Vec<Address>,
    /// Pools of pages by KV group.
    pub pools: Vec<Address>,
    /// The GPU's place in a group.
    pub rank: Option<Arc<Rank>>,
}

/// A kernel: its file, its name, and the most bytes of shared memory that it uses.
pub type KernelName = (String, String, u32);

/// The kernels that commands name by number.
#[derive(Debug, Default)]
pub struct KernelList {
    /// Names of the kernels, in the order of their numbers.
    pub names: Vec<KernelName>,
}

impl KernelList {
    fn add(&mut self, file: &str, name: &str, shared: u32) -> u32 {
        let index = self.names.iter().position(|(f, n, _)| f == file && n == name);
        let index = index.unwrap_or_else(|| {
            self.names.push((file.to_owned(), name.to_owned(), shared));
            self.names.len() - 1
        });
        self.names[index].2 = self.names[index].2.max(shared);
        index as u32
    }
}

/// A table, and for each command the data that the launcher needs.
#[derive(Debug, Default)]
pub struct Commands {
    /// The table.
    pub table: Table,
    /// Kind of rows of each command. The launcher writes their number into the arguments.
    pub rows: Vec<RowCount>,
    /// Choices that are made when a command is launched.
    pub at_launch: Vec<AtLaunch>,
    /// True for each command whose blocks wait for each other, so that all must run at once.
    pub together: Vec<bool>,
}

/// The inputs that all tables of a plan share.
pub struct Compiler<'a> {
    /// The choices for the chip.
    pub profile: &'a Profile,
    /// The plan.
    pub plan: &'a Plan,
    /// Its units.
    pub units: &'a [LoweredUnit],
    /// Places of its values.
    pub arena: &'a Arena,
    /// Limits of the program.
    pub limits: &'a Limits,
    /// Layout of a step.
    pub step: StepLayout,
    /// Scratch of the program.
    pub scratch: Scratch,
    /// Addresses.
    pub places: &'a Places,
    /// Places of weights.
    pub weights: &'a Weights,
    /// Packed weights.
    pub packs: &'a Packs,
    /// Lists of heads of CrossScores, with their offsets from `places.heads` in words.
    pub heads: &'a [(Vec<usize>, usize)],
}

/// A table under construction.
pub(crate) struct Draft<'a> {
    c: &'a Compiler<'a>,
    tokens: RowClass,
    outputs: RowClass,
    commands: Commands,
    kernels: &'a mut KernelList,
    node: usize,
    /// True if scratch holds the projection's rows, ready for packed products.
    is_tiled: bool,
    /// The ids of the experts whose tiles are in scratch.
    grouped: Option<ValueId>,
    /// Condition of commands that have no condition of their own.
    when: When,
    /// Condition of the kernels that find the best token.
    best: When,
}

/// One kernel launch.
#[derive(Clone, Copy)]
struct Call<'a> {
    file: &'a str,
    name: &'a str,
    rows: RowCount,
    grid: [Extent; 3],
    threads: u32,
    shared: u32,
    when: When,
    writes: &'a [ValueId],
    weight_bytes: u64,
    at_launch: AtLaunch,
    together: bool,
}

impl<'a> Call<'a> {
    /// A launch of the kernel that is named after its file.
    fn new(
        file: &'a str,
        rows: RowCount,
        grid: [Extent; 3],
        threads: u32,
        writes: &'a [ValueId],
    ) -> Call<'a> {
        let name = file.trim_end_matches(".cu");
        Call {
            file,
            name,
            rows,
            grid,
            threads,
            shared: 0,
            when: When::Always,
            writes,
            weight_bytes: 0,
            at_launch: AtLaunch::Nothing,
            together: false,
        }
    }
}

pub(crate) const ONE: Extent = Extent::Fixed(1);

/// Arguments of the one-row persistent kernel for row `row` of a step. The launcher adds the page
/// table of the row's sequence.
fn of_row(arguments: &PersistentArguments, row: usize) -> PersistentArguments {
    let row = row as u64;
    PersistentArguments {
        x: arguments.x + 4 * row * u64::from(arguments.hidden),
        position: arguments.position + 4 * row,
        choice: match arguments.choice {
            0 => 0,
            choice => choice + row * size_of::<Choice>() as u64,
        },
        logits: arguments.logits + 4 * row * u64::from(arguments.n_vocab),
        ..*arguments
    }
}

/// A threadgroup for each row.
pub(crate) fn each(rows: RowCount) -> Extent {
    Extent::PerRow { rows, multiple: 1, divisor: 1 }
}

fn blocks(n: usize, per: usize) -> Extent {
    Extent::Fixed(n.div_ceil(per) as u32)
}

impl Compiler<'_> {
    /// Makes the table for steps of these classes, and adds its kernels to `kernels`.
    ///
    /// # Errors
    /// Something has no kernel.
    pub fn table(&self, tokens: RowClass, outputs: RowClass, kernels: &mut KernelList) -> Result<Commands> {
        let mut draft = self.draft(tokens, outputs, kernels);
        draft.units(self.units)?;
        Ok(draft.commands)
    }

    /// The table for steps that run in one launch of a persistent kernel, with the units before and
    /// after the kernel. Every row is an output.
    ///
    /// # Errors
    /// Something has no kernel.
    pub fn persistent_table(
        &self,
        persistent: &Persistent,
        class: RowClass,
        file: &str,
        addresses: &PersistentAddresses,
        kernels: &mut KernelList,
    ) -> Result<Commands> {
        let decoder = &persistent.decoder;
        let [before, after] = persistent.outside.clone();
        let rows = persistent.rows_of(class);
        let mut draft = self.draft(class, class, kernels);
        draft.units(&self.units[before])?;
        draft.node = decoder.nodes.start;
        let (base, shared) = self.persistent_arguments(persistent, rows);
        let frequencies = |index: usize| self.vector_or_null(decoder.rotations.get(index).map(|(id, _)| *id));
        let first_norm = decoder.layers.first().map(|layer| layer.norm);
        let arguments = PersistentArguments {
            phases: addresses.phases,
            x: self.value(decoder.first)?,
            first_norm: self.vector_or_null(first_norm)?,
            frequencies1: frequencies(0)?,
            frequencies2: frequencies(1)?,
            position: self.step_place(self.step.positions),
            page_table: self.step_place(self.step.page_tables),
            row_spans: self.step_place(self.step.row_spans),
            spans: self.step_place(self.step.spans),
            choice: if persistent.chooses { self.step_place(self.step.choices) } else { 0 },
            chosen: self.places.chosen,
            host_chosen: self.places.host_chosen,
            logits: self.value(decoder.logits)?,
            exchange: addresses.exchange,
            step_bytes: self.step.region as u32,
            embedding: self.embedding(persistent).map(|(_, embedding)| embedding).unwrap_or_default(),
            ..base
        };
        let name = persistent.kernel(rows).name();
        let grid = [Extent::Fixed(persistent.n_blocks() as u32), ONE, ONE];
        let writes = [decoder.logits];
        let call = Call::new(file, RowCount::Tokens, grid, THREADS, &writes);
        let weight_bytes = persistent.weight_bytes();
        let call = Call { name: &name, shared, weight_bytes, together: true, ..call };
        if rows == Rows::Several {
            draft.push(call, &arguments);
        } else {
            let most = class.most().unwrap_or(usize::MAX).min(persistent.in_turn);
            for row in 0..most {
                draft.push(Call { at_launch: AtLaunch::Row(row), ..call }, &of_row(&arguments, row));
            }
        }
        if persistent.chooses {
            draft.best = When::BestOfChanged;
        }
        draft.units(&self.units[after])?;
        Ok(draft.commands)
    }

    /// Arguments of a persistent kernel, without addresses, and the bytes of shared memory of its
    /// launch.
    pub fn persistent_arguments(&self, persistent: &Persistent, rows: Rows) -> (PersistentArguments, u32) {
        persistent.arguments(self.plan, self.limits, &self.step, self.profile.shared_bytes, rows)
    }

    /// The embedding look-up with which a kernel of several chained steps begins each step: the
    /// type that reads rows of the table, and the arguments. `None` if a launch computes only one
    /// step, or if the residual does not begin with a plain embedding.
    pub fn embedding(&self, persistent: &Persistent) -> Option<(String, EmbedArguments)> {
        let [before, _] = persistent.outside.clone();
        let [LoweredUnit { unit: Unit::Primitive(Op::Embed { table, scale, out }), .. }] =
            self.units.get(before)?
        else {
            return None;
        };
        let begins =
            *out == persistent.decoder.first && persistent.chained_steps(self.plan, self.profile) > 1;
        let (kind, arguments) = self.embed_arguments(*table, *scale, *out).ok().filter(|_| begins)?;
        Some((kind.rows(), arguments))
    }

    /// The type of a table, and the arguments of a look-up in it, without the rows to read.
    fn embed_arguments(&self, table: WeightId, scale: f32, out: ValueId) -> Result<(Kind, EmbedArguments)> {
        let weight = self.plan.weight(table);
        let Some((stored, matrix)) = self.weights.matrix(weight) else {
            return failed(format!("{} was not loaded", weight.name));
        };
        let arguments = EmbedArguments {
            cols: self.cols(out) as u32,
            scale,
            n_table: weight.n_rows() as u32,
            out: self.value(out)?,
            table: matrix,
            ..EmbedArguments::default()
        };
        Ok((stored.kind, arguments))
    }

    /// The phases of the persistent kernels' table.
    ///
    /// # Errors
    /// A vector was not loaded.
    pub fn phases(
        &self,
        persistent: &Persistent,
        weights: &[Address],
        biases: &[Address],
    ) -> Result<Vec<crate::arguments::PersistentPhase>> {
        let vector = |id: WeightId| self.vector(id);
        let pages = |layer: KvLayerId| {
            let pages = self.pages(layer);
            let (group, _) = self.plan.kv.group_of(layer);
            let table = (group * self.step.pages_per_table) as u32;
            (pages.pool + pages.layer_offset, pages.page_bytes as u32, table)
        };
        let places = PhasePlaces { weights, biases, vector: &vector, pages: &pages };
        persistent.phases(self.plan, &places)
    }

    fn draft<'a>(&'a self, tokens: RowClass, outputs: RowClass, kernels: &'a mut KernelList) -> Draft<'a> {
        Draft {
            c: self,
            tokens,
            outputs,
            commands: Commands::default(),
            kernels,
            node: 0,
            is_tiled: false,
            grouped: None,
            when: When::Always,
            best: When::Best,
        }
    }

    fn rows(&self, id: ValueId) -> RowCount {
        self.plan.value(id).rows
    }

    fn cols(&self, id: ValueId) -> usize {
        self.plan.value(id).cols
    }

    fn value(&self, id: ValueId) -> Result<Address> {
        match self.arena.offset[id.0 as usize] {
            NO_PLACE => failed(format!("{} has no memory", self.plan.value(id).name)),
            offset => Ok(self.places.arena + offset as u64),
        }
    }

    fn vector(&self, id: WeightId) -> Result<Address> {
        let weight = self.plan.weight(id);
        self.weights.vector(weight).map_or_else(|| failed(format!("{} was not loaded", weight.name)), Ok)
    }

    fn vector_or_null(&self, id: Option<WeightId>) -> Result<Address> {
        id.map_or(Ok(0), |id| self.vector(id))
    }

    fn step_place(&self, offset: usize) -> Address {
        self.places.step + offset as u64
    }

    fn scratch_place(&self, part: usize) -> Address {
        self.places.scratch + self.scratch.at(part) as u64
    }

    fn pages(&self, layer: KvLayerId) -> PagesArguments {
        let (kv, limits) = (&self.plan.kv, self.limits);
        let (group, index) = kv.group_of(layer);
        let before = &kv.groups[group].layers[..index];
        let layer_offset =
            before.iter().map(|id| kv.layer_page_bytes(*id, limits.kv_type, limits.page_len)).sum::<usize>();
        let of = kv.layer(layer);
        PagesArguments {
            pool: self.places.pools[group],
            page_bytes: kv.page_bytes(group, limits.kv_type, limits.page_len) as u64,
            layer_offset: layer_offset as u64,
            tables: self.step_place(self.step.page_tables + group * self.step.pages_per_table * 4),
            table_stride: self.step.table_stride(),
            page_len: limits.page_len as u32,
            n_kv_heads: of.n_kv_heads as u32,
            head_dim: of.head_dim as u32,
            values_are_keys: u32::from(of.values_are_keys),
            reserved: 0,
            known: self.places.known.get(layer.0 as usize).copied().unwrap_or(0),
        }
    }

    fn is_deterministic(&self) -> bool {
        self.limits.numerics == Numerics::Deterministic
    }

    /// The part of the names of kernels over pages for the KV type: `f16`.
    fn kv_name(&self) -> Result<&'static str> {
        match self.limits.kv_type {
            KvType::F32 => Ok("f32"),
            KvType::F16 => Ok("f16"),
            KvType::Q8_0 => Ok("q8_0"),
            KvType::Fp8 => Ok("fp8"),
            other @ (KvType::I16 | KvType::I8) => failed(format!("a KV cache of {other:?}")),
        }
    }
}

fn failed<T>(reason: String) -> Result<T> {
    Err(Error::Failed { device: NAME, reason })
}

/// Addresses of a persistent kernel's tables and buffers.
pub struct PersistentAddresses {
    /// The table.
    pub phases: Address,
    /// The two exchange buffers and the turn counter.
    pub exchange: Address,
}

impl Draft<'_> {
    fn units(&mut self, units: &[LoweredUnit]) -> Result<()> {
        for LoweredUnit { node, unit, .. } in units {
            self.node = *node;
            self.unit(unit)?;
        }
        Ok(())
    }

    fn unit(&mut self, unit: &Unit) -> Result<()> {
        match unit {
            Unit::Projection(p) => self.projection(p),
            Unit::Join(join) => self.join(join),
            Unit::QkRopeKv(heads) => self.qk_rope_kv(heads),
            Unit::QRope(queries) => self.q_rope(queries),
            Unit::ExpertGateUp { x, norm, ids, gate, up, kind, beside: None, out } => {
                self.experts(*x, norm.map(|(norm, _)| norm), *ids, &[*gate, *up], Some(*kind), *out)
            }
            Unit::ExpertDownSum { x, ids, weight, weights, parts, residual, beside: None, out } => {
                if self.sum_of_one(*x, *ids, *weight, *weights, *residual, *out)? {
                    return Ok(());
                }
                self.experts(*x, None, *ids, &[*weight], None, *parts)?;
                self.expert_sum(*parts, *weights, *residual, *out)
            }
            Unit::Primitive(op) => self.primitive(op),
            // No pass of the profile creates these units.
            Unit::Gated { .. }
            | Unit::RowGated { .. }
            | Unit::ExpertGateUp { beside: Some(_), .. }
            | Unit::ExpertDownSum { beside: Some(_), .. } => failed("a unit without kernels".to_owned()),
        }
    }

    /// The class of rows of this table for `rows`.
    fn class(&self, rows: RowCount) -> RowClass {
        match rows.per_token() {
            Some(k) => self.tokens.times(k),
            None => self.outputs,
        }
    }

    fn push<A: Pod>(&mut self, call: Call<'_>, arguments: &A) {
        let c = self.c;
        let kernel = self.kernels.add(call.file, call.name, call.shared);
        let region = |id: &ValueId| {
            let offset = c.arena.offset[id.0 as usize];
            let location = Location { buffer: 0, offset: offset as u64 };
            Region::of(location, value_bytes(c.plan.value(*id), c.limits))
        };
        let writes: Vec<Region> = call.writes.iter().map(region).collect();
        let new = NewCommand {
            kernel,
            operands: &[],
            parameters: bytemuck::bytes_of(arguments),
            reads: &[],
            writes: &writes,
            values: call.writes,
            grid: call.grid,
            threads: call.threads,
            threadgroup_bytes: call.shared,
            when: if call.when == When::Always { self.when } else { call.when },
        };
        let info = CommandInfo {
            kernel: match call.at_launch {
                // The launcher chooses one of its kernels by the number of rows.
                AtLaunch::Cut(product) => format!("gemm/packed {}", product.codec.name),
                AtLaunch::Grouped(product, _) => format!("gemm/grouped {}", product.codec.name),
                AtLaunch::Nothing | AtLaunch::Width(_) | AtLaunch::Row(_) => {
                    format!("{} {}", call.file.trim_end_matches(".cu"), call.name)
                }
            },
            node: self.node,
            layer: c.plan.nodes.get(self.node).and_then(|node| node.layer),
            weight_bytes: call.weight_bytes,
        };
        self.commands.table.push(new, info);
        self.commands.rows.push(call.rows);
        self.commands.at_launch.push(call.at_launch);
        self.commands.together.push(call.together);
    }
}

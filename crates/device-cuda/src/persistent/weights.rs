//! The third copy of a decoder's matrices, in the order in which the persistent kernels read them,
//! and the kernels' other memory: biases and exchanges. Rows are uploaded as the file has them, and
//! the GPU packs them (`kernels/persistent/persistent_repack.cu`).

use super::header::BUNDLE;
use super::pattern::{BiasedMatrix, Layer};
use super::products::{Packing, PhaseProduct};
use super::{Persistent, Rows};
use crate::arguments::PersistentRepackArguments;
use crate::driver::{Address, Buffer, Context, Event, Function, Pinned, Start};
use crate::kernels::Kernels;
use crate::weights::{MatrixKey, matrix_key};
use device::{Plan, Result, Weight, WeightId};
use std::collections::HashMap;
use std::sync::Arc;
use weights::BlockType;

/// Bytes of a staging buffer for rows.
const STAGING: usize = 16 << 20;

/// Alignment in bytes of staged rows, packed weights and biases.
const ALIGN: usize = 256;

/// The packed weights of a phase, or of one of its experts.
struct PhasePack {
    groups: usize,
    k_quads: usize,
    warps: usize,
    /// Equal parts that groups are ordered by, or 0 for the parts of the kernel's blocks.
    owners: usize,
    /// Units of a group of an expert's down, or 0 for other products.
    units: usize,
    gate: bool,
    offset: usize,
    rows: Vec<PackRows>,
}

/// Rows of a matrix, or of a gate and its up, that follow each other in the packed weights.
struct PackRows {
    weight: Weight,
    up: Option<Weight>,
    /// The matrix of a stack.
    part: Option<usize>,
    n: usize,
    /// First packed row, a multiple of 8.
    to: usize,
}

/// Biases of a layer's q, k and v one after the other, and their offset in bytes.
struct Bias {
    values: Vec<f32>,
    offset: usize,
}

/// The memory that the persistent kernels need for some plans. Plans share equal parts.
#[derive(Default)]
pub struct PersistentPlan {
    packs: Vec<PhasePack>,
    /// Routers, their `k_quads` and their offsets in bytes.
    routers: Vec<(Weight, usize, usize)>,
    /// Offsets in bytes of the matrices that are packed together.
    of: HashMap<Vec<MatrixKey>, usize>,
    /// Offsets in bytes of the weights, by plan and phase.
    phases: Vec<Vec<usize>>,
    /// Biases by plan and layer.
    biases: Vec<Vec<Option<Bias>>>,
    n_blocks: usize,
    total: usize,
    /// The kernels that run some plan.
    kernels: Vec<Rows>,
}

impl PersistentPlan {
    /// Lays out the memory of `plans`. Plans that no kernel can run need none.
    pub fn new<'a, 'b>(
        plans: impl Iterator<Item = (&'a Plan, &'b std::result::Result<Persistent, String>)>,
    ) -> PersistentPlan {
        let mut all = PersistentPlan::default();
        for (plan, persistent) in plans {
            let (mut phases, mut biases) = (Vec::new(), Vec::new());
            if let Ok(persistent) = persistent {
                all.n_blocks = persistent.n_blocks;
                for rows in persistent.kernels() {
                    if !all.kernels.contains(&rows) {
                        all.kernels.push(rows);
                    }
                }
                let layers = &persistent.decoder.layers;
                let mut products = persistent.products.iter();
                let mut next = || products.next().copied().unwrap_or(persistent.products[0]);
                for layer in layers {
                    for part in &persistent.qkv_parts {
                        phases.push(all.add_in_order(plan, next(), &layer.qkv[part.clone()]));
                    }
                    phases.push(all.add(plan, next(), layer.output, None));
                    if let Some(router) = layer.router {
                        phases.push(all.add_router(plan.weight(router.matrix), next()));
                        phases.push(all.add_stack(plan, next(), layer.gate, Some(layer.up)));
                        phases.push(all.add_stack(plan, next(), layer.down, None));
                    } else {
                        phases.push(all.add(plan, next(), layer.gate, Some(layer.up)));
                        phases.push(all.add(plan, next(), layer.down, None));
                    }
                    biases.push(bias(plan, layer).map(|values| {
                        let offset = all.reserve(4 * values.len());
                        Bias { values, offset }
                    }));
                }
                phases.push(all.add(plan, next(), persistent.decoder.head, None));
            }
            all.phases.push(phases);
            all.biases.push(biases);
        }
        all
    }

    /// Reserves bytes and returns their offset.
    fn reserve(&mut self, bytes: usize) -> usize {
        let offset = self.total;
        self.total += bytes.next_multiple_of(ALIGN);
        offset
    }

    /// Bytes of weights, biases and exchanges.
    pub fn total(&self) -> usize {
        let exchanges: usize = self.kernels.iter().map(|rows| rows.exchange_bytes()).sum();
        self.total + exchanges
    }

    /// The offset of a product's weights, and true if the product is a new one.
    fn place(&mut self, keys: &[&Weight], product: PhaseProduct) -> (usize, bool) {
        let key: Vec<MatrixKey> = keys.iter().map(|weight| matrix_key(weight)).collect();
        if let Some(offset) = self.of.get(&key) {
            return (*offset, false);
        }
        let offset = self.reserve(product.bytes().0);
        self.of.insert(key, offset);
        (offset, true)
    }

    fn add_pack(
        &mut self,
        product: PhaseProduct,
        keys: &[&Weight],
        gate: bool,
        rows: Vec<PackRows>,
    ) -> usize {
        let (offset, is_new) = self.place(keys, product);
        if is_new {
            let PhaseProduct { groups, k_quads, warps, .. } = product;
            self.packs.push(PhasePack { groups, k_quads, warps, owners: 0, units: 0, gate, offset, rows });
        }
        offset
    }

    fn add(&mut self, plan: &Plan, product: PhaseProduct, id: WeightId, up: Option<WeightId>) -> usize {
        let (weight, up) = (plan.weight(id), up.map(|id| plan.weight(id)));
        let keys: Vec<&Weight> = [weight].into_iter().chain(up).collect();
        let (n, weight) = (weight.n_rows(), weight.clone());
        let rows = PackRows { weight, up: up.cloned(), part: None, n, to: 0 };
        self.add_pack(product, &keys, up.is_some(), vec![rows])
    }

    fn add_router(&mut self, weight: &Weight, product: PhaseProduct) -> usize {
        let (offset, is_new) = self.place(&[weight], product);
        if is_new {
            self.routers.push((weight.clone(), product.k_quads, offset));
        }
        offset
    }

    /// Adds a stack of experts, each of which is a pack.
    fn add_stack(&mut self, plan: &Plan, product: PhaseProduct, id: WeightId, up: Option<WeightId>) -> usize {
        let (weight, up) = (plan.weight(id), up.map(|id| plan.weight(id)));
        let keys: Vec<&Weight> = [weight].into_iter().chain(up).collect();
        let (first, is_new) = self.place(&keys, product);
        let (groups, owners, units) = match product.packing {
            Packing::Bundles { bundles, .. } => (BUNDLE * bundles, bundles, 0),
            Packing::Down { units, .. } => (product.groups, 0, units),
            Packing::Rows | Packing::Router => return first,
        };
        for part in (0..weight.parts.len()).filter(|_| is_new) {
            let n = weight.n_rows() / weight.parts.len();
            let rows = PackRows { weight: weight.clone(), up: up.cloned(), part: Some(part), n, to: 0 };
            let offset = first + part * product.part_bytes();
            let PhaseProduct { k_quads, warps, .. } = product;
            let rows = vec![rows];
            self.packs.push(PhasePack {
                groups,
                k_quads,
                warps,
                owners,
                units,
                gate: up.is_some(),
                offset,
                rows,
            });
        }
        first
    }

    /// Adds matrices whose rows follow each other.
    fn add_in_order(&mut self, plan: &Plan, product: PhaseProduct, matrices: &[BiasedMatrix]) -> usize {
        let weights: Vec<&Weight> = matrices.iter().map(|(id, _)| plan.weight(*id)).collect();
        let mut to = 0;
        let rows = |weight: &&Weight| {
            let n = weight.n_rows();
            to += n;
            PackRows { weight: (*weight).clone(), up: None, part: None, n, to: to - n }
        };
        let rows = weights.iter().map(rows).collect();
        self.add_pack(product, &weights, false, rows)
    }

    /// Allocates the memory and fills it. Returns `None` if no plan needs any.
    ///
    /// # Errors
    /// Returns an error if memory runs out or a kernel does not compile.
    pub fn load(self, context: &Arc<Context>, kernels: &Kernels) -> Result<Option<PersistentWeights>> {
        if self.total == 0 {
            return Ok(None);
        }
        let buffer = Buffer::new(context, "weights for tokens in one launch", self.total)?;
        // A new buffer holds zeros, which the kernels rely on.
        let exchange =
            |rows: Rows| Buffer::new(context, "exchange of tokens in one launch", rows.exchange_bytes());
        let exchanges = self.kernels.iter().map(|rows| Ok((*rows, exchange(*rows)?)));
        let exchanges = exchanges.collect::<Result<_>>()?;
        for Bias { values, offset } in self.biases.iter().flatten().flatten() {
            context.upload(buffer.start() + *offset as u64, bytemuck::cast_slice(values))?;
        }
        for (weight, k_quads, offset) in &self.routers {
            let packed = router(weight, *k_quads);
            context.upload(buffer.start() + *offset as u64, bytemuck::cast_slice(&packed))?;
            context.finish()?;
        }
        context.finish()?;
        let mut functions: HashMap<BlockType, Function> = HashMap::new();
        let mut modules = Vec::new();
        for block in self.packs.iter().flat_map(|pack| &pack.rows).map(|rows| rows.weight.block) {
            if let std::collections::hash_map::Entry::Vacant(entry) = functions.entry(block) {
                let name = format!("persistent_repack_{}", block.name().to_lowercase());
                let (function, module) = kernels.function("persistent/persistent_repack.cu", &name, 0)?;
                entry.insert(function);
                modules.push(module);
            }
        }
        let mut stagings = [Staging::new(context)?, Staging::new(context)?];
        let mut turn = 0;
        for pack in &self.packs {
            for rows in &pack.rows {
                let row_bytes = rows.weight.row_bytes() * if rows.up.is_some() { 2 } else { 1 };
                let most = ((STAGING - 2 * ALIGN) / row_bytes.max(1) / 8 * 8).max(8);
                for start in (0..rows.n).step_by(most) {
                    let n = most.min(rows.n - start);
                    if !stagings[turn].has_room(n * row_bytes + 2 * ALIGN) {
                        stagings[turn].event.record()?;
                        turn = 1 - turn;
                        // The kernels that read the buffer's old rows have ended.
                        stagings[turn].event.wait()?;
                        stagings[turn].at = 0;
                    }
                    let staging = &mut stagings[turn];
                    let mut put = |weight: &Weight| {
                        let bytes = weight.row_bytes();
                        let data = rows.part.map_or(&weight.data, |part| &weight.parts[part].data);
                        staging.put(context, &data[start * bytes..][..n * bytes])
                    };
                    let from = put(&rows.weight)?;
                    let up_rows = rows.up.as_ref().map_or(Ok(0), put)?;
                    let together = if pack.gate { 2 } else { 1 };
                    let arguments = PersistentRepackArguments {
                        n_rows: n as u32,
                        n_cols: rows.weight.n_cols() as u32,
                        rows: from,
                        up_rows,
                        packed: buffer.start() + pack.offset as u64,
                        row_bytes: rows.weight.row_bytes() as u64,
                        first_group: ((rows.to + start) / 8 * together) as u32,
                        k_quads: pack.k_quads as u32,
                        warps: pack.warps as u32,
                        groups: pack.groups as u32,
                        n_blocks: if pack.owners > 0 { pack.owners } else { self.n_blocks } as u32,
                        gate: u32::from(pack.gate),
                        units: pack.units as u32,
                        ..PersistentRepackArguments::default()
                    };
                    let columns = if pack.units > 0 { pack.units.div_ceil(8) } else { pack.k_quads };
                    let grid = [columns as u32, (n.div_ceil(8) * together) as u32, 1];
                    let function = functions[&rows.weight.block];
                    context.launch(function, grid, 256, 0, Start::After, bytemuck::bytes_of(&arguments))?;
                }
            }
        }
        context.finish()?;
        Ok(Some(PersistentWeights { buffer, exchanges, plan: self }))
    }
}

/// An offset in bytes, and the values that are stored there.
#[cfg(test)]
type PlacedBias = (usize, Vec<f32>);

#[cfg(test)]
impl PersistentPlan {
    /// Offsets of the weights of a plan's phases, and the biases of its layers with their offsets.
    pub(super) fn offsets(&self, plan: usize) -> (&[usize], Vec<Option<PlacedBias>>) {
        let bias = |bias: &Option<Bias>| bias.as_ref().map(|bias| (bias.offset, bias.values.clone()));
        (&self.phases[plan], self.biases[plan].iter().map(bias).collect())
    }

    /// The decoded rows of the matrices at an offset in packed order, then those of up.
    pub(super) fn rows(&self, offset: usize) -> [Vec<Vec<f32>>; 2] {
        let decode = |weight: &Weight, part: Option<usize>, n: usize, out: &mut Vec<Vec<f32>>| {
            for r in 0..n {
                let (data, planes) = match part {
                    Some(part) => (&weight.parts[part].data, &weight.parts[part].planes),
                    None => (&weight.data, &weight.planes),
                };
                let bytes = &data[r * weight.row_bytes()..][..weight.row_bytes()];
                let planes = planes.as_slices().rows(weight.block, weight.n_cols(), r..r + 1);
                let mut row = vec![0.0; weight.n_cols()];
                weights::codec::dequantize_rows(weight.block, weight.n_cols(), bytes, planes, &mut row);
                out.push(row);
            }
        };
        let mut found = [vec![], vec![]];
        if let Some((weight, ..)) = self.routers.iter().find(|(.., at)| *at == offset) {
            decode(weight, None, weight.n_rows(), &mut found[0]);
            return found;
        }
        let pack = self.packs.iter().find(|pack| pack.offset == offset).expect("a product at the offset");
        for rows in &pack.rows {
            assert_eq!(rows.to, found[0].len(), "rows follow each other");
            decode(&rows.weight, rows.part, rows.n, &mut found[0]);
            if let Some(up) = &rows.up {
                decode(up, rows.part, rows.n, &mut found[1]);
            }
        }
        found
    }
}

/// A router's rows as floats in the order of `persistent/arguments.h`. Columns are padded with
/// zeros.
fn router(weight: &Weight, k_quads: usize) -> Vec<f32> {
    let n_cols = weight.n_cols();
    let (mut row, mut packed) = (vec![0.0; 1024 * k_quads], Vec::new());
    for index in 0..weight.n_rows() {
        weight.decode_rows(index..index + 1, &mut row[..n_cols]);
        for (quad, warp) in (0..k_quads).flat_map(|quad| (0..8).map(move |warp| (quad, warp))) {
            packed.extend_from_slice(&row[(warp * k_quads + quad) * 128..][..128]);
        }
    }
    packed
}

/// Biases of a layer's q, k and v one after the other, or `None` if none of them has a bias.
fn bias(plan: &Plan, layer: &Layer) -> Option<Vec<f32>> {
    if layer.qkv.iter().all(|(_, bias)| bias.is_none()) {
        return None;
    }
    let mut values = Vec::new();
    for (matrix, bias) in layer.qkv {
        let end = values.len() + plan.weight(matrix).n_rows();
        if let Some(id) = bias {
            let words = plan.weight(id).data.as_chunks::<4>().0;
            values.extend(words.iter().map(|word| f32::from_le_bytes(*word)));
        }
        values.resize(end, 0.0);
    }
    Some(values)
}

/// Rows that are uploaded before a kernel packs them.
struct Staging {
    pinned: Pinned,
    rows: Buffer,
    event: Event,
    at: usize,
}

impl Staging {
    fn new(context: &Arc<Context>) -> Result<Staging> {
        let pinned = Pinned::new(context, "pinned memory for weights", STAGING)?;
        let rows = Buffer::new(context, "rows of weights", STAGING)?;
        Ok(Staging { pinned, rows, event: context.event(false)?, at: 0 })
    }

    fn has_room(&self, bytes: usize) -> bool {
        self.at + bytes <= STAGING
    }

    /// Uploads bytes and returns their address.
    fn put(&mut self, context: &Context, bytes: &[u8]) -> Result<Address> {
        let at = self.at;
        self.pinned.write(at, bytes);
        self.at = (at + bytes.len()).next_multiple_of(ALIGN);
        let to = self.rows.start() + at as u64;
        context.upload(to, self.pinned.bytes(at, bytes.len()))?;
        Ok(to)
    }
}

/// The memory of a [`PersistentPlan`] on the GPU.
pub struct PersistentWeights {
    buffer: Buffer,
    /// Exchanges by kernel.
    exchanges: Vec<(Rows, Buffer)>,
    plan: PersistentPlan,
}

impl PersistentWeights {
    /// The layout of the memory.
    #[cfg(test)]
    pub(super) fn plan(&self) -> &PersistentPlan {
        &self.plan
    }

    /// The address of the weights of each phase of a plan.
    pub fn phases(&self, plan: usize) -> Vec<Address> {
        self.plan.phases[plan].iter().map(|offset| self.buffer.start() + *offset as u64).collect()
    }

    /// The address of the biases of each layer, or 0 without biases.
    pub fn biases(&self, plan: usize) -> Vec<Address> {
        let place =
            |bias: &Option<Bias>| bias.as_ref().map_or(0, |bias| self.buffer.start() + bias.offset as u64);
        self.plan.biases[plan].iter().map(place).collect()
    }

    /// The address of a kernel's exchanges and turn, or 0 if no plan uses the kernel.
    pub fn exchange(&self, rows: Rows) -> Address {
        self.exchanges.iter().find(|(of, _)| *of == rows).map_or(0, |(_, buffer)| buffer.start())
    }
}

//! Packs: copies of weights in the fragment order of tensor cores, in addition to their planes. The
//! host uploads rows as they are in the file, and the GPU packs them (`kernels/gemm/repack.cu`).

use crate::arguments::RepackArguments;
use crate::driver::{Address, Buffer, Context, Function, Pinned, Start};
use crate::kernels::Kernels;
use crate::products::{Codec, Products, codec_of, groups, has_activation, k_tiles};
use crate::profile::Profile;
use crate::stored::{Kind, Stored};
use crate::weights::{MatrixKey, matrix_key};
use device::{Activation, Limits, Numerics, Op, Plan, Result, ValueId, Weight, WeightId};
use device_lower::table::RowClass;
use device_lower::units::{LoweredUnit, Unit};
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use weights::{BlockType, PlaneSlices, ScaleType};

/// Maximum number of bytes of rows that a thread uploads at once.
const STAGING: usize = 8 << 20;

/// Maximum number of threads that upload.
const MOST_THREADS: usize = 8;

/// Alignment of packs, and of the parts of one upload, in bytes.
const ALIGN: usize = 256;

/// Matrices that are packed together: one after the other, or interleaved row by row. A pack of
/// expert stacks repeats this layout for each expert.
#[derive(Clone, Debug)]
pub struct Pack {
    weights: Vec<Weight>,
    gate: bool,
    /// The packed format.
    pub codec: Codec,
    /// Number of experts; 1 for plain matrices.
    pub n_experts: usize,
    /// Rows of all matrices (of one expert), with the padding between them.
    pub n_out: usize,
    /// First row of each matrix.
    pub first: Vec<usize>,
    /// Number of tiles of 64 columns.
    pub k_tiles: usize,
    offset: usize,
}

impl Pack {
    /// Bytes of one expert, or of the whole pack without experts.
    pub fn expert_bytes(&self) -> usize {
        self.n_out.div_ceil(64) * self.k_tiles * self.codec.tile
    }
}

/// Rows of a matrix, or of each matrix of a stack.
fn rows_of(weight: &Weight) -> usize {
    weight.n_rows() / weight.parts.len().max(1)
}

/// The products of rows with the matrices of their experts.
pub struct ExpertProducts {
    /// The matrix, or gate and up.
    pub stacks: Vec<WeightId>,
    /// Ids of each row's experts.
    pub ids: ValueId,
    /// The activation of the gate, if it is fused.
    activation: Option<Activation>,
}

impl ExpertProducts {
    /// The expert products of a unit; `None`: it has none.
    pub fn of(unit: &Unit) -> Option<ExpertProducts> {
        let (stacks, ids, activation) = match unit {
            Unit::ExpertGateUp { gate, up, ids, kind, .. } => (vec![*gate, *up], *ids, Some(*kind)),
            Unit::ExpertDownSum { weight, ids, .. }
            | Unit::Primitive(Op::ExpertLinear { weight, ids, .. }) => (vec![*weight], *ids, None),
            Unit::Primitive(_)
            | Unit::Projection(_)
            | Unit::Gated { .. }
            | Unit::RowGated { .. }
            | Unit::Join(_)
            | Unit::QkRopeKv(_)
            | Unit::QRope(_) => return None,
        };
        Some(ExpertProducts { stacks, ids, activation })
    }

    /// The packed format of the stacks; `None`: they have only planes.
    fn codec(&self, stacks: &[&Weight]) -> Option<Codec> {
        let codec = Codec::of(stacks[0].block)?;
        let same = stacks.iter().all(|stack| Codec::of(stack.block) == Some(codec));
        let fits = same && self.activation.is_none_or(has_activation);
        (fits && !stacks[0].parts.is_empty()).then_some(codec)
    }
}

/// Every pack once, with its offset.
#[derive(Default)]
pub struct PackPlan {
    packs: Vec<Pack>,
    of: HashMap<(Vec<MatrixKey>, bool), usize>,
    total: usize,
    /// Packs of another program, and true for those that this program shares.
    before: Vec<(Arc<LoadedPacks>, bool)>,
    /// Bytes of the shared packs.
    shared: usize,
}

impl PackPlan {
    /// The packs for the projections and experts of plans. It is empty if no step would use them,
    /// or if those of the projections exceed `most_packed` of the profile.
    pub fn new<'a>(
        parts: impl Iterator<Item = (&'a Plan, &'a [LoweredUnit])>,
        limits: &Limits,
        profile: &Profile,
    ) -> PackPlan {
        PackPlan::beside(parts, limits, profile, &Packs::default())
    }

    /// Like [`Self::new`], but shares the packs of another program.
    pub fn beside<'a>(
        parts: impl Iterator<Item = (&'a Plan, &'a [LoweredUnit])>,
        limits: &Limits,
        profile: &Profile,
        before: &Packs,
    ) -> PackPlan {
        let before = before.0.iter().map(|loaded| (loaded.clone(), false)).collect();
        let mut all = PackPlan { before, ..PackPlan::default() };
        let is_used = profile.products != Products::Planes
            && limits.numerics != Numerics::Deterministic
            && RowClass::of(limits.max_rows) >= profile.packed_rows;
        if !is_used {
            return PackPlan::default();
        }
        let mut of_experts = Vec::new();
        for (plan, units) in parts {
            for LoweredUnit { unit, .. } in units {
                if let Some(experts) = ExpertProducts::of(unit) {
                    let stacks: Vec<&Weight> = experts.stacks.iter().map(|id| plan.weight(*id)).collect();
                    of_experts.extend(experts.codec(&stacks).map(|codec| (stacks, codec)));
                }
                let Unit::Projection(p) = unit else { continue };
                let kinds: Vec<Kind> = p.matrices.iter().map(|m| kind_of(plan.weight(m.weight))).collect();
                for group in groups(p, &kinds) {
                    if let Some(codec) = codec_of(plan, p, &group) {
                        let ids = group.matrices.iter().map(|i| p.matrices[*i].weight);
                        let weights: Vec<&Weight> = ids.map(|id| plan.weight(id)).collect();
                        all.add(&weights, group.gate, codec);
                    }
                }
            }
        }
        if (all.total + all.shared) as u64 > profile.most_packed {
            return PackPlan::default();
        }
        // Experts have most of a mixture's weights. If they do not fit, the rest is packed without
        // them.
        let (n, total) = (all.packs.len(), all.total);
        for (stacks, codec) in &of_experts {
            all.add(stacks, stacks.len() == 2, *codec);
        }
        if (all.total + all.shared) as u64 > profile.most_packed {
            all.packs.truncate(n);
            all.of.retain(|_, index| *index < n);
            all.total = total;
        }
        all
    }

    fn add(&mut self, weights: &[&Weight], gate: bool, codec: Codec) {
        let key = (weights.iter().map(|weight| matrix_key(weight)).collect::<Vec<_>>(), gate);
        if self.of.contains_key(&key) {
            return;
        }
        if let Some((loaded, used)) =
            self.before.iter_mut().find(|(loaded, _)| loaded.plan.of.contains_key(&key))
        {
            let pack = &loaded.plan.packs[loaded.plan.of[&key]];
            self.shared += pack.n_experts * pack.expert_bytes();
            *used = true;
            return;
        }
        let (mut first, mut n_out) = (Vec::new(), 0usize);
        for weight in weights {
            n_out = if gate { n_out } else { n_out.next_multiple_of(64) };
            first.push(n_out);
            n_out += rows_of(weight);
        }
        let (n_experts, k_tiles) = (weights[0].parts.len().max(1), k_tiles(weights[0].n_cols()));
        let weights = weights.iter().copied().cloned().collect();
        let pack = Pack { weights, gate, codec, n_experts, n_out, first, k_tiles, offset: self.total };
        self.of.insert(key, self.packs.len());
        self.total += (n_experts * pack.expert_bytes()).next_multiple_of(ALIGN);
        self.packs.push(pack);
    }

    /// Bytes of all packs, without shared ones.
    pub fn total(&self) -> usize {
        self.total
    }

    fn pieces(&self) -> Vec<StagedRows<'_>> {
        let mut pieces = Vec::new();
        for pack in &self.packs {
            let (together, n) = if pack.gate { (2, 1) } else { (1, pack.weights.len()) };
            for (expert, index) in (0..pack.n_experts).flat_map(|e| (0..n).map(move |index| (e, index))) {
                let (n_rows, row_bytes) = (rows_of(&pack.weights[index]), pack.weights[index].row_bytes());
                // Each piece has whole tiles of 64 rows.
                let most = (STAGING / (row_bytes * together).max(1) / 64 * 64).max(64);
                for start in (0..n_rows).step_by(most) {
                    pieces.push(StagedRows { pack, expert, index, start, n: most.min(n_rows - start) });
                }
            }
        }
        pieces
    }

    /// Allocates the memory, uploads the rows, and packs them.
    ///
    /// # Errors
    /// Memory was refused, or a kernel does not compile.
    pub fn load(mut self, context: &Arc<Context>, kernels: &Kernels) -> Result<Packs> {
        let before = std::mem::take(&mut self.before).into_iter();
        let used = before.filter_map(|(loaded, used)| used.then_some(loaded));
        if self.total == 0 {
            return Ok(Packs(used.collect()));
        }
        let buffer = Buffer::new(context, "weights for tensor cores", self.total)?;
        let mut functions: HashMap<BlockType, Function> = HashMap::new();
        for block in self.packs.iter().flat_map(|pack| &pack.weights).map(|weight| weight.block) {
            if let std::collections::hash_map::Entry::Vacant(entry) = functions.entry(block) {
                let name = Codec::repack(block);
                entry.insert(kernels.function("gemm/repack.cu", &name, 0)?.0);
            }
        }
        let pieces = self.pieces();
        let most = pieces.iter().map(StagedRows::bytes).max().unwrap_or(0);
        let n_threads = std::thread::available_parallelism().map_or(1, usize::from);
        let n_threads = n_threads.min(MOST_THREADS).min(pieces.len());
        let (next, error) = (AtomicUsize::new(0), Mutex::new(None));
        let staging = || -> Result<_> {
            let pinned = Pinned::new(context, "pinned memory for weights", most)?;
            Ok((pinned, Buffer::new(context, "rows of weights", most)?, context.event(false)?))
        };
        let work = || -> Result<()> {
            let mut both = [staging()?, staging()?];
            let mut turn = 0;
            while let Some(piece) = pieces.get(next.fetch_add(1, Ordering::Relaxed)) {
                let (pinned, rows, event) = &mut both[turn];
                turn = 1 - turn;
                // Waits until the GPU has packed the previous piece of this buffer.
                event.wait()?;
                let (arguments, n) = piece.copy(pinned, rows.start(), buffer.start());
                context.upload(rows.start(), pinned.bytes(0, n))?;
                let n_packed = if piece.pack.gate { 2 * piece.n } else { piece.n };
                let grid = [piece.pack.k_tiles as u32, n_packed.div_ceil(64) as u32, 1];
                let function = functions[&piece.weight(0).block];
                context.launch(function, grid, 128, 0, Start::After, bytemuck::bytes_of(&arguments))?;
                event.record()?;
            }
            both.iter().try_for_each(|(_, _, event)| event.wait())
        };
        std::thread::scope(|scope| {
            for _ in 0..n_threads {
                scope.spawn(|| {
                    if let Err(e) = context.enter().and_then(|()| work()) {
                        *error.lock().unwrap_or_else(PoisonError::into_inner) = Some(e);
                    }
                });
            }
        });
        if let Some(error) = error.into_inner().unwrap_or_else(PoisonError::into_inner) {
            return Err(error);
        }
        context.finish()?;
        let mine = Arc::new(LoadedPacks { buffer, plan: self });
        Ok(Packs(used.chain([mine]).collect()))
    }
}

fn kind_of(weight: &Weight) -> Kind {
    Stored::new(weight.block, weight.n_cols()).kind
}

/// Rows of one matrix, or of a gate and up, that are uploaded together.
struct StagedRows<'a> {
    pack: &'a Pack,
    expert: usize,
    index: usize,
    /// The first row.
    start: usize,
    n: usize,
}

impl StagedRows<'_> {
    fn weight(&self, other: usize) -> &Weight {
        &self.pack.weights[self.index + other]
    }

    /// This piece's rows and planes of a matrix. `other` is 1 for the up of a gate, else 0.
    fn rows(&self, other: usize) -> (&[u8], PlaneSlices<'_>) {
        let weight = self.weight(other);
        let part = weight.parts.get(self.expert);
        let (data, planes) = part.map_or((&weight.data, &weight.planes), |part| (&part.data, &part.planes));
        let (rows, bytes) = (self.start..self.start + self.n, weight.row_bytes());
        let data = &data[rows.start * bytes..rows.end * bytes];
        (data, planes.as_slices().rows(weight.block, weight.n_cols(), rows))
    }

    /// Maximum number of bytes of the piece with its alignment.
    fn bytes(&self) -> usize {
        let of = |other: usize| {
            let (rows, planes) = self.rows(other);
            rows.len() + planes.scales.len() + planes.biases.len() + 3 * ALIGN
        };
        of(0) + if self.pack.gate { of(1) } else { 0 }
    }

    /// Copies the piece into pinned memory. Returns the arguments of the packing kernel, and the
    /// number of bytes. `rows` is the address of the bytes on the GPU, `packs` that of all packs.
    fn copy(&self, pinned: &mut Pinned, rows: Address, packs: Address) -> (RepackArguments, usize) {
        let mut at = 0;
        let mut put = |bytes: &[u8]| {
            pinned.write(at, bytes);
            let address = rows + at as u64;
            at = (at + bytes.len()).next_multiple_of(ALIGN);
            if bytes.is_empty() { 0 } else { address }
        };
        let mut of = |other: usize| {
            let (rows, planes) = self.rows(other);
            [put(rows), put(planes.scales), put(planes.biases)]
        };
        let [mine, scales, biases] = of(0);
        let [up_rows, up_scales, up_biases] = if self.pack.gate { of(1) } else { [0; 3] };
        let weight = self.weight(0);
        let first = self.pack.first[self.index] + self.start * if self.pack.gate { 2 } else { 1 };
        let mut arguments = RepackArguments {
            rows: mine,
            up_rows,
            scales,
            biases,
            up_scales,
            up_biases,
            packed: packs + (self.pack.offset + self.expert * self.pack.expert_bytes()) as u64,
            row_bytes: weight.row_bytes() as u64,
            n_rows: self.n as u32,
            n_cols: weight.n_cols() as u32,
            first_row: first as u32,
            k_tiles: self.pack.k_tiles as u32,
            ..Default::default()
        };
        if let BlockType::Affine(affine) = weight.block {
            arguments.bits = affine.bits() as u32;
            arguments.group = affine.group() as u32;
            arguments.scale_type = match affine.scale() {
                ScaleType::F32 => 0,
                ScaleType::F16 => 1,
                ScaleType::BF16 => 2,
                ScaleType::E8M0 => 3,
            };
            arguments.symmetric = u32::from(affine.is_symmetric());
        }
        (arguments, at)
    }
}

/// Packs that were loaded together.
struct LoadedPacks {
    buffer: Buffer,
    plan: PackPlan,
}

/// All loaded packs. Replaced plans may leave packs of several loads.
#[derive(Default)]
pub struct Packs(Vec<Arc<LoadedPacks>>);

impl Packs {
    /// The pack of these matrices of a plan, and its address.
    pub fn find(&self, plan: &Plan, ids: &[WeightId], gate: bool) -> Option<(&Pack, Address)> {
        let key = (ids.iter().map(|id| matrix_key(plan.weight(*id))).collect(), gate);
        self.0.iter().find_map(|loaded| {
            let pack = &loaded.plan.packs[*loaded.plan.of.get(&key)?];
            Some((pack, loaded.buffer.start() + pack.offset as u64))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use device_lower::fusion::fuse;
    use device_lower::passes::lower;
    use device_testing::{PlanBuilder, limits};

    /// Every row of every expert is packed once, within the tiles of its expert. Experts are left
    /// out if they exceed the limit.
    #[test]
    fn experts_are_packed_one_after_the_other() {
        let (n_experts, n_in, n_out) = (5, 64, 96);
        let mut b = PlanBuilder::new(1, 8);
        let x = b.embed(n_in);
        let router = b.linear(x, n_experts, BlockType::F32, false);
        let (ids, _) = b.route(router, 2, true, 1.0, false);
        let y = b.expert_linear((x, false), ids, (n_experts, n_out), BlockType::Q4_0);
        let dense = b.linear(y, 40, BlockType::Q4_0, false);
        let profile = Profile::hopper();
        let plan = fuse(&b.finish(dense), profile.rules);
        let (units, limits) = (lower(&plan, profile.passes), limits(&plan.kv));
        let packs = |profile: &Profile| PackPlan::new([(&plan, &units[..])].into_iter(), &limits, profile);
        let all = packs(&profile);
        let stack = all.packs.iter().find(|pack| pack.n_experts > 1).unwrap();
        assert_eq!((stack.n_experts, stack.n_out, stack.k_tiles), (n_experts, n_out, 2));
        // 96 rows need two tiles of 64; the second one is half empty.
        assert_eq!(stack.expert_bytes(), 2 * 2 * 2304);
        let pieces: Vec<_> = all.pieces().into_iter().filter(|piece| piece.pack.n_experts > 1).collect();
        let rows: Vec<_> = pieces.iter().map(|piece| (piece.expert, piece.start, piece.n)).collect();
        assert_eq!(rows, (0..n_experts).map(|expert| (expert, 0, n_out)).collect::<Vec<_>>());
        for (expert, piece) in pieces.iter().enumerate() {
            assert_eq!(piece.rows(0).0, &piece.weight(0).parts[expert].data[..]);
        }
        let of_dense = all.total() - (n_experts * stack.expert_bytes()).next_multiple_of(ALIGN);
        let small = packs(&Profile { most_packed: of_dense as u64, ..profile.clone() });
        assert_eq!((small.total(), small.packs.len()), (of_dense, all.packs.len() - 1));
        assert_eq!(packs(&Profile { most_packed: of_dense as u64 - 1, ..profile }).total(), 0);
    }
}

//! Weights on the GPU: their places in one buffer, and their upload. Threads of the host repack
//! matrices into pinned memory, from which the GPU copies them. Vectors are uploaded unchanged.

use crate::arguments::{MatrixArguments, WeightArguments};
use crate::driver::{Address, Buffer, Context, NAME, Pinned};
use crate::stored::Stored;
use device::{Error, Op, Plan, Result, Weight, WeightId};
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use weights::{BlockType, Bytes, PlaneSlices};

/// Alignment of planes and vectors.
const ALIGN: usize = 256;

/// Maximum number of bytes that a thread repacks before an upload.
const STAGING: usize = 8 << 20;

/// Maximum number of threads that repack.
const MOST_THREADS: usize = 12;

/// Identity of a view of bytes: address and length.
type Key = (usize, usize);

/// Identity of a matrix: its bytes (for a stack, those of the first part), its columns, its type,
/// and the number of its parts. A plan that keeps a key also keeps the [`Weight`], so that no other
/// bytes get the same address.
pub type MatrixKey = (Key, usize, BlockType, usize);

fn key(bytes: &Bytes) -> Key {
    (bytes.as_ptr().addr(), bytes.len())
}

/// The identity of a matrix.
pub fn matrix_key(weight: &Weight) -> MatrixKey {
    let first = weight.parts.first().map_or(&weight.data, |part| &part.data);
    (key(first), weight.n_cols(), weight.block, weight.parts.len())
}

struct Matrix {
    weight: Weight,
    stored: Stored,
    /// Offset of each plane in the buffer, in bytes.
    offsets: [usize; 4],
}

/// Every weight once, with its offset in the buffer.
#[derive(Default)]
pub struct WeightPlan {
    matrices: Vec<Matrix>,
    matrix_of: HashMap<MatrixKey, usize>,
    vectors: Vec<(Bytes, usize)>,
    vector_of: HashMap<Key, usize>,
    total: usize,
    /// Weights of another program, and true for those that this program shares.
    before: Vec<(Arc<LoadedWeights>, bool)>,
}

/// The matrix that an Op multiplies by or looks rows up in. It reads its other weights as vectors.
fn matrix_of(op: &Op) -> Option<WeightId> {
    if let Op::Linear { weight: matrix, .. }
    | Op::ExpertLinear { weight: matrix, .. }
    | Op::Embed { table: matrix, .. }
    | Op::EmbedPositions { table: matrix, .. } = op
    {
        Some(*matrix)
    } else {
        None
    }
}

impl WeightPlan {
    /// The weights of plans. It allocates no GPU memory.
    ///
    /// # Errors
    /// A vector is not F32.
    pub fn new(plans: &[Plan]) -> Result<WeightPlan> {
        WeightPlan::beside(plans, &Weights::default())
    }

    /// Like [`Self::new`], but shares the weights that another program has loaded.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn beside(plans: &[Plan], before: &Weights) -> Result<WeightPlan> {
        let before = before.0.iter().map(|loaded| (loaded.clone(), false)).collect();
        let mut all = WeightPlan { before, ..WeightPlan::default() };
        for plan in plans {
            for op in plan.primitives() {
                for id in op.weights() {
                    let weight = plan.weight(id);
                    if matrix_of(op) == Some(id) {
                        all.add_matrix(weight);
                        continue;
                    }
                    if weight.block != BlockType::F32 {
                        return Err(Error::Unsupported {
                            device: NAME,
                            what: format!("{} in {}", weight.name, weight.block),
                            hint: "vectors must be F32".to_owned(),
                        });
                    }
                    all.add_vector(&weight.data);
                }
            }
        }
        Ok(all)
    }

    fn take(&mut self, bytes: usize) -> usize {
        let offset = self.total;
        self.total += bytes.next_multiple_of(ALIGN);
        offset
    }

    /// Returns true if another program has loaded a weight, and marks its buffer as shared. `has`
    /// tests for the weight.
    fn is_before(&mut self, has: impl Fn(&WeightPlan) -> bool) -> bool {
        let found = self.before.iter_mut().find(|(loaded, _)| has(&loaded.plan));
        found.map(|(_, used)| *used = true).is_some()
    }

    fn add_matrix(&mut self, weight: &Weight) {
        let key = matrix_key(weight);
        if self.matrix_of.contains_key(&key) || self.is_before(|plan| plan.matrix_of.contains_key(&key)) {
            return;
        }
        let stored = Stored::new(weight.block, weight.n_cols());
        let offsets = stored.strides.all().map(|stride| self.take(stride * weight.n_rows()));
        self.matrix_of.insert(matrix_key(weight), self.matrices.len());
        self.matrices.push(Matrix { weight: weight.clone(), stored, offsets });
    }

    fn add_vector(&mut self, bytes: &Bytes) {
        let of = key(bytes);
        if self.vector_of.contains_key(&of) || self.is_before(|plan| plan.vector_of.contains_key(&of)) {
            return;
        }
        let offset = self.take(bytes.len());
        self.vector_of.insert(key(bytes), offset);
        self.vectors.push((bytes.clone(), offset));
    }

    /// Bytes of the buffer.
    pub fn total(&self) -> usize {
        self.total
    }

    /// Allocates the memory and uploads the weights.
    ///
    /// # Errors
    /// Memory was refused, or a copy failed.
    pub fn load(mut self, context: &Arc<Context>) -> Result<Weights> {
        let buffer = Buffer::new(context, "weights", self.total)?;
        // Waits until the buffer is cleared. Padding stays zero.
        context.finish()?;
        for (bytes, offset) in &self.vectors {
            context.upload(buffer.start() + *offset as u64, bytes)?;
        }
        context.finish()?;
        self.upload(context, &buffer)?;
        let before = std::mem::take(&mut self.before).into_iter();
        let used = before.filter_map(|(loaded, used)| used.then_some(loaded));
        let mine = Arc::new(LoadedWeights { buffer, plan: self });
        Ok(Weights(used.chain([mine]).collect()))
    }

    /// Ranges of rows of matrices, each small enough for a thread's pinned memory.
    fn pieces(&self) -> Vec<MatrixRows<'_>> {
        let mut pieces = Vec::new();
        for matrix in &self.matrices {
            let weight = &matrix.weight;
            let whole = std::iter::once((&weight.data, &weight.planes)).filter(|_| weight.parts.is_empty());
            let parts = weight.parts.iter().map(|part| (&part.data, &part.planes));
            let mut first = 0;
            for (data, planes) in whole.chain(parts) {
                let n_rows = weight.n_rows() / weight.parts.len().max(1);
                let most = (STAGING / matrix.stored.strides.row().max(1)).max(1);
                for start in (0..n_rows).step_by(most) {
                    let n = most.min(n_rows - start);
                    pieces.push(MatrixRows {
                        matrix,
                        data,
                        planes: planes.as_slices(),
                        start,
                        n,
                        to: first + start,
                    });
                }
                first += n_rows;
            }
        }
        pieces
    }

    fn upload(&self, context: &Arc<Context>, buffer: &Buffer) -> Result<()> {
        let pieces = self.pieces();
        let most = pieces.iter().map(|p| p.n * p.matrix.stored.strides.row()).max().unwrap_or(0);
        let n_threads = std::thread::available_parallelism().map_or(1, usize::from);
        let n_threads = n_threads.min(MOST_THREADS).min(pieces.len());
        let (next, error) = (AtomicUsize::new(0), Mutex::new(None));
        let work = || -> Result<()> {
            let mut staging = [
                (Pinned::new(context, "pinned memory for weights", most)?, context.event(false)?),
                (Pinned::new(context, "pinned memory for weights", most)?, context.event(false)?),
            ];
            let (mut scratch, mut turn) = (Vec::new(), 0);
            while let Some(piece) = pieces.get(next.fetch_add(1, Ordering::Relaxed)) {
                let (pinned, event) = &mut staging[turn];
                turn = 1 - turn;
                // Waits until the previous upload from this buffer is done.
                event.wait()?;
                piece.pack(pinned, &mut scratch);
                let mut from = 0;
                for (stride, offset) in
                    piece.matrix.stored.strides.all().into_iter().zip(piece.matrix.offsets)
                {
                    let bytes = stride * piece.n;
                    let to = buffer.start() + (offset + stride * piece.to) as u64;
                    context.upload(to, pinned.bytes(from, bytes))?;
                    from += bytes;
                }
                event.record()?;
            }
            staging.iter().try_for_each(|(_, event)| event.wait())
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
        match error.into_inner().unwrap_or_else(PoisonError::into_inner) {
            Some(error) => Err(error),
            None => context.finish(),
        }
    }
}

/// Rows of a matrix that are uploaded together.
struct MatrixRows<'a> {
    matrix: &'a Matrix,
    data: &'a [u8],
    planes: PlaneSlices<'a>,
    /// First row within the part.
    start: usize,
    n: usize,
    /// First row within the stack.
    to: usize,
}

impl MatrixRows<'_> {
    /// Writes the rows of each plane to pinned memory, one plane after another.
    fn pack(&self, pinned: &mut Pinned, scratch: &mut Vec<f32>) {
        let (weight, stored) = (&self.matrix.weight, &self.matrix.stored);
        let (row_bytes, strides) = (weight.row_bytes(), stored.strides.all());
        let out = pinned.bytes_mut(0, stored.strides.row() * self.n);
        // Clears the padding of the rows.
        if !weight.n_cols().is_multiple_of(32) {
            out.fill(0);
        }
        let (codes, rest) = out.split_at_mut(strides[0] * self.n);
        let (high, rest) = rest.split_at_mut(strides[1] * self.n);
        let (scales, supers) = rest.split_at_mut(strides[2] * self.n);
        for i in 0..self.n {
            let row = self.start + i;
            let planes = self.planes.rows(weight.block, weight.n_cols(), row..row + 1);
            let out = [
                &mut codes[i * strides[0]..][..strides[0]],
                &mut high[i * strides[1]..][..strides[1]],
                &mut scales[i * strides[2]..][..strides[2]],
                &mut supers[i * strides[3]..][..strides[3]],
            ];
            stored.pack_row(&self.data[row * row_bytes..][..row_bytes], planes, out, scratch);
        }
    }
}

/// Weights that were loaded together.
struct LoadedWeights {
    buffer: Buffer,
    plan: WeightPlan,
}

/// All loaded weights. Replaced plans may leave weights of several loads.
#[derive(Default)]
pub struct Weights(Vec<Arc<LoadedWeights>>);

impl Weights {
    /// Address of a vector.
    pub fn vector(&self, weight: &Weight) -> Option<Address> {
        let of = key(&weight.data);
        let found = |LoadedWeights { buffer, plan }: &LoadedWeights| {
            Some(buffer.start() + *plan.vector_of.get(&of)? as u64)
        };
        self.0.iter().find_map(|loaded| found(loaded))
    }

    /// The format of a matrix, and its arguments without bias and output.
    pub fn matrix(&self, weight: &Weight) -> Option<(Stored, MatrixArguments)> {
        let key = matrix_key(weight);
        let found =
            |loaded: &Arc<LoadedWeights>| Some((loaded.buffer.start(), *loaded.plan.matrix_of.get(&key)?));
        let (index, (start, matrix)) =
            self.0.iter().enumerate().find_map(|(index, loaded)| Some((index, found(loaded)?)))?;
        let matrix = &self.0[index].plan.matrices[matrix];
        let [codes, high, scales, supers] = matrix.offsets.map(|offset| start + offset as u64);
        let strides = matrix.stored.strides;
        let arguments = MatrixArguments {
            weight: WeightArguments {
                codes,
                high,
                scales,
                supers,
                code_stride: strides.codes as u32,
                high_stride: strides.high as u32,
                scale_stride: strides.scales as u32,
                super_stride: strides.supers as u32,
            },
            n_out: (weight.n_rows() / weight.parts.len().max(1)) as u32,
            kind: matrix.stored.scale_kind,
            group_shift: matrix.stored.group_shift,
            ..MatrixArguments::default()
        };
        Some((matrix.stored, arguments))
    }
}

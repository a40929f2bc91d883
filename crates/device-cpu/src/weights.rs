//! Matrices in the order that the kernels need: found in the plans, sized, and interleaved once by
//! all workers.
//!
//! The file's pages of an interleaved matrix are released as soon as they were read, so that
//! loading never holds a model twice. Small weights between such matrices, for example norms, are
//! copied: reading a few bytes of a file maps 64 KB or a whole large page around them. All other
//! weights are read in place from the file. An embedding that is also the head reads its rows from
//! the tiles.

use crate::isa::Isa;
use crate::kernels::linear::{Interleave, TILE_ROWS, WeightRows, linear_kernel};
use crate::kernels::round_up;
use crate::memory::PagePool;
use crate::pool::Pool;
use device::{Error, Op, Plan, Result, Weight};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use weights::{BlockType, Bytes, Planes};

/// Approximate bytes of tiles that a worker makes before it releases the pages that it read. It is
/// many times what the system maps around a touched page, since that reaches into pages already
/// released.
const UNIT_BYTES: usize = 1 << 20;

/// Smallest number of bytes that Linux maps around a touched page of a file (`fault_around_bytes`).
const MAPPED_AROUND: usize = 64 << 10;

/// A matrix to be interleaved.
struct TiledMatrix {
    data: Bytes,
    rows: WeightRows,
    n_rows: usize,
    n_cols: usize,
    interleave: &'static Interleave,
    /// Offset of the matrix's first tile.
    offset: usize,
}

impl TiledMatrix {
    fn tile_bytes(&self) -> usize {
        (self.interleave.tile_bytes)(self.n_cols)
    }

    fn n_tiles(&self) -> usize {
        self.n_rows.div_ceil(TILE_ROWS)
    }

    fn tiles_per_unit(&self) -> usize {
        (UNIT_BYTES / self.tile_bytes()).max(1)
    }
}

/// Identity of a matrix: address of its first byte, rows, columns, type.
type Key = (*const u8, usize, usize, BlockType);

/// Identity of the matrix of a weight with these bytes.
fn key(weight: &Weight, data: &Bytes, n_rows: usize) -> Key {
    (data.as_ptr(), n_rows, weight.n_cols(), weight.block)
}

/// Identity of a range of bytes in a file: address and length.
pub type View = (*const u8, usize);

/// Identity of these bytes.
pub fn view(data: &Bytes) -> View {
    (data.as_ptr(), data.len())
}

/// The matrices of plans that are interleaved for an instruction set.
pub struct ToInterleave {
    matrices: Vec<TiledMatrix>,
    keys: HashMap<Key, usize>,
    /// Bytes of all tiles.
    bytes: usize,
    /// Small weights to copy, with their offset after the tiles; empty if there are no tiles.
    copies: HashMap<View, (Bytes, usize)>,
    /// Bytes of all copies.
    copied_bytes: usize,
}

impl ToInterleave {
    /// Finds each distinct matrix of a Linear or an ExpertLinear whose kernel needs it interleaved.
    pub fn new(plans: &[Plan], isa: Isa) -> ToInterleave {
        let mut all = ToInterleave::beside(None, plans, isa);
        if all.bytes > 0 {
            all.add_copies(plans);
        }
        all
    }

    /// Like [`Self::new`], without copies and without the matrices in `made`.
    pub fn beside(made: Option<&InterleavedWeights>, plans: &[Plan], isa: Isa) -> ToInterleave {
        let mut all = ToInterleave {
            matrices: Vec::new(),
            keys: HashMap::new(),
            bytes: 0,
            copies: HashMap::new(),
            copied_bytes: 0,
        };
        for plan in plans {
            for op in plan.primitives() {
                let (Op::Linear { weight, .. } | Op::ExpertLinear { weight, .. }) = op else { continue };
                let weight = plan.weight(*weight);
                let Some(interleave) = linear_kernel(weight.block, weight.n_cols(), isa).interleave else {
                    continue;
                };
                for (data, planes, n_rows) in matrices(weight) {
                    if made.is_none_or(|made| made.matrix(weight, data, n_rows).is_none()) {
                        all.add(weight, data, planes, n_rows, interleave);
                    }
                }
            }
        }
        all
    }

    /// Adds the small weights that are one piece and are not interleaved.
    fn add_copies(&mut self, plans: &[Plan]) {
        let interleaved = self.views();
        let single = plans.iter().flat_map(|plan| &plan.weights).filter(|weight| weight.parts.is_empty());
        for data in single.map(|weight| &weight.data) {
            let small = data.is_mapped() && !data.is_empty() && data.len() < MAPPED_AROUND;
            let in_place = !interleaved.contains(&view(data));
            if small && in_place && !self.copies.contains_key(&view(data)) {
                let offset = round_up(self.bytes) + self.copied_bytes;
                self.copies.insert(view(data), (data.clone(), offset));
                self.copied_bytes += round_up(data.len());
            }
        }
    }

    fn add(
        &mut self,
        weight: &Weight,
        data: &Bytes,
        planes: &Planes,
        n_rows: usize,
        interleave: &'static Interleave,
    ) {
        let (n_cols, key) = (weight.n_cols(), key(weight, data, n_rows));
        if self.keys.contains_key(&key) {
            return;
        }
        let rows = WeightRows::new(weight.block, n_cols, data, planes.as_slices());
        let matrix = TiledMatrix { data: data.clone(), rows, n_rows, n_cols, interleave, offset: self.bytes };
        self.keys.insert(key, self.matrices.len());
        self.bytes += matrix.tile_bytes() * matrix.n_tiles();
        self.matrices.push(matrix);
    }

    /// Bytes of all tiles.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Bytes of all copies of small weights.
    pub fn copied_bytes(&self) -> usize {
        self.copied_bytes
    }

    /// Ranges of files whose every byte is interleaved.
    fn views(&self) -> HashSet<View> {
        self.matrices.iter().map(|m| view(&m.data)).collect()
    }

    /// Ranges of files that are not read again, since they were interleaved or copied.
    pub fn let_go(&self) -> HashSet<View> {
        let mut views = self.views();
        views.extend(self.copies.keys());
        views
    }

    /// Offset of the copy of a range, counted from the first tile.
    fn copy_of(&self, data: &Bytes) -> Option<usize> {
        self.copies.get(&view(data)).map(|(_, offset)| *offset)
    }

    /// Interleaves the matrices, with all workers.
    ///
    /// # Errors
    /// Memory allocation failed.
    pub fn make(self, pool: &Pool) -> Result<InterleavedWeights> {
        let memory = PagePool::whole(1, round_up(self.bytes) + self.copied_bytes)?;
        memory.prefer_huge_pages();
        Bytes::prefer_large_pages(self.matrices.iter().map(|m| &m.data), MAPPED_AROUND);
        for (data, offset) in self.copies.values() {
            // SAFETY: `memory` has `copied_bytes` after the tiles, in which each copy has its own
            // `offset`; no other thread uses it yet.
            unsafe { memory.start().add(*offset).copy_from_nonoverlapping(data.as_ptr(), data.len()) };
        }
        // First unit of each matrix.
        let mut begins = Vec::with_capacity(self.matrices.len() + 1);
        let mut n_units = 0;
        for matrix in &self.matrices {
            begins.push(n_units);
            n_units += matrix.n_tiles().div_ceil(matrix.tiles_per_unit());
        }
        let taken = AtomicUsize::new(0);
        // The address is passed as an integer, since raw pointers are not `Sync`.
        let (start, matrices) = (memory.start() as usize, SharedMatrices(&self.matrices));
        let job = |_: usize, _: &crate::pool::Barrier| {
            let matrices = matrices.get();
            loop {
                let unit = taken.fetch_add(1, Ordering::Relaxed);
                if unit >= n_units {
                    return;
                }
                let index = begins.partition_point(|begin| *begin <= unit) - 1;
                let m = &matrices[index];
                let first = (unit - begins[index]) * m.tiles_per_unit();
                let end = (first + m.tiles_per_unit()).min(m.n_tiles());
                for tile in first..end {
                    let r0 = tile * TILE_ROWS;
                    let n_rows = (m.n_rows - r0).min(TILE_ROWS);
                    let out = (start + m.offset + tile * m.tile_bytes()) as *mut u8;
                    // SAFETY: rows `r0..r0 + n_rows` are within the matrix, and the tile at `out`
                    // is within `memory`. Each unit is taken by one worker only, and the
                    // instruction set was checked by the device.
                    unsafe { (m.interleave.tile)(m.rows, m.n_cols, r0, n_rows, out) };
                }
                let of_row = m.rows.row_bytes;
                m.data.release(first * TILE_ROWS * of_row..(end * TILE_ROWS).min(m.n_rows) * of_row);
            }
        };
        pool.run(&job).map_err(|e| Error::Failed { device: crate::NAME, reason: e.to_string() })?;
        // Releases pages that were mapped again around the edges of units.
        let read = self.matrices.iter().map(|m| &m.data).chain(self.copies.values().map(|(data, _)| data));
        Bytes::release_all(read, MAPPED_AROUND);
        Ok(InterleavedWeights { memory, of: self, made: None })
    }
}

/// Matrices that all workers read.
struct SharedMatrices<'a>(&'a [TiledMatrix]);

// SAFETY: the pointers are to weights in file maps, which the job only reads.
unsafe impl Sync for SharedMatrices<'_> {}

impl SharedMatrices<'_> {
    fn get(&self) -> &[TiledMatrix] {
        self.0
    }
}

/// Interleaved matrices in memory.
pub struct InterleavedWeights {
    memory: PagePool,
    of: ToInterleave,
    /// Matrices that were interleaved earlier, which this extends.
    made: Option<Arc<InterleavedWeights>>,
}

// SAFETY: the pointers are to bytes that `of` keeps alive and to `memory`; both are only read from
// now on.
unsafe impl Send for InterleavedWeights {}
// SAFETY: as above.
unsafe impl Sync for InterleavedWeights {}

impl InterleavedWeights {
    /// Interleaves the matrices of further plans, unless `made` has them.
    ///
    /// # Errors
    /// Memory allocation failed.
    pub fn beside(
        made: &Arc<InterleavedWeights>,
        plans: &[Plan],
        isa: Isa,
        pool: &Pool,
    ) -> Result<InterleavedWeights> {
        let further = ToInterleave::beside(Some(made), plans, isa).make(pool)?;
        Ok(InterleavedWeights { made: Some(made.clone()), ..further })
    }

    /// First tile of a matrix, with its interleaving.
    fn matrix(
        &self,
        weight: &Weight,
        data: &Bytes,
        n_rows: usize,
    ) -> Option<(*const u8, &'static Interleave)> {
        let own = self.of.keys.get(&key(weight, data, n_rows)).map(|index| &self.of.matrices[*index]);
        let tiles = |m: &TiledMatrix| (self.memory.start().wrapping_add(m.offset).cast_const(), m.interleave);
        own.map(tiles).or_else(|| self.made.as_ref()?.matrix(weight, data, n_rows))
    }

    /// Bytes of a range: in the file, or in their copy.
    pub fn bytes<'a>(&'a self, data: &'a Bytes) -> &'a [u8] {
        match (self.of.copy_of(data), &self.made) {
            // SAFETY: the copy has `data.len()` bytes at `offset`, and is not written after `make`.
            (Some(offset), _) => unsafe {
                std::slice::from_raw_parts(self.memory.start().add(offset), data.len())
            },
            (None, Some(made)) => made.bytes(data),
            (None, None) => data,
        }
    }

    /// A matrix as its kernels read it: `n_rows` rows of the weight's columns, from `data` on.
    pub fn rows(&self, weight: &Weight, data: &Bytes, planes: &Planes, n_rows: usize) -> WeightRows {
        let rows = WeightRows::new(weight.block, weight.n_cols(), self.bytes(data), planes.as_slices());
        match self.matrix(weight, data, n_rows) {
            Some((tiles, interleave)) => rows.interleaved(tiles, weight.n_cols(), interleave),
            None => rows,
        }
    }
}

/// Matrices of a weight with their planes and rows: one, or one for each expert.
pub fn matrices(weight: &Weight) -> impl Iterator<Item = (&Bytes, &Planes, usize)> {
    let whole = weight.parts.is_empty().then_some((&weight.data, &weight.planes, weight.n_rows()));
    let n_rows = weight.n_rows() / weight.parts.len().max(1);
    whole.into_iter().chain(weight.parts.iter().map(move |part| (&part.data, &part.planes, n_rows)))
}

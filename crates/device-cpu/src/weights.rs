//! Matrices that the kernels want in an order of their own: found in the plans, sized, and made once by all workers.
//!
//! Of what was interleaved, the file's pages are let go as soon as they were read, so that loading never holds a model twice.
//! Small weights that lie among those, as norms do, are copied: reading a few bytes of a file keeps what the system maps
//! around them, which is 64 KB or a whole large page. Everything else is read where it lies in the file. An embedding that is
//! also the head reads its rows from the tiles.

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

/// Bytes of tiles that a worker makes before it lets go of what it read, about: many times what the system maps around a page
/// that is touched, for that reaches into what was let go already.
const UNIT_BYTES: usize = 1 << 20;

/// What Linux maps of a file around a page that is touched (`fault_around_bytes`), at least.
const MAPPED_AROUND: usize = 64 << 10;

/// A matrix to be interleaved.
struct Matrix {
    data: Bytes,
    rows: WeightRows,
    n_rows: usize,
    n_cols: usize,
    interleave: &'static Interleave,
    /// Of its first tile.
    offset: usize,
}

impl Matrix {
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

/// Which matrix: its first byte, its rows, its columns, its type.
type Key = (*const u8, usize, usize, BlockType);

/// Which matrix of a weight these bytes are.
fn key(weight: &Weight, data: &Bytes, n_rows: usize) -> Key {
    (data.as_ptr(), n_rows, weight.n_cols(), weight.block)
}

/// Which bytes of a file: the first, and how many.
pub type View = (*const u8, usize);

/// Which bytes these are.
pub fn view(data: &Bytes) -> View {
    (data.as_ptr(), data.len())
}

/// The matrices of plans that are interleaved for an instruction set.
pub struct ToInterleave {
    matrices: Vec<Matrix>,
    keys: HashMap<Key, usize>,
    /// Of all tiles.
    bytes: usize,
    /// Small weights, where there are tiles, and the offset after the tiles to which each is copied.
    copies: HashMap<View, (Bytes, usize)>,
    /// Of all copies.
    copied_bytes: usize,
}

impl ToInterleave {
    /// Of the plans: each distinct matrix that a Linear or an ExpertLinear reads and whose kernel wants it so.
    pub fn new(plans: &[Plan], isa: Isa) -> ToInterleave {
        let mut all = ToInterleave::beside(None, plans, isa);
        if all.bytes > 0 {
            all.add_copies(plans);
        }
        all
    }

    /// The same without those that are there already, and without copies.
    pub fn beside(made: Option<&Interleaved>, plans: &[Plan], isa: Isa) -> ToInterleave {
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

    /// The small weights of plans that are read as one piece and are not interleaved.
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
        let matrix = Matrix { data: data.clone(), rows, n_rows, n_cols, interleave, offset: self.bytes };
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

    /// The views of files whose every byte is interleaved.
    fn views(&self) -> HashSet<View> {
        self.matrices.iter().map(|m| view(&m.data)).collect()
    }

    /// The views of files that are not read any more: they were interleaved or copied.
    pub fn let_go(&self) -> HashSet<View> {
        let mut views = self.views();
        views.extend(self.copies.keys());
        views
    }

    /// Where a view was copied to, counted from the first tile.
    fn copy_of(&self, data: &Bytes) -> Option<usize> {
        self.copies.get(&view(data)).map(|(_, offset)| *offset)
    }

    /// Make the tiles, with all workers.
    ///
    /// # Errors
    /// Memory was refused.
    pub fn make(self, pool: &Pool) -> Result<Interleaved> {
        let memory = PagePool::whole(1, round_up(self.bytes) + self.copied_bytes)?;
        memory.prefer_huge_pages();
        Bytes::prefer_large_pages(self.matrices.iter().map(|m| &m.data), MAPPED_AROUND);
        for (data, offset) in self.copies.values() {
            // SAFETY: the memory has room after the tiles, and nothing else uses it yet.
            unsafe { memory.start().add(*offset).copy_from_nonoverlapping(data.as_ptr(), data.len()) };
        }
        // Of each matrix, the unit that it begins with.
        let mut begins = Vec::with_capacity(self.matrices.len() + 1);
        let mut n_units = 0;
        for matrix in &self.matrices {
            begins.push(n_units);
            n_units += matrix.n_tiles().div_ceil(matrix.tiles_per_unit());
        }
        let taken = AtomicUsize::new(0);
        // Raw pointers are not shared between threads by themselves.
        let (start, matrices) = (memory.start() as usize, Shared(&self.matrices));
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
                    // SAFETY: the rows lie within the matrix, the tile within the memory; each unit is one worker's.
                    unsafe { (m.interleave.tile)(m.rows, m.n_cols, r0, n_rows, out) };
                }
                let of_row = m.rows.row_bytes;
                m.data.release(first * TILE_ROWS * of_row..(end * TILE_ROWS).min(m.n_rows) * of_row);
            }
        };
        pool.run(&job).map_err(|e| Error::Failed { device: crate::NAME, reason: e.to_string() })?;
        // What was mapped anew around the edges of the units.
        let read = self.matrices.iter().map(|m| &m.data).chain(self.copies.values().map(|(data, _)| data));
        Bytes::release_all(read, MAPPED_AROUND);
        Ok(Interleaved { memory, of: self, made: None })
    }
}

/// Matrices that all workers read.
struct Shared<'a>(&'a [Matrix]);

// SAFETY: the pointers are to weights in file maps, which are only read here.
unsafe impl Sync for Shared<'_> {}

impl Shared<'_> {
    fn get(&self) -> &[Matrix] {
        self.0
    }
}

/// Tiles in memory.
pub struct Interleaved {
    memory: PagePool,
    of: ToInterleave,
    /// What was made before, beside which this stands.
    made: Option<Arc<Interleaved>>,
}

// SAFETY: its pointers are to the bytes that its matrices hold, and to its own memory; both are only read from here on.
unsafe impl Send for Interleaved {}
// SAFETY: as above.
unsafe impl Sync for Interleaved {}

impl Interleaved {
    /// The matrices of further plans, with what was made of others' before.
    ///
    /// # Errors
    /// Memory was refused.
    pub fn beside(made: &Arc<Interleaved>, plans: &[Plan], isa: Isa, pool: &Pool) -> Result<Interleaved> {
        let further = ToInterleave::beside(Some(made), plans, isa).make(pool)?;
        Ok(Interleaved { made: Some(made.clone()), ..further })
    }

    /// The first tile of a matrix, and how it is interleaved.
    fn matrix(
        &self,
        weight: &Weight,
        data: &Bytes,
        n_rows: usize,
    ) -> Option<(*const u8, &'static Interleave)> {
        let own = self.of.keys.get(&key(weight, data, n_rows)).map(|index| &self.of.matrices[*index]);
        let tiles = |m: &Matrix| (self.memory.start().wrapping_add(m.offset).cast_const(), m.interleave);
        own.map(tiles).or_else(|| self.made.as_ref()?.matrix(weight, data, n_rows))
    }

    /// A view's bytes: in the file, or in their copy.
    pub fn bytes<'a>(&'a self, data: &'a Bytes) -> &'a [u8] {
        match (self.of.copy_of(data), &self.made) {
            // SAFETY: the copy has `data.len()` bytes at `offset`, and is not written after it was made.
            (Some(offset), _) => unsafe {
                std::slice::from_raw_parts(self.memory.start().add(offset), data.len())
            },
            (None, Some(made)) => made.bytes(data),
            (None, None) => data,
        }
    }

    /// A matrix as its kernels read it: `n_rows` rows of the weight's columns, at `data`.
    pub fn rows(&self, weight: &Weight, data: &Bytes, planes: &Planes, n_rows: usize) -> WeightRows {
        let rows = WeightRows::new(weight.block, weight.n_cols(), self.bytes(data), planes.as_slices());
        match self.matrix(weight, data, n_rows) {
            Some((tiles, interleave)) => rows.interleaved(tiles, weight.n_cols(), interleave),
            None => rows,
        }
    }
}

/// Each matrix of a weight with its planes and its rows: one, or one for each expert.
pub fn matrices(weight: &Weight) -> impl Iterator<Item = (&Bytes, &Planes, usize)> {
    let whole = weight.parts.is_empty().then_some((&weight.data, &weight.planes, weight.n_rows()));
    let n_rows = weight.n_rows() / weight.parts.len().max(1);
    whole.into_iter().chain(weight.parts.iter().map(move |part| (&part.data, &part.planes, n_rows)))
}

//! Store keys and values of the step's rows in the KV pages of a layer, and how those pages are read.
//!
//! k and v `(n, n_kv_heads * head_dim)`. A page of a group holds its layers one after another; of each, its heads; of each, keys
//! `[page_len][head_dim]`, then values in the same shape (of I16 and I8 the numbers of a head lie otherwise:
//! [`attention_integers`]). `(row, head)` pairs are shared among the workers.
//! Bytes: 4 read and the KV type's bytes written for each value.

use super::attention_integers;
use super::attention_numbers::{Bytes, Words};
use crate::command::Worker;
use crate::simd::{Simd, variants};
use device::{KvType, PAGE_NONE, Rows};

/// Where a layer's keys and values lie.
#[derive(Clone, Copy)]
pub struct LayerPages {
    /// The group's first page.
    pub pool: *mut u8,
    /// Bytes from one page to the next.
    pub page_bytes: usize,
    /// Bytes before this layer's part of a page.
    pub offset: usize,
    /// Which page table.
    pub group: usize,
    /// KV heads.
    pub n_kv_heads: usize,
    /// Columns of one head.
    pub head_dim: usize,
    /// Positions of a page; a power of two.
    pub page_len: usize,
    /// How they are stored.
    pub kind: KvType,
}

/// Keys or values.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Half {
    /// The first half of a head's part of a page.
    Keys,
    /// The second.
    Values,
}

impl LayerPages {
    /// Bytes of one head's vector.
    #[inline(always)]
    pub fn vector_bytes(&self) -> usize {
        self.kind.vector_bytes(self.head_dim)
    }

    /// Bytes of a head's keys in a page, or of its values, which follow them.
    #[inline(always)]
    pub fn half_bytes(&self) -> usize {
        self.page_len * self.vector_bytes()
    }

    /// Which of its page's positions a position is.
    #[inline(always)]
    pub fn within(&self, position: usize) -> usize {
        position & (self.page_len - 1)
    }

    /// The page that holds a position, for one head: its first byte.
    ///
    /// # Safety
    /// The table belongs to this pool and has a page for the position.
    #[inline(always)]
    pub unsafe fn head(&self, table: &[u32], half: Half, head: usize, position: usize) -> *mut u8 {
        // As a shift: a division by a number that is not known beforehand takes ten times as long.
        let page = table[position >> self.page_len.trailing_zeros()];
        assert!(page != PAGE_NONE, "position {position} has no KV page");
        let before = (2 * head + half as usize) * self.half_bytes();
        // SAFETY: the page is one of the pool, the head's part within it.
        unsafe { self.pool.add(page as usize * self.page_bytes + self.offset + before) }
    }

    /// The vector of a head at a position, of a KV type that stores vectors one after another; those of the following
    /// positions of the page follow.
    ///
    /// # Safety
    /// The table belongs to this pool and has a page for the position.
    #[inline(always)]
    pub unsafe fn vector(&self, table: &[u32], half: Half, head: usize, position: usize) -> *mut u8 {
        // SAFETY: the caller's promise; the vector is one of the page's.
        unsafe { self.head(table, half, head, position).add(self.within(position) * self.vector_bytes()) }
    }
}

/// Parameters.
#[derive(Clone, Copy)]
pub struct Params {
    /// `(n, n_kv_heads * head_dim)`
    pub k: *const f32,
    /// `(n, n_kv_heads * head_dim)`
    pub v: *const f32,
    /// Where they go.
    pub pages: LayerPages,
}

/// # Safety
/// As [`crate::command::Kernel`].
#[inline(always)]
unsafe fn body<S: Simd>(p: &Params, worker: &Worker<'_>) {
    let pages = &p.pages;
    for at in worker.share(worker.step.n_rows(Rows::Tokens) * pages.n_kv_heads, 1) {
        let (row, head) = (at / pages.n_kv_heads, at % pages.n_kv_heads);
        // SAFETY: the vectors lie within the values; the engine gave the row's position a page.
        unsafe {
            store::<S>(pages, worker, row, Half::Keys, head, p.k.add(at * pages.head_dim));
            store::<S>(pages, worker, row, Half::Values, head, p.v.add(at * pages.head_dim));
        }
    }
}

variants!(
    /// The kernel for an instruction set.
    kv_write, body, Params
);

/// Store one head's vector of a row.
///
/// # Safety
/// `x` is valid for `head_dim` values; the row's position has a page; the instruction set is available.
#[inline(always)]
pub unsafe fn store<S: Simd>(
    pages: &LayerPages,
    worker: &Worker<'_>,
    row: usize,
    half: Half,
    head: usize,
    x: *const f32,
) {
    let table = worker.step.page_table(worker.step.slots[row], pages.group);
    let n = pages.head_dim;
    // SAFETY: the caller's promise.
    unsafe {
        let position = worker.step.positions[row] as usize;
        let (of_head, at) = (pages.head(table, half, head, position), pages.within(position));
        let out = of_head.add(at * pages.vector_bytes());
        let vector = std::slice::from_raw_parts(x, n);
        match pages.kind {
            KvType::I16 => attention_integers::store::<S, Words>(pages, half, of_head, at, vector),
            KvType::I8 => attention_integers::store::<S, Bytes>(pages, half, of_head, at, vector),
            KvType::F32 => out.copy_from_nonoverlapping(x.cast(), n * 4),
            KvType::F16 => {
                let out: *mut u16 = out.cast();
                let whole = n / S::N * S::N;
                for i in (0..whole).step_by(S::N) {
                    S::store_f16(out.add(i), S::load(x.add(i)));
                }
                for i in whole..n {
                    out.add(i).write_unaligned(half::f16::from_f32(*x.add(i)).to_bits());
                }
            }
            KvType::Q8_0 => unreachable!("not one of `profile::KV_TYPES`"),
        }
    }
}

/// How a KV type is read.
pub trait Stored: Copy + 'static {
    /// `S::N` columns of a vector from column `d`, a multiple of `S::N`.
    ///
    /// # Safety
    /// The columns lie within the vector; the instruction set is available.
    unsafe fn load<S: Simd>(vector: *const u8, d: usize) -> S::V;

    /// Column `d`.
    ///
    /// # Safety
    /// It lies within the vector.
    unsafe fn load_one(vector: *const u8, d: usize) -> f32;
}

/// [`KvType::F32`]
#[derive(Clone, Copy)]
pub struct StoredF32;
/// [`KvType::F16`]
#[derive(Clone, Copy)]
pub struct StoredF16;

/// The kernel for an instruction set and a KV type: `$body::<S, K>`, an `#[inline(always)]` function generic over
/// [`Loops`](super::attention_loops::Loops) and [`Attend`](super::attention_tile::Attend), for each of both.
macro_rules! kv_type_variants {
    ($(#[$doc:meta])* $name:ident, $body:ident, $params:ty) => {
        $(#[$doc])*
        pub fn $name(isa: $crate::isa::Isa, kind: device::KvType) -> $crate::command::Kernel<$params> {
            use $crate::kernels::attention_loops::Loops;
            use $crate::kernels::attention_floats::Floats;
            use $crate::kernels::attention_integers::Integers;
            use $crate::kernels::attention_numbers::{Bytes, Words};
            use $crate::kernels::kv_write::{StoredF16, StoredF32};

            macro_rules! over {
                ($over:ident, $of_kind:ident, $attend:ty) => {
                    /// # Safety
                    /// As [`crate::command::Kernel`].
                    #[inline(always)]
                    unsafe fn $of_kind<S: Loops>(p: &$params, worker: &$crate::command::Worker<'_>) {
                        // SAFETY: the caller's promise.
                        unsafe { $body::<S, $attend>(p, worker) }
                    }
                    $crate::simd::variants!($over, $of_kind, $params);
                };
            }

            over!(over_f32, f32_body, Floats<StoredF32>);
            over!(over_f16, f16_body, Floats<StoredF16>);
            over!(over_i16, i16_body, Integers<Words>);
            over!(over_i8, i8_body, Integers<Bytes>);
            match kind {
                device::KvType::F32 => over_f32(isa),
                device::KvType::F16 => over_f16(isa),
                device::KvType::I16 => over_i16(isa),
                device::KvType::I8 => over_i8(isa),
                device::KvType::Q8_0 => unreachable!("not one of `profile::KV_TYPES`"),
            }
        }
    };
}
pub(super) use kv_type_variants;

impl Stored for StoredF32 {
    #[inline(always)]
    unsafe fn load<S: Simd>(vector: *const u8, d: usize) -> S::V {
        // SAFETY: the caller's promise.
        unsafe { S::load(vector.cast::<f32>().add(d)) }
    }
    #[inline(always)]
    unsafe fn load_one(vector: *const u8, d: usize) -> f32 {
        // SAFETY: the caller's promise.
        unsafe { vector.cast::<f32>().add(d).read_unaligned() }
    }
}

impl Stored for StoredF16 {
    #[inline(always)]
    unsafe fn load<S: Simd>(vector: *const u8, d: usize) -> S::V {
        // SAFETY: the caller's promise.
        unsafe { S::load_f16(vector.cast::<u16>().add(d)) }
    }
    #[inline(always)]
    unsafe fn load_one(vector: *const u8, d: usize) -> f32 {
        // SAFETY: the caller's promise.
        half::f16::from_bits(unsafe { vector.cast::<u16>().add(d).read_unaligned() }).to_f32()
    }
}

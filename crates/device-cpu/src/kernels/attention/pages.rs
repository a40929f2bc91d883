//! Addresses of the keys and values of a layer in KV pages, and of a block of positions.

use device::key_bias::KnownKeys;
use device::{KvType, PAGE_NONE};
use std::ops::Range;

/// Addresses of a layer's keys and values.
#[derive(Clone, Copy)]
pub struct LayerPages {
    /// Address of the group's first page.
    pub pool: *mut u8,
    /// Bytes from one page to the next.
    pub page_bytes: usize,
    /// Bytes before this layer's part of a page.
    pub offset: usize,
    /// Index of the KV group, and so of its page table.
    pub group: usize,
    /// KV heads.
    pub n_kv_heads: usize,
    /// Columns of one head.
    pub head_dim: usize,
    /// Positions of a page; a power of two.
    pub page_len: usize,
    /// 2 for keys and values, 1 if the values are the keys.
    pub n_halves: usize,
    /// KV type of the pages.
    pub kind: KvType,
    /// Constant terms that are not stored in keys; null for none. The program owns them.
    pub known: *const KnownKeys,
}

/// Keys or values.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Half {
    /// The first half of a head's part of a page.
    Keys,
    /// The second half of a head's part of a page.
    Values,
}

/// Sizes that the work of a query depends on.
#[derive(Clone, Copy)]
pub struct HeadSize {
    /// Columns of a head.
    pub head_dim: usize,
    /// Constant terms that are not stored in keys ([`device::key_bias::KeyBias::n_terms`]).
    pub n_terms: usize,
}

impl LayerPages {
    /// Constant terms that are not stored in keys.
    ///
    /// # Safety
    /// The program that compiled these pages is alive.
    #[inline(always)]
    pub unsafe fn known(&self) -> Option<&KnownKeys> {
        // SAFETY: `known` is null, or points to terms that the program owns and never moves or
        // changes.
        unsafe { self.known.as_ref() }
    }

    /// Size of a query's work.
    ///
    /// # Safety
    /// As [`Self::known`].
    #[inline(always)]
    pub unsafe fn size(&self) -> HeadSize {
        // SAFETY: by the caller, the program that compiled these pages, and so what `known` points
        // to, is alive.
        let known = unsafe { self.known() };
        HeadSize { head_dim: self.head_dim, n_terms: known.map_or(0, |known| known.bias.n_terms()) }
    }

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

    /// Index of a position within its page.
    #[inline(always)]
    pub fn within(&self, position: usize) -> usize {
        position & (self.page_len - 1)
    }

    /// Address of one head's half of the page of a position.
    ///
    /// # Safety
    /// The table belongs to this pool and has a page for the position.
    #[inline(always)]
    pub unsafe fn head(&self, table: &[u32], half: Half, head: usize, position: usize) -> *mut u8 {
        // A shift, since a division by a variable takes ten times as long.
        let page = table[position >> self.page_len.trailing_zeros()];
        assert!(page != PAGE_NONE, "position {position} has no KV page");
        let half = half as usize * (self.n_halves - 1);
        let before = (self.n_halves * head + half) * self.half_bytes();
        // SAFETY: the caller guarantees that `table` has pages of this pool; the head's half is
        // within the page.
        unsafe { self.pool.add(page as usize * self.page_bytes + self.offset + before) }
    }

    /// Address of a head's vector at a position, for KV types that store whole vectors. The page's
    /// following positions come after it.
    ///
    /// # Safety
    /// The table belongs to this pool and has a page for the position.
    #[inline(always)]
    pub unsafe fn vector(&self, table: &[u32], half: Half, head: usize, position: usize) -> *mut u8 {
        // SAFETY: by the caller, the table is of this pool and has a page for the position;
        // `within` is below `page_len`, so the vector is one of the head's half of that page.
        unsafe { self.head(table, half, head, position).add(self.within(position) * self.vector_bytes()) }
    }
}

/// A block of positions of a sequence, for a KV head.
pub struct KvBlock<'a> {
    /// Addresses of the keys and values.
    pub pages: &'a LayerPages,
    /// Page table of the sequence.
    pub table: &'a [u32],
    /// The KV head.
    pub kv_head: usize,
    /// First position, a multiple of the block's length.
    pub first: usize,
    /// Positions of the block that are computed.
    pub range: Range<usize>,
    /// The block whose keys are read after this one's values, if its range is not empty.
    pub next: Option<&'a KvBlock<'a>>,
}

impl KvBlock<'_> {
    /// Address of the head's keys in the page of a position of the block; `None` outside the range.
    ///
    /// # Safety
    /// The positions of the range have pages.
    #[inline(always)]
    pub unsafe fn keys_of(&self, at: usize) -> Option<*mut u8> {
        // SAFETY: by the caller, the positions of the range have pages in the table; this is called
        // only where `at` is one of them.
        let keys = || unsafe { self.pages.head(self.table, Half::Keys, self.kv_head, self.first + at) };
        self.range.contains(&at).then(keys)
    }

    /// Address of the vector at a position of the block, and the number of the range's vectors from
    /// there to the end of its page.
    ///
    /// # Safety
    /// The position has a page.
    #[inline(always)]
    pub unsafe fn run(&self, half: Half, at: usize) -> (*const u8, usize) {
        let page_len = self.pages.page_len;
        // SAFETY: by the caller, the position has a page in the table.
        let first = unsafe { self.pages.vector(self.table, half, self.kv_head, self.first + at) };
        (first, (page_len - (self.first + at) % page_len).min(self.range.end - at))
    }
}

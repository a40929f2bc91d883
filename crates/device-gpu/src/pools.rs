//! KV pages: a buffer for each granule that is committed, found by its address.
//!
//! Page tables in the step buffer hold the addresses of pages, so that kernels need neither a
//! buffer for a whole pool nor a table of buffers. A commit allocates a buffer, copies nothing and
//! does not wait for the steps in flight. Only a decommit waits for them.

use crate::gpu::{Buffer, Encoder, Gpu, Memory, Residency};
use device::{CommittedPages, Error, KvLayout, Limits, Result};
use std::ops::Range;

/// Granules of a sequence as long as the context.
const GRANULES: usize = 4;

/// Maximum number of bytes of a granule, so that the first token of a model of a long context does
/// not take a quarter of it.
const MOST_GRANULE_BYTES: usize = 128 << 20;

/// Bookkeeping of pages, none of them committed yet, in granules of at most `most` bytes.
pub fn no_pages(kv: &KvLayout, limits: &Limits, most: usize) -> CommittedPages {
    CommittedPages::new(limits, |group| {
        let page_bytes = kv.page_bytes(group, limits.kv_type, limits.page_len);
        let of_context = limits.n_ctx.div_ceil(limits.page_len).div_ceil(GRANULES);
        of_context.min(MOST_GRANULE_BYTES.min(most) / page_bytes.max(1)).max(1)
    })
}

/// The memory of a granule.
struct Chunk<G: Gpu> {
    /// `None`: it is not committed.
    buffer: Option<G::Buffer>,
    /// True if the current step uses a page of it.
    is_reached: bool,
}

/// The pool of a KV group.
struct Pool<G: Gpu> {
    page_bytes: usize,
    /// Pages of a chunk.
    granule: usize,
    chunks: Vec<Chunk<G>>,
}

/// The pools of all KV groups.
pub(crate) struct Pools<G: Gpu> {
    groups: Vec<Pool<G>>,
    /// Pages that have memory.
    committed: CommittedPages,
    /// Chunks with pages of the current step: group and chunk.
    reached: Vec<(usize, usize)>,
}

impl<G: Gpu> Pools<G> {
    /// Pools without memory.
    ///
    /// # Errors
    /// A page is longer than kernels can count or a buffer can be.
    pub(crate) fn new(kv: &KvLayout, limits: &Limits, max_buffer_bytes: u64) -> Result<Pools<G>> {
        let page_bytes = |group: usize| kv.page_bytes(group, limits.kv_type, limits.page_len);
        let most = usize::try_from(max_buffer_bytes.min(u64::from(u32::MAX))).unwrap_or(usize::MAX);
        for group in 0..limits.n_pages.len() {
            if page_bytes(group) > most {
                return Err(Error::Unsupported {
                    device: G::NAME,
                    what: format!("a KV page of {} bytes, where one may have {most}", page_bytes(group)),
                    hint: "use a smaller KV type (--kv-type)".to_owned(),
                });
            }
        }
        let committed = no_pages(kv, limits, most);
        let pool = |group: usize| {
            let granule = committed.granule(group);
            let chunk = |_| Chunk { buffer: None, is_reached: false };
            let chunks = (0..limits.n_pages[group].div_ceil(granule)).map(chunk).collect();
            Pool { page_bytes: page_bytes(group), granule, chunks }
        };
        let groups: Vec<Pool<G>> = (0..limits.n_pages.len()).map(pool).collect();
        let n_chunks = groups.iter().map(|pool| pool.chunks.len()).sum();
        Ok(Pools { groups, committed, reached: Vec::with_capacity(n_chunks) })
    }

    pub(crate) fn committed(&self) -> &CommittedPages {
        &self.committed
    }

    /// Clears the chunks of the current step.
    pub(crate) fn begin(&mut self) {
        for (group, chunk) in self.reached.drain(..) {
            self.groups[group].chunks[chunk].is_reached = false;
        }
    }

    /// The address of a page of the step; 0 if it has no memory, as before the window of a layer.
    pub(crate) fn reach(&mut self, group: usize, page: u32) -> u64 {
        let Pool { page_bytes, granule, chunks } = &mut self.groups[group];
        let (index, place) = (page as usize / *granule, page as usize % *granule);
        let Some(chunk) = chunks.get_mut(index) else { return 0 };
        let Some(buffer) = &chunk.buffer else { return 0 };
        if !chunk.is_reached {
            chunk.is_reached = true;
            self.reached.push((group, index));
        }
        buffer.address() + (place * *page_bytes) as u64
    }

    /// Tells an encoder the chunks of the step.
    pub(crate) fn encode(&self, encoder: &mut G::Encoder) {
        for (group, chunk) in &self.reached {
            if let Some(buffer) = &self.groups[*group].chunks[*chunk].buffer {
                encoder.reach(buffer);
            }
        }
    }

    /// The bytes of a committed page.
    ///
    /// # Errors
    /// It is not committed, in words.
    pub(crate) fn page(&self, group: usize, page: u32) -> std::result::Result<(*mut u8, usize), String> {
        self.committed.check_page(group, page)?;
        let Pool { page_bytes, granule, chunks } = &self.groups[group];
        let chunk = chunks[page as usize / granule].buffer.as_ref();
        let chunk = chunk.ok_or_else(|| format!("page {page} of KV group {group} has no memory"))?;
        Ok((chunk.start().wrapping_add(page as usize % granule * page_bytes), *page_bytes))
    }

    /// The memory of all chunks that are committed.
    pub(crate) fn buffers(&self) -> impl Iterator<Item = &G::Buffer> {
        self.groups.iter().flat_map(|pool| &pool.chunks).filter_map(|chunk| chunk.buffer.as_ref())
    }

    /// The chunks of a range of whole granules.
    fn chunks_of(&self, group: usize, pages: &Range<u32>) -> Range<usize> {
        let granule = self.groups[group].granule;
        pages.start as usize / granule..(pages.end as usize).div_ceil(granule)
    }

    /// Allocates memory for pages: for all chunks of the range, or for none.
    ///
    /// # Errors
    /// Memory was refused.
    pub(crate) fn commit(
        &mut self,
        gpu: &G,
        residency: &mut G::Residency,
        group: usize,
        pages: Range<u32>,
    ) -> Result<()> {
        let chunks = self.chunks_of(group, &pages);
        let n_pages = self.committed.n_pages(group);
        let Pool { page_bytes, granule, chunks: all } = &mut self.groups[group];
        let mut taken: Vec<G::Buffer> = Vec::with_capacity(chunks.len());
        for chunk in chunks.clone() {
            let n_pages = (n_pages - chunk * *granule).min(*granule);
            match gpu.allocate(Memory::Device, "KV pages", n_pages * *page_bytes) {
                Ok(buffer) => taken.push(buffer),
                Err(Error::OutOfMemory { .. }) => {
                    let (n_pages, bytes) = (pages.len(), (pages.len() * *page_bytes) as u64);
                    return Err(Error::Shortage { device: G::NAME, group, n_pages, bytes });
                }
                Err(error) => return Err(error),
            }
        }
        for (chunk, buffer) in chunks.zip(taken) {
            residency.add(&buffer);
            all[chunk].buffer = Some(buffer);
        }
        self.committed.set(group, pages, true);
        Ok(())
    }

    /// Frees the memory of pages, which no step in flight reads.
    pub(crate) fn decommit(&mut self, residency: &mut G::Residency, group: usize, pages: Range<u32>) {
        let chunks = self.chunks_of(group, &pages);
        for chunk in &mut self.groups[group].chunks[chunks] {
            if let Some(buffer) = chunk.buffer.take() {
                residency.remove(&buffer);
            }
        }
        self.committed.set(group, pages, false);
    }
}

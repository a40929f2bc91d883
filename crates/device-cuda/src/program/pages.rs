//! KV pages: address space in chunks. A chunk has memory while one of its pages is committed.

use super::CudaMachine;
use crate::driver::{Address, NAME};
use device::{Error, Result};
use std::ops::Range;

impl CudaMachine {
    pub(super) fn page_bytes(&self, group: usize) -> usize {
        self.kv.page_bytes(group, self.limits.kv_type, self.limits.page_len)
    }

    /// The address of a page.
    pub(super) fn page(&self, group: usize, page: u32) -> Address {
        self.pools[group].start() + u64::from(page) * self.page_bytes(group) as u64
    }

    /// The chunks that contain a range of pages.
    pub(super) fn chunks(&self, group: usize, pages: &Range<u32>) -> Range<usize> {
        let (bytes, chunk) = (self.page_bytes(group), self.pools[group].chunk());
        let (start, end) = (pages.start as usize * bytes, pages.end as usize * bytes);
        start / chunk..end.div_ceil(chunk)
    }

    /// Maps memory for a range of pages: for all of them, or for none.
    pub(super) fn map_pages(&mut self, group: usize, pages: Range<u32>) -> Result<()> {
        let chunks = self.chunks(group, &pages);
        for chunk in chunks.clone() {
            match self.pools[group].map(chunk) {
                Ok(true) => self.users[group][chunk] += 1,
                refused => {
                    self.release(group, chunks.start..chunk)?;
                    refused?;
                    let (n_pages, bytes) = (pages.len(), (pages.len() * self.page_bytes(group)) as u64);
                    return Err(Error::Shortage { device: NAME, group, n_pages, bytes });
                }
            }
        }
        self.committed.set(group, pages, true);
        Ok(())
    }

    /// Removes one user from each chunk, and frees the memory of chunks without users.
    pub(super) fn release(&mut self, group: usize, chunks: Range<usize>) -> Result<()> {
        for chunk in chunks {
            let users = &mut self.users[group][chunk];
            *users = users.saturating_sub(1);
            if *users == 0 {
                self.pools[group].unmap(chunk)?;
            }
        }
        Ok(())
    }
}

//! The KV cache's bookkeeping: which page holds which positions of which sequence.
//!
//! Bytes belong to the program. Here are page tables (one row a slot and KV group, read by the device), a pool of page
//! numbers a group, and the prefix cache. Pages are shared between sequences and the cache by reference counts; a page
//! that is held more than once is never written: a sequence that continues in the middle of one gets a copy.

mod pages;
mod prefix;

pub use pages::PagePool;
pub use prefix::PrefixCache;

use device::{KvGroup, KvLayout, Limits, PAGE_NONE, Program};

use crate::{Error, Result};

/// Most pages that one sequence holds in a group, while a step of `max_rows` rows is computed.
pub fn pages_of_sequence(window: Option<usize>, n_ctx: usize, max_rows: usize, page_len: usize) -> usize {
    let all = n_ctx.div_ceil(page_len);
    // The rows of a step and the `window - 1` positions before them; one page more, since they may start inside one.
    window.map_or(all, |w| (w.saturating_sub(1) + max_rows).div_ceil(page_len) + 1).min(all)
}

/// Pages of each group's pool for `n_sequences` sequences that run at once: what they can hold, and a little for the
/// prefix cache, so that it keeps something even then: one page for a copy, and in window groups the window at the end
/// of each prompt, without which nothing of the prompt could be used again (a window as long as the context never ends).
pub fn pool_sizes(
    layout: &KvLayout,
    n_ctx: usize,
    max_rows: usize,
    n_sequences: usize,
    page_len: usize,
) -> Vec<usize> {
    let of_group = |window: Option<usize>| {
        let kept = window.filter(|w| *w < n_ctx).map_or(1, |w| w.div_ceil(page_len) + 1);
        n_sequences * (pages_of_sequence(window, n_ctx, max_rows, page_len) + kept)
    };
    layout.groups.iter().map(|g| of_group(g.window)).collect()
}

/// Bytes that one sequence of `n_tokens` tokens holds at most, and a page of each group for a copy.
pub fn bytes_of_sequence(layout: &KvLayout, limits: &Limits, n_tokens: usize) -> u64 {
    let of_group = |(group, g): (usize, &KvGroup)| {
        let n = g.encoder_states.map_or_else(
            || pages_of_sequence(g.window, n_tokens, limits.max_rows, limits.page_len) + 1,
            |n| n.div_ceil(limits.page_len),
        );
        (n * layout.page_bytes(group, limits.kv_type, limits.page_len)) as u64
    };
    layout.groups.iter().enumerate().map(of_group).sum()
}

/// Pages, tables and the prefix cache of all slots.
#[derive(Clone, Debug)]
pub struct KvCache {
    page_len: usize,
    pages_per_table: usize,
    /// Window of each group.
    windows: Vec<Option<usize>>,
    pools: Vec<PagePool>,
    /// Bytes of a page of each group.
    page_bytes: Vec<u64>,
    /// Most bytes of pages that are held at once, by sequences and the prefix cache.
    budget: u64,
    prefix: PrefixCache,
    /// `(n_slots, n_groups, pages_per_table)`
    tables: Vec<u32>,
    /// `(n_slots, n_groups)` entries of a table before this one are [`PAGE_NONE`] for good: out of the window.
    first_kept: Vec<usize>,
}

impl KvCache {
    /// Free pages as the limits say, for `limits.max_spans` slots.
    pub fn new(layout: &KvLayout, limits: &Limits) -> KvCache {
        let n_groups = layout.groups.len();
        let pages_per_table = limits.n_ctx.div_ceil(limits.page_len);
        KvCache {
            page_len: limits.page_len,
            pages_per_table,
            windows: layout.groups.iter().map(|g| g.window).collect(),
            pools: limits.n_pages.iter().map(|&n| PagePool::new(n)).collect(),
            page_bytes: (0..n_groups)
                .map(|g| layout.page_bytes(g, limits.kv_type, limits.page_len) as u64)
                .collect(),
            budget: u64::MAX,
            prefix: PrefixCache::new(layout, limits.page_len),
            tables: vec![PAGE_NONE; limits.max_spans * n_groups * pages_per_table],
            first_kept: vec![0; limits.max_spans * n_groups],
        }
    }

    /// `(n_slots, n_groups, pages_per_table)`, as [`device::Step::page_tables`] wants them.
    pub fn tables(&self) -> &[u32] {
        &self.tables
    }

    /// Entries of one table.
    pub fn pages_per_table(&self) -> usize {
        self.pages_per_table
    }

    /// `(pages held, pages in all)` of a group.
    pub fn usage(&self, group: usize) -> (usize, usize) {
        let pool = &self.pools[group];
        (pool.n_pages() - pool.n_free(), pool.n_pages())
    }

    /// From now on, hold at most so many bytes of pages. What is held beyond that goes as pages are taken.
    pub fn set_budget(&mut self, bytes: u64) {
        self.budget = bytes;
    }

    /// Most bytes of pages that are held at once.
    pub fn budget(&self) -> u64 {
        self.budget
    }

    /// Bytes of all pages that are held, by sequences and the prefix cache.
    pub fn held_bytes(&self) -> u64 {
        let held = |(pool, bytes): (&PagePool, &u64)| (pool.n_pages() - pool.n_free()) as u64 * bytes;
        self.pools.iter().zip(&self.page_bytes).map(held).sum()
    }

    /// The prefix cache.
    pub fn prefix(&self) -> &PrefixCache {
        &self.prefix
    }

    fn n_groups(&self) -> usize {
        self.windows.len()
    }

    fn entry(&mut self, slot: usize, group: usize, page_index: usize) -> &mut u32 {
        &mut self.tables[(slot * self.windows.len() + group) * self.pages_per_table + page_index]
    }

    /// The first position that the row at `position` looks at.
    fn first_visible(&self, group: usize, position: usize) -> usize {
        self.windows[group].map_or(0, |w| (position + 1).saturating_sub(w))
    }

    /// Give an empty slot the longest usable prefix of `tokens` that is cached, a part of a page by copying it. Returns
    /// how many tokens need not be computed.
    ///
    /// # Errors
    /// The device failed to copy.
    pub fn begin(&mut self, slot: usize, tokens: &[u32], program: &mut dyn Program) -> Result<usize> {
        let found = self.prefix.find(tokens);
        let n_full = found.n_tokens / self.page_len;
        for group in 0..self.n_groups() {
            let first = self.first_visible(group, found.n_tokens) / self.page_len;
            let kept = slot * self.n_groups() + group;
            self.first_kept[kept] = first;
            for page_index in first..n_full {
                let page = self.prefix.page(found.path[page_index], group);
                self.pools[group].share(page);
                *self.entry(slot, group, page_index) = page;
            }
        }
        if found.n_tokens.is_multiple_of(self.page_len) {
            return Ok(found.n_tokens);
        }
        let Some(&last) = found.path.last() else { return Ok(0) };
        match self.copy_last_page(slot, n_full, last, program) {
            Ok(()) => Ok(found.n_tokens),
            Err(error) => {
                self.end(slot, program);
                Err(error)
            }
        }
    }

    /// Copy on write: the new sequence writes behind the part of the page that it shares.
    fn copy_last_page(
        &mut self,
        slot: usize,
        page_index: usize,
        node: u32,
        program: &mut dyn Program,
    ) -> Result<()> {
        for group in 0..self.n_groups() {
            let source = self.prefix.page(node, group);
            if source == PAGE_NONE {
                continue; // no row will look at it
            }
            self.pools[group].share(source); // else making room might evict it
            let copied = self.take(group, program).and_then(|page| {
                *self.entry(slot, group, page_index) = page;
                Ok(program.copy_page(group, source, page)?)
            });
            self.release(group, source, program);
            copied?;
        }
        Ok(())
    }

    /// Give a slot the pages of `n_rows` positions from `first_position` on. Allocates nothing.
    ///
    /// # Errors
    /// No page is free and none can be evicted; cannot happen while no more sequences run than the pools are sized for.
    pub fn reserve(
        &mut self,
        slot: usize,
        first_position: usize,
        n_rows: usize,
        program: &mut dyn Program,
    ) -> Result<()> {
        let pages = first_position / self.page_len..(first_position + n_rows).div_ceil(self.page_len);
        for group in 0..self.n_groups() {
            for page_index in pages.clone() {
                self.reserve_page(slot, group, page_index, program)?;
            }
        }
        Ok(())
    }

    /// Give a slot one page of one group, if it has none there; its number.
    ///
    /// # Errors
    /// As [`Self::reserve`].
    pub(crate) fn reserve_page(
        &mut self,
        slot: usize,
        group: usize,
        page_index: usize,
        program: &mut dyn Program,
    ) -> Result<u32> {
        if *self.entry(slot, group, page_index) == PAGE_NONE {
            let page = self.take(group, program)?;
            *self.entry(slot, group, page_index) = page;
        }
        Ok(*self.entry(slot, group, page_index))
    }

    /// What the prefix cache has of `tokens`: how many of them, and `(pages, groups)` where they are, [`PAGE_NONE`] where
    /// a window has let go.
    pub(crate) fn cached(&mut self, tokens: &[u32]) -> (usize, Vec<u32>) {
        let found = self.prefix.find(tokens);
        let groups = 0..self.n_groups();
        let pages = found.path.iter().flat_map(|node| groups.clone().map(|g| self.prefix.page(*node, g)));
        (found.n_tokens, pages.collect())
    }

    /// The slot's positions before `next_position` are computed: let go of pages that no later row looks at. Allocates
    /// nothing.
    pub fn advance(&mut self, slot: usize, next_position: usize, program: &mut dyn Program) {
        for group in 0..self.n_groups() {
            let end = self.first_visible(group, next_position) / self.page_len;
            let kept = slot * self.n_groups() + group;
            for page_index in self.first_kept[kept]..end {
                let page = std::mem::replace(self.entry(slot, group, page_index), PAGE_NONE);
                if page != PAGE_NONE {
                    self.release(group, page, program);
                }
            }
            self.first_kept[kept] = self.first_kept[kept].max(end);
        }
    }

    /// Put a slot's computed `tokens` into the prefix cache. A last page that is not full goes in only if the sequence
    /// will not write to it any more (`is_final`).
    pub fn remember(&mut self, slot: usize, tokens: &[u32], is_final: bool, program: &mut dyn Program) {
        let n = if is_final { tokens.len() } else { tokens.len() / self.page_len * self.page_len };
        let len = self.n_groups() * self.pages_per_table;
        let table = &mut self.tables[slot * len..(slot + 1) * len];
        self.prefix.insert(&tokens[..n], table, &mut self.pools, |g, page| program.release_page(g, page));
    }

    /// Let go of all pages of a slot.
    pub fn end(&mut self, slot: usize, program: &mut dyn Program) {
        for group in 0..self.n_groups() {
            for page_index in 0..self.pages_per_table {
                let page = std::mem::replace(self.entry(slot, group, page_index), PAGE_NONE);
                if page != PAGE_NONE {
                    self.release(group, page, program);
                }
            }
            let kept = slot * self.n_groups() + group;
            self.first_kept[kept] = 0;
        }
    }

    /// Forget all cached prefixes.
    pub fn clear_prefixes(&mut self, program: &mut dyn Program) {
        self.prefix.clear(&mut self.pools, |g, page| program.release_page(g, page));
    }

    /// A page, if the budget has room for it, or gets it when cached prefixes go.
    fn take(&mut self, group: usize, program: &mut dyn Program) -> Result<u32> {
        loop {
            if self.held_bytes().saturating_add(self.page_bytes[group]) <= self.budget
                && let Some(page) = self.pools[group].take()
            {
                return Ok(page);
            }
            let n_groups = self.n_groups();
            // Pages of this group first: only they are of use where its pool is empty.
            let mut groups = (group..n_groups).chain(0..group);
            if !groups.any(|group| {
                self.prefix.evict(group, &mut self.pools, |g, page| program.release_page(g, page))
            }) {
                return Err(Error::PagesExhausted { group, n_pages: self.pools[group].n_pages() });
            }
        }
    }

    fn release(&mut self, group: usize, page: u32, program: &mut dyn Program) {
        if self.pools[group].release(page) {
            program.release_page(group, page);
        }
    }

    /// Count every reference anew and compare.
    ///
    /// # Errors
    /// [`Error::Integrity`]: a defect of the engine, in words.
    pub fn check(&self) -> Result<()> {
        let broken = |what| Error::Integrity { what };
        self.prefix.check().map_err(broken)?;
        let mut counted: Vec<Vec<u32>> = self.pools.iter().map(|p| vec![0; p.n_pages()]).collect();
        self.prefix.count_references(&mut counted);
        for (row, table) in self.tables.chunks(self.pages_per_table.max(1)).enumerate() {
            for &page in table.iter().filter(|p| **p != PAGE_NONE) {
                counted[row % self.n_groups()][page as usize] += 1;
            }
        }
        for (group, (pool, counted)) in self.pools.iter().zip(&counted).enumerate() {
            pool.check(counted).map_err(|what| broken(format!("KV group {group}: {what}")))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;

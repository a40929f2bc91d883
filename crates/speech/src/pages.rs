//! Which pages hold what the beams of a search have in common, and what each has alone.
//!
//! All slots read the same pages of the memory, which an encoder writes. Pages of a sequence are counted: beams that come
//! from one share its pages, and a page that two share is copied before one of them writes to it.

use device::{KvLayout, Limits, PAGE_NONE, Program};
use engine::PagePool;

use crate::{Error, Result};

/// The page tables of all slots.
#[derive(Debug)]
pub(crate) struct BeamPages {
    page_len: usize,
    pages_per_table: usize,
    n_slots: usize,
    /// Of each group; `None`: a memory's.
    pools: Vec<Option<PagePool>>,
    /// `(n_slots, n_groups, pages_per_table)`
    tables: Vec<u32>,
    /// As [`Self::tables`], for a fork.
    next: Vec<u32>,
}

/// Pages of each group's pool for `n_slots` slots.
pub(crate) fn n_pages(layout: &KvLayout, n_slots: usize, n_ctx: usize, page_len: usize) -> Vec<usize> {
    let of_group = |memory: Option<usize>| match memory {
        Some(n) => n.div_ceil(page_len),
        None => n_slots * n_ctx.div_ceil(page_len),
    };
    layout.groups.iter().map(|group| of_group(group.memory)).collect()
}

impl BeamPages {
    /// Empty sequences and one memory, for `limits.max_spans` slots.
    pub(crate) fn new(layout: &KvLayout, limits: &Limits) -> BeamPages {
        let groups = &layout.groups;
        let longest = groups.iter().filter_map(|group| group.memory).max().unwrap_or(0).max(limits.n_ctx);
        let pages_per_table = longest.div_ceil(limits.page_len);
        let mut tables = vec![PAGE_NONE; limits.max_spans * groups.len() * pages_per_table];
        for (row, table) in tables.chunks_mut(pages_per_table.max(1)).enumerate() {
            if let Some(n) = groups.get(row % groups.len().max(1)).and_then(|group| group.memory) {
                let pages = table.iter_mut().take(n.div_ceil(limits.page_len));
                pages.enumerate().for_each(|(number, page)| *page = number as u32);
            }
        }
        let pools = groups.iter().zip(&limits.n_pages);
        BeamPages {
            page_len: limits.page_len,
            pages_per_table,
            n_slots: limits.max_spans,
            pools: pools.map(|(group, &n)| group.memory.is_none().then(|| PagePool::new(n))).collect(),
            next: tables.clone(),
            tables,
        }
    }

    /// `(n_slots, n_groups, pages_per_table)`, as [`device::Step::page_tables`] wants them.
    pub(crate) fn tables(&self) -> &[u32] {
        &self.tables
    }

    /// Entries of one table.
    pub(crate) fn pages_per_table(&self) -> usize {
        self.pages_per_table
    }

    /// Where the table of a slot and group lies.
    fn table(&self, slot: usize, group: usize) -> std::ops::Range<usize> {
        let start = (slot * self.pools.len() + group) * self.pages_per_table;
        start..start + self.pages_per_table
    }

    /// Make the `n_rows` positions of a slot from `first_position` on its own to write.
    ///
    /// # Errors
    /// No page is free, which cannot happen within the limits, or the device failed to copy.
    pub(crate) fn reserve(
        &mut self,
        slot: usize,
        first_position: usize,
        n_rows: usize,
        program: &mut dyn Program,
    ) -> Result<()> {
        let pages = first_position / self.page_len..(first_position + n_rows).div_ceil(self.page_len);
        for group in 0..self.pools.len() {
            let start = self.table(slot, group).start;
            let Some(pool) = self.pools.get_mut(group).and_then(Option::as_mut) else { continue };
            for index in pages.clone() {
                let Some(entry) = self.tables.get_mut(start + index) else { continue };
                if *entry != PAGE_NONE && pool.references(*entry) == 1 {
                    continue;
                }
                let n_pages = pool.n_pages();
                let page = pool.take().ok_or(Error::PagesExhausted { group, n_pages })?;
                if *entry != PAGE_NONE {
                    // Only a page that was begun has anything to keep.
                    let copied = match index * self.page_len < first_position {
                        true => program.copy_page(group, *entry, page),
                        false => Ok(()),
                    };
                    if let Err(error) = copied {
                        pool.release(page);
                        return Err(error.into());
                    }
                    pool.release(*entry);
                }
                *entry = page;
            }
        }
        Ok(())
    }

    /// Slot `i` becomes what slot `parents[i]` was; the slots after them become empty.
    pub(crate) fn fork(&mut self, parents: &[usize]) {
        for group in 0..self.pools.len() {
            let tables: Vec<_> = (0..self.n_slots).map(|slot| self.table(slot, group)).collect();
            let Some(pool) = self.pools.get_mut(group).and_then(Option::as_mut) else { continue };
            for (slot, to) in tables.iter().enumerate() {
                let from = parents.get(slot).and_then(|parent| tables.get(*parent));
                let from = from.and_then(|from| self.tables.get(from.clone()));
                let Some(next) = self.next.get_mut(to.clone()) else { continue };
                match from {
                    Some(from) => next.copy_from_slice(from),
                    None => next.fill(PAGE_NONE),
                }
                next.iter().filter(|page| **page != PAGE_NONE).for_each(|page| pool.share(*page));
            }
            for table in tables {
                let (Some(old), Some(next)) = (self.tables.get_mut(table.clone()), self.next.get(table))
                else {
                    continue;
                };
                old.iter().filter(|page| **page != PAGE_NONE).for_each(|page| _ = pool.release(*page));
                old.copy_from_slice(next);
            }
        }
    }

    /// Empty every sequence; the memory stays.
    pub(crate) fn clear(&mut self) {
        self.fork(&[]);
    }
}

#[cfg(test)]
mod tests {
    use device::{Chosen, CommandInfo, KvLayer, KvType, Numerics, Step, Ticket, Timing, ValueId};

    use super::*;

    /// A program that only copies pages, and says which.
    #[derive(Default)]
    struct Copies(Vec<(usize, u32, u32)>, device::CommittedPages);

    impl Program for Copies {
        fn submit(&mut self, _: &Step) -> device::Result<Ticket> {
            Ok(Ticket(0))
        }
        fn wait(&mut self, _: Ticket) -> device::Result<()> {
            Ok(())
        }
        fn chosen(&self) -> &[Chosen] {
            &[]
        }
        fn best(&self, _: usize) -> &[(u32, f32)] {
            &[]
        }
        fn run_until(&mut self, _: &Step, _: usize) -> device::Result<()> {
            Ok(())
        }
        fn read(&self, _: ValueId) -> Option<Vec<f32>> {
            None
        }
        fn logits(&self) -> &[f32] {
            &[]
        }
        fn kept(&self, _: usize) -> &[f32] {
            &[]
        }
        fn copy_page(&mut self, group: usize, from: u32, to: u32) -> device::Result<()> {
            self.0.push((group, from, to));
            Ok(())
        }
        fn committed(&self) -> &device::CommittedPages {
            &self.1
        }
        fn commit(&mut self, _: usize, _: std::ops::Range<u32>) -> device::Result<()> {
            Ok(())
        }
        fn decommit(&mut self, _: usize, _: std::ops::Range<u32>) -> device::Result<()> {
            Ok(())
        }
        fn commands(&self, _: usize, _: usize) -> Vec<CommandInfo> {
            vec![]
        }
        fn run_timed(&mut self, _: &Step, _: &mut Vec<Timing>) -> device::Result<()> {
            Ok(())
        }
    }

    fn pages() -> BeamPages {
        let layer = KvLayer { n_kv_heads: 1, head_dim: 8, window: None, memory: None };
        let layout = KvLayout::new(vec![layer, KvLayer { memory: Some(50), ..layer }]);
        let limits = Limits {
            max_rows: 50,
            max_outputs: 3,
            max_spans: 3,
            n_ctx: 40,
            page_len: 16,
            n_pages: n_pages(&layout, 3, 40, 16),
            kv_type: KvType::F32,
            numerics: Numerics::Fast,
        };
        assert_eq!(limits.n_pages, [9, 4]);
        BeamPages::new(&layout, &limits)
    }

    fn free(pages: &BeamPages) -> usize {
        pages.pools[0].as_ref().map_or(0, PagePool::n_free)
    }

    #[test]
    fn beams_share_until_one_writes() {
        let (mut pages, mut program) = (pages(), Copies::default());
        let none = PAGE_NONE;
        pages.reserve(0, 0, 20, &mut program).unwrap();
        pages.fork(&[0, 0, 0]);
        assert_eq!(free(&pages), 7);
        assert_eq!(pages.tables()[..8], [0, 1, none, none, 0, 1, 2, 3]);
        assert_eq!(pages.tables()[8..16], pages.tables()[..8]);
        assert!(program.0.is_empty());
        for slot in 0..3 {
            pages.reserve(slot, 20, 1, &mut program).unwrap();
        }
        // The last that holds a page keeps it.
        assert_eq!(program.0, [(0, 1, 2), (0, 1, 3)]);
        assert_eq!(free(&pages), 5);
        pages.reserve(1, 21, 1, &mut program).unwrap();
        assert_eq!(program.0.len(), 2, "it is its own now");
        // Beam 2 dies, beam 1 becomes two.
        pages.fork(&[1, 0, 1]);
        let own: Vec<u32> = (0..3).map(|slot| pages.tables()[slot * 8 + 1]).collect();
        assert_eq!((own, free(&pages)), (vec![3, 2, 3], 6));
        // A new page is not copied.
        program.0.clear();
        pages.reserve(0, 32, 1, &mut program).unwrap();
        assert!(program.0.is_empty());
        pages.clear();
        assert_eq!(free(&pages), 9);
        assert_eq!(pages.tables()[4..8], [0, 1, 2, 3], "the memory stays");
    }

    #[test]
    fn the_pools_are_enough_for_any_search() {
        let (mut pages, mut program) = (pages(), Copies::default());
        let mut state = 7u32;
        for _ in 0..20 {
            pages.clear();
            pages.reserve(0, 0, 3, &mut program).unwrap();
            for position in 3..40 {
                let parents: Vec<usize> = (0..3)
                    .map(|slot| {
                        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                        if position == 3 { 0 } else { (state >> 16) as usize % 3 * usize::from(slot > 0) }
                    })
                    .collect();
                pages.fork(&parents);
                (0..3).for_each(|slot| pages.reserve(slot, position, 1, &mut program).unwrap());
            }
        }
        pages.clear();
        assert_eq!(free(&pages), 9);
    }
}

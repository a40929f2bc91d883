//! Bookkeeping of the pages that have memory, shared by all devices.

use std::ops::Range;

use crate::Limits;

/// Committed pages of each KV group. A program keeps one, and [`crate::Step::check`] reads it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CommittedPages {
    groups: Vec<Group>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Group {
    n_pages: usize,
    /// Pages that are committed and decommitted together.
    granule: usize,
    /// One bit for each page: `(n_pages / 64, rounded up)`.
    bits: Vec<u64>,
    n_committed: usize,
}

impl CommittedPages {
    /// No committed pages, for pools of these limits. `granule` returns the pages of a granule of a
    /// group, at least 1.
    pub fn new(limits: &Limits, granule: impl Fn(usize) -> usize) -> CommittedPages {
        let group = |(group, &n_pages): (usize, &usize)| Group {
            n_pages,
            granule: granule(group).clamp(1, n_pages.max(1)),
            bits: vec![0; n_pages.div_ceil(64)],
            n_committed: 0,
        };
        CommittedPages { groups: limits.n_pages.iter().enumerate().map(group).collect() }
    }

    /// Number of KV groups.
    pub fn n_groups(&self) -> usize {
        self.groups.len()
    }

    /// Number of pages in a group's pool; 0 if there is no such group.
    pub fn n_pages(&self, group: usize) -> usize {
        self.groups.get(group).map_or(0, |g| g.n_pages)
    }

    /// Pages of a group that are committed and decommitted together; the last granule of a pool may
    /// be shorter.
    pub fn granule(&self, group: usize) -> usize {
        self.groups.get(group).map_or(1, |g| g.granule)
    }

    /// The granule that contains a page; empty if there is no such page.
    pub fn granule_of(&self, group: usize, page: u32) -> Range<u32> {
        let (granule, n_pages) = (self.granule(group), self.n_pages(group));
        if page as usize >= n_pages {
            return page..page;
        }
        let start = page as usize / granule * granule;
        start as u32..(start + granule).min(n_pages) as u32
    }

    /// Number of committed pages of a group.
    pub fn n_committed(&self, group: usize) -> usize {
        self.groups.get(group).map_or(0, |g| g.n_committed)
    }

    /// Returns true if the page exists and is committed.
    pub fn contains(&self, group: usize, page: u32) -> bool {
        let word = self.groups.get(group).and_then(|g| g.bits.get(page as usize / 64));
        word.is_some_and(|word| word >> (page % 64) & 1 == 1)
    }

    /// Checks that a page exists and is committed.
    ///
    /// # Errors
    /// The group, the page and its state.
    pub fn check_page(&self, group: usize, page: u32) -> Result<(), String> {
        if self.contains(group, page) {
            return Ok(());
        }
        let n_pages = self.n_pages(group);
        Err(match (page as usize) < n_pages {
            true => format!("page {page} of KV group {group} is not committed"),
            false => format!("page {page} of KV group {group}, expected one of {n_pages}"),
        })
    }

    /// Checks that a range is whole granules of a group. All its pages are committed if `committed`
    /// is true, none otherwise.
    ///
    /// # Errors
    /// The range, the group and what was expected.
    pub fn check_range(&self, group: usize, pages: &Range<u32>, committed: bool) -> Result<(), String> {
        let (n_pages, granule) = (self.n_pages(group), self.granule(group));
        let (start, end) = (pages.start as usize, pages.end as usize);
        let is_end = |page: usize| page.is_multiple_of(granule) || page == n_pages;
        if start >= end || end > n_pages || !is_end(start) || !is_end(end) {
            return Err(format!(
                "pages {start} to {end} of KV group {group}, expected whole granules of {granule} pages of {n_pages}"
            ));
        }
        match pages.clone().find(|page| self.contains(group, *page) != committed) {
            Some(page) if committed => Err(format!("page {page} of KV group {group} is not committed")),
            Some(page) => Err(format!("page {page} of KV group {group} is committed already")),
            None => Ok(()),
        }
    }

    /// Marks a range, which passed [`Self::check_range`], as committed or not committed.
    pub fn set(&mut self, group: usize, pages: Range<u32>, committed: bool) {
        let Some(g) = self.groups.get_mut(group) else { return };
        for page in pages {
            let (word, bit) = (page as usize / 64, 1 << (page % 64));
            let Some(word) = g.bits.get_mut(word) else { return };
            match (*word & bit != 0, committed) {
                (false, true) => g.n_committed += 1,
                (true, false) => g.n_committed -= 1,
                (false, false) | (true, true) => {}
            }
            *word = if committed { *word | bit } else { *word & !bit };
        }
    }

    /// The lowest granule of a group that is not committed, starting at the granule of page `from`.
    pub fn next_free(&self, group: usize, from: u32) -> Option<Range<u32>> {
        let mut at = self.granule_of(group, from);
        while !at.is_empty() {
            if !self.contains(group, at.start) {
                return Some(at);
            }
            at = self.granule_of(group, at.end);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{KvType, Numerics};

    fn committed(n_pages: &[usize], granule: usize) -> CommittedPages {
        let limits = Limits {
            max_rows: 1,
            max_outputs: 1,
            max_spans: 1,
            n_ctx: 16,
            page_len: 16,
            n_pages: n_pages.to_vec(),
            n_states: 0,
            background_rows: 0,
            kv_type: KvType::F32,
            numerics: Numerics::Fast,
        };
        CommittedPages::new(&limits, |_| granule)
    }

    #[test]
    fn granules_are_committed_as_a_whole() {
        let mut pages = committed(&[70, 3], 8);
        assert_eq!((pages.granule(0), pages.granule(1), pages.granule(2)), (8, 3, 1));
        assert_eq!(
            (pages.granule_of(0, 69), pages.granule_of(1, 2), pages.granule_of(1, 3)),
            (64..70, 0..3, 3..3)
        );
        for (range, part) in
            [(4..8, "granules"), (0..12, "granules"), (0..0, "granules"), (64..72, "granules")]
        {
            assert!(pages.check_range(0, &range, false).unwrap_err().contains(part), "{range:?}");
        }
        assert!(pages.granule_of(0, 70).is_empty() && pages.granule_of(0, u32::MAX).is_empty());
        assert!(pages.check_range(2, &(0..1), false).is_err());
        assert_eq!(pages.check_range(0, &(8..24), false), Ok(()));
        pages.set(0, 8..24, true);
        assert_eq!(pages.n_committed(0), 16);
        assert!(pages.check_range(0, &(0..24), false).unwrap_err().contains("page 8"));
        assert!(pages.check_range(0, &(0..24), true).unwrap_err().contains("page 0"));
        assert!(
            pages.check_page(0, 23).is_ok() && pages.check_page(0, 24).unwrap_err().contains("not committed")
        );
        assert!(pages.check_page(0, 70).unwrap_err().contains("expected one of 70"));
        assert_eq!((pages.next_free(0, 0), pages.next_free(0, 9)), (Some(0..8), Some(24..32)));
        pages.set(0, 24..70, true);
        assert_eq!((pages.next_free(0, 8), pages.next_free(2, 0)), (None, None));
        pages.set(0, 16..24, false);
        assert_eq!((pages.n_committed(0), pages.next_free(0, 8)), (54, Some(16..24)));
    }
}

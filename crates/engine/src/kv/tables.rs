//! Page tables: the page of each range of positions, for each slot and KV group. They record the
//! entries that changed since a device saw them, so that a device with memory of its own gets only
//! the changes.

use std::ops::Range;

use device::PAGE_NONE;

/// Maximum number of changes that are listed one by one. A step of a prompt adds a page for each
/// `page_len` rows and group. If a sequence's end frees more, sending the whole table is cheaper.
const MOST_CHANGES: usize = 1024;

/// Page tables of all slots and groups.
#[derive(Clone, Debug)]
pub(super) struct PageTables {
    /// `(n_slots, n_groups, pages_per_table)`
    entries: Vec<u32>,
    n_groups: usize,
    pages_per_table: usize,
    /// Entries that changed, some of them more than once; capacity [`MOST_CHANGES`].
    changes: Vec<u32>,
    /// True if there were more changes than that, or no device has seen the tables.
    all_changed: bool,
}

impl PageTables {
    /// Tables without pages.
    pub(super) fn new(n_slots: usize, n_groups: usize, pages_per_table: usize) -> PageTables {
        PageTables {
            entries: vec![PAGE_NONE; n_slots * n_groups * pages_per_table],
            n_groups,
            pages_per_table,
            changes: Vec::with_capacity(MOST_CHANGES),
            all_changed: true,
        }
    }

    pub(super) fn entries(&self) -> &[u32] {
        &self.entries
    }

    pub(super) fn pages_per_table(&self) -> usize {
        self.pages_per_table
    }

    pub(super) fn n_slots(&self) -> usize {
        self.entries.len() / (self.n_groups * self.pages_per_table).max(1)
    }

    /// Indices of the entries that changed since [`Self::note_seen`]; `None`: any may have.
    pub(super) fn changes(&self) -> Option<&[u32]> {
        (!self.all_changed).then_some(&*self.changes)
    }

    /// Note that a device has seen the tables, or that it failed and may not have.
    pub(super) fn note_seen(&mut self, is_certain: bool) {
        self.changes.clear();
        self.all_changed = !is_certain;
    }

    fn index(&self, slot: usize, group: usize, page_index: usize) -> usize {
        (slot * self.n_groups + group) * self.pages_per_table + page_index
    }

    /// The table of a slot and group.
    pub(super) fn table(&self, slot: usize, group: usize) -> &[u32] {
        let start = self.index(slot, group, 0);
        &self.entries[start..start + self.pages_per_table]
    }

    /// Every table with its group.
    pub(super) fn tables(&self) -> impl Iterator<Item = (usize, &[u32])> {
        let tables = self.entries.chunks(self.pages_per_table.max(1)).enumerate();
        tables.map(|(row, table)| (row % self.n_groups, table))
    }

    pub(super) fn page(&self, slot: usize, group: usize, page_index: usize) -> u32 {
        self.entries[self.index(slot, group, page_index)]
    }

    /// Set an entry. Returns its old value.
    pub(super) fn set(&mut self, slot: usize, group: usize, page_index: usize, page: u32) -> u32 {
        let index = self.index(slot, group, page_index);
        let before = std::mem::replace(&mut self.entries[index], page);
        if before != page && !self.all_changed {
            self.all_changed = self.changes.len() == MOST_CHANGES;
            if !self.all_changed {
                self.changes.push(index as u32);
            }
        }
        before
    }

    /// Set a range of a table's entries, one by one.
    pub(super) fn fill(
        &mut self,
        slot: usize,
        group: usize,
        range: Range<usize>,
        page: impl Fn(usize) -> u32,
    ) {
        for page_index in range {
            self.set(slot, group, page_index, page(page_index));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_listed_until_there_are_too_many() {
        let mut tables = PageTables::new(2, 3, 700);
        assert_eq!(tables.changes(), None, "nobody saw them yet");
        tables.note_seen(true);
        assert_eq!(tables.set(1, 2, 5, 9), PAGE_NONE);
        assert_eq!(tables.set(1, 2, 5, 9), 9, "that is no change");
        tables.set(0, 0, 1, 7);
        assert_eq!(tables.changes(), Some(&[5 * 700 + 5, 1][..]));
        assert_eq!((tables.page(1, 2, 5), tables.table(0, 0)[1]), (9, 7));
        tables.note_seen(true);
        (0..2).for_each(|group| tables.fill(0, group, 2..600, |index| index as u32));
        assert_eq!(tables.changes(), None);
        tables.note_seen(true);
        assert_eq!(tables.changes(), Some(&[][..]));
        tables.note_seen(false);
        assert_eq!(tables.changes(), None);
    }
}

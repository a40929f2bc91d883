//! Page numbers of one KV group, free or with a reference count.
//!
//! The bytes of a page belong to the program; this module has only numbers. The sequences whose
//! tables name a page and the prefix cache hold one reference each.

use std::ops::Range;

/// The pool of pages of one KV group.
#[derive(Clone, Debug)]
pub struct PagePool {
    /// `(n_pages)` reference count of each page.
    references: Vec<u32>,
    /// `(n_pages / 64, rounded up)` one bit for each page: 1 if it is free.
    free: Vec<u64>,
    n_free: usize,
    /// Index of the first word of `free` that may have a bit set.
    first_word: usize,
}

impl PagePool {
    /// A pool of `n_pages` free pages.
    pub fn new(n_pages: usize) -> PagePool {
        let mut free = vec![u64::MAX; n_pages.div_ceil(64)];
        if let Some(last) = free.last_mut().filter(|_| !n_pages.is_multiple_of(64)) {
            *last = (1 << (n_pages % 64)) - 1;
        }
        PagePool { references: vec![0; n_pages], free, n_free: n_pages, first_word: 0 }
    }

    /// Number of all pages.
    pub fn n_pages(&self) -> usize {
        self.references.len()
    }

    /// Number of free pages.
    pub fn n_free(&self) -> usize {
        self.n_free
    }

    /// Reference count of a page.
    pub fn references(&self, page: u32) -> u32 {
        self.references[page as usize]
    }

    /// The lowest free page, if there is one.
    pub fn lowest_free(&self) -> Option<u32> {
        let word = self.first_word + self.free[self.first_word..].iter().position(|word| *word != 0)?;
        Some((word * 64) as u32 + self.free[word].trailing_zeros())
    }

    /// Number of pages of a range that are held.
    pub fn n_held(&self, pages: Range<u32>) -> usize {
        self.references[pages.start as usize..pages.end as usize].iter().filter(|n| **n > 0).count()
    }

    /// Take the lowest free page, with one reference. So the tail of the pool stays free, and
    /// unused memory stays untouched. Allocates nothing.
    pub fn take(&mut self) -> Option<u32> {
        let page = self.lowest_free()?;
        let word = page as usize / 64;
        self.first_word = word;
        self.free[word] &= self.free[word] - 1;
        self.n_free -= 1;
        debug_assert_eq!(self.references[page as usize], 0);
        self.references[page as usize] = 1;
        Some(page)
    }

    /// Add a reference to a page that is held.
    pub fn share(&mut self, page: u32) {
        debug_assert!(self.references[page as usize] > 0, "page {page} is free");
        self.references[page as usize] += 1;
    }

    /// Move all references of `page` to the lowest free page. Returns that page; `None` if no page
    /// is free.
    pub fn move_down(&mut self, page: u32) -> Option<u32> {
        let to = self.take()?;
        self.references[to as usize] = std::mem::replace(&mut self.references[page as usize], 1);
        self.release(page);
        Some(to)
    }

    /// Drop a reference to a page. Returns true if the page is free now.
    pub fn release(&mut self, page: u32) -> bool {
        let references = &mut self.references[page as usize];
        debug_assert!(*references > 0, "page {page} is free already");
        *references -= 1;
        if *references == 0 {
            let word = page as usize / 64;
            self.free[word] |= 1 << (page % 64);
            self.n_free += 1;
            self.first_word = self.first_word.min(word);
        }
        self.references[page as usize] == 0
    }

    /// Compare with references counted by the caller.
    ///
    /// # Errors
    /// The first page whose count differs, or that is both free and held.
    pub fn check(&self, counted: &[u32]) -> Result<(), String> {
        let is_free = |page: usize| self.free[page / 64] >> (page % 64) & 1 == 1;
        let n_free = self.free.iter().map(|word| word.count_ones() as usize).sum::<usize>();
        if n_free != self.n_free {
            return Err(format!("{n_free} pages are free, counted {}", self.n_free));
        }
        if let Some(word) = self.free[..self.first_word].iter().position(|word| *word != 0) {
            return Err(format!("word {word} has free pages, and the search starts at {}", self.first_word));
        }
        for (page, (&want, &have)) in counted.iter().zip(&self.references).enumerate() {
            if want != have {
                return Err(format!("page {page} has {have} references, counted {want}"));
            }
            if is_free(page) != (have == 0) {
                return Err(format!("page {page} has {have} references, and is_free is {}", is_free(page)));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn low_pages_first_and_back_again() {
        let mut pool = PagePool::new(3);
        assert_eq!([pool.take(), pool.take(), pool.take(), pool.take()], [Some(0), Some(1), Some(2), None]);
        pool.share(1);
        assert!(!pool.release(1));
        assert!(pool.release(1));
        assert_eq!((pool.take(), pool.n_free()), (Some(1), 0));
        assert!(pool.check(&[1, 1, 1]).is_ok());
        let mut many = PagePool::new(130);
        assert!((0..130).all(|page| many.take() == Some(page)) && many.take().is_none());
        for page in [129, 3, 70] {
            many.release(page);
        }
        assert_eq!(
            [many.take(), many.take(), many.take(), many.take()],
            [Some(3), Some(70), Some(129), None]
        );
        assert!(many.check(&[1; 130]).is_ok());
        many.share(129);
        many.release(5);
        assert_eq!((many.lowest_free(), many.n_held(0..10), many.n_held(128..130)), (Some(5), 9, 2));
        assert_eq!((many.move_down(129), many.references(5), many.lowest_free()), (Some(5), 2, Some(129)));
        many.take();
        assert_eq!((many.move_down(129), many.lowest_free()), (None, None));
        assert_eq!(pool.check(&[1, 2, 1]).unwrap_err(), "page 1 has 1 references, counted 2");
    }
}

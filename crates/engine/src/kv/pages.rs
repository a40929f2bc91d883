//! Page numbers of one KV group: which are free, and how many hold each of the others.
//!
//! The bytes of a page belong to the program; here are only numbers. A page is held by the sequences whose tables name
//! it and by the prefix cache, once each.

/// The pages of one KV group.
#[derive(Clone, Debug)]
pub struct PagePool {
    /// `(n_pages)` how many hold the page.
    references: Vec<u32>,
    /// Pages that nobody holds; the last is handed out next. Starts descending, so that low numbers go first and memory
    /// that was reserved, but never used, stays untouched.
    free: Vec<u32>,
}

impl PagePool {
    /// `n_pages` free pages.
    pub fn new(n_pages: usize) -> PagePool {
        PagePool { references: vec![0; n_pages], free: (0..n_pages as u32).rev().collect() }
    }

    /// All pages.
    pub fn n_pages(&self) -> usize {
        self.references.len()
    }

    /// Pages that nobody holds.
    pub fn n_free(&self) -> usize {
        self.free.len()
    }

    /// How many hold a page.
    pub fn references(&self, page: u32) -> u32 {
        self.references[page as usize]
    }

    /// A free page, held once from now on.
    pub fn take(&mut self) -> Option<u32> {
        let page = self.free.pop()?;
        debug_assert_eq!(self.references[page as usize], 0);
        self.references[page as usize] = 1;
        Some(page)
    }

    /// Hold a page that somebody holds already.
    pub fn share(&mut self, page: u32) {
        debug_assert!(self.references[page as usize] > 0, "page {page} is free");
        self.references[page as usize] += 1;
    }

    /// Let go of a page. True if it is free now.
    pub fn release(&mut self, page: u32) -> bool {
        let references = &mut self.references[page as usize];
        debug_assert!(*references > 0, "page {page} is free already");
        *references -= 1;
        if *references == 0 {
            self.free.push(page);
        }
        self.references[page as usize] == 0
    }

    /// Compare with references counted elsewhere.
    ///
    /// # Errors
    /// The first page whose count differs, or that is both free and held.
    pub fn check(&self, counted: &[u32]) -> Result<(), String> {
        let mut is_free = vec![false; self.n_pages()];
        for &page in &self.free {
            if std::mem::replace(&mut is_free[page as usize], true) {
                return Err(format!("page {page} is free twice"));
            }
        }
        for (page, (&want, &have)) in counted.iter().zip(&self.references).enumerate() {
            if want != have {
                return Err(format!("page {page} has {have} references, counted {want}"));
            }
            if is_free[page] != (have == 0) {
                return Err(format!("page {page} has {have} references, and is_free is {}", is_free[page]));
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
        assert_eq!(pool.check(&[1, 2, 1]).unwrap_err(), "page 1 has 1 references, counted 2");
    }
}

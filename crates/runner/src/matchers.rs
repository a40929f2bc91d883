//! Caches of compiled grammars and lists, since clients send the same with every request. Each
//! tenant has its own cache: shared entries would reveal through timing what other tenants send.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, PoisonError};

use text::{Grammar, Matcher, Trigger};

use crate::error::Result;

/// Maximum number of entries of a tenant.
const MAX_KEPT: usize = 64;

/// Maximum number of source bytes of a tenant's entries, except for the entry used last. Compiled
/// entries may be a thousand times as large.
const MAX_BYTES: usize = 256 << 10;

/// The source of a cached value.
pub(crate) trait Source: Clone + PartialEq {
    /// Bytes of the source's texts.
    fn size(&self) -> usize;
}

impl Source for Grammar {
    fn size(&self) -> usize {
        self.n_bytes()
    }
}

impl Source for Vec<Trigger> {
    fn size(&self) -> usize {
        // The table of limits bounds triggers and breakers.
        0
    }
}

impl Source for Vec<String> {
    fn size(&self) -> usize {
        self.iter().map(String::len).sum()
    }
}

/// A cached value and its source.
struct Kept<K, T> {
    key: K,
    n_bytes: usize,
    made: T,
}

/// Entries by tenant and source; those of a tenant begin with the one used last.
pub(crate) struct Matchers<K = Grammar, T = Matcher>(Mutex<HashMap<u64, VecDeque<Kept<K, T>>>>);

impl<K, T> Default for Matchers<K, T> {
    fn default() -> Matchers<K, T> {
        Matchers(Mutex::default())
    }
}

impl<K: Source, T: Clone> Matchers<K, T> {
    /// Returns the cached value of `key`, or makes it now. The lock is not held while a value is
    /// made.
    ///
    /// # Errors
    /// Those of `make`.
    pub(crate) fn get(&self, tenant: u64, key: &K, make: impl FnOnce() -> Result<T>) -> Result<T> {
        if let Some(found) = self.find(tenant, key) {
            return Ok(found);
        }
        let made = make()?;
        let mut tenants = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = tenants.entry(tenant).or_default();
        kept.push_front(Kept { key: key.clone(), n_bytes: key.size(), made: made.clone() });
        kept.truncate(MAX_KEPT);
        while kept.len() > 1 && kept.iter().map(|one| one.n_bytes).sum::<usize>() > MAX_BYTES {
            kept.pop_back();
        }
        Ok(made)
    }

    fn find(&self, tenant: u64, key: &K) -> Option<T> {
        let mut tenants = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = tenants.get_mut(&tenant)?;
        let at = kept.iter().position(|one| one.key == *key)?;
        let found = kept.remove(at)?;
        let made = found.made.clone();
        kept.push_front(found);
        Some(made)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::RequestError;

    #[test]
    fn a_grammar_is_compiled_once_while_it_is_in_use() {
        let matchers = Matchers::<Grammar, usize>::default();
        let mut n_made = 0;
        let mut get = |regex: String| {
            let made = matchers.get(1, &Grammar::Regex(regex), || {
                n_made += 1;
                Ok(n_made)
            });
            made.unwrap()
        };
        assert_eq!((get("a".into()), get("a".into()), get("b".into()), get("a".into())), (1, 1, 2, 1));
        // Entries that are not used are evicted.
        for n in 0..MAX_KEPT - 1 {
            get(n.to_string());
        }
        assert_eq!(get("a".into()), 1);
        assert_eq!(get("b".into()), 2 + MAX_KEPT);
        // Large entries evict others.
        let large = |n: usize| n.to_string().repeat(MAX_BYTES / 2);
        let first = get(large(1));
        assert_eq!((get(large(1)), get("a".into())), (first, 1));
        get(large(2));
        assert_eq!((get("a".into()), get(large(1))), (1, first + 2));
        // Errors are not cached.
        let wrong = || matchers.get(1, &Grammar::Regex("(".into()), || Err(RequestError::internal("no")));
        assert!(wrong().is_err() && wrong().is_err());
        // Another tenant's entries are compiled again.
        assert_eq!(matchers.get(2, &Grammar::Regex("a".into()), || Ok(0)).unwrap(), 0);
        assert_eq!(matchers.get(1, &Grammar::Regex("a".into()), || Ok(0)).unwrap(), 1);
    }
}

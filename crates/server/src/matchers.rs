//! What was made of a request's lists and grammars lately: clients send the same with every request. Each tenant has its own, for the
//! time that a request takes would tell it what others ask.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, PoisonError};

use text::{Grammar, Matcher};

use crate::error::Result;

/// Most grammars that are kept of a tenant.
const MAX_KEPT: usize = 64;

/// By tenant; by what they were made of, the one that was used last first.
pub(crate) struct Matchers<K = Grammar, T = Matcher>(Mutex<HashMap<u64, VecDeque<(K, T)>>>);

impl<K, T> Default for Matchers<K, T> {
    fn default() -> Matchers<K, T> {
        Matchers(Mutex::default())
    }
}

impl<K: Clone + PartialEq, T: Clone> Matchers<K, T> {
    /// What was made of this; made now if it is not here. Nobody waits while one is made.
    ///
    /// # Errors
    /// Of `make`.
    pub(crate) fn get(&self, tenant: u64, key: &K, make: impl FnOnce() -> Result<T>) -> Result<T> {
        if let Some(found) = self.find(tenant, key) {
            return Ok(found);
        }
        let made = make()?;
        let mut tenants = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = tenants.entry(tenant).or_default();
        kept.push_front((key.clone(), made.clone()));
        kept.truncate(MAX_KEPT);
        Ok(made)
    }

    fn find(&self, tenant: u64, key: &K) -> Option<T> {
        let mut tenants = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = tenants.get_mut(&tenant)?;
        let at = kept.iter().position(|(other, _)| other == key)?;
        let found = kept.remove(at)?;
        let matcher = found.1.clone();
        kept.push_front(found);
        Some(matcher)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ApiError;

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
        // Those that nobody has asked for go.
        for n in 0..MAX_KEPT - 1 {
            get(n.to_string());
        }
        assert_eq!(get("a".into()), 1);
        assert_eq!(get("b".into()), 2 + MAX_KEPT);
        // What is wrong is not kept.
        let wrong = || matchers.get(1, &Grammar::Regex("(".into()), || Err(ApiError::internal("no")));
        assert!(wrong().is_err() && wrong().is_err());
        // What another tenant has had compiled is compiled again.
        assert_eq!(matchers.get(2, &Grammar::Regex("a".into()), || Ok(0)).unwrap(), 0);
        assert_eq!(matchers.get(1, &Grammar::Regex("a".into()), || Ok(0)).unwrap(), 1);
    }
}

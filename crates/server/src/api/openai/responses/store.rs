//! Responses that clients may come back to: bounded, the oldest go first. A tenant sees none but its own.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::Value;

use crate::error::{ApiError, ErrorKind, Result};

/// Most responses.
const MAX_ENTRIES: usize = 10_000;
/// Most bytes of their JSON.
const MAX_BYTES: usize = 64 << 20;

/// A response, and what it was asked.
pub(super) struct Entry {
    pub(super) tenant: u64,
    pub(super) response: Value,
    /// Everything before the answer, in order.
    pub(super) conversation: Vec<Value>,
    /// So many of these, at the end, were this request's input.
    pub(super) n_input: usize,
}

impl Entry {
    /// The conversation so far, for what comes next.
    pub(super) fn items(&self) -> Vec<Value> {
        let output = self.response["output"].as_array().into_iter().flatten();
        self.conversation.iter().chain(output).cloned().collect()
    }

    pub(super) fn input(&self) -> &[Value] {
        &self.conversation[self.conversation.len().saturating_sub(self.n_input)..]
    }

    fn id(&self) -> &Value {
        &self.response["id"]
    }

    fn bytes(&self) -> usize {
        let items = self.conversation.iter().map(|item| item.to_string().len());
        self.response.to_string().len() + items.sum::<usize>()
    }
}

/// See the module.
#[derive(Default)]
pub(super) struct Store(Mutex<Kept>);

#[derive(Default)]
struct Kept {
    /// Oldest first, each with its bytes.
    entries: VecDeque<(Arc<Entry>, usize)>,
    bytes: usize,
}

impl Store {
    pub(super) fn put(&self, entry: Entry) {
        let bytes = entry.bytes();
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.entries.push_back((Arc::new(entry), bytes));
        kept.bytes += bytes;
        while kept.entries.len() > MAX_ENTRIES || kept.bytes > MAX_BYTES {
            let Some((_, bytes)) = kept.entries.pop_front() else { break };
            kept.bytes -= bytes;
        }
    }

    /// # Errors
    /// The tenant has no such response, or has it no longer.
    pub(super) fn get(&self, tenant: u64, id: &str) -> Result<Arc<Entry>> {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let found = kept.entries.iter().rev().find(|(entry, _)| entry.tenant == tenant && entry.id() == id);
        found.map(|(entry, _)| entry.clone()).ok_or_else(|| unknown(id))
    }

    /// An item of one of the tenant's responses.
    pub(super) fn item(&self, tenant: u64, id: &str) -> Option<Value> {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let entries = kept.entries.iter().rev().filter(|(entry, _)| entry.tenant == tenant);
        entries
            .map(|(entry, _)| entry.items())
            .find_map(|items| items.into_iter().find(|item| item["id"] == id))
    }

    /// # Errors
    /// As [`Self::get`].
    pub(super) fn delete(&self, tenant: u64, id: &str) -> Result<()> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_it = |(entry, _): &(Arc<Entry>, usize)| entry.tenant == tenant && entry.id() == id;
        let at = kept.entries.iter().position(is_it).ok_or_else(|| unknown(id))?;
        if let Some((_, bytes)) = kept.entries.remove(at) {
            kept.bytes -= bytes;
        }
        Ok(())
    }
}

fn unknown(id: &str) -> ApiError {
    ApiError {
        param: Some("previous_response_id".into()),
        code: Some("previous_response_not_found"),
        ..ApiError::new(ErrorKind::NotFound, format!("there is no response `{id}`, or it is kept no longer"))
    }
}

/// A new id: no two of a server are the same, nor those of two starts.
pub(super) fn new_id(kind: &str) -> String {
    static N: AtomicU64 = AtomicU64::new(0);
    let time = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_micros() as u64);
    format!("{kind}_{time:014x}{:08x}", N.fetch_add(1, Ordering::Relaxed))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn entry(tenant: u64, id: &str, text: &str) -> Entry {
        let response = json!({ "id": id, "output": [{ "id": format!("msg_{id}"), "text": text }] });
        Entry { tenant, response, conversation: vec![json!({ "id": "in" })], n_input: 1 }
    }

    #[test]
    fn tenants_see_their_own_responses_alone() {
        let store = Store::default();
        store.put(entry(1, "a", "x"));
        assert_eq!(store.get(1, "a").unwrap().items().len(), 2);
        assert!(store.get(2, "a").is_err() && store.delete(2, "a").is_err());
        assert!(store.item(1, "msg_a").is_some() && store.item(2, "msg_a").is_none());
        store.delete(1, "a").unwrap();
        assert!(store.get(1, "a").is_err());
    }

    #[test]
    fn the_oldest_go_when_there_is_no_room() {
        let store = Store::default();
        let text = "x".repeat(MAX_BYTES / 3);
        for id in ["a", "b", "c"] {
            store.put(entry(1, id, &text));
        }
        assert!(store.get(1, "a").is_err() && store.get(1, "b").is_ok() && store.get(1, "c").is_ok());
    }

    #[test]
    fn ids_differ() {
        assert_ne!(new_id("resp"), new_id("resp"));
    }
}

//! Responses that later requests may continue. Each tenant has its own room, from which its oldest
//! responses are evicted.
//!
//! A conversation is a chain of turns, each with only its own items. A response that continues
//! another refers to that one's turn and does not copy it. The bytes of a turn count until the last
//! response that needs it is gone.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::Value;

use runner::{ErrorKind, RequestError, Result};

/// Maximum number of responses of a tenant.
const MAX_ENTRIES: usize = 10_000;
/// Maximum number of bytes of a tenant's responses in memory.
const MAX_BYTES: usize = 64 << 20;

/// An item of a conversation. Items are immutable.
pub(super) type Item = Arc<Value>;

/// Bytes that count as a tenant's until this is dropped.
struct Charge {
    used: Arc<AtomicUsize>,
    bytes: usize,
}

impl Charge {
    fn new(used: &Arc<AtomicUsize>, bytes: usize) -> Charge {
        used.fetch_add(bytes, Ordering::Relaxed);
        Charge { used: used.clone(), bytes }
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// One question and its answer, with the turns before them.
pub(super) struct StoredTurn {
    before: Option<Arc<StoredTurn>>,
    input: Vec<Item>,
    output: Vec<Item>,
    /// Bytes of this turn and all before it.
    chain_bytes: usize,
    _charge: Charge,
}

impl StoredTurn {
    /// The conversation up to and including this turn, in order.
    pub(super) fn items(&self) -> Vec<Item> {
        let turns: Vec<&StoredTurn> =
            std::iter::successors(Some(self), |turn| turn.before.as_deref()).collect();
        turns.iter().rev().flat_map(|turn| turn.input.iter().chain(&turn.output)).cloned().collect()
    }
}

impl Drop for StoredTurn {
    fn drop(&mut self) {
        // Unlinks turns in a loop: nested drops of a long chain would overflow the stack.
        let mut next = self.before.take();
        while let Some(mut turn) = next.and_then(Arc::into_inner) {
            next = turn.before.take();
        }
    }
}

/// A stored response.
pub(super) struct StoredResponse {
    id: String,
    /// The response without its output, which the turn holds.
    response: Value,
    pub(super) turn: Arc<StoredTurn>,
    _charge: Charge,
}

impl StoredResponse {
    /// The whole response.
    pub(super) fn response(&self) -> Value {
        let mut response = self.response.clone();
        response["output"] = self.turn.output.iter().map(|item| Value::clone(item)).collect();
        response
    }

    /// The items of this response's own request.
    pub(super) fn input(&self) -> &[Item] {
        &self.turn.input
    }

    fn items(&self) -> impl Iterator<Item = (&str, &Item)> {
        let items = self.turn.input.iter().chain(&self.turn.output);
        items.filter_map(|item| Some((item["id"].as_str()?, item)))
    }
}

/// The stored responses of all tenants.
#[derive(Default)]
pub(super) struct Store(Mutex<HashMap<u64, TenantStore>>);

/// The stored responses of one tenant.
#[derive(Default)]
struct TenantStore {
    /// Responses by id, each with its number in `order`.
    by_id: HashMap<String, (u64, Arc<StoredResponse>)>,
    /// Ids of responses, oldest first.
    order: BTreeMap<u64, String>,
    /// Items by id, each with the number of responses that contain it.
    items: HashMap<String, (Item, usize)>,
    used: Arc<AtomicUsize>,
}

impl TenantStore {
    fn insert(&mut self, entry: Arc<StoredResponse>) {
        for (id, item) in entry.items() {
            let (kept, n_users) = self.items.entry(id.to_owned()).or_insert_with(|| (item.clone(), 0));
            *kept = item.clone();
            *n_users += 1;
        }
        let number = self.order.last_key_value().map_or(0, |(number, _)| number + 1);
        self.order.insert(number, entry.id.clone());
        self.by_id.insert(entry.id.clone(), (number, entry));
    }

    fn remove(&mut self, id: &str) -> Option<Arc<StoredResponse>> {
        let (number, entry) = self.by_id.remove(id)?;
        self.order.remove(&number);
        for (id, _) in entry.items() {
            if let Some((_, n_users)) = self.items.get_mut(id) {
                *n_users -= 1;
                if *n_users == 0 {
                    self.items.remove(id);
                }
            }
        }
        Some(entry)
    }
}

impl Store {
    fn with<T>(&self, tenant: u64, look: impl FnOnce(&mut TenantStore) -> T) -> T {
        let mut tenants = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        look(tenants.entry(tenant).or_default())
    }

    /// Stores a response to `input`, which continues `before`. Returns false and changes nothing if
    /// it is larger than a tenant's room.
    pub(super) fn put(
        &self,
        tenant: u64,
        mut response: Value,
        before: Option<Arc<StoredTurn>>,
        input: Vec<Item>,
    ) -> bool {
        let output: Vec<Item> = match response["output"].take() {
            Value::Array(items) => items.into_iter().map(Arc::new).collect(),
            _ => Vec::new(),
        };
        let id = response["id"].as_str().unwrap_or_default().to_owned();
        let (envelope, own) =
            (bytes(&response), input.iter().chain(&output).map(|item| bytes(item)).sum::<usize>());
        let chain_bytes = own + before.as_ref().map_or(0, |turn| turn.chain_bytes);
        if chain_bytes + envelope > MAX_BYTES {
            return false;
        }
        let used = self.with(tenant, |kept| kept.used.clone());
        let turn = StoredTurn { before, input, output, chain_bytes, _charge: Charge::new(&used, own) };
        let entry =
            StoredResponse { id, response, turn: Arc::new(turn), _charge: Charge::new(&used, envelope) };
        self.with(tenant, |kept| kept.insert(Arc::new(entry)));
        // Evicts one at a time, and drops each outside the lock.
        let one = |kept: &mut TenantStore| {
            let is_over = kept.by_id.len() > MAX_ENTRIES || used.load(Ordering::Relaxed) > MAX_BYTES;
            let oldest = kept.order.first_key_value().filter(|_| is_over && kept.by_id.len() > 1);
            oldest.map(|(_, id)| id.clone()).and_then(|id| kept.remove(&id))
        };
        while let Some(gone) = self.with(tenant, one) {
            drop(gone);
        }
        true
    }

    /// Returns a response.
    ///
    /// # Errors
    /// The tenant has no such response, or has it no longer.
    pub(super) fn get(&self, tenant: u64, id: &str) -> Result<Arc<StoredResponse>> {
        let found = self.with(tenant, |kept| kept.by_id.get(id).map(|(_, entry)| entry.clone()));
        found.ok_or_else(|| unknown(id))
    }

    /// Returns an item of one of the tenant's responses.
    pub(super) fn item(&self, tenant: u64, id: &str) -> Option<Item> {
        self.with(tenant, |kept| kept.items.get(id).map(|(item, _)| item.clone()))
    }

    /// Deletes a response.
    ///
    /// # Errors
    /// As [`Self::get`].
    pub(super) fn delete(&self, tenant: u64, id: &str) -> Result<()> {
        self.with(tenant, |kept| kept.remove(id)).map(drop).ok_or_else(|| unknown(id))
    }
}

fn unknown(id: &str) -> RequestError {
    RequestError::new(ErrorKind::NotFound, format!("there is no response `{id}`, or it has been removed"))
}

/// Approximate bytes of a value in memory.
fn bytes(value: &Value) -> usize {
    let inner = match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
        Value::String(text) => text.len(),
        Value::Array(items) => items.iter().map(bytes).sum(),
        Value::Object(members) => {
            members.iter().map(|(key, value)| size_of::<String>() + key.len() + bytes(value)).sum()
        }
    };
    size_of::<Value>() + inner
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn put(store: &Store, tenant: u64, id: &str, text: &str, before: Option<&str>) -> bool {
        let response = json!({ "id": id, "output": [{ "id": format!("msg_{id}"), "text": text }] });
        let before = before.map(|before| store.get(tenant, before).unwrap().turn.clone());
        store.put(tenant, response, before, vec![Arc::new(json!({ "id": format!("in_{id}") }))])
    }

    fn used(store: &Store, tenant: u64) -> usize {
        store.with(tenant, |kept| kept.used.load(Ordering::Relaxed))
    }

    #[test]
    fn tenants_see_their_own_responses_alone() {
        let store = Store::default();
        put(&store, 1, "a", "x", None);
        assert_eq!(store.get(1, "a").unwrap().turn.items().len(), 2);
        assert_eq!(store.get(1, "a").unwrap().response()["output"][0]["text"], "x");
        assert!(store.get(2, "a").is_err() && store.delete(2, "a").is_err());
        assert!(store.item(1, "msg_a").is_some() && store.item(2, "msg_a").is_none());
        store.delete(1, "a").unwrap();
        assert!(store.get(1, "a").is_err() && store.item(1, "msg_a").is_none());
        assert_eq!(used(&store, 1), 0);
    }

    #[test]
    fn the_oldest_of_a_tenant_go_when_it_has_no_room() {
        let store = Store::default();
        let text = "x".repeat(MAX_BYTES / 3);
        put(&store, 2, "other", &text, None);
        for id in ["a", "b", "c"] {
            put(&store, 1, id, &text, None);
        }
        assert!(store.get(1, "a").is_err() && store.get(1, "b").is_ok() && store.get(1, "c").is_ok());
        assert!(store.get(2, "other").is_ok());
        // A response larger than the room evicts nothing.
        assert!(!put(&store, 1, "d", &"x".repeat(MAX_BYTES), None));
        assert!(store.get(1, "b").is_ok() && store.get(1, "d").is_err());
    }

    #[test]
    fn a_chain_of_responses_holds_each_item_once() {
        let store = Store::default();
        let n = 2 * MAX_ENTRIES;
        put(&store, 1, "0", "first", None);
        let one = used(&store, 1);
        for i in 1..n {
            assert!(put(&store, 1, &i.to_string(), "again", Some(&(i - 1).to_string())));
        }
        let last = store.get(1, &(n - 1).to_string()).unwrap();
        let items = last.turn.items();
        assert_eq!((items.len(), &items[1]["text"]), (2 * n, &json!("first")));
        assert!(store.get(1, "0").is_err());
        assert!(used(&store, 1) < 2 * n * one, "{} bytes, one has {one}", used(&store, 1));
        // Dropping a whole chain takes no deep stack.
        drop((items, last));
        for i in n - MAX_ENTRIES..n {
            store.delete(1, &i.to_string()).unwrap();
        }
        assert_eq!(used(&store, 1), 0);
    }

    #[test]
    fn an_item_is_found_while_a_response_has_it() {
        let store = Store::default();
        put(&store, 1, "a", "x", None);
        let item = store.item(1, "msg_a").unwrap();
        store.put(1, json!({ "id": "b", "output": [] }), None, vec![item.clone()]);
        store.delete(1, "a").unwrap();
        assert!(Arc::ptr_eq(&store.item(1, "msg_a").unwrap(), &item));
        store.delete(1, "b").unwrap();
        assert!(store.item(1, "msg_a").is_none());
    }
}

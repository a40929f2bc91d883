//! Pages of a list, for OpenAI's paths.

use std::borrow::Borrow;
use std::ops::RangeInclusive;

use axum::Json;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use runner::{RequestError, Result};

/// Keys of a request that select a part of a list.
#[derive(Deserialize)]
pub(super) struct ListPage {
    limit: Option<usize>,
    order: Option<String>,
    after: Option<String>,
}

impl ListPage {
    /// Returns a page of a list: at most `limit` elements, or `default` without a limit. The list
    /// begins with its oldest element. `unknown` makes the error of an unknown id to start after.
    ///
    /// # Errors
    /// The id is unknown, or a key is not as expected.
    pub(super) fn of<T: Borrow<Value> + Serialize>(
        &self,
        mut list: Vec<T>,
        default: usize,
        limit: RangeInclusive<usize>,
        unknown: impl FnOnce(&str) -> RequestError,
    ) -> Result<Json<Value>> {
        match self.order.as_deref() {
            None | Some("desc") => list.reverse(),
            Some("asc") => {}
            Some(other) => {
                return Err(RequestError::invalid(
                    "order",
                    format!("`order` is {other:?}, expected asc or desc"),
                ));
            }
        }
        let n = self.limit.unwrap_or(default);
        if !limit.contains(&n) {
            let message = format!("`limit` is {n}, expected {} to {}", limit.start(), limit.end());
            return Err(RequestError::invalid("limit", message));
        }
        let id = |item: &T| item.borrow()["id"].clone();
        if let Some(after) = &self.after {
            let at = list.iter().position(|item| id(item) == after.as_str()).ok_or_else(|| unknown(after))?;
            list.drain(..=at);
        }
        let has_more = list.len() > n;
        list.truncate(n);
        let (first_id, last_id) = (list.first().map(id), list.last().map(id));
        Ok(Json(json!({
            "object": "list", "data": list, "first_id": first_id, "last_id": last_id, "has_more": has_more,
        })))
    }
}

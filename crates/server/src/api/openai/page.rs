//! Pages of a list, as OpenAI's paths give them.

use std::borrow::Borrow;
use std::ops::RangeInclusive;

use axum::Json;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::error::{ApiError, Result};

/// The part of a list that a client asks for.
#[derive(Deserialize)]
pub(super) struct Page {
    limit: Option<usize>,
    order: Option<String>,
    after: Option<String>,
}

impl Page {
    /// Of a list, the oldest first: at most `limit` elements, `default` of them where the client does not say. `unknown` is the error
    /// where there is no element of the id that the page comes after.
    ///
    /// # Errors
    /// That one, or a key that is not as expected.
    pub(super) fn of<T: Borrow<Value> + Serialize>(
        &self,
        mut list: Vec<T>,
        default: usize,
        limit: RangeInclusive<usize>,
        unknown: impl FnOnce(&str) -> ApiError,
    ) -> Result<Json<Value>> {
        match self.order.as_deref() {
            None | Some("desc") => list.reverse(),
            Some("asc") => {}
            Some(other) => {
                return Err(ApiError::invalid(
                    "order",
                    format!("`order` is {other:?}, expected asc or desc"),
                ));
            }
        }
        let n = self.limit.unwrap_or(default);
        if !limit.contains(&n) {
            let message = format!("`limit` is {n}, expected {} to {}", limit.start(), limit.end());
            return Err(ApiError::invalid("limit", message));
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

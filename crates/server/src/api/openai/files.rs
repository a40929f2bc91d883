//! `/v1/files`: files that clients upload once and name in later requests. See
//! <https://platform.openai.com/docs/api-reference/files>.
//!
//! Files stay in memory, apart for each key, until they are deleted, expire, or the server ends. A
//! client without room gets an error; no file is evicted, since a client may still name it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use axum::body::Bytes;
use axum::extract::multipart::Multipart;
use axum::extract::{Extension, Path, Query};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::Deserialize;
use serde_json::{Value, json};

use super::common::new_id;
use super::page::ListPage;
use crate::api::seconds_now;
use crate::error::HttpResult;
use runner::Caller;
use runner::Runner;
use runner::{ErrorKind, RequestError, Result};

/// Maximum number of files of a tenant.
const MAX_FILES: usize = 1000;
/// Maximum number of bytes of a tenant's files.
const MAX_BYTES: usize = 64 << 20;
/// Default and largest number of files on a page.
const PAGE: usize = 1000;
/// Allowed lifetimes of a file, in seconds.
const EXPIRY: std::ops::RangeInclusive<u64> = 3600..=2_592_000;

/// An uploaded file.
#[derive(Debug)]
pub(super) struct File {
    id: String,
    name: String,
    purpose: String,
    /// Unix time in seconds.
    created: u64,
    /// Unix time in seconds; `None` if the file stays.
    expires: Option<u64>,
    pub(super) bytes: Bytes,
}

impl File {
    /// A file for a test.
    #[cfg(test)]
    pub(super) fn of_bytes(bytes: &'static [u8]) -> File {
        let (id, name, purpose) = ("f".into(), "n".into(), "vision".into());
        File { id, name, purpose, created: 0, expires: None, bytes: bytes.into() }
    }

    fn json(&self) -> Value {
        json!({
            "id": self.id, "object": "file", "bytes": self.bytes.len(), "created_at": self.created,
            "expires_at": self.expires, "filename": self.name, "purpose": self.purpose, "status": "processed",
            "status_details": null,
        })
    }
}

/// All files by tenant, oldest first.
#[derive(Debug, Default)]
pub(super) struct Files(Mutex<HashMap<u64, Vec<Arc<File>>>>);

impl Files {
    /// Runs `act` on a tenant's files, after the expired ones are removed.
    fn of<T>(&self, tenant: u64, act: impl FnOnce(&mut Vec<Arc<File>>) -> T) -> T {
        let now = seconds_now();
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let files = all.entry(tenant).or_default();
        files.retain(|file| file.expires.is_none_or(|end| end > now));
        let done = act(files);
        if files.is_empty() {
            all.remove(&tenant);
        }
        done
    }

    /// Stores a file.
    ///
    /// # Errors
    /// The tenant has no room.
    fn add(&self, tenant: u64, file: File) -> Result<Arc<File>> {
        self.of(tenant, |files| {
            let n_bytes = files.iter().map(|file| file.bytes.len()).sum::<usize>() + file.bytes.len();
            if files.len() == MAX_FILES || n_bytes > MAX_BYTES {
                let message = format!(
                    "with this file there would be {} files of {n_bytes} bytes, expected at most {MAX_FILES} of {MAX_BYTES}; \
                     delete some",
                    files.len() + 1
                );
                return Err(RequestError::new(ErrorKind::TooLarge, message));
            }
            let file = Arc::new(file);
            files.push(file.clone());
            Ok(file)
        })
    }

    /// Returns a file.
    ///
    /// # Errors
    /// The tenant has no file of this id.
    pub(super) fn get(&self, tenant: u64, id: &str) -> Result<Arc<File>> {
        let found = self.of(tenant, |files| files.iter().find(|file| file.id == id).cloned());
        found.ok_or_else(|| unknown(id))
    }
}

fn unknown(id: &str) -> RequestError {
    let id: String = id.chars().take(100).collect();
    RequestError::new(ErrorKind::NotFound, format!("there is no file `{id}`, or it has been removed"))
}

/// The paths of this API.
pub(super) fn router() -> Router<Runner> {
    Router::new()
        .route("/v1/files", post(upload).get(list))
        .route("/v1/files/{id}", get(retrieve).delete(delete))
        .route("/v1/files/{id}/content", get(content))
}

async fn upload(
    Extension(caller): Extension<Caller>,
    Extension(files): Extension<Arc<Files>>,
    form: std::result::Result<Multipart, axum::extract::multipart::MultipartRejection>,
) -> HttpResult<Json<Value>> {
    let mut form = form.map_err(|_| {
        let message = "the body is not a form, expected multipart/form-data with a boundary, `file` and `purpose` in it";
        RequestError::new(ErrorKind::UnsupportedMediaType, message)
    })?;
    let broken = |error: axum::extract::multipart::MultipartError| {
        let kind = match error.status() {
            axum::http::StatusCode::PAYLOAD_TOO_LARGE => ErrorKind::TooLarge,
            _ => ErrorKind::Invalid,
        };
        RequestError::new(kind, format!("the form could not be read: {}", error.body_text()))
    };
    let (mut given, mut purpose, mut expires) = (None, None, None);
    while let Some(field) = form.next_field().await.map_err(broken)? {
        let name = field.name().unwrap_or_default().to_owned();
        match name.as_str() {
            "file" => {
                let file_name = field.file_name().unwrap_or("file").chars().take(200).collect::<String>();
                given = Some((file_name, field.bytes().await.map_err(broken)?));
            }
            "purpose" => purpose = Some(field.text().await.map_err(broken)?),
            "expires_after[seconds]" => {
                let text = field.text().await.map_err(broken)?;
                let seconds = text.parse().ok().filter(|seconds| EXPIRY.contains(seconds));
                let (least, most) = (EXPIRY.start(), EXPIRY.end());
                expires = Some(seconds.ok_or_else(|| {
                    let message = format!("`{name}` is {text:?}, expected a number from {least} to {most}");
                    RequestError::invalid(&name, message)
                })?);
            }
            // `created_at` is the only anchor.
            _ => {}
        }
    }
    let missing = |name: &str| RequestError::invalid(name, format!("`{name}` is missing in the form"));
    let (name, bytes) = given.ok_or_else(|| missing("file"))?;
    let purpose = purpose.ok_or_else(|| missing("purpose"))?;
    if !["vision", "user_data", "assistants"].contains(&purpose.as_str()) {
        let message = format!("`purpose` is {purpose:?}, expected vision, user_data or assistants");
        return Err(RequestError::invalid("purpose", message).into());
    }
    let created = seconds_now();
    let expires = expires.map(|seconds: u64| created + seconds);
    let file = File { id: new_id("file"), name, purpose, created, expires, bytes };
    Ok(Json(files.add(caller.tenant, file)?.json()))
}

#[derive(Deserialize)]
struct Purpose {
    purpose: Option<String>,
}

async fn list(
    Extension(caller): Extension<Caller>,
    Extension(files): Extension<Arc<Files>>,
    Query(Purpose { purpose }): Query<Purpose>,
    Query(page): Query<ListPage>,
) -> HttpResult<Json<Value>> {
    let found: Vec<Value> = files.of(caller.tenant, |files| {
        let is_asked = |file: &&Arc<File>| purpose.as_ref().is_none_or(|purpose| *purpose == file.purpose);
        files.iter().filter(is_asked).map(|file| file.json()).collect()
    });
    Ok(page.of(found, PAGE, 1..=PAGE, unknown)?)
}

async fn retrieve(
    Extension(caller): Extension<Caller>,
    Extension(files): Extension<Arc<Files>>,
    Path(id): Path<String>,
) -> HttpResult<Json<Value>> {
    Ok(Json(files.get(caller.tenant, &id)?.json()))
}

async fn content(
    Extension(caller): Extension<Caller>,
    Extension(files): Extension<Arc<Files>>,
    Path(id): Path<String>,
) -> HttpResult<Response> {
    let file = files.get(caller.tenant, &id)?;
    let headers =
        [(header::CONTENT_TYPE, "application/octet-stream"), (header::X_CONTENT_TYPE_OPTIONS, "nosniff")];
    Ok((headers, file.bytes.clone()).into_response())
}

async fn delete(
    Extension(caller): Extension<Caller>,
    Extension(files): Extension<Arc<Files>>,
    Path(id): Path<String>,
) -> HttpResult<Json<Value>> {
    files.get(caller.tenant, &id)?;
    files.of(caller.tenant, |files| files.retain(|file| file.id != id));
    Ok(Json(json!({ "id": id, "object": "file", "deleted": true })))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn file(id: &str, n_bytes: usize, expires: Option<u64>) -> File {
        let bytes = vec![0; n_bytes].into();
        File { id: id.into(), name: "n".into(), purpose: "vision".into(), created: 1, expires, bytes }
    }

    #[test]
    fn files_are_their_tenants_alone_and_go_when_they_expire() {
        let files = Files::default();
        files.add(1, file("a", 3, None)).unwrap();
        files.add(1, file("old", 3, Some(seconds_now() - 1))).unwrap();
        assert_eq!(files.get(1, "a").unwrap().bytes.len(), 3);
        assert_eq!(files.get(2, "a").unwrap_err().kind, ErrorKind::NotFound);
        assert_eq!(files.get(1, "old").unwrap_err().kind, ErrorKind::NotFound);
    }

    #[test]
    fn a_tenant_s_room_is_limited_and_its_files_stay() {
        let files = Files::default();
        files.add(1, file("a", MAX_BYTES - 1, None)).unwrap();
        assert_eq!(files.add(1, file("b", 2, None)).unwrap_err().kind, ErrorKind::TooLarge);
        assert!(files.get(1, "a").is_ok() && files.add(2, file("b", 2, None)).is_ok());
        files.of(1, Vec::clear);
        (0..MAX_FILES).for_each(|n| drop(files.add(1, file(&n.to_string(), 0, None)).unwrap()));
        assert_eq!(files.add(1, file("more", 0, None)).unwrap_err().kind, ErrorKind::TooLarge);
    }
}

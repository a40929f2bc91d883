//! The hub's listing of a repository at a revision: `GET /api/models/{repo}/revision/{revision}`.

use serde::Deserialize;

use crate::error::{Error, Result};
use crate::names;

/// Maximum number of files of a repository in a listing.
const FILES_MAX: usize = 100_000;

/// The hub's listing of a repository at a revision.
#[derive(Debug)]
pub(crate) struct Listing {
    /// The current commit of the revision.
    pub commit: String,
    /// The files, without names that are invalid in the cache.
    pub files: Vec<String>,
}

/// The fields of the response that are used.
#[derive(Deserialize)]
struct ModelInfo {
    sha: String,
    #[serde(default)]
    siblings: Vec<Sibling>,
}

#[derive(Deserialize)]
struct Sibling {
    rfilename: String,
}

impl Listing {
    /// Parses the hub's response.
    ///
    /// # Errors
    /// [`Error::BadAnswer`] if it is not a listing, [`Error::UnsafeName`] if its commit is not a
    /// hash.
    pub(crate) fn parse(json: &[u8], url: &str) -> Result<Self> {
        let bad = |reason: String| Error::BadAnswer { url: url.to_string(), reason };
        let answer: ModelInfo =
            serde_json::from_slice(json).map_err(|e| bad(format!("not a listing of a repository: {e}")))?;
        if !names::is_commit(&answer.sha) {
            let name = names::printable(&answer.sha);
            return Err(Error::UnsafeName { what: "the commit", name, origin: url.to_string() });
        }
        if answer.siblings.len() > FILES_MAX {
            return Err(bad(format!(
                "it lists {} files, at most {FILES_MAX} are read",
                answer.siblings.len()
            )));
        }
        let files = answer.siblings.into_iter().map(|sibling| sibling.rfilename);
        Ok(Self { commit: answer.sha, files: files.filter(|file| names::is_relative(file)).collect() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_leave_the_folder_are_left_out() {
        let json = format!(
            r#"{{"sha":"{}","siblings":[{{"rfilename":"a.gguf"}},{{"rfilename":"../b.gguf"}},{{"rfilename":"/c.gguf","size":-1}}],"x":1}}"#,
            "ab".repeat(20)
        );
        assert_eq!(Listing::parse(json.as_bytes(), "u").unwrap().files, ["a.gguf"]);
    }

    #[test]
    fn invalid_listings_are_errors() {
        let deep = "[".repeat(100_000);
        for bad in [
            "",
            "null",
            "<html>",
            r#"{"siblings":[]}"#,
            r#"{"sha":1}"#,
            r#"{"sha":"ab","siblings":3}"#,
            &deep,
        ] {
            assert!(matches!(Listing::parse(bad.as_bytes(), "u"), Err(Error::BadAnswer { .. })), "{bad:.20}");
        }
        assert!(matches!(Listing::parse(br#"{"sha":"../../x"}"#, "u"), Err(Error::UnsafeName { .. })));
    }
}

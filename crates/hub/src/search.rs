//! Search in the catalog and in the hub.

use serde::Deserialize;
use ureq::http::Method;

use crate::catalog::Catalog;
use crate::error::{Error, Result};
use crate::http::{ANSWER_MAX, Client};
use crate::names;
use crate::options::Options;
use crate::progress::Silent;

/// Maximum number of repositories in the result of a search in the hub.
const HUB_RESULTS: usize = 30;

/// A repository of the hub that a search found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// `org/name`.
    pub repo: String,
    /// Downloads of the last month, as counted by the hub.
    pub downloads: u64,
}

/// A model of the catalog, for lists.
#[derive(Debug, Clone, PartialEq)]
pub struct Offer {
    /// The name to type.
    pub name: String,
    /// A one-line description.
    pub title: String,
    /// The file's length in bytes, exact for pinned models.
    pub bytes: u64,
    /// The licence's name.
    pub licence: String,
    /// The source of the file.
    pub source: String,
    /// True if the project has fetched and run the model.
    pub verified: bool,
}

impl Catalog {
    /// The models whose name or title has every word of `query`, ignoring case; all models if
    /// `query` is empty.
    pub fn search(&self, query: &str) -> Vec<Offer> {
        let words: Vec<String> = query.split_whitespace().map(str::to_lowercase).collect();
        let pinned = self.models().iter().map(|model| {
            let offer = Offer {
                name: model.name.clone(),
                title: model.title.clone(),
                bytes: model.bytes,
                licence: model.licence.clone(),
                source: model.sources.first().map(ToString::to_string).unwrap_or_default(),
                verified: true,
            };
            (model.aliases.join(" "), offer)
        });
        let public = self.public().map(|model| {
            let offer = Offer {
                source: model.place.to_string(),
                name: model.name,
                title: model.title,
                bytes: model.about_bytes,
                licence: model.licence,
                verified: model.verified,
            };
            (String::new(), offer)
        });
        pinned
            .chain(public)
            .filter(|(aliases, offer)| {
                let text = format!("{} {aliases} {}", offer.name, offer.title).to_lowercase();
                words.iter().all(|word| text.contains(word))
            })
            .map(|(_, offer)| offer)
            .collect()
    }
}

#[derive(Deserialize)]
struct Repository {
    id: String,
    #[serde(default)]
    downloads: u64,
}

/// Searches the hub for repositories of GGUF models: at most 30, the most downloaded first.
///
/// # Errors
/// [`Error::Offline`], [`Error::Unreachable`] and similar errors, [`Error::BadAnswer`] if the
/// response is not a list of repositories.
pub fn search_hub(query: &str, options: &Options) -> Result<Vec<Found>> {
    if options.offline {
        return Err(Error::Offline { what: format!("a search for {query}") });
    }
    let client = Client::new(options)?;
    let url = format!(
        "{}/api/models?search={}&filter=gguf&sort=downloads&direction=-1&limit={HUB_RESULTS}",
        client.endpoint(),
        names::encode(query)
    );
    let answer = client.retrying(options.retries, &mut Silent, || {
        let answer = client.send(&Method::GET, &url, &[], false)?;
        match answer.status {
            200 => answer.into_bytes(ANSWER_MAX),
            _ => Err(answer.into_status_error()),
        }
    })?;
    let found: Vec<Repository> = serde_json::from_slice(&answer).map_err(|e| Error::BadAnswer {
        url: url.clone(),
        reason: format!("not a list of repositories: {e}"),
    })?;
    let valid = found.into_iter().filter(|found| names::is_repo(&found.id)).take(HUB_RESULTS);
    Ok(valid.map(|found| Found { repo: found.id, downloads: found.downloads }).collect())
}

//! Searching: the catalog's models by a word, and the hub's repositories.

use serde::Deserialize;
use ureq::http::Method;

use crate::catalog::Catalog;
use crate::error::{Error, Result};
use crate::http::{ANSWER_MAX, Client};
use crate::names;
use crate::options::Options;
use crate::progress::Silent;

/// The most repositories that a search of the hub gives.
const HUB_RESULTS: usize = 30;

/// A repository of the hub that a search found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// `org/name`.
    pub repo: String,
    /// Downloads of the last month, as the hub counts them.
    pub downloads: u64,
}

/// A model of the catalog, for lists.
#[derive(Debug, Clone, PartialEq)]
pub struct Offer {
    /// What is typed.
    pub name: String,
    /// A one-line description.
    pub title: String,
    /// The file's length in bytes, exact for pinned models.
    pub bytes: u64,
    /// The licence's name.
    pub licence: String,
    /// Where it is fetched from.
    pub source: String,
    /// Whether the project has fetched and run it.
    pub verified: bool,
}

impl Catalog {
    /// The models whose name or title has every word of `query`, whatever the case; all of them
    /// where it is empty.
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

/// The hub's repositories of GGUF models that its own search finds for a word, the most downloaded
/// first: at most 30.
///
/// # Errors
/// [`Error::Offline`], [`Error::Unreachable`] and its kin, [`Error::BadAnswer`] when the hub's answer
/// is no list of repositories.
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

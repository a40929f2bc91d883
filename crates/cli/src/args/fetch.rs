//! Flags about fetching models, and about verifying them.

use std::path::PathBuf;

use clap::Args;
use ingle::{HubOptions, ProxyChoice, Verify};

use super::FileOrText;

/// Checks of a `.base` file before it is used.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Verifying .base files")]
pub struct VerifyArgs {
    /// Refuse a .base file that this key did not sign
    ///
    /// The key is the file of a public key, or its 64 hexadecimal digits.
    #[arg(long, value_name = "FILE|HEX")]
    pub verify_key: Option<FileOrText>,

    /// Verify the checksum of every tensor before use
    ///
    /// This reads the whole file.
    #[arg(long)]
    pub check: bool,
}

/// Sources of models, and the folders that they are kept in.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Fetching")]
pub struct FetchArgs {
    /// Keep fetched models in this folder
    ///
    /// [default: INGLE_CACHE, or the user's cache folder]
    #[arg(long, value_name = "DIR")]
    pub cache: Option<PathBuf>,

    /// Hugging Face's own cache folder
    ///
    /// [default: HF_HUB_CACHE, or hub in HF_HOME]
    #[arg(long, value_name = "DIR")]
    pub hf_cache: Option<PathBuf>,

    /// Ollama's folder of models, which are read in place
    ///
    /// [default: OLLAMA_MODELS, or Ollama's own folders]
    #[arg(long, value_name = "DIR")]
    pub ollama_models: Option<PathBuf>,

    /// LM Studio's folder of models, which are read in place
    ///
    /// [default: LM Studio's own folders]
    #[arg(long, value_name = "DIR")]
    pub lmstudio_models: Option<PathBuf>,

    /// Do not fetch the image encoder of a GGUF model
    ///
    /// By default the mmproj file of a model of the hub is fetched with it.
    #[arg(long)]
    pub no_mmproj: bool,

    /// Use only models in the cache
    ///
    /// The environment variable HF_HUB_OFFLINE=1 has the same effect.
    #[arg(long)]
    pub offline: bool,

    /// The address of the Hugging Face hub
    ///
    /// [default: HF_ENDPOINT, or https://huggingface.co]
    #[arg(long, value_name = "URL")]
    pub endpoint: Option<String>,

    /// The access token for gated and private repositories
    ///
    /// [default: HF_TOKEN, or the hub's token file]
    #[arg(long, value_name = "TOKEN")]
    pub token: Option<String>,

    /// The proxy for requests to the hub, or none
    ///
    /// [default: HTTPS_PROXY, HTTP_PROXY or ALL_PROXY]
    #[arg(long, value_name = "URL")]
    pub proxy: Option<String>,

    /// Certificate authorities to trust, as a PEM file
    ///
    /// [default: SSL_CERT_FILE, or the built-in ones]
    #[arg(long, value_name = "FILE")]
    pub ca_file: Option<PathBuf>,

    /// The address of the package index with the catalog's models
    ///
    /// [default: PIP_INDEX_URL, or https://pypi.org/simple]
    #[arg(long, value_name = "URL")]
    pub package_index: Option<String>,

    /// The Python whose pip fetches wheels instead
    ///
    /// [default: INGLE_PYTHON; without it, pip is tried if the index cannot be read]
    #[arg(long, value_name = "FILE")]
    pub python: Option<PathBuf>,

    /// An argument for `pip download`; repeat for more
    #[arg(long, value_name = "ARG", allow_hyphen_values = true)]
    pub pip_arg: Vec<String>,

    /// Use this catalog file instead of the built-in catalog
    #[arg(long, value_name = "FILE")]
    pub catalog: Option<PathBuf>,
}

impl VerifyArgs {
    /// The checks of these flags.
    ///
    /// # Errors
    /// The key cannot be read.
    pub fn verify(&self) -> anyhow::Result<Verify> {
        let key = self.verify_key.as_ref().map(FileOrText::public_key).transpose()?;
        Ok(Verify { key, checksums: self.check })
    }
}

impl FetchArgs {
    /// The options of fetching.
    ///
    /// # Errors
    /// The token is malformed.
    pub fn hub(&self) -> hub::Result<HubOptions> {
        let mut options = HubOptions::default();
        options.cache.clone_from(&self.cache);
        options.hf_cache.clone_from(&self.hf_cache);
        options.ollama_models.clone_from(&self.ollama_models);
        options.lmstudio_models.clone_from(&self.lmstudio_models);
        options.image_encoders = !self.no_mmproj;
        options.offline = self.offline;
        options.endpoint.clone_from(&self.endpoint);
        options.token = self.token.as_deref().map(hub::Token::new).transpose()?;
        options.proxy = match self.proxy.as_deref() {
            Some("none") => ProxyChoice::Direct,
            Some(address) => ProxyChoice::Address(address.to_owned()),
            None => ProxyChoice::Environment,
        };
        options.certificates.clone_from(&self.ca_file);
        options.package_index.clone_from(&self.package_index);
        options.python.clone_from(&self.python);
        options.pip_arguments.clone_from(&self.pip_arg);
        options.catalog.clone_from(&self.catalog);
        Ok(options)
    }

    /// The cache folders: of the flags, else of the environment, else of the system.
    pub fn cache(&self) -> hub::Result<hub::Cache> {
        self.hub()?.cache()
    }

    /// The catalog file that a flag names, if one does.
    pub fn catalog(&self) -> hub::Result<Option<hub::Catalog>> {
        self.hub()?.catalog()
    }

    /// The options of fetching: flags override the environment.
    pub fn options(&self) -> hub::Result<hub::Options> {
        self.hub()?.resolve()
    }
}

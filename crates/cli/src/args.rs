//! Flags that several commands share. They are parsed here, once, into values with a meaning.

mod device;
mod fetch;
mod lora;
mod names;
mod numbers;
mod prompt;
mod sampling;
mod speculate;

use clap::Args;
use ingle::LoadOptions;

pub use device::{DeviceArgs, DeviceName, KvTypeName, LoadArgs, MetalEncoder};
pub use fetch::{FetchArgs, VerifyArgs};
pub use lora::{AdapterArgs, Lora, LoraArgs};
pub use names::{FileOrText, ModelName};
pub use numbers::{RandomSeed, limit, limit_number, seed, top_k};
pub use prompt::{PrefillArgs, PrefillName, PromptCacheArgs};
pub use sampling::{OverflowName, SamplingArgs};
pub use speculate::{SpeculateArgs, SpeculateName};

/// A model and the flags that load it.
#[derive(Args, Clone, Debug)]
pub struct ModelArgs {
    /// The model: a catalog name, a path or hf:org/repo
    ///
    /// A catalog name (`ingle search` lists them), a path to a GGUF or .base file or to a folder,
    /// hf:org/repo[/file|:QUANT][@revision], or a model of another program (`ingle list --all`).
    pub model: ModelName,

    #[command(flatten)]
    pub load: LoadArgs,

    #[command(flatten)]
    pub fetch: FetchArgs,

    #[command(flatten)]
    pub verify: VerifyArgs,
}

impl ModelArgs {
    /// The options of these flags. They have no adapters and no draft tokens.
    ///
    /// # Errors
    /// A key or a token cannot be read.
    pub fn options(&self) -> anyhow::Result<LoadOptions> {
        let mut options = self.load.options();
        options.hub = self.fetch.hub()?;
        options.verify = self.verify.verify()?;
        Ok(options)
    }
}

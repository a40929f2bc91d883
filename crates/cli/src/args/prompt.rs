//! Flags about prefill: how a prompt is computed, and where its keys and values are kept.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

/// The file that keeps keys and values of a prompt between runs.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Prefill")]
pub struct PromptCacheArgs {
    /// Keep keys and values of the prompt in this file
    ///
    /// The next run reuses keys and values of the prefix that its prompt shares. A file belongs to
    /// one model and its settings.
    #[arg(long, value_name = "FILE")]
    pub prompt_cache: Option<PathBuf>,

    /// Read the prompt cache, but never write to it
    #[arg(long, requires = "prompt_cache")]
    pub prompt_cache_ro: bool,
}

impl PromptCacheArgs {
    /// Loads the file into the engine's prefix cache, if a file is named.
    pub fn open(&self, engine: &mut engine::Engine) -> anyhow::Result<Option<engine::PromptCache>> {
        let Some(file) = &self.prompt_cache else { return Ok(None) };
        let cache = engine::PromptCache::open(engine, file)?;
        tracing::info!("{} holds a prompt of {} tokens", file.display(), cache.n_tokens());
        Ok(Some(cache))
    }

    /// Writes the prompt's keys and values to the file, if there is a file that may be written.
    pub fn save(
        &self,
        cache: Option<&mut engine::PromptCache>,
        engine: &mut engine::Engine,
        prompt: &[u32],
    ) -> anyhow::Result<()> {
        if let Some(cache) = cache.filter(|_| !self.prompt_cache_ro) {
            let n_tokens = cache.save(engine, prompt)?;
            tracing::info!("the prompt cache holds {n_tokens} tokens");
        }
        Ok(())
    }
}

/// Prefill of a prompt.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Prefill")]
pub struct PrefillArgs {
    /// Compute the prompt in a batch, or token by token
    #[arg(long, value_enum, default_value_t = PrefillName::Batched)]
    pub prefill: PrefillName,

    /// Compute the prompt in both ways, and compare the results
    ///
    /// The command fails if they differ by more than the arithmetic allows.
    #[arg(long)]
    pub validate_prefill: bool,
}

/// `--prefill`
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PrefillName {
    /// Many tokens in a step
    Batched,
    /// One token in a step; slow, for checks
    PerToken,
}

//! Flags about speculation.

use clap::{Args, ValueEnum};
use ingle::LoadOptions;

use super::ModelName;

/// Speculative decoding: draft tokens that the model verifies.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Speculation (changes the speed, not how tokens are chosen)")]
pub struct SpeculateArgs {
    /// When to verify draft tokens
    ///
    /// [default: auto; off in bench, and for answers that --greedy or --seed make repeatable,
    /// unless --draft-model or --mtp is given]
    #[arg(long, value_enum, value_name = "WHEN")]
    pub speculate: Option<SpeculateName>,

    /// A smaller model that drafts tokens
    ///
    /// A name or a path, as for MODEL. The model must have the same vocabulary.
    #[arg(long, visible_alias = "model-draft", value_name = "MODEL")]
    pub draft_model: Option<ModelName>,

    /// Draft with the model's own layer for multi-token prediction
    ///
    /// The file must have such a layer (DeepSeek V3, GLM-4.5, GLM-4.7-Flash, Qwen3-Next, Qwen3.5).
    #[arg(long, conflicts_with = "draft_model")]
    pub mtp: bool,

    /// Maximum number of draft tokens in a step
    #[arg(long, value_name = "N", default_value_t = engine::DEFAULT_DRAFT)]
    pub draft_max: usize,
}

impl SpeculateArgs {
    /// True if a request may have draft tokens. A request whose answer is repeatable has them only
    /// if a flag wants them.
    pub fn allows(&self, sampling: &engine::SamplingParams, deterministic: bool) -> bool {
        let wanted = self.speculate.is_some() || self.has_model();
        let repeatable = sampling.temperature == 0.0 || sampling.top_k == 1 || sampling.seed.is_some();
        wanted || deterministic || !repeatable
    }

    /// True if a draft model or the model's own layer drafts tokens.
    fn has_model(&self) -> bool {
        self.mtp || self.draft_model.is_some()
    }

    /// Sets the options about draft tokens; `default` is the mode without flags.
    ///
    /// # Errors
    /// The errors of [`Self::speculate`].
    pub fn set(&self, options: &mut LoadOptions, default: SpeculateName) -> anyhow::Result<()> {
        options.speculate = self.speculate(default)?;
        options.max_draft = self.draft_max;
        options.mtp = self.mtp;
        options.draft_model = self.draft_model.as_ref().map(ModelName::source);
        Ok(())
    }

    /// The mode of the flags, or `default`.
    ///
    /// # Errors
    /// The mode contradicts --draft-model or --mtp.
    pub fn speculate(&self, default: SpeculateName) -> anyhow::Result<engine::Speculate> {
        let has_model = self.has_model();
        let default = if has_model { SpeculateName::Auto } else { default };
        let found = self.speculate.unwrap_or(default);
        Ok(match (found, has_model) {
            (SpeculateName::Auto, _) => engine::Speculate::Auto,
            (SpeculateName::Off, false) => engine::Speculate::Off,
            (SpeculateName::Ngram, false) | (SpeculateName::Draft, true) => engine::Speculate::Always,
            (SpeculateName::Draft, false) => anyhow::bail!("--speculate draft needs --draft-model or --mtp"),
            (SpeculateName::Off | SpeculateName::Ngram, true) => {
                let name = if self.mtp { "--mtp" } else { "--draft-model" };
                anyhow::bail!("{name} goes with --speculate auto or draft")
            }
        })
    }
}

/// `--speculate`
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SpeculateName {
    /// Never
    Off,
    /// If measurements say that draft tokens pay
    Auto,
    /// Whenever the text repeats itself
    Ngram,
    /// Whenever --draft-model or --mtp has draft tokens
    Draft,
}

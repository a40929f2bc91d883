//! Sampling of requests that set no parameters.

use clap::Args;
use runner::SamplingChoice;

use crate::args::{self, RandomSeed};

/// Sampling flags of `ingle serve`. Their defaults are the model's recommendations, or those of
/// `ingle run`.
#[derive(Args, Clone, Copy)]
#[command(next_help_heading = "Default sampling (requests may override it)")]
pub struct DefaultSamplingArgs {
    /// Divide the logits by T; 0 is greedy
    #[arg(long, visible_alias = "temp", value_name = "T")]
    temperature: Option<f32>,

    /// Keep the K best tokens; 0 or -1 keeps all
    #[arg(long, value_name = "K", value_parser = args::top_k)]
    top_k: Option<usize>,

    /// Keep the best tokens whose probabilities sum to P
    ///
    /// 1 keeps all.
    #[arg(long, value_name = "P")]
    top_p: Option<f32>,

    /// Drop tokens less likely than P times the best
    ///
    /// 0 keeps all.
    #[arg(long, value_name = "P")]
    min_p: Option<f32>,

    /// Penalise recent tokens by the factor X; 1 is off
    ///
    /// Positive logits are divided by X, negative ones multiplied.
    #[arg(long, value_name = "X")]
    repeat_penalty: Option<f32>,

    /// Subtract X from the logits of recent tokens
    #[arg(long, value_name = "X")]
    presence_penalty: Option<f32>,

    /// Subtract X from the logit of a recent token for each time it occurred
    #[arg(long, value_name = "X")]
    frequency_penalty: Option<f32>,

    /// Penalise only the last N tokens; 0 or -1 is the whole text
    #[arg(long, visible_alias = "repeat-last-n", value_name = "N", value_parser = args::limit_number)]
    penalty_window: Option<usize>,

    /// Seed of the random numbers; -1 is a random one
    #[arg(long, value_parser = args::seed)]
    seed: Option<RandomSeed>,
}

impl DefaultSamplingArgs {
    pub fn choice(self) -> SamplingChoice {
        SamplingChoice {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repeat_penalty: self.repeat_penalty,
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            penalty_window: self.penalty_window,
            seed: self.seed,
        }
    }
}

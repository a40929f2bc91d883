//! How tokens are chosen where a request does not say.

use clap::Args;
use server::SamplingChoice;

use crate::args::{self, RandomSeed};

/// Flags of `ingle serve`. Without one, the model's file recommends what holds, or the numbers of `ingle run` do.
#[derive(Args, Clone, Copy)]
#[command(next_help_heading = "Default sampling, for requests that do not say")]
pub struct DefaultSamplingArgs {
    /// Divide the logits by this; 0 is greedy
    #[arg(long, visible_alias = "temp", value_name = "T")]
    temperature: Option<f32>,

    /// Keep the K best tokens; 0 or -1 keeps all
    #[arg(long, value_name = "K", value_parser = args::top_k)]
    top_k: Option<usize>,

    /// Keep the best tokens whose probabilities sum to P; 1 keeps all
    #[arg(long, value_name = "P")]
    top_p: Option<f32>,

    /// Drop tokens less likely than P times the best; 0 keeps all
    #[arg(long, value_name = "P")]
    min_p: Option<f32>,

    /// Divide positive logits of recent tokens by this, multiply negative ones; 1 is off
    #[arg(long, value_name = "X")]
    repeat_penalty: Option<f32>,

    /// Subtract this from the logits of recent tokens
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    presence_penalty: Option<f32>,

    /// Subtract this from the logits of recent tokens, times how often they occurred
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    frequency_penalty: Option<f32>,

    /// How many tokens back the penalties look; 0 or -1 is the whole text
    #[arg(long, visible_alias = "repeat-last-n", value_name = "TOKENS", value_parser = args::limit_number)]
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

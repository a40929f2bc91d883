//! Flags about sampling, and about the end of an answer.

use clap::{Args, ValueEnum};
use engine::{Dry, Mirostat, SamplerName, SamplingChoice, SamplingParams};

use super::numbers::{self, Limit, RandomSeed};

/// Sampling. The order of the samplers is fixed unless `--samplers` or a flag of "More samplers" is
/// given.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Sampling")]
pub struct SamplingArgs {
    /// Always choose the best token (--temperature 0)
    #[arg(long)]
    pub greedy: bool,

    /// Divide the logits by T; 0 is greedy
    ///
    /// Samplers run in this order: penalties, temperature, top-k, top-p, min-p. [default: as the
    /// model's file recommends, or else 0.8]
    #[arg(long, visible_alias = "temp", value_name = "T")]
    pub temperature: Option<f32>,

    /// Keep the K best tokens; 0 or -1 keeps all
    ///
    /// [default: as the model's file recommends, or else 40]
    #[arg(long, value_name = "K", value_parser = numbers::top_k)]
    pub top_k: Option<usize>,

    /// Keep the best tokens whose probabilities sum to P
    ///
    /// 1 keeps all. [default: as the model's file recommends, or else 0.95]
    #[arg(long, value_name = "P")]
    pub top_p: Option<f32>,

    /// Drop tokens less likely than P times the best
    ///
    /// 0 keeps all. [default: as the model's file recommends, or else 0.05]
    #[arg(long, value_name = "P")]
    pub min_p: Option<f32>,

    /// Penalise recent tokens by the factor X; 1 is off
    ///
    /// Positive logits are divided by X, negative ones multiplied. [default: as the model's file
    /// recommends, or else 1]
    #[arg(long, value_name = "X")]
    pub repeat_penalty: Option<f32>,

    /// Subtract X from the logits of recent tokens
    #[arg(long, default_value_t = 0.0, value_name = "X")]
    pub presence_penalty: f32,

    /// Subtract X from the logit of a recent token for each time it occurred
    #[arg(long, default_value_t = 0.0, value_name = "X")]
    pub frequency_penalty: f32,

    /// Penalise only the last N tokens
    ///
    /// 0 or -1 is the whole context. [default: as the model's file recommends, or else 64]
    #[arg(long, visible_alias = "repeat-last-n", value_name = "N", value_parser = numbers::limit_number)]
    pub penalty_window: Option<usize>,

    /// Seed of the random numbers
    ///
    /// -1 is a random seed, which is the default.
    #[arg(short, long, default_value = "-1", hide_default_value = true, value_parser = numbers::seed)]
    pub seed: RandomSeed,

    /// Add a bias to a token's logit; repeat for more
    ///
    /// TOKEN is a token id; the bias -inf forbids the token.
    #[arg(long, value_name = "TOKEN=BIAS", value_parser = parse_bias)]
    pub logit_bias: Vec<(u32, f32)>,

    /// End the answer where this text appears; repeat for more
    #[arg(long, value_name = "TEXT")]
    pub stop: Vec<String>,

    /// Generate at most N tokens
    ///
    /// -1 is no limit. [default: until the model ends the answer or the context is full]
    #[arg(short = 'n', long, aliases = ["n-predict", "predict", "num-predict"], value_name = "N", default_value = "-1",
        hide_default_value = true, value_parser = numbers::limit)]
    pub max_tokens: Limit,

    /// End the answer when the context is full, or slide
    #[arg(long, value_enum, default_value_t = OverflowName::Stop)]
    pub overflow: OverflowName,

    /// Keep the first N tokens when the context slides
    #[arg(long, default_value_t = 64, value_name = "N")]
    pub keep: usize,

    #[command(flatten)]
    pub more: SamplerArgs,
}

/// Further samplers of llama.cpp, under its names. If one other than DRY is on, samplers run in
/// llama.cpp's order.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "More samplers (if one but DRY is on, samplers run in llama.cpp's order)")]
pub struct SamplerArgs {
    /// Run these samplers in this order
    ///
    /// Names, with ; between them: penalties, dry, top_n_sigma, top_k, typ_p, top_p, min_p, xtc,
    /// temperature.
    #[arg(long, value_name = "NAME", value_delimiter = ';', value_parser = parse_sampler)]
    pub samplers: Vec<SamplerName>,

    /// Typical sampling: keep tokens of the most usual surprise
    ///
    /// Their probabilities sum to P; 1 keeps all.
    #[arg(long, visible_alias = "typical", default_value_t = 1.0, value_name = "P")]
    pub typical_p: f32,

    /// Keep tokens within N standard deviations of the best logit; 0 keeps all
    #[arg(long, default_value_t = 0.0, value_name = "N")]
    pub top_n_sigma: f32,

    /// XTC: probability of dropping all top choices but the least likely
    #[arg(long, default_value_t = 0.0, value_name = "P")]
    pub xtc_probability: f32,

    /// XTC: least probability of a top choice
    #[arg(long, default_value_t = 0.1, value_name = "P")]
    pub xtc_threshold: f32,

    /// Dynamic temperature: lower or raise the temperature by up to T
    ///
    /// It is lowered where the distribution is sharp, and raised where it is flat.
    #[arg(long, default_value_t = 0.0, value_name = "T")]
    pub dynatemp_range: f32,

    /// Dynamic temperature: exponent of the normalised entropy
    #[arg(long, visible_alias = "dynatemp-exp", default_value_t = 1.0, value_name = "X")]
    pub dynatemp_exponent: f32,

    /// Mirostat: keep the surprise of tokens near a target; 0 is off
    #[arg(long, default_value_t = 0, value_name = "1|2")]
    pub mirostat: u32,

    /// Mirostat: target surprise in bits
    #[arg(long, visible_alias = "mirostat-ent", default_value_t = 5.0, value_name = "BITS")]
    pub mirostat_tau: f32,

    /// Mirostat: learning rate
    #[arg(long, visible_alias = "mirostat-lr", default_value_t = 0.1, value_name = "X")]
    pub mirostat_eta: f32,

    /// DRY: penalise tokens that continue a repetition; 0 is off
    ///
    /// The penalty is X times --dry-base to the power of the repetition's length beyond
    /// --dry-allowed-length.
    #[arg(long, default_value_t = 0.0, value_name = "X")]
    pub dry_multiplier: f32,

    /// DRY: base of the penalty
    #[arg(long, default_value_t = 1.75, value_name = "X")]
    pub dry_base: f32,

    /// DRY: longest repetition that is not penalised
    #[arg(long, default_value_t = 2, value_name = "N")]
    pub dry_allowed_length: usize,

    /// DRY: look at the last N tokens; 0 or -1 is the whole context
    #[arg(long, default_value_t = 0, value_name = "N", value_parser = numbers::limit_number)]
    pub dry_window: usize,

    /// DRY: a text that ends repetitions; repeat for more
    ///
    /// [default: line end, colon, quotation mark and asterisk]
    #[arg(long, value_name = "TEXT")]
    pub dry_sequence_breaker: Vec<String>,
}

impl SamplingArgs {
    /// The flags among those values that a model's file may recommend.
    pub fn choice(&self) -> SamplingChoice {
        SamplingChoice {
            temperature: if self.greedy { Some(0.0) } else { self.temperature },
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repeat_penalty: self.repeat_penalty,
            penalty_window: self.penalty_window,
            ..SamplingChoice::default()
        }
    }
}

impl SamplerArgs {
    /// The parameters of these flags; all others have their defaults.
    pub fn params(&self) -> SamplingParams {
        let dry = Dry {
            multiplier: self.dry_multiplier,
            base: self.dry_base,
            allowed_length: self.dry_allowed_length,
            window: self.dry_window,
            breakers: match self.dry_sequence_breaker.as_slice() {
                [] => Dry::default().breakers,
                texts => texts.to_vec().into(),
            },
        };
        let (version, tau, eta) = (self.mirostat, self.mirostat_tau, self.mirostat_eta);
        SamplingParams {
            typical_p: self.typical_p,
            top_n_sigma: self.top_n_sigma,
            xtc_probability: self.xtc_probability,
            xtc_threshold: self.xtc_threshold,
            dynatemp_range: self.dynatemp_range,
            dynatemp_exponent: self.dynatemp_exponent,
            mirostat: (version != 0).then_some(Mirostat { version, tau, eta }),
            dry: (self.dry_multiplier != 0.0).then_some(dry),
            order: (!self.samplers.is_empty()).then(|| self.samplers.clone()),
            ..SamplingParams::default()
        }
    }
}

fn parse_sampler(name: &str) -> Result<SamplerName, String> {
    SamplerName::named(name).ok_or_else(|| "not a sampler".to_owned())
}

/// `--overflow`
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OverflowName {
    /// The answer ends
    Stop,
    /// The oldest tokens after the first --keep tokens are dropped
    Slide,
}

fn parse_bias(text: &str) -> Result<(u32, f32), String> {
    // llama.cpp also accepts TOKEN+BIAS and TOKEN-BIAS.
    let sign = text.find(['=', '+', '-']).ok_or_else(|| format!("found {text:?}, expected TOKEN=BIAS"))?;
    let (token, bias) = text.split_at(sign);
    let bias = bias.trim_start_matches('=');
    let token = token.parse().map_err(|_| format!("found token {token:?}, expected a token id"))?;
    let bias: f32 = bias.parse().map_err(|_| format!("found bias {bias:?}, expected a number"))?;
    if bias.is_nan() {
        return Err("found bias NaN, expected a number".into());
    }
    Ok((token, bias))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn biases_as_here_and_in_llama_cpp() {
        assert_eq!(parse_bias("5=-1.5"), Ok((5, -1.5)));
        assert_eq!((parse_bias("5+1"), parse_bias("5-1")), (Ok((5, 1.0)), Ok((5, -1.0))));
        assert_eq!(parse_bias("5=-inf"), Ok((5, f32::NEG_INFINITY)));
        for text in ["5", "x=1", "5=", "5=x", "-5=1", "5=nan"] {
            assert!(parse_bias(text).is_err(), "{text}");
        }
    }
}

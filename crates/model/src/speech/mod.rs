//! Speech settings of a checkpoint, and the forward passes of speech models.

mod tables;
mod tokens;

use device::Plan;
use weights::keys::GENERATION_PREFIX;
use weights::{Array, Checkpoint, Metadata, Naming, Value};

use crate::error::{Error, Result};
use crate::keys::show;
use crate::spec::ModelSpec;

pub use tokens::SpeechTokens;

/// The forward passes of a speech model, over one KV cache.
#[derive(Clone, Debug)]
pub struct SpeechPlans {
    /// From input rows to the encoder states that the decoder attends to. The result is the states
    /// of the output rows.
    pub encoder: Plan,
    /// The plan from tokens and encoder states to logits.
    pub decoder: Plan,
    /// Like `decoder`, with the scores of some heads of cross-attention kept.
    pub align: Plan,
    /// For each value that `align` keeps, its layer and heads, ascending. The value is `(n, heads *
    /// n_states)`: scaled scores of each head over the encoder states, before the softmax.
    pub alignment: Vec<(usize, Vec<usize>)>,
}

impl SpeechPlans {
    /// Index of the encoder in [`Self::into_vec`].
    pub const ENCODER: usize = 0;
    /// Index of the decoder.
    pub const DECODER: usize = 1;
    /// Index of the decoder that keeps scores.
    pub const ALIGN: usize = 2;

    /// All plans, in the order of the indices.
    pub fn into_vec(self) -> Vec<Plan> {
        vec![self.encoder, self.decoder, self.align]
    }
}

/// The speech settings of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpeechSpec {
    /// Mel bands: columns of an input row.
    pub n_mels: usize,
    /// Frames of a window: input rows.
    pub n_frames: usize,
    /// Encoder positions of a window.
    pub n_audio_ctx: usize,
    /// Positions of the decoder's context.
    pub n_text_ctx: usize,
    /// Heads of cross-attention that follow the speech, as layer and head; ascending, at least one.
    pub alignment_heads: Vec<(usize, usize)>,
    /// Special tokens.
    pub tokens: SpeechTokens,
}

impl SpeechSpec {
    /// Reads the speech settings of a checkpoint; `None` for a model without an encoder.
    ///
    /// # Errors
    /// An invalid token or head, or tokens that neither the files nor the vocabulary's size tell.
    pub fn from_checkpoint(checkpoint: &Checkpoint, spec: &ModelSpec) -> Result<Option<SpeechSpec>> {
        let Some(encoder) = &spec.encoder else { return Ok(None) };
        let config = Config { metadata: &checkpoint.metadata, naming: checkpoint.naming };
        Ok(Some(SpeechSpec {
            n_mels: encoder.n_inputs,
            n_frames: encoder.n_ctx_train * encoder.family.input_stride(),
            n_audio_ctx: encoder.n_ctx_train,
            n_text_ctx: spec.n_ctx_train,
            alignment_heads: alignment_heads(&config, spec)?,
            tokens: SpeechTokens::read(&config, spec.n_vocab)?,
        }))
    }
}

/// The alignment heads that the files list. Without a list, all heads of the later half of the
/// layers, as in openai-whisper. A list with missing heads is ignored too: distilled models have
/// their teacher's list.
fn alignment_heads(config: &Config<'_>, spec: &ModelSpec) -> Result<Vec<(usize, usize)>> {
    let mut heads = Vec::new();
    for i in 0.. {
        let Some((key, value)) = config.find(&format!("alignment_heads.{i}")) else { break };
        let numbers = if let Value::Array(Array::Int(numbers)) = value { numbers.as_slice() } else { &[] };
        let pair = match numbers {
            [layer, head] => usize::try_from(*layer).ok().zip(usize::try_from(*head).ok()),
            _ => None,
        };
        let Some(pair) = pair else {
            let found = if numbers.is_empty() { show(value) } else { format!("{numbers:?}") };
            return Err(Error::BadKey { key, found, expected: "a layer and one of its heads".to_owned() });
        };
        heads.push(pair);
    }
    let there = |(layer, head): &(usize, usize)| spec.layers.get(*layer).is_some_and(|l| *head < l.n_heads);
    if heads.is_empty() || !heads.iter().all(there) {
        let later = spec.layers.iter().enumerate().skip(spec.layers.len() / 2);
        heads = later.flat_map(|(l, layer)| (0..layer.n_heads).map(move |head| (l, head))).collect();
    }
    heads.sort_unstable();
    heads.dedup();
    Ok(heads)
}

/// The metadata of a checkpoint, searched in generation_config.json first.
struct Config<'a> {
    metadata: &'a Metadata,
    naming: Naming,
}

impl<'a> Config<'a> {
    /// A value and its key: in Hugging Face folders from generation_config.json, else from
    /// config.json. A null counts as missing.
    fn find(&self, key: &str) -> Option<(String, &'a Value)> {
        let generation = (self.naming == Naming::HuggingFace).then(|| format!("{GENERATION_PREFIX}{key}"));
        generation.into_iter().chain([key.to_owned()]).find_map(|key| {
            let value = self.metadata.get(&key).filter(|value| !matches!(value, Value::Null))?;
            Some((key, value))
        })
    }
}

//! What a checkpoint says of speech besides the numbers of its layers, and the forward passes for it.

mod tables;
mod tokens;

use device::Plan;
use weights::keys::GENERATION_PREFIX;
use weights::{Array, Checkpoint, Metadata, Naming, Value};

use crate::error::{Error, Result};
use crate::keys::show;
use crate::spec::ModelSpec;

pub use tokens::SpeechTokens;

/// The forward passes of a speech model, over one cache.
#[derive(Clone, Debug)]
pub struct SpeechPlans {
    /// From numbers to the encoder states that the decoder attends to; its result is these states at the output rows.
    pub encoder: Plan,
    /// From tokens and the encoder states to logits.
    pub decoder: Plan,
    /// The same, with the scores of some heads of cross-attention kept.
    pub align: Plan,
    /// Of each value that `align` keeps: the layer and the heads, ascending. The value is `(n, heads * n_states)`, scores of a
    /// head over the encoder states before their softmax, scaled.
    pub alignment: Vec<(usize, Vec<usize>)>,
}

impl SpeechPlans {
    /// Index of the encoder in [`Self::into_vec`].
    pub const ENCODER: usize = 0;
    /// Index of the decoder.
    pub const DECODER: usize = 1;
    /// Index of the decoder that aligns.
    pub const ALIGN: usize = 2;

    /// All of them, as a device compiles them.
    pub fn into_vec(self) -> Vec<Plan> {
        vec![self.encoder, self.decoder, self.align]
    }
}

/// What speech needs to know of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpeechSpec {
    /// Bands of the mel spectrogram: columns of a row of input.
    pub n_mels: usize,
    /// Frames of the spectrogram in a window: rows of input.
    pub n_frames: usize,
    /// Positions of the encoder in a window, which is all that it ever sees.
    pub n_audio_ctx: usize,
    /// Positions of the decoder.
    pub n_text_ctx: usize,
    /// Heads of cross-attention that follow the speech, layer and head; ascending, at least one.
    pub alignment_heads: Vec<(usize, usize)>,
    /// Tokens with a meaning.
    pub tokens: SpeechTokens,
}

impl SpeechSpec {
    /// What a checkpoint says of speech. `None` for a model without an encoder.
    ///
    /// # Errors
    /// A token or head that cannot be, or tokens that neither the files nor the vocabulary's size tell.
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

/// The heads that the files list. Without a list, all of the later half of the layers, as openai-whisper does; so too where
/// the list names heads that are not there: distilled models with few layers come with the list of their teacher.
fn alignment_heads(config: &Config<'_>, spec: &ModelSpec) -> Result<Vec<(usize, usize)>> {
    let mut heads = Vec::new();
    for i in 0.. {
        let Some((key, value)) = config.find(&format!("alignment_heads.{i}")) else { break };
        let numbers = match value {
            Value::Array(Array::Int(numbers)) => numbers.as_slice(),
            _ => &[],
        };
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

/// The files beside the weights.
struct Config<'a> {
    metadata: &'a Metadata,
    naming: Naming,
}

impl<'a> Config<'a> {
    /// A value and the key that it stands under: of a Hugging Face folder in generation_config.json, else in config.json.
    /// A null is as nothing.
    fn find(&self, key: &str) -> Option<(String, &'a Value)> {
        let generation = (self.naming == Naming::HuggingFace).then(|| format!("{GENERATION_PREFIX}{key}"));
        generation.into_iter().chain([key.to_owned()]).find_map(|key| match self.metadata.get(&key)? {
            Value::Null => None,
            value => Some((key, value)),
        })
    }
}

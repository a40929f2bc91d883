//! Settings of embeddings: pooling, normalisation and length, from the files beside the weights.

use device::{OutputKind, Pooling};
use weights::keys::{
    DENSE_PREFIX, LOGIT_SCORE_PREFIX, MODULES_KEY, POOLING_PREFIX, SENTENCE_PREFIX, TRANSFORMER_PREFIX,
};
use weights::{Checkpoint, Metadata, Naming, Value};

use crate::error::{Error, Result};
use crate::keys::show;
use crate::spec::ModelSpec;

/// The way from hidden states to an embedding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EmbeddingSpec {
    /// Pooling of a text's rows.
    pub pooling: Pooling,
    /// True if rows are pooled; otherwise every row of the last norm is a result.
    pub pools: bool,
    /// Layers after pooling.
    pub dense: Vec<DenseSpec>,
    /// True if the vector is one number: a score of how well the two texts in it match.
    pub ranks: bool,
    /// Separator tokens between the two texts of a ranked pair.
    pub separators: usize,
    /// The two answers of a language model that ranks. The vector is then the probability of the
    /// first answer among the two.
    pub answers: Option<Answers>,
    /// True if the vector is normalised to length 1.
    pub normalize: bool,
    /// Longest text in tokens, special tokens included; longer texts are cut.
    pub max_tokens: usize,
    /// True if texts are lower-cased before tokenising.
    pub lower_case: bool,
    /// Text put before every text; mostly empty.
    pub prompt: String,
}

/// Two answers to a question about a pair of texts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answers {
    /// Name of the matrix with a row for each answer; `None`: the head.
    pub tensor: Option<String>,
    /// Rows of the answers yes and no.
    pub rows: [usize; 2],
    /// The prompt, with the placeholders `{query}` and `{document}`.
    pub prompt: String,
}

/// The prompt of Qwen3-Reranker, with the instruction of its model card.
const JUDGING_PROMPT: &str = "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the \
Instruct provided. Note that the answer can only be \"yes\" or \"no\".<|im_end|>\n<|im_start|>user\n<Instruct>: Given a web \
search query, retrieve relevant passages that answer the query\n<Query>: {query}\n<Document>: {document}<|im_end|>\n\
<|im_start|>assistant\n<think>\n\n</think>\n\n";

/// Longest pair in tokens that such models are made for.
const JUDGED_TOKENS: usize = 8192;

/// The key of the prompt in GGUF files.
pub(crate) const GGUF_PROMPT: &str = "tokenizer.chat_template.rerank";

/// A layer after pooling: a matrix, an optional bias, and an optional `tanh`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DenseSpec {
    /// Name of the layer's tensors, without `.weight` and `.bias`.
    pub name: String,
    /// True if `tanh` follows.
    pub tanh: bool,
}

/// Heads that score the first token's state: two layers, the last with one row.
const RANKERS: &[[(&str, bool); 2]] = &[[("classifier.dense", true), ("classifier.out_proj", false)]];

/// The scoring head's names in GGUF files.
const GGUF_RANKER: [(&str, bool); 2] = [("cls", true), ("cls.output", false)];

/// Poolings by their names in sentence-transformers: a flag of its own, or, in newer files, one
/// word.
const POOLINGS: &[(&str, &str, Option<Pooling>)] = &[
    ("pooling_mode_mean_tokens", "mean", Some(Pooling::Mean)),
    ("pooling_mode_cls_token", "cls", Some(Pooling::First)),
    ("pooling_mode_lasttoken", "lasttoken", Some(Pooling::Last)),
    ("pooling_mode_max_tokens", "max", None),
    ("pooling_mode_mean_sqrt_len_tokens", "mean_sqrt_len_tokens", None),
    ("pooling_mode_weightedmean_tokens", "weightedmean", None),
];

impl EmbeddingSpec {
    /// Reads a checkpoint's settings for embeddings. `None` for a model with a head and no such
    /// settings: it generates text.
    ///
    /// Folders have a list of modules. Without it, token vectors are averaged and not normalised,
    /// as sentence-transformers does. GGUF files have `pooling_type`; the vectors are normalised,
    /// because the format stores no such flag and this is the convention.
    ///
    /// # Errors
    /// An unsupported module or pooling, or an invalid length.
    pub fn from_checkpoint(checkpoint: &Checkpoint, spec: &ModelSpec) -> Result<Option<EmbeddingSpec>> {
        let metadata = &checkpoint.metadata;
        let default = EmbeddingSpec {
            pooling: Pooling::Mean,
            pools: true,
            dense: vec![],
            ranks: false,
            separators: if spec.family.positions_after_padding { 2 } else { 1 },
            answers: None,
            normalize: false,
            max_tokens: spec.n_ctx_train,
            lower_case: false,
            prompt: String::new(),
        };
        let encoder = spec.family.output == OutputKind::Hidden;
        for head in RANKERS.iter().chain([&GGUF_RANKER]) {
            let one_row = checkpoint.tensor(&format!("{}.weight", head[1].0)).filter(|t| t.n_rows() == 1);
            if encoder && one_row.is_some() {
                let dense =
                    head.iter().map(|(name, tanh)| DenseSpec { name: (*name).to_owned(), tanh: *tanh });
                let (pooling, dense) = (Pooling::First, dense.collect());
                return Ok(Some(EmbeddingSpec { pooling, dense, ranks: true, ..default }));
            }
        }
        if let Some(answers) = Answers::of(checkpoint, spec)? {
            let max_tokens = default.max_tokens.min(JUDGED_TOKENS);
            let (pooling, answers) = (Pooling::Last, Some(answers));
            return Ok(Some(EmbeddingSpec { pooling, ranks: true, answers, max_tokens, ..default }));
        }
        match checkpoint.naming {
            Naming::Gguf => gguf(metadata, default, encoder),
            Naming::HuggingFace => folder(metadata, default, encoder),
            // Embedding models do not come in these formats.
            Naming::Base | Naming::CTranslate2 | Naming::WhisperCpp => Ok(None),
        }
    }
}

impl Answers {
    /// The answers of a language model that ranks, if this is one.
    fn of(checkpoint: &Checkpoint, spec: &ModelSpec) -> Result<Option<Answers>> {
        let metadata = &checkpoint.metadata;
        if spec.family.output != OutputKind::Logits || spec.encoder.is_some() {
            return Ok(None);
        }
        let answers = match checkpoint.naming {
            Naming::HuggingFace => {
                let mut rows = [0; 2];
                for (row, name) in rows.iter_mut().zip(["true_token_id", "false_token_id"]) {
                    let key = format!("{LOGIT_SCORE_PREFIX}{name}");
                    let Some(value) = metadata.get(&key) else { return Ok(None) };
                    let id = metadata.usize(&key).filter(|id| *id < spec.n_vocab);
                    let expected = || format!("a token below {}", spec.n_vocab);
                    *row = id.ok_or_else(|| bad(&key, show(value), expected()))?;
                }
                Answers { tensor: None, rows, prompt: JUDGING_PROMPT.to_owned() }
            }
            Naming::Gguf => {
                let name = format!("{}.weight", GGUF_RANKER[1].0);
                if checkpoint.tensor(&name).is_none_or(|t| t.n_rows() != 2) {
                    return Ok(None);
                }
                let prompt = metadata.str(GGUF_PROMPT).unwrap_or(JUDGING_PROMPT).to_owned();
                Answers { tensor: Some(name), rows: [0, 1], prompt }
            }
            Naming::Base | Naming::CTranslate2 | Naming::WhisperCpp => return Ok(None),
        };
        let has = |mark: &str| answers.prompt.matches(mark).count() == 1;
        if !has("{query}") || !has("{document}") {
            let expected = "{query} and {document}, each once".to_owned();
            return Err(bad(GGUF_PROMPT, format!("{:?}", answers.prompt), expected));
        }
        Ok(Some(answers))
    }

    /// The prompt for two texts, and its part after the second text.
    pub fn about(&self, query: &str, document: &str) -> (String, &str) {
        let after = self.prompt.split_once("{document}").map_or("", |(_, after)| after);
        // Replaced in two steps, so that a placeholder within a text stays text.
        let parts: Vec<String> =
            self.prompt.split("{document}").map(|part| part.replace("{query}", query)).collect();
        (parts.join(document), after)
    }
}

fn bad(key: &str, found: impl ToString, expected: impl ToString) -> Error {
    Error::BadKey { key: key.to_owned(), found: found.to_string(), expected: expected.to_string() }
}

/// Reads `{architecture}.pooling_type`: 0 none, 1 mean, 2 first, 3 last, 4 rank.
fn gguf(metadata: &Metadata, default: EmbeddingSpec, encoder: bool) -> Result<Option<EmbeddingSpec>> {
    let key = format!("{}.pooling_type", metadata.str("general.architecture").unwrap_or_default());
    let pooling = match metadata.get(&key) {
        None | Some(Value::Int(0)) if encoder => Pooling::Mean,
        None | Some(Value::Int(0)) => return Ok(None),
        Some(Value::Int(1)) => Pooling::Mean,
        Some(Value::Int(2)) => Pooling::First,
        Some(Value::Int(3)) => Pooling::Last,
        Some(other) => return Err(bad(&key, show(other), "0 to 3 (none, mean, first, last)")),
    };
    Ok(Some(EmbeddingSpec { pooling, normalize: true, ..default }))
}

fn folder(metadata: &Metadata, mut spec: EmbeddingSpec, encoder: bool) -> Result<Option<EmbeddingSpec>> {
    let mut pools = false;
    for module in 0.. {
        let key = format!("{MODULES_KEY}.{module}.type");
        let Some(kind) = metadata.str(&key) else { break };
        match kind.rsplit('.').next().unwrap_or_default() {
            "Transformer" => {}
            "Pooling" => {
                spec.pooling = pooling(metadata)?;
                pools = true;
            }
            "Normalize" => spec.normalize = true,
            "Dense" => {
                let path = metadata.str(&format!("{MODULES_KEY}.{module}.path")).unwrap_or_default();
                let key = format!("{DENSE_PREFIX}{path}.activation_function");
                let function = metadata.str(&key).unwrap_or_default().rsplit('.').next().unwrap_or_default();
                let tanh = match function {
                    "Tanh" => true,
                    "" | "Identity" => false,
                    other => return Err(bad(&key, format!("{other:?}"), "Identity or Tanh")),
                };
                spec.dense.push(DenseSpec { name: format!("{path}.linear"), tanh });
            }
            _ => return Err(bad(&key, format!("{kind:?}"), "Transformer, Pooling, Dense or Normalize")),
        }
    }
    if !pools && !encoder {
        return Ok(None);
    }
    let key = format!("{TRANSFORMER_PREFIX}max_seq_length");
    match metadata.get(&key) {
        None | Some(Value::Null) => {}
        Some(Value::Int(n)) if *n >= 1 => {
            spec.max_tokens = usize::try_from(*n).unwrap_or(usize::MAX).min(spec.max_tokens);
        }
        Some(other) => return Err(bad(&key, show(other), "a number of tokens, at least 1")),
    }
    spec.lower_case = metadata.bool(&format!("{TRANSFORMER_PREFIX}do_lower_case")).unwrap_or(false);
    if let Some(name) = metadata.str(&format!("{SENTENCE_PREFIX}default_prompt_name")) {
        let key = format!("{SENTENCE_PREFIX}prompts.{name}");
        let prompt = metadata.str(&key).ok_or_else(|| bad(&key, "nothing", "the default prompt"))?;
        spec.prompt = prompt.to_owned();
    }
    Ok(Some(spec))
}

/// The one pooling that is enabled.
fn pooling(metadata: &Metadata) -> Result<Pooling> {
    let is_on = |(flag, word, _): &&(&str, &str, _)| {
        metadata.bool(&format!("{POOLING_PREFIX}{flag}")) == Some(true)
            || metadata.str(&format!("{POOLING_PREFIX}pooling_mode")) == Some(word)
    };
    let on: Vec<_> = POOLINGS.iter().filter(is_on).collect();
    match on[..] {
        [(_, _, Some(pooling))] => Ok(*pooling),
        _ => {
            let names: Vec<&str> = on.iter().map(|(flag, ..)| *flag).collect();
            let found = if names.is_empty() { "no known mode".to_owned() } else { names.join(", ") };
            let expected = "one of pooling_mode_mean_tokens, pooling_mode_cls_token, pooling_mode_lasttoken";
            Err(bad(&format!("{POOLING_PREFIX}pooling_mode"), found, expected))
        }
    }
}

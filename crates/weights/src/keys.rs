//! Names of metadata that readers make up, for files that a folder holds beside config.json. Readers write these keys, and
//! what interprets a checkpoint reads them.

/// Before the keys of a folder's generation_config.json.
pub const GENERATION_PREFIX: &str = "generation_config.";

/// Before the keys of a folder's preprocessor_config.json.
pub const PREPROCESSOR_PREFIX: &str = "preprocessor_config.";

/// The key under which modules.json stands: `modules.0.type`, ….
pub const MODULES_KEY: &str = "modules";

/// The key that stands before those of the pooling module's config.json.
pub const POOLING_PREFIX: &str = "pooling.";

/// The key that stands before those of sentence_bert_config.json.
pub const TRANSFORMER_PREFIX: &str = "sentence_bert_config.";

/// The key that stands before those of config_sentence_transformers.json.
pub const SENTENCE_PREFIX: &str = "config_sentence_transformers.";

/// A plain list of tokens, in the order of their ids, where a file has nothing else of a tokenizer.
pub const VOCABULARY: &str = "vocabulary";

/// The metadata key of tokenizer.json, whole, as GGUF names it.
pub const TOKENIZER_KEY: &str = "tokenizer.huggingface.json";

/// The key that stands before the names of `ingle.files`.
pub const FILES_PREFIX: &str = "files.";

/// Before the numbers of the two tokens whose logits judge a pair of texts: `true_token_id`, `false_token_id`.
pub const LOGIT_SCORE_PREFIX: &str = "logit_score.";

/// Before the configuration of a layer after pooling, and its folder.
pub const DENSE_PREFIX: &str = "dense.";

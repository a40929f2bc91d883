//! Metadata keys that readers define for files beside config.json in a folder. Readers write these
//! keys, and the interpretation of a checkpoint reads them.

/// Prefix of the keys of a folder's generation_config.json.
pub const GENERATION_PREFIX: &str = "generation_config.";

/// Prefix of the keys of a folder's preprocessor_config.json.
pub const PREPROCESSOR_PREFIX: &str = "preprocessor_config.";

/// Prefix of the keys of modules.json: `modules.0.type`, ….
pub const MODULES_KEY: &str = "modules";

/// Prefix of the keys of the pooling module's config.json.
pub const POOLING_PREFIX: &str = "pooling.";

/// Prefix of the keys of sentence_bert_config.json.
pub const TRANSFORMER_PREFIX: &str = "sentence_bert_config.";

/// Prefix of the keys of config_sentence_transformers.json.
pub const SENTENCE_PREFIX: &str = "config_sentence_transformers.";

/// Key of a plain list of tokens in the order of their ids, for a file without any other part of a
/// tokenizer.
pub const VOCABULARY: &str = "vocabulary";

/// Key of the whole tokenizer.json, with GGUF's name for it.
pub const TOKENIZER_KEY: &str = "tokenizer.huggingface.json";

/// Prefix of the names of `ingle.files`.
pub const FILES_PREFIX: &str = "files.";

/// Prefix of the ids of the two tokens whose logits score a pair of texts: `true_token_id`,
/// `false_token_id`.
pub const LOGIT_SCORE_PREFIX: &str = "logit_score.";

/// Prefix of the configuration of a layer after pooling, and of its folder.
pub const DENSE_PREFIX: &str = "dense.";

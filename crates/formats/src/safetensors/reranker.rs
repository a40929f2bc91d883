//! Rerankers that are language models, which answer `yes` or `no` about a pair of texts. This
//! module finds the two tokens.
//!
//! sentence-transformers stores them in the configuration of a module, `LogitScore`. Older
//! checkpoints look like any language model; like llama.cpp's converter, this module recognises
//! them by the title of their model card or the name of their folder. The answers are then the
//! tokens `yes` and `no`.

use std::path::Path;

use super::config::{flatten, read_json};
use super::sentence::is_plain;
use weights::keys::{LOGIT_SCORE_PREFIX, MODULES_KEY};
use weights::{Metadata, Result, Value};

/// Name of such models in the model card's title and in folder names, in lower case.
const NAME: &str = "qwen3-reranker";

/// Bytes of a model card that are searched for its title.
const CARD_BYTES: usize = 1 << 16;

/// Appends the ids of the two tokens, if the folder contains such a model.
pub(super) fn read(dir: &Path, metadata: &mut Metadata) -> Result<()> {
    for module in 0.. {
        let Some(kind) = metadata.str(&format!("{MODULES_KEY}.{module}.type")) else { break };
        let path = metadata.str(&format!("{MODULES_KEY}.{module}.path")).unwrap_or_default();
        let config = dir.join(path).join("config.json");
        if kind.ends_with(".LogitScore") && is_plain(path) && config.is_file() {
            return flatten(&read_json(&config)?, LOGIT_SCORE_PREFIX, &config, metadata);
        }
    }
    let vocabulary = dir.join("tokenizer.json");
    if metadata.str("model_type") != Some("qwen3") || !is_named(dir) || !vocabulary.is_file() {
        return Ok(());
    }
    let json = read_json(&vocabulary)?;
    let id = |word: &str| json.pointer(&format!("/model/vocab/{word}")).and_then(|id| id.as_u64());
    if let (Some(yes), Some(no)) = (id("yes"), id("no")) {
        for (key, id) in [("true_token_id", yes), ("false_token_id", no)] {
            metadata.insert(format!("{LOGIT_SCORE_PREFIX}{key}"), Value::Int(id.into()));
        }
    }
    Ok(())
}

/// True if the model card's title or a folder of the path contains the name of such models.
fn is_named(dir: &Path) -> bool {
    let in_path =
        dir.components().any(|part| part.as_os_str().to_string_lossy().to_lowercase().contains(NAME));
    let card = || std::fs::read(dir.join("README.md")).unwrap_or_default();
    let has_title = |card: Vec<u8>| {
        let text = String::from_utf8_lossy(&card[..card.len().min(CARD_BYTES)]).to_lowercase();
        text.lines()
            .any(|line| line.trim_start_matches('#').trim_start().starts_with(NAME) && line.starts_with('#'))
    };
    in_path || has_title(card())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answers(dir: &Path, metadata: &[(&str, &str)]) -> Option<(usize, usize)> {
        let mut all = Metadata::default();
        for (key, value) in metadata {
            all.insert((*key).to_owned(), Value::Str((*value).to_owned()));
        }
        read(dir, &mut all).unwrap();
        let id = |key: &str| all.usize(&format!("{LOGIT_SCORE_PREFIX}{key}"));
        Some((id("true_token_id")?, id("false_token_id")?))
    }

    #[test]
    fn answers_are_said_by_a_module_or_the_card_or_the_name() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path();
        std::fs::create_dir(dir.join("1_LogitScore")).unwrap();
        let write = |name: &str, text: &str| std::fs::write(dir.join(name), text).unwrap();
        write("1_LogitScore/config.json", r#"{"true_token_id": 7, "false_token_id": 3}"#);
        write("tokenizer.json", r#"{"model": {"vocab": {"yes": 9, "no": 4}}}"#);
        let module = [("modules.0.type", "a.LogitScore"), ("modules.0.path", "1_LogitScore")];
        assert_eq!(answers(dir, &module), Some((7, 3)));
        let outside = [("modules.0.type", "a.LogitScore"), ("modules.0.path", "..")];
        assert_eq!(answers(dir, &outside), None);
        let qwen3 = [("model_type", "qwen3")];
        assert_eq!(answers(dir, &qwen3), None);
        write("README.md", "---\na: b\n---\n\n# Qwen3-Reranker-0.6B\n");
        assert_eq!(answers(dir, &qwen3), Some((9, 4)));
        assert_eq!(answers(dir, &[("model_type", "llama")]), None);
        write("README.md", "Better than Qwen3-Reranker-0.6B\n");
        assert_eq!(answers(dir, &qwen3), None);
        let named = dir.join("Qwen3-Reranker-0.6B");
        std::fs::create_dir(&named).unwrap();
        std::fs::copy(dir.join("tokenizer.json"), named.join("tokenizer.json")).unwrap();
        assert_eq!(answers(&named, &qwen3), Some((9, 4)));
    }
}

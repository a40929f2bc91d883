//! Prompts for models that fill a gap: what is before it and what is after it, each behind a token of its own.

use crate::vocabulary::Vocabulary;
use crate::{Result, Specials, Tokenizer};

/// Texts of the three tokens, by family, for files that declare none: prefix, suffix, middle.
const NAMES: &[[&str; 3]] = &[
    // Qwen, StarCoder and Granite, DeepSeek, Code Llama in two spellings, GLM, CodeGemma as some files spell it.
    ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"],
    ["<fim_prefix>", "<fim_suffix>", "<fim_middle>"],
    ["<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"],
    ["<PRE>", "<SUF>", "<MID>"],
    ["▁<PRE>", "▁<SUF>", "▁<MID>"],
    ["<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"],
    ["<fim-prefix>", "<fim-suffix>", "<fim-middle>"],
];
/// Begin the name of a repository.
const REPOSITORY: &[&str] = &["<|fim_repo|>", "<|repo_name|>", "<repo_name>", "<reponame>"];
/// Stand between the files of a repository.
const FILE: &[&str] = &["<|file_sep|>", "<file_sep>"];
/// Fill batches up in training.
const PAD: &[&str] = &["<|fim_pad|>", "<fim_pad>", "<fim-pad>"];

/// The tokens around a gap, of models that were trained to fill one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FillInMiddle {
    /// Before the text that comes before the gap.
    pub prefix: u32,
    /// Before the text that comes after the gap.
    pub suffix: u32,
    /// Ends the prompt; what fills the gap follows.
    pub middle: u32,
    /// Before the name of a repository.
    pub repository: Option<u32>,
    /// Before each of its files.
    pub file: Option<u32>,
    /// Tokens that end what fills the gap, beside those that end every answer; ascending.
    pub ends: Vec<u32>,
}

/// The same as a file declares them: each of them, or none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DeclaredGap {
    pub(crate) prefix: Option<u32>,
    pub(crate) suffix: Option<u32>,
    pub(crate) middle: Option<u32>,
    pub(crate) repository: Option<u32>,
    pub(crate) file: Option<u32>,
    pub(crate) pad: Option<u32>,
}

/// What is around a gap.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gap {
    /// Text before it.
    pub before: String,
    /// Text after it.
    pub after: String,
    /// Other files to know of: names and texts.
    pub files: Vec<(String, String)>,
}

impl FillInMiddle {
    /// What a file declares, and by name what it does not; `None`: the model fills no gaps.
    pub(crate) fn find(vocabulary: &Vocabulary, declared: DeclaredGap) -> Option<FillInMiddle> {
        let named = NAMES.iter().find_map(|names| {
            let [prefix, suffix, middle] = names.map(|name| vocabulary.id(name));
            Some([prefix?, suffix?, middle?])
        });
        let [prefix, suffix, middle] = match (declared.prefix, declared.suffix, declared.middle) {
            (Some(prefix), Some(suffix), Some(middle)) => [prefix, suffix, middle],
            _ => named?,
        };
        let first = |names: &[&str]| names.iter().find_map(|name| vocabulary.id(name));
        let repository = declared.repository.or_else(|| first(REPOSITORY));
        let file = declared.file.or_else(|| first(FILE));
        let pad = declared.pad.or_else(|| first(PAD));
        let mut ends: Vec<u32> = [repository, file, pad].into_iter().flatten().collect();
        ends.sort_unstable();
        ends.dedup();
        Some(FillInMiddle { prefix, suffix, middle, repository, file, ends })
    }
}

impl Tokenizer {
    /// The prompt that makes a model fill a gap: prefix, suffix, middle, after the other files if the model knows
    /// tokens for these. Texts are text: marks in them do not become tokens.
    ///
    /// # Errors
    /// A text is longer than 1 GiB.
    pub fn encode_gap(&self, tokens: &FillInMiddle, gap: &Gap) -> Result<Vec<u32>> {
        let mut out = self.text_prefix().to_vec();
        let text = |out: &mut Vec<u32>, text: &str| {
            out.extend(self.encode(text, Specials::Literal)?);
            Ok::<_, crate::Error>(())
        };
        if !gap.files.is_empty() {
            match (tokens.repository, tokens.file) {
                (Some(repository), Some(file)) => {
                    out.push(repository);
                    // Models were trained on names here; clients give none.
                    text(&mut out, "project\n")?;
                    for (name, content) in &gap.files {
                        out.push(file);
                        text(&mut out, &format!("{name}\n{content}"))?;
                    }
                    out.push(file);
                    text(&mut out, "file\n")?;
                }
                (_, _) => {
                    for (name, content) in &gap.files {
                        text(&mut out, &format!("{name}\n\n{content}\n\n"))?;
                    }
                }
            }
        }
        out.push(tokens.prefix);
        text(&mut out, &gap.before)?;
        out.push(tokens.suffix);
        text(&mut out, &gap.after)?;
        out.push(tokens.middle);
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tokenizer.json with these tokens beside the letters.
    fn tokenizer(added: &[&str]) -> Tokenizer {
        let letters = "abcdefghijklmnopqrstuvwxyz.<>|_/ĠĊ".chars();
        let vocabulary: serde_json::Map<_, _> =
            letters.enumerate().map(|(id, letter)| (letter.to_string(), id.into())).collect();
        let n = vocabulary.len();
        let token = |(i, text): (usize, &&str)| {
            serde_json::json!({ "id": n + i, "content": text, "special": true, "single_word": false,
                "lstrip": false, "rstrip": false, "normalized": false })
        };
        let json = serde_json::json!({
            "version": "1.0",
            "added_tokens": added.iter().enumerate().map(token).collect::<Vec<_>>(),
            "pre_tokenizer": { "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true },
            "decoder": { "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true },
            "model": { "type": "BPE", "vocab": vocabulary, "merges": [] },
        });
        Tokenizer::from_json(json.to_string().as_bytes(), None).unwrap()
    }

    #[test]
    fn a_gap_is_between_its_tokens() {
        let marks =
            ["<fim_prefix>", "<fim_suffix>", "<fim_middle>", "<repo_name>", "<file_sep>", "<fim_pad>"];
        let tokenizer = tokenizer(&marks);
        let tokens = tokenizer.fill_in_middle().unwrap();
        let prompt = |files: &[(String, String)], before: &str| {
            let gap = Gap { before: before.into(), after: "b".into(), files: files.into() };
            tokenizer.decode(&tokenizer.encode_gap(tokens, &gap).unwrap(), false)
        };
        assert_eq!(prompt(&[], "a"), "<fim_prefix>a<fim_suffix>b<fim_middle>");
        assert_eq!(
            prompt(&[("x.rs".into(), "c".into())], "a"),
            "<repo_name>project\n<file_sep>x.rs\nc<file_sep>file\n<fim_prefix>a<fim_suffix>b<fim_middle>"
        );
        assert_eq!(tokens.ends.len(), 3);
        // A mark in the text is text.
        let gap = Gap { before: "<fim_middle>".into(), ..Gap::default() };
        let found = tokenizer.encode_gap(tokens, &gap).unwrap();
        assert_eq!(found.iter().filter(|id| **id == tokens.middle).count(), 1);
    }

    #[test]
    fn a_model_with_some_of_the_tokens_fills_no_gaps() {
        assert!(tokenizer(&["<fim_prefix>", "<fim_suffix>"]).fill_in_middle().is_none());
        assert!(tokenizer(&["<fim_prefix>", "<|fim_suffix|>", "<MID>"]).fill_in_middle().is_none());
    }
}

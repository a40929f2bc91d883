//! Prompts for models that fill a gap: the texts before and after it, each after a token of its
//! own.

use crate::vocabulary::Vocabulary;
use crate::{Result, Specials, Tokenizer};

/// Texts of the tokens prefix, suffix and middle by family, for files that do not declare them.
const NAMES: &[[&str; 3]] = &[
    // Qwen, StarCoder and Granite, DeepSeek, Code Llama in two spellings, GLM, and CodeGemma in
    // some files' spelling.
    ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"],
    ["<fim_prefix>", "<fim_suffix>", "<fim_middle>"],
    ["<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"],
    ["<PRE>", "<SUF>", "<MID>"],
    ["▁<PRE>", "▁<SUF>", "▁<MID>"],
    ["<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"],
    ["<fim-prefix>", "<fim-suffix>", "<fim-middle>"],
];
/// Tokens before the name of a repository.
const REPOSITORY: &[&str] = &["<|fim_repo|>", "<|repo_name|>", "<repo_name>", "<reponame>"];
/// Tokens between the files of a repository.
const FILE: &[&str] = &["<|file_sep|>", "<file_sep>"];
/// Tokens that padded batches in training.
const PAD: &[&str] = &["<|fim_pad|>", "<fim_pad>", "<fim-pad>"];

/// The tokens around a gap, of models that were trained to fill one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FillInMiddle {
    /// Token before the text that precedes the gap.
    pub prefix: u32,
    /// Token before the text that follows the gap.
    pub suffix: u32,
    /// Token at the end of the prompt, which the filling follows.
    pub middle: u32,
    /// Token before the name of a repository.
    pub repository: Option<u32>,
    /// Token before each file of a repository.
    pub file: Option<u32>,
    /// Tokens that end the filling, beside those that end every answer; in ascending order.
    pub ends: Vec<u32>,
}

/// The tokens around a gap that a file declares.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DeclaredGap {
    pub(crate) prefix: Option<u32>,
    pub(crate) suffix: Option<u32>,
    pub(crate) middle: Option<u32>,
    pub(crate) repository: Option<u32>,
    pub(crate) file: Option<u32>,
    pub(crate) pad: Option<u32>,
}

/// The text around a gap.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gap {
    /// Text before the gap.
    pub before: String,
    /// Text after the gap.
    pub after: String,
    /// Other files for context: names and texts.
    pub files: Vec<(String, String)>,
}

impl FillInMiddle {
    /// The declared tokens, and undeclared ones by their names; `None` if the model fills no gaps.
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
    /// The prompt to fill a gap: prefix, suffix, middle, after the other files if the model has
    /// tokens for them. Special tokens in the texts are not parsed.
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
                    // Models were trained with a name here, and clients send none.
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
        // A special token in the text is text.
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

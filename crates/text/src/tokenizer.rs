//! Conversion of text to token ids and back.

use crate::bpe::BytePairs;
use crate::fill_in_middle::{DeclaredGap, FillInMiddle};
use crate::hugging_face::HuggingFace;
use crate::plamo2::Plamo2;
use crate::rwkv::Rwkv;
use crate::sentence_piece::SentencePiece;
use crate::specials::{Part, SpecialIndex, Specials};
use crate::unigram::Unigram;
use crate::vocabulary::{Kind, Vocabulary};
use crate::word_piece::WordPiece;
use crate::{Error, Result};

/// Maximum number of bytes of text for one encoding, so that all offsets fit in 32 bits, even after
/// escaping.
const MAX_TEXT: usize = 1 << 30;

/// Texts of tokens that end an answer, whatever the file declares. Many files declare only one of
/// several, and then chats would run on.
pub(crate) const END_TOKENS: &[&str] = &[
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<end_of_turn>",
    "<turn|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "<end_of_utterance>",
    "<|end_of_turn|>",
    "<｜end▁of▁sentence｜>",
];

/// Texts of further such tokens, but only for control tokens: in some vocabularies `</s>` is the
/// end of struck-out HTML.
const END_CONTROLS: &[&str] = &["</s>", "<eos>", "[EOS]"];

/// The algorithm that converts text to tokens.
pub(crate) enum Encoder {
    BytePairs(BytePairs),
    SentencePiece(SentencePiece),
    WordPiece(WordPiece),
    Unigram(Unigram),
    Rwkv(Rwkv),
    Plamo2(Plamo2),
    HuggingFace(Box<HuggingFace>),
}

/// A file's declarations beside its tokens.
#[derive(Default)]
pub(crate) struct Declared {
    pub(crate) bos: Option<u32>,
    pub(crate) eos: Option<u32>,
    /// Other tokens declared to end an answer.
    pub(crate) ends: Vec<u32>,
    /// Tokens that `encode_with_bos` puts before a text.
    pub(crate) prefix: Vec<u32>,
    /// Tokens that `encode_with_bos` puts after a text.
    pub(crate) suffix: Vec<u32>,
    /// True if the first token's text begins with a space that the text did not have.
    pub(crate) leading_space: bool,
    /// Tokens that absorb the spaces before them.
    pub(crate) strips_left: Vec<u32>,
    /// Tokens that absorb the spaces after them.
    pub(crate) strips_right: Vec<u32>,
    /// Tokens around a gap to be filled.
    pub(crate) gap: DeclaredGap,
    /// Chat templates by name; the nameless one is the default.
    pub(crate) chat_templates: Vec<(String, String)>,
}

/// A vocabulary with the algorithm that converts text to its tokens. Immutable, so it can be shared
/// between threads.
pub struct Tokenizer {
    vocabulary: Vocabulary,
    encoder: Encoder,
    special_index: SpecialIndex,
    declared: Declared,
    /// Tokens that end an answer, in ascending order.
    ends: Vec<u32>,
    fill_in_middle: Option<FillInMiddle>,
}

impl Tokenizer {
    pub(crate) fn new(mut vocabulary: Vocabulary, encoder: Encoder, mut declared: Declared) -> Tokenizer {
        let mut ends: Vec<u32> = declared.eos.into_iter().chain(declared.ends.drain(..)).collect();
        ends.extend(END_TOKENS.iter().flat_map(|text| vocabulary.ids(text)));
        let controls = END_CONTROLS.iter().flat_map(|text| vocabulary.ids(text));
        ends.extend(controls.filter(|&id| vocabulary.kind(id) == Kind::Control));
        // In vocabularies with <|return|> and <|call|>, which end an answer, <|end|> only ends one
        // message.
        if ["<|return|>", "<|call|>"].iter().all(|text| vocabulary.id(text).is_some()) {
            ends.retain(|&id| vocabulary.text(id) != "<|end|>" || declared.eos == Some(id));
        }
        ends.sort_unstable();
        ends.dedup();
        for &id in &ends {
            // A token that ends an answer is not part of its text, even if the file calls it
            // normal.
            vocabulary.set_kind(id, Kind::Control);
        }
        let fill_in_middle = FillInMiddle::find(&vocabulary, declared.gap);
        let strips_left = std::mem::take(&mut declared.strips_left);
        let special_index =
            SpecialIndex::new(&vocabulary, strips_left, std::mem::take(&mut declared.strips_right));
        Tokenizer { vocabulary, encoder, special_index, declared, ends, fill_in_middle }
    }

    /// Compiles the patterns that split text into words, so that the first text need not wait for
    /// it.
    pub fn prepare(&self) {
        if let Encoder::BytePairs(encoder) = &self.encoder {
            encoder.prepare();
        }
    }

    /// Tokenises a text without tokens before or after it.
    ///
    /// # Errors
    /// The text is longer than 1 GiB.
    pub fn encode(&self, text: &str, specials: Specials) -> Result<Vec<u32>> {
        let mut out = Vec::with_capacity(text.len() / 3 + 8);
        self.encode_into(text, specials, &mut out)?;
        Ok(out)
    }

    /// Tokenises a text with the tokens that the model expects around it: BOS if it uses one, even
    /// if the text begins with its own; `[CLS]` and `[SEP]` for BERT; EOS for T5.
    ///
    /// # Errors
    /// The text is longer than 1 GiB.
    pub fn encode_with_bos(&self, text: &str, specials: Specials) -> Result<Vec<u32>> {
        let mut out = Vec::with_capacity(text.len() / 3 + 8);
        out.extend_from_slice(&self.declared.prefix);
        self.encode_into(text, specials, &mut out)?;
        out.extend_from_slice(&self.declared.suffix);
        Ok(out)
    }

    fn encode_into(&self, text: &str, specials: Specials, out: &mut Vec<u32>) -> Result<()> {
        if text.len() > MAX_TEXT {
            return Err(Error::TooLong { what: "the text", len: text.len(), limit: MAX_TEXT });
        }
        let vocabulary = &self.vocabulary;
        if let Encoder::HuggingFace(hugging_face) = &self.encoder {
            return hugging_face.encode(text, specials, out);
        }
        let mut refused = None;
        self.special_index.split(vocabulary, text, specials, &mut |part| match part {
            Part::Token(id) => out.push(id),
            Part::Text(text) => match &self.encoder {
                Encoder::BytePairs(encoder) => encoder.encode(vocabulary, text, out),
                Encoder::SentencePiece(encoder) => encoder.encode(vocabulary, text, out),
                Encoder::WordPiece(encoder) => {
                    refused = encoder.encode(vocabulary, text, out).err().or(refused.take());
                }
                Encoder::Unigram(encoder) => {
                    refused = encoder.encode(vocabulary, text, out).err().or(refused.take());
                }
                Encoder::Rwkv(encoder) => encoder.encode(vocabulary, text, out),
                Encoder::Plamo2(encoder) => encoder.encode(vocabulary, text, out),
                Encoder::HuggingFace(_) => {}
            },
        });
        refused.map_or(Ok(()), Err)
    }

    /// Decodes tokens as a whole text, without the space that some vocabularies put before the
    /// first word. Bytes that are not UTF-8 become U+FFFD. Use a
    /// [`Detokenizer`](crate::Detokenizer) for a text that is continued.
    pub fn decode(&self, tokens: &[u32], skip_special: bool) -> String {
        let mut bytes = Vec::with_capacity(tokens.len() * 4);
        for &id in tokens {
            if !(skip_special && self.is_special(id)) {
                bytes.extend_from_slice(self.vocabulary.bytes(id));
            }
        }
        let first = tokens.iter().find(|&&id| !self.is_special(id));
        let mut text = bytes.as_slice();
        if self.declared.leading_space
            && let Some(rest) = text.strip_prefix(b" ")
            && first.is_some_and(|&id| self.vocabulary.bytes(id).first() == Some(&b' '))
        {
            text = rest;
        }
        String::from_utf8_lossy(text).into_owned()
    }

    /// The bytes of a token, often only a part of a character. A special token's bytes are its
    /// text; an id out of range has none.
    pub fn token_bytes(&self, id: u32) -> &[u8] {
        self.vocabulary.bytes(id)
    }

    /// A token as text for people, with U+FFFD for bytes that are not UTF-8.
    pub fn token_text(&self, id: u32) -> String {
        String::from_utf8_lossy(self.vocabulary.bytes(id)).into_owned()
    }

    /// The token of exactly this text, spelled as the vocabulary spells it (`Ġthe`, `▁the`,
    /// `<|im_end|>`).
    pub fn token_id(&self, text: &str) -> Option<u32> {
        self.vocabulary.id(text)
    }

    /// Returns true if a token is special (control or unknown), not text.
    pub fn is_special(&self, id: u32) -> bool {
        self.vocabulary.kind(id).is_special()
    }

    /// Returns true if a token ends an answer: a declared EOS, end of turn or end of message, or a
    /// control token known to mean the same.
    pub fn is_end(&self, id: u32) -> bool {
        self.ends.binary_search(&id).is_ok()
    }

    /// All tokens that end an answer, in ascending order.
    pub fn ends(&self) -> &[u32] {
        &self.ends
    }

    /// The tokens around a gap, if the model was trained to fill one.
    pub fn fill_in_middle(&self) -> Option<&FillInMiddle> {
        self.fill_in_middle.as_ref()
    }

    /// The tokens that [`Tokenizer::encode_with_bos`] puts before a text.
    pub(crate) fn text_prefix(&self) -> &[u32] {
        &self.declared.prefix
    }

    /// The BOS token, if the file declares one. [`Tokenizer::encode_with_bos`] decides whether
    /// texts get it.
    pub fn bos(&self) -> Option<u32> {
        self.declared.bos
    }

    /// The EOS token, if the file declares one.
    pub fn eos(&self) -> Option<u32> {
        self.declared.eos
    }

    /// Number of tokens. The model's output may have more rows (padding), which have no text.
    pub fn n_tokens(&self) -> usize {
        self.vocabulary.len()
    }

    /// Number of tokens with the text of an earlier token. Encoding never produces them; they
    /// decode like the earlier ones.
    pub fn n_repeated(&self) -> usize {
        self.vocabulary.n_repeated()
    }

    /// Bytes of the longest token.
    pub fn longest_token(&self) -> usize {
        self.vocabulary.longest()
    }

    /// Maximum number of bytes of text that `n_tokens` tokens stand for. If texts are normalised
    /// first, several bytes may become one byte of a token. White space that is dropped does not
    /// count.
    pub fn most_bytes(&self, n_tokens: usize) -> usize {
        let (least, factor) = match &self.encoder {
            Encoder::BytePairs(_) | Encoder::SentencePiece(_) | Encoder::Rwkv(_) | Encoder::Plamo2(_) => {
                (1, 1)
            }
            // A compatibility form of three bytes becomes one byte, and an unknown word of any
            // length becomes one token.
            Encoder::WordPiece(_) | Encoder::Unigram(_) | Encoder::HuggingFace(_) => (32, 4),
        };
        n_tokens.saturating_mul(self.longest_token().max(least)).saturating_mul(factor)
    }

    /// The chat template that comes with the vocabulary.
    pub fn chat_template(&self) -> Option<&str> {
        self.chat_template_named("").or_else(|| self.chat_template_named("default"))
    }

    /// A chat template by its name (`tool_use`, `rag`); the default template has the empty name.
    pub fn chat_template_named(&self, name: &str) -> Option<&str> {
        self.declared.chat_templates.iter().find(|(n, _)| n == name).map(|(_, source)| source.as_str())
    }
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kind = match &self.encoder {
            Encoder::BytePairs(_) => "BPE",
            Encoder::SentencePiece(_) => "SentencePiece",
            Encoder::WordPiece(_) => "WordPiece",
            Encoder::Unigram(_) => "Unigram",
            Encoder::Rwkv(_) => "RWKV",
            Encoder::Plamo2(_) => "PLaMo-2",
            Encoder::HuggingFace(_) => "tokenizer.json",
        };
        write!(f, "Tokenizer({kind}, {} tokens)", self.n_tokens())
    }
}

//! Text to token ids and back.

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

/// The most bytes of text that are encoded in one go. All offsets within fit 32 bits with room for escapes.
const MAX_TEXT: usize = 1 << 30;

/// Tokens that end an answer by their text, whatever the file declares: files that declare only one of several
/// are common, and a chat that runs on past its end is the result.
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

/// The same, but only where they are control tokens: in some vocabularies `</s>` is the end of struck-out HTML.
const END_CONTROLS: &[&str] = &["</s>", "<eos>", "[EOS]"];

/// How text becomes tokens.
pub(crate) enum Encoder {
    BytePairs(BytePairs),
    SentencePiece(SentencePiece),
    WordPiece(WordPiece),
    Unigram(Unigram),
    Rwkv(Rwkv),
    Plamo2(Plamo2),
    HuggingFace(Box<HuggingFace>),
}

/// What a file declares beside its tokens.
#[derive(Default)]
pub(crate) struct Declared {
    pub(crate) bos: Option<u32>,
    pub(crate) eos: Option<u32>,
    /// Other tokens declared to end an answer.
    pub(crate) ends: Vec<u32>,
    /// Put before a text by `encode_with_bos`.
    pub(crate) prefix: Vec<u32>,
    /// Put after it by `encode_with_bos`.
    pub(crate) suffix: Vec<u32>,
    /// Whether the first token's text begins with a space that the text did not have.
    pub(crate) leading_space: bool,
    /// Tokens that swallow the spaces before them.
    pub(crate) strips_left: Vec<u32>,
    /// Tokens that swallow the spaces after them.
    pub(crate) strips_right: Vec<u32>,
    /// Tokens around a gap to be filled.
    pub(crate) gap: DeclaredGap,
    /// Chat templates by name; the nameless one is the default.
    pub(crate) chat_templates: Vec<(String, String)>,
}

/// A vocabulary with the rules by which text becomes its tokens. Immutable once built, so shared freely.
pub struct Tokenizer {
    vocabulary: Vocabulary,
    encoder: Encoder,
    special_index: SpecialIndex,
    declared: Declared,
    /// Ascending.
    ends: Vec<u32>,
    fill_in_middle: Option<FillInMiddle>,
}

impl Tokenizer {
    pub(crate) fn new(mut vocabulary: Vocabulary, encoder: Encoder, mut declared: Declared) -> Tokenizer {
        let mut ends: Vec<u32> = declared.eos.into_iter().chain(declared.ends.drain(..)).collect();
        ends.extend(END_TOKENS.iter().flat_map(|text| vocabulary.ids(text)));
        let controls = END_CONTROLS.iter().flat_map(|text| vocabulary.ids(text));
        ends.extend(controls.filter(|&id| vocabulary.kind(id) == Kind::Control));
        // Where <|return|> and <|call|> end an answer, <|end|> only ends one message of it.
        if ["<|return|>", "<|call|>"].iter().all(|text| vocabulary.id(text).is_some()) {
            ends.retain(|&id| vocabulary.text(id) != "<|end|>" || declared.eos == Some(id));
        }
        ends.sort_unstable();
        ends.dedup();
        for &id in &ends {
            // A token that ends an answer is not part of its text, even where the file calls it normal.
            vocabulary.set_kind(id, Kind::Control);
        }
        let fill_in_middle = FillInMiddle::find(&vocabulary, declared.gap);
        let strips_left = std::mem::take(&mut declared.strips_left);
        let special_index =
            SpecialIndex::new(&vocabulary, strips_left, std::mem::take(&mut declared.strips_right));
        Tokenizer { vocabulary, encoder, special_index, declared, ends, fill_in_middle }
    }

    /// Compile the patterns that split text into words, which the first text would otherwise wait for.
    pub fn prepare(&self) {
        if let Encoder::BytePairs(encoder) = &self.encoder {
            encoder.prepare();
        }
    }

    /// The tokens of a text, with nothing put before or after it.
    ///
    /// # Errors
    /// The text is longer than 1 GiB.
    pub fn encode(&self, text: &str, specials: Specials) -> Result<Vec<u32>> {
        let mut out = Vec::with_capacity(text.len() / 3 + 8);
        self.encode_into(text, specials, &mut out)?;
        Ok(out)
    }

    /// The tokens of a text as the model was trained to see a text begin: with BOS where it wants one, also if the
    /// text begins with its own, with `[CLS]` and `[SEP]` around it for BERT, with EOS after it for T5.
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

    /// The text of tokens, taken as a whole text: the space that some vocabularies put before the first word is
    /// taken off again. Bytes that are no UTF-8 become U+FFFD. A text that is continued is decoded by a
    /// [`Detokenizer`](crate::Detokenizer).
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

    /// The bytes a token stands for: often a part of a character only. Those of a special token are its text; an id
    /// out of range has none.
    pub fn token_bytes(&self, id: u32) -> &[u8] {
        self.vocabulary.bytes(id)
    }

    /// A token as a person would want to see it: its bytes as text, U+FFFD where they are none.
    pub fn token_text(&self, id: u32) -> String {
        String::from_utf8_lossy(self.vocabulary.bytes(id)).into_owned()
    }

    /// The token of exactly this text, spelled as the vocabulary spells it (`Ġthe`, `▁the`, `<|im_end|>`).
    pub fn token_id(&self, text: &str) -> Option<u32> {
        self.vocabulary.id(text)
    }

    /// Whether a token is a mark (control or unknown) and no text.
    pub fn is_special(&self, id: u32) -> bool {
        self.vocabulary.kind(id).is_special()
    }

    /// Whether a token ends an answer: what the file declares as EOS, end of turn or end of message, and the control
    /// tokens known to mean the same.
    pub fn is_end(&self, id: u32) -> bool {
        self.ends.binary_search(&id).is_ok()
    }

    /// All tokens that end an answer, ascending.
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

    /// The token that begins a text, if the file declares one. Whether texts get it is [`Tokenizer::encode_with_bos`]'s
    /// business.
    pub fn bos(&self) -> Option<u32> {
        self.declared.bos
    }

    /// The token that ends a text, if the file declares one.
    pub fn eos(&self) -> Option<u32> {
        self.declared.eos
    }

    /// Number of tokens. The model's output may have more rows (padding), which have no text.
    pub fn n_tokens(&self) -> usize {
        self.vocabulary.len()
    }

    /// Number of tokens whose text an earlier one has. No text becomes them, and they decode as the others do.
    pub fn n_repeated(&self) -> usize {
        self.vocabulary.n_repeated()
    }

    /// Bytes of the longest token.
    pub fn longest_token(&self) -> usize {
        self.vocabulary.longest()
    }

    /// The most bytes of text that `n_tokens` tokens stand for. Where texts are normalised before they are split, a byte of a token may
    /// have been several; white space that is dropped altogether does not count.
    pub fn most_bytes(&self, n_tokens: usize) -> usize {
        let (least, factor) = match &self.encoder {
            Encoder::BytePairs(_) | Encoder::SentencePiece(_) | Encoder::Rwkv(_) | Encoder::Plamo2(_) => {
                (1, 1)
            }
            // Compatibility forms of three bytes become one; a word that is not known is one token, however long.
            Encoder::WordPiece(_) | Encoder::Unigram(_) | Encoder::HuggingFace(_) => (32, 4),
        };
        n_tokens.saturating_mul(self.longest_token().max(least)).saturating_mul(factor)
    }

    /// The chat template that comes with the vocabulary.
    pub fn chat_template(&self) -> Option<&str> {
        self.chat_template_named("").or_else(|| self.chat_template_named("default"))
    }

    /// A chat template by its name (`tool_use`, `rag`); the empty name is the default's.
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

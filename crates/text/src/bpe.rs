//! Byte-pair encoding by a list of merges (Sennrich et al. 2016), over bytes as GPT-2 does it, or over
//! characters with a fallback to byte tokens as SentencePiece vocabularies converted to merges do.

use hashbrown::HashMap;
use weights::Array;

use crate::merge::{Merged, Merger, NO_TOKEN, Symbol};
use crate::pre_tokenizer::PreTokenizer;
use crate::presets::{Alphabet, Preset};
use crate::vocabulary::{Kind, SPACE_MARK, Vocabulary};
use crate::{Error, Result, byte_level};

const MERGES: &str = "tokenizer.ggml.merges";

/// The encoding side of a vocabulary with merges.
pub(crate) struct BytePairs {
    pre_tokenizer: PreTokenizer,
    /// Rank and result of each merge, by `left << 32 | right`.
    merges: HashMap<u64, (u32, u32), foldhash::fast::RandomState>,
    /// The token of each single byte, or [`NO_TOKEN`].
    bytes: [u32; 256],
    preset: &'static Preset,
    /// Whether text is split at its spaces, which are left out, first.
    by_words: bool,
    /// Whether its words are then written in lower case.
    lowercase: bool,
}

impl BytePairs {
    /// From the vocabulary and its merges, each `left right`.
    ///
    /// # Errors
    /// A merge is not a pair, or one of its parts or its result is not a token.
    pub(crate) fn new(vocabulary: &Vocabulary, merges: &Array, preset: &'static Preset) -> Result<BytePairs> {
        if !matches!(merges, Array::Str { .. }) || merges.len() >= NO_TOKEN as usize {
            return Err(Error::Malformed {
                key: MERGES.into(),
                found: format!("{} items of another kind", merges.len()),
                expected: "a list of strings".into(),
            });
        }
        let mut table = HashMap::with_capacity_and_hasher(merges.len(), Default::default());
        let mut joint = String::new();
        // Of the merge before.
        let mut made = 0;
        for index in 0..merges.len() {
            let bytes = merges.str_bytes(index).unwrap_or_default();
            let malformed = || Error::Malformed {
                key: format!("{MERGES}[{index}]"),
                found: format!("{:?}", String::from_utf8_lossy(bytes)),
                expected: "two tokens with a space between".into(),
            };
            let merge = std::str::from_utf8(bytes).map_err(|_| malformed())?;
            // The left part may itself begin with a space where the alphabet is characters.
            let space = bytes.iter().skip(1).position(|byte| *byte == b' ').ok_or_else(malformed)? + 1;
            let (left, right) =
                (merge.get(..space).unwrap_or_default(), merge.get(space + 1..).unwrap_or_default());
            joint.clear();
            joint.push_str(left);
            joint.push_str(right);
            let unknown =
                |text: &str| Error::UnknownMerge { index, merge: merge.into(), missing: text.into() };
            let token = |text: &str| vocabulary.id(text).ok_or_else(|| unknown(text));
            let (left, right) = (token(left)?, token(right)?);
            // Tokens mostly stand in the order in which they were learned: what a merge makes follows what the one before made.
            made = match vocabulary.text_bytes(made + 1) == joint.as_bytes() {
                true => made + 1,
                false => token(&joint)?,
            };
            // The same pair twice: the earlier has the better rank.
            table.entry(key(left, right)).or_insert((index as u32, made));
        }
        let mut bytes = [NO_TOKEN; 256];
        for (byte, id) in bytes.iter_mut().enumerate() {
            let token = match preset.alphabet {
                Alphabet::Bytes => {
                    byte_level::CHARS.get(byte).and_then(|c| vocabulary.id(c.encode_utf8(&mut [0; 4])))
                }
                Alphabet::SpaceMark | Alphabet::Characters => vocabulary.id(&format!("<0x{byte:02X}>")),
            };
            *id = token.unwrap_or(NO_TOKEN);
        }
        Ok(BytePairs {
            pre_tokenizer: PreTokenizer::new(preset),
            merges: table,
            bytes,
            preset,
            by_words: false,
            lowercase: false,
        })
    }

    /// Leave out all spaces of a text, splitting it there, and perhaps write the rest in lower case.
    pub(crate) fn by_words(&mut self, lowercase: bool) {
        (self.by_words, self.lowercase) = (true, lowercase);
    }

    /// See [`crate::Tokenizer::prepare`].
    pub(crate) fn prepare(&self) {
        self.pre_tokenizer.prepare();
    }

    /// Append the tokens of a text without specials in it. A byte that the vocabulary has no token for is left
    /// out, as the models' own tokenizers leave it out.
    pub(crate) fn encode(&self, vocabulary: &Vocabulary, text: &str, out: &mut Vec<u32>) {
        if !self.by_words {
            return self.encode_words(vocabulary, text, out);
        }
        for word in text.split_whitespace() {
            match self.lowercase {
                // One character for one: the rest of a longer mapping is left out.
                true => {
                    let lower: String = word.chars().filter_map(|c| c.to_lowercase().next()).collect();
                    self.encode_words(vocabulary, &lower, out);
                }
                false => self.encode_words(vocabulary, word, out),
            }
        }
    }

    fn encode_words(&self, vocabulary: &Vocabulary, text: &str, out: &mut Vec<u32>) {
        let escaped;
        let text = match self.preset.alphabet {
            Alphabet::SpaceMark => {
                escaped = text.replace(' ', SPACE_MARK);
                &escaped
            }
            Alphabet::Bytes | Alphabet::Characters => text,
        };
        let characters = self.preset.alphabet != Alphabet::Bytes;
        let mut merger = Merger::default();
        let mut spelled = String::new();
        self.pre_tokenizer.split(text, &mut |word| {
            if let Some(id) = self.whole_word(vocabulary, word, &mut spelled) {
                return out.push(id);
            }
            merger.clear();
            if characters {
                for (at, c) in word.char_indices() {
                    let id = normal(vocabulary, c.encode_utf8(&mut [0; 4])).unwrap_or(NO_TOKEN);
                    merger.push(at, c.len_utf8(), id);
                }
            } else {
                for (at, &byte) in word.as_bytes().iter().enumerate() {
                    merger.push(at, 1, self.bytes.get(usize::from(byte)).copied().unwrap_or(NO_TOKEN));
                }
            }
            for symbol in merger.merge(|left, right| self.merged(left, right)) {
                if symbol.id != NO_TOKEN {
                    out.push(symbol.id);
                } else if characters {
                    let bytes = word.as_bytes().iter().skip(symbol.start as usize).take(symbol.len as usize);
                    let ids = bytes.filter_map(|&byte| self.bytes.get(usize::from(byte)).copied());
                    out.extend(ids.filter(|&id| id != NO_TOKEN));
                }
            }
        });
    }

    fn merged(&self, left: &Symbol, right: &Symbol) -> Option<Merged> {
        self.merges.get(&key(left.id, right.id)).map(|&(rank, id)| Merged { rank, id })
    }

    /// The token that a whole word is, where the vocabulary wants that looked up first.
    fn whole_word(&self, vocabulary: &Vocabulary, word: &str, spelled: &mut String) -> Option<u32> {
        // Runs of newlines are tokens that no merges lead to.
        let newlines = self.preset.whole_newlines && word.starts_with('\n');
        if !(self.preset.whole_words || newlines) || word.len() > vocabulary.longest() {
            return None;
        }
        match self.preset.alphabet {
            Alphabet::SpaceMark | Alphabet::Characters => normal(vocabulary, word),
            Alphabet::Bytes => {
                spelled.clear();
                spelled.extend(word.bytes().filter_map(|byte| byte_level::CHARS.get(usize::from(byte))));
                normal(vocabulary, spelled)
            }
        }
    }
}

/// The token of this text unless it is one that text must never become by accident.
fn normal(vocabulary: &Vocabulary, text: &str) -> Option<u32> {
    vocabulary
        .id(text)
        .filter(|&id| !matches!(vocabulary.kind(id), Kind::Control | Kind::Unknown | Kind::Byte))
}

fn key(left: u32, right: u32) -> u64 {
    u64::from(left) << 32 | u64::from(right)
}

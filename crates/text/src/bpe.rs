//! Byte-pair encoding by a list of merges (Sennrich et al. 2016), over bytes as GPT-2 does it, or
//! over characters with a fallback to byte tokens as SentencePiece vocabularies converted to merges
//! do.

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
    /// Rank and result of each merge, keyed by `left << 32 | right`.
    merges: HashMap<u64, (u32, u32), foldhash::fast::RandomState>,
    /// Results of merges that are not tokens, by their text. Their ids start at the number of
    /// tokens.
    symbols: HashMap<String, u32, foldhash::fast::RandomState>,
    /// Token or symbol of each single byte, or [`NO_TOKEN`].
    bytes: [u32; 256],
    preset: &'static Preset,
    /// True if text is first split at its spaces, which are dropped.
    by_words: bool,
    /// True if words are then converted to lower case.
    lowercase: bool,
}

impl BytePairs {
    /// Makes an encoder from the vocabulary and its merges, each `left right`. A merge may name a
    /// text that is not a token. It then makes a symbol that other merges may use, and that becomes
    /// its bytes' tokens if it remains. An entry that is not a pair is ignored.
    ///
    /// # Errors
    /// The merges are not a list of strings.
    pub(crate) fn new(vocabulary: &Vocabulary, merges: &Array, preset: &'static Preset) -> Result<BytePairs> {
        if !matches!(merges, Array::Str { .. }) || merges.len() >= (NO_TOKEN / 4) as usize {
            return Err(Error::Malformed {
                key: MERGES.into(),
                found: format!("{} items of another kind", merges.len()),
                expected: "a list of strings".into(),
            });
        }
        let mut table = HashMap::with_capacity_and_hasher(merges.len(), Default::default());
        let mut symbols = Symbols::of(vocabulary);
        let mut joint = String::new();
        // Result of the previous merge.
        let mut made = 0;
        for index in 0..merges.len() {
            let Ok(merge) = std::str::from_utf8(merges.str_bytes(index).unwrap_or_default()) else {
                continue;
            };
            // In an alphabet of characters, the left part may begin with a space.
            let space = merge.bytes().skip(1).position(|byte| byte == b' ').map(|at| at + 1);
            let Some((left, right)) = space.and_then(|at| Some((merge.get(..at)?, merge.get(at + 1..)?)))
            else {
                continue;
            };
            joint.clear();
            joint.push_str(left);
            joint.push_str(right);
            let (left, right) = (symbols.id(left), symbols.id(right));
            // Tokens are mostly in the order of training, so a merge's result follows the previous
            // merge's.
            let is_next = vocabulary.n_repeated() == 0 && vocabulary.text_bytes(made + 1) == joint.as_bytes();
            made = if is_next { made + 1 } else { symbols.id(&joint) };
            // For a repeated pair the earlier entry has the better rank.
            table.entry(key(left, right)).or_insert((index as u32, made));
        }
        let mut bytes = [NO_TOKEN; 256];
        for (byte, id) in bytes.iter_mut().enumerate() {
            let token = match preset.alphabet {
                Alphabet::Bytes => {
                    byte_level::CHARS.get(byte).and_then(|c| symbols.known(c.encode_utf8(&mut [0; 4])))
                }
                Alphabet::SpaceMark | Alphabet::Characters => vocabulary.id(&format!("<0x{byte:02X}>")),
            };
            *id = token.unwrap_or(NO_TOKEN);
        }
        Ok(BytePairs {
            pre_tokenizer: PreTokenizer::new(preset),
            merges: table,
            symbols: symbols.unknown,
            bytes,
            preset,
            by_words: false,
            lowercase: false,
        })
    }

    /// Splits text at its spaces, drops them, and perhaps converts the rest to lower case.
    pub(crate) fn by_words(&mut self, lowercase: bool) {
        (self.by_words, self.lowercase) = (true, lowercase);
    }

    /// Compiles the patterns, see [`crate::Tokenizer::prepare`].
    pub(crate) fn prepare(&self) {
        self.pre_tokenizer.prepare();
    }

    /// Appends the tokens of a text without special tokens. Bytes without a token are dropped, as
    /// the models' own tokenizers do.
    pub(crate) fn encode(&self, vocabulary: &Vocabulary, text: &str, out: &mut Vec<u32>) {
        if !self.by_words {
            return self.encode_words(vocabulary, text, out);
        }
        for word in text.split_whitespace() {
            match self.lowercase {
                // One character for one: the rest of a longer mapping is dropped.
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
                    let mut own = [0; 4];
                    let text = &*c.encode_utf8(&mut own);
                    let id = normal(vocabulary, text).or_else(|| self.symbols.get(text).copied());
                    merger.push(at, c.len_utf8(), id.unwrap_or(NO_TOKEN));
                }
            } else {
                for (at, &byte) in word.as_bytes().iter().enumerate() {
                    merger.push(at, 1, self.bytes.get(usize::from(byte)).copied().unwrap_or(NO_TOKEN));
                }
            }
            for symbol in merger.merge(|left, right| self.merged(left, right)) {
                let is_token = |id: u32| (id as usize) < vocabulary.len();
                if is_token(symbol.id) {
                    out.push(symbol.id);
                } else {
                    let bytes = word.as_bytes().iter().skip(symbol.start as usize).take(symbol.len as usize);
                    let ids = bytes.filter_map(|&byte| self.bytes.get(usize::from(byte)).copied());
                    out.extend(ids.filter(|&id| is_token(id)));
                }
            }
        });
    }

    fn merged(&self, left: &Symbol, right: &Symbol) -> Option<Merged> {
        self.merges.get(&key(left.id, right.id)).map(|&(rank, id)| Merged { rank, id })
    }

    /// The token of a whole word, for vocabularies that look it up first.
    fn whole_word(&self, vocabulary: &Vocabulary, word: &str, spelled: &mut String) -> Option<u32> {
        // Runs of newlines are tokens that no merges produce.
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

/// The texts that merges name: tokens, and symbols that are not tokens.
struct Symbols<'a> {
    vocabulary: &'a Vocabulary,
    unknown: HashMap<String, u32, foldhash::fast::RandomState>,
}

impl<'a> Symbols<'a> {
    fn of(vocabulary: &'a Vocabulary) -> Symbols<'a> {
        Symbols { vocabulary, unknown: HashMap::default() }
    }

    fn known(&self, text: &str) -> Option<u32> {
        let token = normal(self.vocabulary, text).or_else(|| self.vocabulary.id(text));
        token.or_else(|| self.unknown.get(text).copied())
    }

    /// The token of this text, or a symbol for it.
    fn id(&mut self, text: &str) -> u32 {
        let next = (self.vocabulary.len() + self.unknown.len()) as u32;
        self.known(text).unwrap_or_else(|| *self.unknown.entry(text.into()).or_insert(next))
    }
}

/// The token of this text, unless it is special.
fn normal(vocabulary: &Vocabulary, text: &str) -> Option<u32> {
    vocabulary.id_of(text, |kind| !matches!(kind, Kind::Control | Kind::Unknown | Kind::Byte))
}

fn key(left: u32, right: u32) -> u64 {
    u64::from(left) << 32 | u64::from(right)
}

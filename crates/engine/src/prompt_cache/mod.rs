//! Prompt caches on disk: the keys and values of a text, for another process whose prompt begins
//! with the same text.
//!
//! A file holds the cached prefix of one text: its tokens and its KV pages, byte for byte in the
//! device's layout. Opening it puts them back into the prefix cache, which finds the longest common
//! prefix as for any other prompt. A file belongs to one model, device, KV type and arithmetic,
//! which its header names. Other engines refuse it and leave it unchanged.
//!
//! The format, in little endian:
//!
//! | bytes | contents |
//! |---|---|
//! | 8 | `INGLEKV\n` |
//! | 4 | version, 3 (1 had the CPU's pages in another order, 2 keys with their biases) |
//! | 4 | length of the header, at most 65,536 |
//! | | the header, in JSON: see [`Header`] |
//! | 4 each | the tokens |
//! | 1 each | `(pages, groups)`: 1 if the page is in the file, 0 if a window has freed it |
//! | | the pages that are in the file, in the same order |
//! | 8 | xxh64 (seed 0) of everything before |

mod file;
mod folder;

use std::path::{Path, PathBuf};

use device::{Numerics, Plan};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh64::Xxh64;

use crate::memory::kv_type_name;
use crate::{Engine, Result};

pub(crate) use folder::PrefixFolder;
pub use folder::Restored;

/// Header of a file. All fields but `n_tokens` must be those that the engine would write.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Header {
    /// Fingerprint of the model in 16 hexadecimal digits: see [`fingerprint`].
    model: String,
    /// Device whose layout the pages have.
    device: String,
    /// Storage type of keys and values.
    kv_type: String,
    /// Arithmetic that computed them: `fast` or `deterministic`.
    numerics: String,
    /// Positions of a page.
    page_len: usize,
    /// Window of each KV group, in positions.
    windows: Vec<Option<usize>>,
    /// Bytes of a page of each KV group.
    page_bytes: Vec<usize>,
    /// Number of tokens that follow.
    n_tokens: usize,
}

impl Header {
    /// Header that `engine` writes before `n_tokens` tokens.
    fn of(engine: &Engine, n_tokens: usize) -> Header {
        let (plan, limits) = (engine.plan(), engine.limits());
        let groups = 0..plan.kv.groups.len();
        Header {
            model: format!("{:016x}", fingerprint(plan)),
            device: engine.device().name().to_owned(),
            kv_type: kv_type_name(limits.kv_type).to_owned(),
            numerics: match limits.numerics {
                Numerics::Fast => "fast",
                Numerics::Deterministic => "deterministic",
            }
            .to_owned(),
            page_len: limits.page_len,
            windows: plan.kv.groups.iter().map(|group| group.window).collect(),
            page_bytes: groups.map(|g| plan.kv.page_bytes(g, limits.kv_type, limits.page_len)).collect(),
            n_tokens,
        }
    }

    /// The first difference between a file's header and the expected one, as a message for the
    /// user.
    fn difference(&self, expected: &Header) -> Option<String> {
        let differs = |what: &str, found: &str, expected: &str| {
            (found != expected).then(|| format!("it was made with {what} {found}, and this is {expected}"))
        };
        if self.model != expected.model {
            return Some(
                "it was made with another model, or another context length that changes its positions".into(),
            );
        }
        let named = differs("device", &self.device, &expected.device)
            .or_else(|| differs("KV type", &self.kv_type, &expected.kv_type))
            .or_else(|| differs("arithmetic", &self.numerics, &expected.numerics));
        let sizes = |h: &Header| {
            format!("{} positions, {:?} bytes, windows {:?}", h.page_len, h.page_bytes, h.windows)
        };
        named.or_else(|| differs("pages of", &sizes(self), &sizes(expected)))
    }
}

/// Salt of prefixes that were read from a file: every request may use them.
const NO_SALT: u64 = 0;

/// Fingerprint of a model: xxh64 over its Ops, and over the type, shape, length, start and end of
/// each of its weights. Start and end are 4 KiB each, so a large model is not read.
fn fingerprint(plan: &Plan) -> u64 {
    const END: usize = 4 << 10;
    let mut hash = Xxh64::new(0);
    for op in plan.primitives() {
        hash.update(format!("{op:?}").as_bytes());
    }
    for weight in &plan.weights {
        hash.update(format!("{} {:?} {}", weight.block, weight.shape, weight.n_bytes()).as_bytes());
        for view in weight.views() {
            hash.update(&view[..view.len().min(END)]);
            hash.update(&view[view.len().saturating_sub(END)..]);
        }
    }
    hash.digest()
}

/// A prompt cache on disk and the tokens in it.
#[derive(Debug)]
pub struct PromptCache {
    file: PathBuf,
    tokens: Vec<u32>,
}

impl PromptCache {
    /// Load a file into the prefix cache of `engine`. A missing file counts as empty.
    ///
    /// # Errors
    /// [`crate::Error::PromptCache`]: it cannot be read, is damaged, or belongs to another model or
    /// setting; [`crate::Error::Busy`] if no slot is free.
    pub fn open(engine: &mut Engine, file: &Path) -> Result<PromptCache> {
        let tokens = file::read(engine, file, NO_SALT)?;
        Ok(PromptCache { file: file.to_owned(), tokens })
    }

    /// Number of tokens in the file.
    pub fn n_tokens(&self) -> usize {
        self.tokens.len()
    }

    /// Write the cached prefix of `tokens` to the file, unless the file holds it already. The file
    /// is replaced as a whole or not at all. Returns the number of tokens that it then holds.
    ///
    /// # Errors
    /// [`crate::Error::PromptCache`]: it cannot be written; the old file stays.
    pub fn save(&mut self, engine: &mut Engine, tokens: &[u32]) -> Result<usize> {
        let (n_tokens, pages) = engine.scheduler.kv.cached(NO_SALT, tokens);
        let tokens = &tokens[..n_tokens];
        if !self.tokens.starts_with(tokens) {
            file::write(engine, &self.file, tokens, &pages)?;
            self.tokens = tokens.to_vec();
        }
        Ok(self.tokens.len())
    }
}

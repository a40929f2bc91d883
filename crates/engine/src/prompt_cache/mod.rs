//! Prompt caches on disk: the keys and values of a text, for another process that begins with the same text.
//!
//! A file holds what the prefix cache has of one text: its tokens and its KV pages, byte for byte as the device lays them
//! out. Opening it puts them back into the prefix cache, so that finding the longest common prefix, to the token and with
//! windows, is what it is for any other prompt. A file belongs to one model, device, KV type and arithmetic, which its
//! header names; of any other it is refused, and stays as it is.
//!
//! The format, in little endian:
//!
//! | bytes | what |
//! |---|---|
//! | 8 | `INGLEKV\n` |
//! | 4 | version, 3 (1 had the CPU's pages in another order, 2 keys with their biases) |
//! | 4 | length of the header, at most 65,536 |
//! | | the header, in JSON: see [`Header`] |
//! | 4 each | the tokens |
//! | 1 each | `(pages, groups)`: 1 where the page is here, 0 where a window has let go of it |
//! | | the pages that are here, in the same order |
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

/// What a file says of itself. All but `n_tokens` must be what the engine would write.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Header {
    /// 16 hexadecimal digits: see [`fingerprint`].
    model: String,
    /// The device whose layout the pages have.
    device: String,
    /// How keys and values are stored.
    kv_type: String,
    /// Which arithmetic computed them.
    numerics: String,
    /// Positions of a page.
    page_len: usize,
    /// Window of each KV group.
    windows: Vec<Option<usize>>,
    /// Bytes of a page of each KV group.
    page_bytes: Vec<usize>,
    /// How many tokens follow.
    n_tokens: usize,
}

impl Header {
    /// What `engine` would write before `n_tokens` tokens.
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

    /// How a file's header differs from what it should be, in words for the person who gave the file.
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

/// What is read from a file is for everybody.
const NO_SALT: u64 = 0;

/// Names a model: xxh64 over its Ops, and over the type, shape, length, start and end of each of its weights. The ends are
/// 4 KiB each, so that naming a large model does not read it.
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

/// A prompt cache on disk and what it holds.
#[derive(Debug)]
pub struct PromptCache {
    file: PathBuf,
    tokens: Vec<u32>,
}

impl PromptCache {
    /// Put what a file holds into the prefix cache of `engine`. A file that is not there yet holds nothing.
    ///
    /// # Errors
    /// [`crate::Error::PromptCache`]: it cannot be read, is damaged, or belongs to another model or setting;
    /// [`crate::Error::Busy`] if no slot is free.
    pub fn open(engine: &mut Engine, file: &Path) -> Result<PromptCache> {
        let tokens = file::read(engine, file, NO_SALT)?;
        Ok(PromptCache { file: file.to_owned(), tokens })
    }

    /// Tokens that the file holds.
    pub fn n_tokens(&self) -> usize {
        self.tokens.len()
    }

    /// Write what the prefix cache of `engine` has of `tokens`, in place of what the file holds; nothing, if the file
    /// holds that already. The file is there whole or not at all. Returns how many tokens it then holds.
    ///
    /// # Errors
    /// [`crate::Error::PromptCache`]: it cannot be written; what was there stays.
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

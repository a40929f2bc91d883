//! The null device: it computes nothing and checks everything, so that schedulers are tested
//! without a model.
//!
//! A KV page holds a hash of the sequence's tokens up to each position ([`history`]). A step's row
//! reads the hash of the position before its own through the page table, mixes in its token, and
//! stores the result. Its logits are a function of that hash ([`next_token`]). So the output
//! depends on the tokens of the sequence alone, as a real model's does. Slots, page numbers,
//! batches and chunks do not matter. A page that is missing, stale, shared by mistake or not copied
//! causes an error or another token.
//!
//! A plan that writes encoder states stores [`encoder_states`], a hash of its span's input, at each
//! of their positions. In a plan that reads them, a sequence's history begins with that hash
//! ([`history_with`]).
//!
//! ```
//! use ingle_device_testing::null;
//! // The null device's best token after tokens 5, 6, 7, of 100:
//! let token = null::next_token(&[5, 6, 7], 100);
//! assert!(token < 100);
//! ```

mod program;
#[cfg(test)]
mod tests;

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use device::{
    Arithmetic, Device, FusedKind, KvLayer, KvType, Limits, MemoryPlan, OwnedStep, Peaks, Plan, Program,
    Result, Weight,
};
use device_lower::hosted::Hosted;

use program::NullProgram;

const NAME: &str = "null";

/// Maximum number of rows of a background step, in which each part computes one row.
const BACKGROUND_ROWS: usize = 16;

/// Logit of the best token; all others are below 0.
pub const BEST_LOGIT: f32 = 8.0;

/// Hash of no tokens.
const EMPTY: u64 = 0x9e37_79b9_7f4a_7c15;

/// SplitMix64's output function (Steele, Lea and Flood, 2014): every bit of `x` reaches every bit
/// of the result.
const fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Hash of a history with one more token; never 0, which means "not written".
const fn extend(history: u64, token: u32) -> u64 {
    mix(history.wrapping_add(EMPTY) ^ token as u64) | 1
}

/// Hash of a sequence's tokens, from the first.
pub fn history(tokens: &[u32]) -> u64 {
    history_with(EMPTY, tokens)
}

/// Hash of a sequence's tokens after another hash, such as that of [`encoder_states`].
pub fn history_with(before: u64, tokens: &[u32]) -> u64 {
    tokens.iter().fold(before, |history, token| extend(history, *token))
}

/// Hash of a span's rows of [`device::Step::input`], for a plan that writes encoder states.
pub fn encoder_states(input: &[f32]) -> u64 {
    input.iter().fold(mix(EMPTY) | 1, |hash, number| extend(hash, number.to_bits()))
}

/// A number of a kept value, in [0, 1): a function of its row's history and its column.
pub fn kept(history: u64, column: usize) -> f32 {
    (mix(history ^ mix(column as u64 + 1)) >> 40) as f32 / (1u64 << 24) as f32
}

/// The token with logit [`BEST_LOGIT`] after these tokens.
pub fn next_token(tokens: &[u32], n_vocab: usize) -> u32 {
    best(history(tokens), n_vocab)
}

/// `n` tokens that greedy sampling chooses after a prompt.
pub fn greedy(prompt: &[u32], n: usize, n_vocab: usize) -> Vec<u32> {
    let mut hash = history(prompt);
    let mut next = || {
        let token = best(hash, n_vocab);
        hash = extend(hash, token);
        token
    };
    (0..n).map(|_| next()).collect()
}

fn best(history: u64, n_vocab: usize) -> u32 {
    (mix(history) % n_vocab as u64) as u32
}

/// A logit: [`BEST_LOGIT`] for the best token, otherwise a number in [-1, 0) that depends on the
/// history.
pub fn logit(history: u64, token: u32, n_vocab: usize) -> f32 {
    if token == best(history, n_vocab) {
        return BEST_LOGIT;
    }
    -((mix(history ^ mix(token as u64 + 1)) >> 40) as f32 + 1.0) / (1u64 << 24) as f32
}

/// A plan for the null device: an embedding, a KvWrite and an Attention for each layer, and a head.
/// Every device can run it.
pub fn plan(n_vocab: usize, layers: &[KvLayer]) -> Plan {
    plan_of(n_vocab, 1, layers, 0)
}

/// Like [`plan`], with recurrent layers before the others. Their states hold the history of a
/// sequence like its pages do; if both exist, they must agree.
pub fn plan_with_states(n_vocab: usize, layers: &[KvLayer], n_recurrent: usize) -> Plan {
    plan_of(n_vocab, 4, layers, n_recurrent)
}

/// A plan whose values have `cols` columns.
fn plan_of(n_vocab: usize, cols: usize, layers: &[KvLayer], n_recurrent: usize) -> Plan {
    use crate::{AttentionOptions, PlanBuilder};
    let mut b = PlanBuilder::new(0, n_vocab);
    let mut x = b.embed(cols);
    for index in 0..n_recurrent {
        b.layer(Some(index as u32));
        x = b.short_conv(x, 3, false);
    }
    for (index, layer) in layers.iter().enumerate() {
        b.layer(Some((n_recurrent + index) as u32));
        let id = b.kv_layer(*layer);
        let v = b.linear(x, layer.n_kv_heads * layer.head_dim, weights::BlockType::F32, false);
        b.kv_write(v, v, id);
        let options = AttentionOptions { window: layer.window, ..AttentionOptions::default() };
        let y = b.attention(v, id, layer.n_kv_heads, options);
        x = b.linear(y, cols, weights::BlockType::F32, false);
    }
    b.layer(None);
    let x = b.select_rows(x);
    let logits = b.linear(x, n_vocab, weights::BlockType::F32, false);
    b.finish(logits)
}

/// A call of a program that was not refused, in order.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// [`Program::submit`], after the check, with the tokens of its links.
    Submit(Box<OwnedStep>),
    /// [`Program::copy_page`]: group, from, to.
    CopyPage(usize, u32, u32),
    /// [`Program::commit`]: group, pages.
    Commit(usize, Range<u32>),
    /// [`Program::decommit`]: group, pages.
    Decommit(usize, Range<u32>),
}

/// The device `null`.
#[derive(Clone, Debug, Default)]
pub struct NullDevice {
    rules: Vec<FusedKind>,
    memory: Option<platform::SystemMemory>,
    /// Maximum number of steps in flight, minus one.
    ahead: usize,
    /// Pages of a granule, minus one.
    beside: usize,
    /// Recorded events, shared with the programs; absent if nothing is recorded, and then a step
    /// allocates nothing.
    events: Option<Arc<Mutex<Vec<Event>>>>,
}

impl NullDevice {
    /// A device with this fusion profile.
    pub fn with_fusion(self, rules: &[FusedKind]) -> NullDevice {
        NullDevice { rules: rules.to_vec(), ..self }
    }

    /// A device on a machine with this memory, for tests of memory limits; otherwise the real
    /// machine's.
    pub fn with_memory(self, memory: platform::SystemMemory) -> NullDevice {
        NullDevice { memory: Some(memory), ..self }
    }

    /// A device with `n` steps in flight, like a GPU. Each step is computed when it is submitted.
    pub fn with_steps_in_flight(self, n: usize) -> NullDevice {
        NullDevice { ahead: n.saturating_sub(1), ..self }
    }

    /// A device with granules of `n_pages` pages; otherwise a page is a granule.
    pub fn with_granule(self, n_pages: usize) -> NullDevice {
        NullDevice { beside: n_pages.saturating_sub(1), ..self }
    }

    /// A device that records the calls of its programs. Without recording, a step allocates
    /// nothing.
    pub fn recording(self) -> NullDevice {
        NullDevice { events: Some(Arc::default()), ..self }
    }

    /// Calls since the last call of this function, if the device records.
    pub fn take_events(&self) -> Vec<Event> {
        let Some(events) = &self.events else { return vec![] };
        std::mem::take(&mut events.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Device for NullDevice {
    fn name(&self) -> &'static str {
        NAME
    }

    fn describe(&self) -> String {
        "null device, computes nothing".to_owned()
    }

    fn n_threads(&self) -> usize {
        1
    }

    fn memory(&self) -> platform::SystemMemory {
        self.memory.unwrap_or_else(platform::system_memory)
    }

    fn fusion(&self) -> &[FusedKind] {
        &self.rules
    }

    fn background_rows(&self) -> usize {
        BACKGROUND_ROWS
    }

    fn kv_types(&self) -> &[KvType] {
        &[KvType::F16, KvType::F32, KvType::I16, KvType::I8, KvType::Q8_0, KvType::Fp8]
    }

    /// The memory of a real device for weights and pages.
    fn memory_plan(&self, plans: &[Plan], limits: &Limits) -> Result<MemoryPlan> {
        limits.check(self, plans)?;
        Ok(MemoryPlan::of_weights_and_kv(plans, limits, |_| true))
    }

    fn compile(&self, plans: &[Plan], limits: &Limits) -> Result<Box<dyn Program>> {
        limits.check(self, plans)?;
        let program = NullProgram::new(self, plans, limits);
        Ok(Box::new(Hosted::new(program, plans.iter(), limits, self.ahead + 1, 1)))
    }

    /// Any arithmetic: the device multiplies nothing.
    fn arithmetic(&self, _: &Weight) -> Arithmetic {
        Arithmetic::F32
    }

    /// Arbitrary round numbers.
    fn peaks(&self) -> Peaks {
        Peaks {
            read_bytes_per_second: 1e12,
            int8_ops_per_second: 1e12,
            bf16_ops_per_second: 1e12,
            f32_ops_per_second: 1e12,
        }
    }
}

/// A layer for tests: one head of 16 columns.
pub fn layer(window: Option<usize>) -> KvLayer {
    KvLayer { n_kv_heads: 1, head_dim: 16, window, encoder_states: None, values_are_keys: false }
}

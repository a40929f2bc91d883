//! The null device: it computes nothing and checks everything, so that schedulers are tested without a model.
//!
//! What it keeps in a KV page is, for each position, a hash of the sequence's tokens up to there ([`history`]). A step's row
//! reads the hash of the position before its own through the page table, mixes in its token, and stores the result; its
//! logits are a function of that hash ([`next_token`]). So the output is what a real model's is: a function of the tokens of
//! the sequence and of nothing else. Slots, page numbers, batches and chunks do not matter, and a page that is missing,
//! stale, shared by mistake or not copied gives an error or another token.
//!
//! A plan that writes encoder states stores [`encoder_states`], a hash of its span's input, at each of their positions. In
//! a plan that reads them, a sequence's history begins with that hash ([`history_with`]) instead of with nothing.
//!
//! ```
//! use ingle_device_testing::null;
//! // After tokens 5, 6, 7 the null device's best token, of 100:
//! let token = null::next_token(&[5, 6, 7], 100);
//! assert!(token < 100);
//! ```

mod program;
#[cfg(test)]
mod tests;

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use device::{
    Arithmetic, Device, KvLayer, KvType, Limits, MemoryPlan, OwnedStep, Peaks, Plan, Program, Result, Rule,
    Weight,
};
use device_lower::hosted::Hosted;

use program::NullProgram;

const NAME: &str = "null";

/// Rows of a step in the background, of which a part computes one.
const BACKGROUND_ROWS: usize = 16;

/// The logit of the best token; all others are below 0.
pub const BEST_LOGIT: f32 = 8.0;

/// Hash of no tokens.
const EMPTY: u64 = 0x9e37_79b9_7f4a_7c15;

/// SplitMix64's output function (Steele, Lea and Flood, 2014): every bit of `x` reaches every bit of the result.
const fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// The hash of a history with one more token; never 0, which means "not written".
const fn extend(history: u64, token: u32) -> u64 {
    mix(history.wrapping_add(EMPTY) ^ token as u64) | 1
}

/// The hash of a sequence's tokens, from its first.
pub fn history(tokens: &[u32]) -> u64 {
    history_with(EMPTY, tokens)
}

/// The hash of a sequence's tokens after another hash, such as that of [`encoder_states`].
pub fn history_with(before: u64, tokens: &[u32]) -> u64 {
    tokens.iter().fold(before, |history, token| extend(history, *token))
}

/// The hash of what a span gives a plan that writes encoder states: its rows of [`device::Step::input`].
pub fn encoder_states(input: &[f32]) -> u64 {
    input.iter().fold(mix(EMPTY) | 1, |hash, number| extend(hash, number.to_bits()))
}

/// A number of a value that is kept, in [0, 1): its row's history at that column.
pub fn kept(history: u64, column: usize) -> f32 {
    (mix(history ^ mix(column as u64 + 1)) >> 40) as f32 / (1u64 << 24) as f32
}

/// The token whose logit is [`BEST_LOGIT`] after these tokens.
pub fn next_token(tokens: &[u32], n_vocab: usize) -> u32 {
    best(history(tokens), n_vocab)
}

/// `n` tokens that greedy sampling gives after a prompt.
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

/// A logit: [`BEST_LOGIT`] for the best token, for others a number in [-1, 0) that depends on the history.
pub fn logit(history: u64, token: u32, n_vocab: usize) -> f32 {
    if token == best(history, n_vocab) {
        return BEST_LOGIT;
    }
    -((mix(history ^ mix(token as u64 + 1)) >> 40) as f32 + 1.0) / (1u64 << 24) as f32
}

/// A plan for the null device: an embedding, one KvWrite and Attention for each layer, a head. Every device can run it.
pub fn plan(n_vocab: usize, layers: &[KvLayer]) -> Plan {
    plan_of(n_vocab, 1, layers, 0)
}

/// The same with recurrent layers before the others: their states hold the history of a sequence as its pages do, and where
/// both are there they must agree.
pub fn plan_with_states(n_vocab: usize, layers: &[KvLayer], n_recurrent: usize) -> Plan {
    plan_of(n_vocab, 4, layers, n_recurrent)
}

/// Of so many columns.
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

/// What a program was asked and did not refuse, in order.
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
    rules: Vec<Rule>,
    memory: Option<platform::SystemMemory>,
    /// Less one: steps that may be in flight.
    ahead: usize,
    /// Less one: pages of a granule.
    beside: usize,
    /// Shared with the programs; absent: nothing is recorded, and a step allocates nothing.
    events: Option<Arc<Mutex<Vec<Event>>>>,
}

impl NullDevice {
    /// With a fusion profile.
    pub fn with_fusion(self, rules: &[Rule]) -> NullDevice {
        NullDevice { rules: rules.to_vec(), ..self }
    }

    /// On a machine of this memory, for tests of what fits; without, the machine's own.
    pub fn with_memory(self, memory: platform::SystemMemory) -> NullDevice {
        NullDevice { memory: Some(memory), ..self }
    }

    /// With so many steps in flight, as on a GPU. Each is computed when it is submitted.
    pub fn with_steps_in_flight(self, n: usize) -> NullDevice {
        NullDevice { ahead: n.saturating_sub(1), ..self }
    }

    /// With granules of so many pages; without, a page is a granule.
    pub fn with_granule(self, n_pages: usize) -> NullDevice {
        NullDevice { beside: n_pages.saturating_sub(1), ..self }
    }

    /// Recording what its programs are asked. Without, a step allocates nothing.
    pub fn recording(self) -> NullDevice {
        NullDevice { events: Some(Arc::default()), ..self }
    }

    /// What was asked since the last call, if it is recording.
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

    fn fusion(&self) -> &[Rule] {
        &self.rules
    }

    fn background_rows(&self) -> usize {
        BACKGROUND_ROWS
    }

    fn kv_types(&self) -> &[KvType] {
        &[KvType::F16, KvType::F32, KvType::I16, KvType::I8, KvType::Q8_0, KvType::Fp8]
    }

    /// What a real device would take for weights and pages.
    fn memory_plan(&self, plans: &[Plan], limits: &Limits) -> Result<MemoryPlan> {
        limits.check(self, plans)?;
        Ok(MemoryPlan::of_weights_and_kv(plans, limits, |_| true))
    }

    fn compile(&self, plans: &[Plan], limits: &Limits) -> Result<Box<dyn Program>> {
        limits.check(self, plans)?;
        let program = NullProgram::new(self, plans, limits);
        Ok(Box::new(Hosted::new(program, plans.iter(), limits, self.ahead + 1, 1)))
    }

    /// It multiplies nothing.
    fn arithmetic(&self, _: &Weight) -> Arithmetic {
        Arithmetic::F32
    }

    /// Made-up round numbers.
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

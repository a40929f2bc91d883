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
//! Past 600 lines with its tests, which show what a scheduler can rely on.
//!
//! ```
//! use ingle_device_testing::null;
//! // After tokens 5, 6, 7 the null device's best token, of 100:
//! let token = null::next_token(&[5, 6, 7], 100);
//! assert!(token < 100);
//! ```

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use device::{
    Arithmetic, BackgroundProgress, CommandInfo, Device, Error, GroupUse, KvLayer, KvType, Limits,
    MemoryPlan, Needs, OwnedStep, Peaks, Plan, Program, Result, RowCount, Rule, STATE_NONE, Span, StateUse,
    Step, Timing, ValueId, Want, Weight,
};
use device_lower::hosted::{HostProgram, Hosted};

const NAME: &str = "null";

/// Rows of a step in the background, of which a part computes one.
const BACKGROUND_ROWS: usize = 16;

/// How long a part is said to take.
const PART: Duration = Duration::from_micros(100);

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

/// The hash of what a span gives a plan that writes encoder states: its rows of [`Step::input`].
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
    use crate::{AttentionOptions, PlanBuilder};
    let mut b = PlanBuilder::new(0, n_vocab);
    let mut x = b.embed(1);
    for (index, layer) in layers.iter().enumerate() {
        b.layer(Some(index as u32));
        let id = b.kv_layer(*layer);
        let v = b.linear(x, layer.n_kv_heads * layer.head_dim, weights::BlockType::F32, false);
        b.kv_write(v, v, id);
        let options = AttentionOptions { window: layer.window, ..AttentionOptions::default() };
        let y = b.attention(v, id, layer.n_kv_heads, options);
        x = b.linear(y, 1, weights::BlockType::F32, false);
    }
    b.layer(None);
    let x = b.select_rows(x);
    let logits = b.linear(x, n_vocab, weights::BlockType::F32, false);
    b.finish(logits)
}

/// The same with recurrent layers before the others: their states hold the history of a sequence as its pages do, and where
/// both are there they must agree.
pub fn plan_with_states(n_vocab: usize, layers: &[KvLayer], n_recurrent: usize) -> Plan {
    use crate::{AttentionOptions, PlanBuilder};
    let mut b = PlanBuilder::new(0, n_vocab);
    let mut x = b.embed(4);
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
        x = b.linear(y, 4, weights::BlockType::F32, false);
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
        let compiled = plans;
        let plans: Vec<NullPlan> = plans.iter().map(|plan| NullPlan::new(plan, limits)).collect();
        let n_logits = plans.iter().map(|plan| plan.n_vocab).max().unwrap_or(0);
        let program = NullProgram {
            hashes: limits.n_pages.iter().map(|n| vec![0; n * limits.page_len]).collect(),
            states: vec![0; limits.n_states],
            histories: vec![0; limits.max_rows],
            logits: vec![0.0; limits.max_outputs * n_logits],
            page_tables: Vec::new(),
            kept: kept_buffers(&plans, limits),
            granule: self.beside + 1,
            plans,
            limits: limits.clone(),
            current: 0,
            n_outputs: 0,
            background: (OwnedStep::default(), 0),
            events: self.events.clone(),
        };
        Ok(Box::new(Hosted::new(program, compiled.iter(), limits, self.ahead + 1, 1)))
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

/// What is known of a plan.
struct NullPlan {
    needs: Needs,
    nodes: Vec<(String, Option<u32>)>,
    n_vocab: usize,
    /// Rows and columns.
    kept: Vec<(RowCount, usize)>,
}

impl NullPlan {
    fn new(plan: &Plan, limits: &Limits) -> NullPlan {
        let kept = |id: &device::ValueId| (plan.value(*id).rows, plan.value(*id).cols);
        NullPlan {
            needs: Needs::new(plan, limits),
            nodes: plan.nodes.iter().map(|node| (node.op.kind().to_string(), node.layer)).collect(),
            n_vocab: plan.value(plan.output).cols,
            kept: plan.kept.iter().map(kept).collect(),
        }
    }
}

/// Empty buffers with room for what any of the plans keeps.
fn kept_buffers(plans: &[NullPlan], limits: &Limits) -> Vec<Vec<f32>> {
    let n_kept = plans.iter().map(|plan| plan.kept.len()).max().unwrap_or(0);
    let len = |(rows, cols): &(RowCount, usize)| rows.count(limits.max_rows, limits.max_outputs) * cols;
    let most = |index: usize| plans.iter().filter_map(|plan| plan.kept.get(index).map(len)).max();
    (0..n_kept).map(|index| Vec::with_capacity(most(index).unwrap_or(0))).collect()
}

struct NullProgram {
    /// By group: `(n_pages, page_len)` hashes of histories; 0: not written.
    hashes: Vec<Vec<u64>>,
    plans: Vec<NullPlan>,
    /// Of the last step.
    current: usize,
    /// `(n_states)` histories; 0: not written.
    states: Vec<u64>,
    /// By row of the last step.
    histories: Vec<u64>,
    logits: Vec<f32>,
    /// As of the last step, kept by [`Step::table_changes`] as on a device with memory of its own; rows read this copy.
    page_tables: Vec<u32>,
    /// Of the last step.
    kept: Vec<Vec<f32>>,
    granule: usize,
    limits: Limits,
    n_outputs: usize,
    /// The step in the background, and how many of its rows are done.
    background: (OwnedStep, usize),
    events: Option<Arc<Mutex<Vec<Event>>>>,
}

impl NullProgram {
    fn record(&self, event: impl FnOnce() -> Event) {
        if let Some(events) = &self.events {
            events.lock().unwrap_or_else(PoisonError::into_inner).push(event());
        }
    }

    fn fail<T>(&self, reason: String) -> Result<T> {
        Err(Error::Failed { device: NAME, reason })
    }

    fn n_vocab(&self) -> usize {
        self.plans[self.current].n_vocab
    }

    /// The hash of what comes before `position`, which all groups must agree on; and whether all of the window, and of the
    /// encoder states that the plan reads, is there.
    fn history_before(&self, step: &Step, span: &Span, position: usize) -> Result<u64> {
        let (mut history, mut states) = (None, None);
        let needs = &self.plans[step.plan].needs;
        for (group, usage) in needs.groups.iter().enumerate() {
            let positions = match usage {
                GroupUse::Sequence { window } => {
                    window.map_or(0, |window| (position + 1).saturating_sub(window))..position
                }
                GroupUse::EncoderStates { n, written: false } => 0..*n,
                GroupUse::EncoderStates { written: true, .. } | GroupUse::Unused => continue,
            };
            let table = step.page_table(span.slot, group, needs.groups.len());
            let of_encoder = !matches!(usage, GroupUse::Sequence { .. });
            for at in positions {
                let hash = self.hashes[group][self.cell(table, at)];
                let slot = span.slot;
                if hash == 0 {
                    return self
                        .fail(format!("slot {slot}, position {at} of KV group {group} was never written"));
                }
                if !of_encoder && at + 1 < position {
                    continue;
                }
                let expected = if of_encoder { &mut states } else { &mut history };
                if *expected.get_or_insert(hash) != hash {
                    let other =
                        format!("slot {slot}, position {at} of KV group {group} holds another sequence's");
                    return self.fail(other);
                }
            }
        }
        Ok(history.or(states).unwrap_or(EMPTY))
    }

    fn cell(&self, table: &[u32], position: usize) -> usize {
        let page_len = self.limits.page_len;
        table[position / page_len] as usize * page_len + position % page_len
    }

    /// Run a step from the device's copy of the page tables.
    fn step_with_tables(&mut self, step: &Step) -> Result<()> {
        let mut page_tables = std::mem::take(&mut self.page_tables);
        match step.table_changes {
            Some(changes) if page_tables.len() == step.page_tables.len() => {
                changes.iter().for_each(|&i| page_tables[i as usize] = step.page_tables[i as usize]);
            }
            _ => {
                page_tables.clear();
                page_tables.extend_from_slice(step.page_tables);
            }
        }
        let ran = self.step(&Step { page_tables: &page_tables, ..*step });
        self.page_tables = page_tables;
        ran
    }

    fn step(&mut self, step: &Step) -> Result<()> {
        self.current = step.plan;
        self.n_outputs = 0;
        let (n_rows, n_groups) = (step.tokens.len(), self.hashes.len());
        let writes_states = self.plans[step.plan]
            .needs
            .groups
            .iter()
            .any(|usage| matches!(usage, GroupUse::EncoderStates { written: true, .. }));
        // Numbers of the input for each token.
        let per_token = step.input.len().checked_div(n_rows).unwrap_or(0);
        let n_vocab = self.n_vocab();
        for (index, span) in step.spans.iter().enumerate() {
            let input =
                span.first_row as usize * per_token..(span.first_row + span.n_rows) as usize * per_token;
            let states = encoder_states(&step.input[input]);
            let state = step.states.get(index);
            let mut carried = state.map_or(Ok(EMPTY), |state| self.state(state.from))?;
            for row in 0..span.n_rows {
                let position = (span.first_position + row) as usize;
                let mut before = self.history_before(step, span, position)?;
                if let Some(state) = state {
                    let has_pages = self.plans[step.plan].needs.groups.iter().any(GroupUse::is_of_sequence);
                    if has_pages && before != carried {
                        let what = format!(
                            "state {} before row {row} of {span:?} is of another history",
                            state.from
                        );
                        return self.fail(what);
                    }
                    before = carried;
                }
                let row = (span.first_row + row) as usize;
                let hash = if writes_states { states } else { extend(before, step.tokens[row]) };
                self.histories[row] = hash;
                carried = hash;
                for group in 0..n_groups {
                    let read_only = matches!(
                        self.plans[step.plan].needs.groups[group],
                        GroupUse::Unused | GroupUse::EncoderStates { written: false, .. }
                    );
                    if !read_only {
                        let cell = self.cell(step.page_table(span.slot, group, n_groups), position);
                        self.hashes[group][cell] = hash;
                    }
                }
                if step.outputs.get(self.n_outputs) == Some(&(row as u32)) {
                    let logits = &mut self.logits[self.n_outputs * n_vocab..][..n_vocab];
                    for (token, out) in logits.iter_mut().enumerate() {
                        *out = logit(hash, token as u32, n_vocab);
                    }
                    self.n_outputs += 1;
                }
            }
            if let Some(state) = state {
                self.states[state.to as usize] = carried;
            }
        }
        for ((rows, cols), out) in self.plans[step.plan].kept.iter().zip(&mut self.kept) {
            let n = rows.count(n_rows, self.n_outputs);
            out.clear();
            for row in 0..n {
                let row = match rows.per_token() {
                    Some(k) => row / k,
                    None => step.outputs[row] as usize,
                };
                out.extend((0..*cols).map(|column| kept(self.histories[row], column)));
            }
        }
        Ok(())
    }

    /// Compute one row of a step in the background, which leaves what the last step gave as it is. The state after each row is where
    /// that after the last belongs.
    fn background_row(&mut self, step: &Step, row: usize) -> Result<()> {
        let last = (self.current, self.n_outputs, std::mem::take(&mut self.kept));
        let first_position = step.spans[0].first_position + row as u32;
        let span = Span { first_row: 0, n_rows: 1, first_position, ..step.spans[0] };
        let state = step.states.first().map(|state| match row {
            0 => *state,
            _ => StateUse { from: state.to, to: state.to },
        });
        let tokens = &step.tokens[row..=row];
        let ran = self.step(&Step { tokens, spans: &[span], states: state.as_slice(), ..*step });
        (self.current, self.n_outputs, self.kept) = last;
        ran
    }

    /// The history that a state holds.
    fn state(&self, from: u32) -> Result<u64> {
        match from {
            STATE_NONE => Ok(EMPTY),
            from if self.states[from as usize] == 0 => self.fail(format!("state {from} was never written")),
            from => Ok(self.states[from as usize]),
        }
    }

    /// Whether a page's bytes hold its hashes: 8 for each position.
    fn check_room(&self, n_bytes: usize) -> Result<()> {
        let expected = 8 * self.limits.page_len;
        if n_bytes >= expected {
            return Ok(());
        }
        Err(Error::Failed {
            device: NAME,
            reason: format!("{n_bytes} bytes for a KV page, expected at least {expected}"),
        })
    }

    /// Positions of a page among its group's.
    fn page(&self, page: u32) -> Range<usize> {
        let page_len = self.limits.page_len;
        page as usize * page_len..(page as usize + 1) * page_len
    }
}

impl HostProgram for NullProgram {
    fn name(&self) -> &'static str {
        NAME
    }

    fn chooses_in_flight(&self, want: &Want) -> bool {
        !want.logits && want.mask.is_none()
    }

    /// There is nothing between nodes: always the whole step.
    fn compute(
        &mut self,
        step: &Step,
        until: Option<usize>,
        timings: Option<&mut Vec<Timing>>,
    ) -> Result<()> {
        if until.is_none() {
            self.record(|| Event::Submit(Box::new(OwnedStep::from(step))));
        }
        self.step_with_tables(step)?;
        if let Some(timings) = timings {
            let n = self.plans[self.current].nodes.len();
            timings.extend((0..n).map(|command| Timing { command, start: 0.0, duration: 0.0 }));
        }
        Ok(())
    }

    fn begin_background(&mut self, step: &Step) -> Result<()> {
        self.background.0.assign(step);
        self.background.1 = 0;
        Ok(())
    }

    /// One row, or all that are left: the clock of whoever asks may be made up.
    fn advance_background(&mut self, until: Option<Instant>) -> Result<BackgroundProgress> {
        let (step, mut n_done) = std::mem::take(&mut self.background);
        let n_rows = step.tokens.len();
        let end = if until.is_some() { n_done + 1 } else { n_rows };
        while n_done < end {
            self.background_row(&step.borrow(), n_done)?;
            n_done += 1;
        }
        self.background = (step, n_done);
        Ok(BackgroundProgress { is_done: n_done == n_rows, longest_part: PART })
    }

    fn logits(&self) -> &[f32] {
        &self.logits[..self.n_outputs * self.n_vocab()]
    }

    fn kept(&self, index: usize) -> &[f32] {
        let n_kept = self.plans[self.current].kept.len();
        self.kept[..n_kept].get(index).map_or(&[], Vec::as_slice)
    }

    /// It has no values.
    fn read(&self, _value: ValueId) -> Option<Vec<f32>> {
        None
    }

    fn copy_page(&mut self, group: usize, from: u32, to: u32) {
        self.record(|| Event::CopyPage(group, from, to));
        let (from, to) = (self.page(from), self.page(to));
        self.hashes[group].copy_within(from, to.start);
    }

    /// Its hashes first, as many as fit.
    fn read_page(&self, group: usize, page: u32, bytes: &mut [u8]) -> Result<()> {
        self.check_room(bytes.len())?;
        let hashes = &self.hashes[group][self.page(page)];
        bytes.fill(0);
        bytes.chunks_exact_mut(8).zip(hashes).for_each(|(b, hash)| b.copy_from_slice(&hash.to_le_bytes()));
        Ok(())
    }

    fn write_page(&mut self, group: usize, page: u32, bytes: &[u8]) -> Result<()> {
        self.check_room(bytes.len())?;
        let page = self.page(page);
        for (hash, bytes) in self.hashes[group][page].iter_mut().zip(bytes.chunks_exact(8)) {
            let mut word = [0; 8];
            word.copy_from_slice(bytes);
            *hash = u64::from_le_bytes(word);
        }
        Ok(())
    }

    fn granule(&self, _: usize) -> usize {
        self.granule
    }

    fn commit(&mut self, group: usize, pages: Range<u32>) -> bool {
        self.record(|| Event::Commit(group, pages));
        true
    }

    /// What was written there is gone: reading it again is an error, even once it is committed again.
    fn decommit(&mut self, group: usize, pages: Range<u32>) {
        self.record(|| Event::Decommit(group, pages.clone()));
        pages.for_each(|page| {
            let range = self.page(page);
            self.hashes[group][range].fill(0);
        });
    }

    fn commands(&self, plan: usize, _n_rows: usize) -> Vec<CommandInfo> {
        let info = |(node, (kernel, layer)): (usize, &(String, Option<u32>))| CommandInfo {
            kernel: kernel.clone(),
            node,
            layer: *layer,
            weight_bytes: 0,
        };
        self.plans.get(plan).map_or(vec![], |plan| plan.nodes.iter().enumerate().map(info).collect())
    }
}

/// A layer for tests: one head of 16 columns.
pub fn layer(window: Option<usize>) -> KvLayer {
    KvLayer { n_kv_heads: 1, head_dim: 16, window, encoder_states: None, values_are_keys: false }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AttentionOptions, PlanBuilder, Sequences, limits};
    use crate::{BEST_AND_LOGITS, chosen_tokens, committed};
    use device::PAGE_NONE;
    use device_lower::fusion;
    use weights::BlockType;

    const N_VOCAB: usize = 50;

    fn program(device: &NullDevice, layers: &[KvLayer]) -> (Plan, Limits, Box<dyn Program>) {
        let plan = plan(N_VOCAB, layers);
        let limits = limits(&plan.kv);
        let program = device.compile(std::slice::from_ref(&plan), &limits).and_then(committed).unwrap();
        (plan, limits, program)
    }

    /// Run spans of any shape and compare every row with the prediction from its sequence's tokens alone.
    #[test]
    fn output_is_a_function_of_the_tokens() {
        for layers in [
            vec![],
            vec![layer(None)],
            vec![layer(Some(20)), layer(None)],
            vec![layer(Some(1)), layer(Some(3))],
        ] {
            let device = NullDevice::default();
            let (plan, limits, mut program) = program(&device, &layers);
            let mut sequences = Sequences::new(9, &plan.kv, &limits, N_VOCAB as u32);
            for spans in
                [&[(0, 5)][..], &[(1, 40), (0, 1)], &[(0, 33), (1, 1), (2, 2)], &[(1, 1), (2, 9), (0, 1)]]
            {
                let step = sequences.step(spans);
                program.run(&step.borrow()).unwrap();
                let mut output = 0;
                for (slot, n_rows) in spans {
                    let seen_so_far = sequences.tokens(*slot);
                    for end in seen_so_far.len() - n_rows + 1..=seen_so_far.len() {
                        // Without a window of at least 2 there is no state to carry.
                        let first = if layers.is_empty() { end - 1 } else { 0 };
                        let seen = &seen_so_far[first..end];
                        assert_eq!(
                            chosen_tokens(program.as_ref())[output],
                            next_token(seen, N_VOCAB),
                            "slot {slot} position {end}"
                        );
                        output += 1;
                    }
                }
                assert_eq!(output, step.outputs.len());
                let logits = program.logits().chunks(N_VOCAB);
                for (logits, best) in logits.zip(&chosen_tokens(program.as_ref())) {
                    let others = logits.iter().enumerate().filter(|(token, _)| *token as u32 != *best);
                    assert!(others.into_iter().all(|(_, l)| (-1.0..0.0).contains(l)));
                    assert_eq!(logits[*best as usize], BEST_LOGIT);
                }
            }
        }
    }

    #[test]
    fn a_step_in_the_background_is_as_good_as_one_that_is_submitted() {
        crate::check_background(&NullDevice::default()).unwrap();
    }

    #[test]
    fn greedy_follows_the_best_token() {
        let mut tokens = vec![3, 1, 4];
        let expected = greedy(&tokens, 20, N_VOCAB);
        for token in expected {
            assert_eq!(next_token(&tokens, N_VOCAB), token);
            tokens.push(token);
        }
    }

    fn step<'a>(tokens: &'a [u32], span: &'a [Span], tables: &'a [u32], outputs: &'a [u32]) -> Step<'a> {
        Step {
            tokens,
            spans: span,
            page_tables: tables,
            pages_per_table: 2,
            outputs,
            wants: &[BEST_AND_LOGITS; 8][..outputs.len()],
            ..Step::default()
        }
    }

    #[test]
    fn stale_missing_and_uncopied_pages_show() {
        let device = NullDevice::default().recording().with_fusion(fusion::ALL);
        assert_eq!(device.fusion().len(), fusion::ALL.len());
        let (_, _, mut program) = program(&device, &[layer(None)]);
        device.take_events();
        let span = |first_position, n_rows| [Span { slot: 0, first_row: 0, n_rows, first_position }];
        let mut run = |tokens: &[u32], first: u32, table: &[u32]| {
            let outputs = [tokens.len() as u32 - 1];
            let result = program.run(&step(tokens, &span(first, tokens.len() as u32), table, &outputs));
            result.map(|()| chosen_tokens(program.as_ref())[0]).map_err(|e| e.to_string())
        };
        assert_eq!(run(&[1, 2, 3], 0, &[4, PAGE_NONE]), Ok(next_token(&[1, 2, 3], N_VOCAB)));
        assert!(run(&[9], 3, &[5, PAGE_NONE]).unwrap_err().contains("never written"));
        assert!(run(&[9], 3, &[PAGE_NONE, 4]).unwrap_err().contains("no page"));
        assert!(run(&[N_VOCAB as u32], 0, &[4, 5]).unwrap_err().contains("token 50"));
        program.copy_page(0, 4, 6).unwrap();
        assert!(program.copy_page(0, 4, 600).is_err());
        program.decommit(0, 4..5).unwrap();
        assert!(program.copy_page(0, 4, 7).unwrap_err().to_string().contains("not committed"));
        assert!(program.decommit(0, 4..5).is_err());
        let mut run = |table: &[u32]| {
            program
                .run(&step(&[9], &span(3, 1), table, &[0]))
                .map(|()| chosen_tokens(program.as_ref())[0])
                .map_err(|e| e.to_string())
        };
        assert!(run(&[4, PAGE_NONE]).unwrap_err().contains("page 4, which is not committed,"));
        assert_eq!(run(&[6, PAGE_NONE]), Ok(next_token(&[1, 2, 3, 9], N_VOCAB)));
        program.commit(0, 4..5).unwrap();
        let span = span(3, 1);
        let step = step(&[9], &span, &[4, PAGE_NONE], &[0]);
        assert!(program.run(&step).unwrap_err().to_string().contains("never written"));
        let events = device.take_events();
        // What the check refuses does not arrive.
        assert_eq!(events.len(), 7);
        assert_eq!(events[2..4], [Event::CopyPage(0, 4, 6), Event::Decommit(0, 4..5)]);
        assert_eq!(events[5], Event::Commit(0, 4..5));
        assert!(device.take_events().is_empty());
    }

    /// Links, choices and refusals as on a device that computes; alone and with steps in flight.
    #[test]
    fn steps_keep_the_contract() {
        for n in [1, 4] {
            let device = NullDevice::default().with_steps_in_flight(n);
            crate::check_links(&device).unwrap();
            crate::check_wants(&device).unwrap();
            crate::check_refusals(&device).unwrap();
        }
        for granule in [1, 3, 8, 100] {
            let device = NullDevice::default().with_granule(granule);
            crate::check_commits(&device).unwrap();
            crate::check_shortage(Arc::new(device)).unwrap();
        }
    }

    #[test]
    fn groups_that_disagree_show() {
        let (_, _, mut program) = program(&NullDevice::default(), &[layer(None), layer(Some(32))]);
        let spans = [Span { slot: 0, first_row: 0, n_rows: 2, first_position: 0 }];
        let full = [0, PAGE_NONE];
        program.run(&step(&[1, 2], &spans, &[full, [0, PAGE_NONE]].concat(), &[])).unwrap();
        program.run(&step(&[3, 4], &spans, &[[1, PAGE_NONE], [1, PAGE_NONE]].concat(), &[])).unwrap();
        let spans = [Span { first_position: 2, n_rows: 1, ..spans[0] }];
        let error = program.run(&step(&[5], &spans, &[full, [1, PAGE_NONE]].concat(), &[0])).unwrap_err();
        assert!(error.to_string().contains("another sequence's"), "{error}");
    }

    /// Encoder states are a function of the input, two slots share their pages, and all of them must be there.
    #[test]
    fn encoder_states_come_before_the_tokens() {
        let layers = [
            KvLayer {
                n_kv_heads: 1,
                head_dim: 16,
                window: None,
                encoder_states: Some(20),
                values_are_keys: false,
            },
            KvLayer {
                n_kv_heads: 1,
                head_dim: 16,
                window: None,
                encoder_states: None,
                values_are_keys: false,
            },
        ];
        let mut b = PlanBuilder::new(0, N_VOCAB);
        let ids = layers.map(|layer| b.kv_layer(layer));
        let x = b.input(3, 2);
        let y = b.unfold(x, 3, 2);
        let y = b.linear(y, 16, BlockType::F32, false);
        b.kv_write(y, y, ids[0]);
        let writer = b.finish(y);
        let mut b = PlanBuilder::new(0, N_VOCAB);
        let ids = layers.map(|layer| b.kv_layer(layer));
        let x = b.embed(16);
        b.kv_write(x, x, ids[1]);
        let y = b.attention(x, ids[1], 1, AttentionOptions::default());
        let y = b.cross_attention(y, ids[0], 1);
        b.keep(y);
        let y = b.linear(y, N_VOCAB, BlockType::F32, false);
        let reader = b.finish(y);

        let limits = Limits { n_ctx: 16, ..limits(&reader.kv) };
        let mut program =
            NullDevice::default().compile(&[writer, reader], &limits).and_then(committed).unwrap();
        let input: Vec<f32> = (0..20 * 2 * 3).map(|i| i as f32).collect();
        let span = |slot, first_row, n_rows| Span { slot, first_row, n_rows, first_position: 0 };
        // Of each slot two pages of the sequence's group, then two of the encoder states'.
        let tables = [5, PAGE_NONE, 8, 9, 6, PAGE_NONE, 8, 9, 7, PAGE_NONE, 9, 8];
        let spans = [span(0, 0, 20)];
        let write = Step { input: &input, ..step(&[0; 20], &spans, &tables, &[]) };
        assert!(program.run(&Step { input: &[], ..write }).unwrap_err().to_string().contains("120"));
        let spans = [span(0, 0, 2), span(1, 2, 1)];
        let read = Step { plan: 1, ..step(&[4, 5, 6], &spans, &tables, &[1, 2]) };
        assert!(program.run(&read).unwrap_err().to_string().contains("never written"));
        program.run(&write).unwrap();
        program.run(&read).unwrap();
        let states = encoder_states(&input);
        let expected = [history_with(states, &[4, 5]), history_with(states, &[6])];
        assert_eq!(chosen_tokens(program.as_ref()), expected.map(|history| best(history, N_VOCAB)));
        assert_eq!(program.kept(0).len(), 3 * 16);
        assert_eq!(program.kept(0)[16], kept(expected[0], 0));
        assert!(program.kept(1).is_empty() && program.commands(2, 1).is_empty());
        program.decommit(1, 8..9).unwrap();
        assert!(program.run(&read).unwrap_err().to_string().contains("not committed"));
    }
}

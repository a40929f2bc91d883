//! The null device's program: reads, writes and checks of a step.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use device::{
    BackgroundProgress, CommandInfo, Error, GroupUse, Limits, Needs, OwnedStep, Plan, Result, RowCount,
    STATE_NONE, Span, StateUse, Step, Timing, ValueId, Want,
};
use device_lower::hosted::HostProgram;

use super::{EMPTY, Event, NAME, NullDevice, encoder_states, extend, kept, logit};

/// Reported duration of a part.
const PART: Duration = Duration::from_micros(100);

/// Facts about a plan.
struct NullPlan {
    needs: Needs,
    nodes: Vec<(String, Option<u32>)>,
    n_vocab: usize,
    /// Rows and columns of each kept value.
    kept: Vec<(RowCount, usize)>,
}

impl NullPlan {
    fn new(plan: &Plan, limits: &Limits) -> NullPlan {
        let kept = |id: &ValueId| (plan.value(*id).rows, plan.value(*id).cols);
        NullPlan {
            needs: Needs::new(plan, limits),
            nodes: plan.nodes.iter().map(|node| (node.op.kind().to_string(), node.layer)).collect(),
            n_vocab: plan.value(plan.output).cols,
            kept: plan.kept.iter().map(kept).collect(),
        }
    }
}

/// Empty buffers with capacity for the kept values of any plan.
fn kept_buffers(plans: &[NullPlan], limits: &Limits) -> Vec<Vec<f32>> {
    let n_kept = plans.iter().map(|plan| plan.kept.len()).max().unwrap_or(0);
    let len = |(rows, cols): &(RowCount, usize)| rows.count(limits.max_rows, limits.max_outputs) * cols;
    let most = |index: usize| plans.iter().filter_map(|plan| plan.kept.get(index).map(len)).max();
    (0..n_kept).map(|index| Vec::with_capacity(most(index).unwrap_or(0))).collect()
}

/// A program that stores a hash of the history of each position.
pub(super) struct NullProgram {
    /// `(n_pages, page_len)` hashes of histories for each group; 0 if not written.
    hashes: Vec<Vec<u64>>,
    plans: Vec<NullPlan>,
    /// Plan of the last step.
    current: usize,
    /// `(n_states)` histories; 0 if not written.
    states: Vec<u64>,
    /// Histories of the rows of the last step.
    histories: Vec<u64>,
    logits: Vec<f32>,
    /// Page tables of the last step, updated by [`Step::table_changes`] like on a device with
    /// memory of its own. Rows read this copy.
    page_tables: Vec<u32>,
    /// Kept values of the last step.
    kept: Vec<Vec<f32>>,
    granule: usize,
    limits: Limits,
    n_outputs: usize,
    /// The background step, and the number of its rows that are done.
    background: (OwnedStep, usize),
    events: Option<Arc<Mutex<Vec<Event>>>>,
}

impl NullProgram {
    /// A program in which nothing is written yet.
    pub(super) fn new(device: &NullDevice, plans: &[Plan], limits: &Limits) -> NullProgram {
        let plans: Vec<NullPlan> = plans.iter().map(|plan| NullPlan::new(plan, limits)).collect();
        let n_logits = plans.iter().map(|plan| plan.n_vocab).max().unwrap_or(0);
        NullProgram {
            hashes: limits.n_pages.iter().map(|n| vec![0; n * limits.page_len]).collect(),
            states: vec![0; limits.n_states],
            histories: vec![0; limits.max_rows],
            logits: vec![0.0; limits.max_outputs * n_logits],
            page_tables: Vec::new(),
            kept: kept_buffers(&plans, limits),
            granule: device.beside + 1,
            plans,
            limits: limits.clone(),
            current: 0,
            n_outputs: 0,
            background: (OwnedStep::default(), 0),
            events: device.events.clone(),
        }
    }

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

    /// Hash of the history before `position`. All groups must agree on it, and the whole window and
    /// all encoder states that the plan reads must be written.
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

    /// Runs a step with the device's copy of the page tables.
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

    /// Computes one row of a background step, without changing the results of the last step. After
    /// each row, the state is written to the place of the final state.
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

    /// The history in a state.
    fn state(&self, from: u32) -> Result<u64> {
        match from {
            STATE_NONE => Ok(EMPTY),
            from if self.states[from as usize] == 0 => self.fail(format!("state {from} was never written")),
            from => Ok(self.states[from as usize]),
        }
    }

    /// Checks that a page's bytes can hold its hashes: 8 bytes for each position.
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

    /// Range of a page's positions in its group.
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

    /// Runs the whole step always: there is nothing between nodes.
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

    /// Computes one row, or all that remain, without reading the clock, which may be a fake one.
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

    /// `None` always: the program has no values.
    fn read(&self, _value: ValueId) -> Option<Vec<f32>> {
        None
    }

    fn copy_page(&mut self, group: usize, from: u32, to: u32) {
        self.record(|| Event::CopyPage(group, from, to));
        let (from, to) = (self.page(from), self.page(to));
        self.hashes[group].copy_within(from, to.start);
    }

    /// Writes the hashes first, as far as they fit.
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

    /// Clears the pages' hashes: reading them is an error, even after the next commit.
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

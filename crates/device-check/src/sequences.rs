//! A small scheduler for tests: random tokens, scattered pages, and windows that release pages.

use super::Rng;
use device::{
    KvGroup, KvLayout, KvType, Limits, Numerics, Op, OwnedStep, PAGE_NONE, Plan, Program, STATE_NONE, Span,
    StateUse, Want,
};

/// The best token of an output, and its logits.
pub const BEST_AND_LOGITS: Want = Want { logits: true, ..Want::BEST };

/// Tokens that the outputs of the last step chose; `u32::MAX` if an output chose none.
pub fn chosen_tokens(program: &dyn Program) -> Vec<u32> {
    program.chosen().iter().map(|chosen| chosen.token.unwrap_or(u32::MAX)).collect()
}

/// Commits all KV pages of a program.
///
/// # Errors
/// As [`Program::commit`].
pub fn committed(mut program: Box<dyn Program>) -> device::Result<Box<dyn Program>> {
    program.commit_all()?;
    Ok(program)
}

/// Limits for the cases: 64 rows, 8 spans, 512 positions, pages of 16, F32.
pub fn limits(kv: &KvLayout) -> Limits {
    Limits {
        max_rows: 64,
        max_outputs: 64,
        max_spans: 8,
        n_ctx: 512,
        page_len: 16,
        n_pages: vec![48; kv.groups.len()],
        // States before and after a step of all slots, and two for rows of a step that run one by
        // one.
        n_states: if kv.states.is_empty() { 0 } else { 18 },
        background_rows: 0,
        kv_type: KvType::F32,
        numerics: Numerics::Fast,
    }
}

/// Page table entries for the longest sequence and the most encoder states.
fn pages_per_table(kv: &KvLayout, limits: &Limits) -> usize {
    let n_states = kv.groups.iter().filter_map(|group| group.encoder_states).max().unwrap_or(0);
    limits.n_ctx.max(n_states).div_ceil(limits.page_len)
}

/// Sequences that grow step by step, each in its own slot.
pub struct Sequences {
    kv: KvLayout,
    page_len: usize,
    pages_per_table: usize,
    n_vocab: u32,
    slots: Vec<Slot>,
    /// Free pages of each group.
    free: Vec<Vec<u32>>,
    free_states: Vec<u32>,
    /// Adapters of the plan; 0 if it has none.
    n_adapters: u32,
    rng: Rng,
}

#[derive(Clone)]
struct Slot {
    /// The state after the last step.
    state: u32,
    /// Position of the first token; above 0 only if nothing is cached.
    start: usize,
    tokens: Vec<u32>,
    /// Page table of each group.
    tables: Vec<Vec<u32>>,
}

impl Sequences {
    /// A scheduler without sequences. Tokens are below `n_vocab`.
    pub fn new(seed: u64, kv: &KvLayout, limits: &Limits, n_vocab: u32) -> Sequences {
        let free = limits.n_pages.iter().map(|n| (0..*n as u32).collect()).collect();
        Sequences {
            kv: kv.clone(),
            page_len: limits.page_len,
            pages_per_table: pages_per_table(kv, limits),
            n_vocab,
            slots: vec![],
            free,
            free_states: (0..limits.n_states.saturating_sub(2) as u32).collect(),
            n_adapters: 0,
            rng: Rng::new(seed),
        }
    }

    /// Gives each slot one of the plan's adapters.
    pub fn with_adapters(self, plan: &Plan) -> Sequences {
        let n = plan
            .primitives()
            .find_map(|op| if let Op::Adapters { n, .. } = op { Some(*n as u32) } else { None });
        Sequences { n_adapters: n.unwrap_or(0), ..self }
    }

    /// Tokens of a slot so far.
    pub fn tokens(&self, slot: usize) -> &[u32] {
        &self.slots[slot].tokens
    }

    /// Starts an empty sequence at a position, for Ops that depend on positions and not on pages.
    pub fn start_at(&mut self, slot: usize, position: usize) {
        self.slot(slot).start = position;
    }

    /// The next step, with `n_rows` more random tokens for each `(slot, n_rows)`. All rows are
    /// outputs that want the best token and logits.
    ///
    /// Pages outside a window are free at once, and are reused in random order.
    ///
    /// # Panics
    /// There are not enough pages.
    pub fn step(&mut self, spans: &[(usize, usize)]) -> OwnedStep {
        let mut tokens = vec![];
        let (mut step_spans, mut states, mut adapters) = (vec![], vec![], vec![]);
        for (slot, n_rows) in spans {
            let first_position = self.slot(*slot).start + self.slot(*slot).tokens.len();
            self.take_pages(*slot, first_position, first_position + n_rows);
            let first_row = tokens.len() as u32;
            tokens.extend((0..*n_rows).map(|_| self.rng.below(self.n_vocab as usize) as u32));
            self.slots[*slot].tokens.extend(&tokens[first_row as usize..]);
            let (slot, n_rows, first_position) = (*slot as u32, *n_rows as u32, first_position as u32);
            step_spans.push(Span { slot, first_row, n_rows, first_position });
            // Chosen by slot, so that a sequence keeps its adapter.
            adapters.extend((self.n_adapters > 0).then(|| (slot * 7 + 1) % self.n_adapters.max(1)));
            if !self.kv.states.is_empty() {
                assert!(!self.free_states.is_empty(), "the test needs more states");
                let to = self.free_states.swap_remove(self.rng.below(self.free_states.len()));
                let from = std::mem::replace(&mut self.slots[slot as usize].state, to);
                states.push(StateUse { from, to });
            }
        }
        self.free_states.extend(states.iter().map(|state| state.from).filter(|from| *from != STATE_NONE));
        OwnedStep {
            plan: 0,
            input: vec![],
            outputs: (0..tokens.len() as u32).collect(),
            wants: vec![BEST_AND_LOGITS; tokens.len()],
            tokens,
            spans: step_spans,
            states,
            adapters,
            page_tables: self.page_tables(),
            pages_per_table: self.pages_per_table,
            ..OwnedStep::default()
        }
    }

    /// A step in which plan `plan` writes `n` encoder states for each slot into new pages. The
    /// input has `input_cols` random numbers for each token.
    ///
    /// # Panics
    /// There are not enough pages.
    pub fn write_encoder_states(
        &mut self,
        plan: usize,
        slots: &[usize],
        n: usize,
        input_cols: usize,
    ) -> OwnedStep {
        let mut spans = vec![];
        for (index, slot) in slots.iter().enumerate() {
            let (n, first_row) = (n as u32, (index * n) as u32);
            spans.push(Span { slot: *slot as u32, first_row, n_rows: n, first_position: 0 });
            self.slot(*slot);
            for (group, _) in self.kv.groups.iter().enumerate().filter(|(_, g)| g.encoder_states.is_some()) {
                for entry in 0..(n as usize).div_ceil(self.page_len) {
                    let free = &mut self.free[group];
                    assert!(!free.is_empty(), "the test needs more pages");
                    self.slots[*slot].tables[group][entry] = free.swap_remove(self.rng.below(free.len()));
                }
            }
        }
        OwnedStep {
            plan,
            tokens: vec![0; slots.len() * n],
            input: self.numbers(slots.len() * n * input_cols),
            spans,
            outputs: vec![],
            page_tables: self.page_tables(),
            pages_per_table: self.pages_per_table,
            ..OwnedStep::default()
        }
    }

    /// Makes a slot read the encoder states of another.
    pub fn share_encoder_states(&mut self, from: usize, to: usize) {
        self.slot(to);
        for (group, _) in self.kv.groups.iter().enumerate().filter(|(_, g)| g.encoder_states.is_some()) {
            self.slots[to].tables[group] = self.slots[from].tables[group].clone();
        }
    }

    /// Random numbers of variance 1, for the input of a step.
    pub fn numbers(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.rng.normal()).collect()
    }

    fn page_tables(&self) -> Vec<u32> {
        self.slots.iter().flat_map(|slot| slot.tables.concat()).collect()
    }

    fn slot(&mut self, slot: usize) -> &mut Slot {
        if slot >= self.slots.len() {
            let tables = vec![vec![PAGE_NONE; self.pages_per_table]; self.kv.groups.len()];
            self.slots.resize(slot + 1, Slot { state: STATE_NONE, start: 0, tokens: vec![], tables });
        }
        &mut self.slots[slot]
    }

    /// Allocates pages for positions `first..end`, and frees pages before the window of `first`.
    fn take_pages(&mut self, slot: usize, first: usize, end: usize) {
        let of_sequences = self.kv.groups.iter().enumerate().filter(|(_, g)| g.encoder_states.is_none());
        for (group, KvGroup { window, .. }) in of_sequences {
            let table = &mut self.slots[slot].tables[group];
            let free = &mut self.free[group];
            let needed = window.map_or(0, |window| (first + 1).saturating_sub(window)) / self.page_len;
            for page in table[..needed].iter_mut().filter(|page| **page != PAGE_NONE) {
                free.push(std::mem::replace(page, PAGE_NONE));
            }
            for page in table[first / self.page_len..end.div_ceil(self.page_len)].iter_mut() {
                if *page == PAGE_NONE {
                    assert!(!free.is_empty(), "the test needs more pages");
                    *page = free.swap_remove(self.rng.below(free.len()));
                }
            }
        }
    }
}

/// A step of one sequence whose table entries are pages in order.
pub fn one_sequence(plan: &Plan, limits: &Limits, tokens: &[u32], first_position: u32) -> OwnedStep {
    let pages_per_table = limits.n_ctx / limits.page_len;
    OwnedStep {
        plan: 0,
        input: vec![],
        tokens: tokens.to_vec(),
        spans: vec![Span { slot: 0, first_row: 0, n_rows: tokens.len() as u32, first_position }],
        page_tables: (0..plan.kv.groups.len()).flat_map(|_| 0..pages_per_table as u32).collect(),
        pages_per_table,
        outputs: vec![tokens.len() as u32 - 1],
        wants: vec![BEST_AND_LOGITS],
        ..OwnedStep::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use device::{CommittedPages, GroupUse, KvLayer, Needs};

    #[test]
    fn its_steps_are_valid_and_windows_give_pages_back() {
        let layer = KvLayer {
            n_kv_heads: 1,
            head_dim: 8,
            window: None,
            encoder_states: None,
            values_are_keys: false,
        };
        let kv = KvLayout::new(vec![layer, KvLayer { window: Some(20), ..layer }]);
        let limits = Limits { n_pages: vec![30, 10], ..limits(&kv) };
        let mut sequences = Sequences::new(1, &kv, &limits, 10);
        let groups = kv.groups.iter().map(|g| GroupUse::Sequence { window: g.window }).collect();
        let needs = [Needs {
            n_nodes: 1,
            n_vocab: 10,
            n_logits: 10,
            n_positions: limits.n_ctx,
            input: None,
            groups,
            has_states: false,
            n_adapters: 0,
        }];
        let mut committed = CommittedPages::new(&limits, |_| 1);
        (0..2).for_each(|group| committed.set(group, 0..limits.n_pages[group] as u32, true));
        for turn in 0..60 {
            let spans: &[(usize, usize)] = if turn % 7 == 0 { &[(1, 20), (0, 1)] } else { &[(0, 3), (2, 1)] };
            sequences.step(spans).borrow().check(&needs, &limits, &committed).unwrap();
        }
        assert_eq!(sequences.tokens(1).len(), 180);
    }
}

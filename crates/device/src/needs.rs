//! [`Needs`]: what a plan needs of a step, computed once.

use crate::{FromStep, KvAccess, KvLayerId, Limits, Op, Plan, RowCount};

/// How a plan uses a KV group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupUse {
    /// Not at all: its page tables are not read.
    Unused,
    /// The positions of the step's rows are written, those within the window are read.
    Sequence {
        /// As [`crate::KvGroup::window`].
        window: Option<usize>,
    },
    /// Encoder states: positions `0..n` of each span's slot.
    EncoderStates {
        /// How many.
        n: usize,
        /// Whether they are written: each span then has exactly `n` rows, from position 0 on.
        written: bool,
    },
}

impl GroupUse {
    /// Whether it holds positions of sequences.
    pub fn is_of_sequence(&self) -> bool {
        matches!(self, GroupUse::Sequence { .. })
    }
}

/// What a plan needs of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Needs {
    /// Nodes of the plan.
    pub n_nodes: usize,
    /// Token ids are below this; `usize::MAX`: it has no Embed, and looks at no token.
    pub n_vocab: usize,
    /// Logits of an output row.
    pub n_logits: usize,
    /// Most positions of a sequence.
    pub n_positions: usize,
    /// Rows and columns of [`crate::Step::input`].
    pub input: Option<(RowCount, usize)>,
    /// By KV group.
    pub groups: Vec<GroupUse>,
    /// Whether it has recurrent layers, so that every span has a state.
    pub has_states: bool,
    /// Adapters among which every span has one, 0 included; 0: the plan has none.
    pub n_adapters: usize,
}

impl Needs {
    /// Of a checked plan.
    pub fn new(plan: &Plan, limits: &Limits) -> Needs {
        let mut needs = Needs {
            n_nodes: plan.nodes.len(),
            n_vocab: usize::MAX,
            n_logits: plan.value(plan.output).cols,
            n_positions: usize::MAX,
            input: None,
            groups: vec![GroupUse::Unused; plan.kv.groups.len()],
            has_states: false,
            n_adapters: 0,
        };
        for facts in plan.primitives().map(Op::facts) {
            match facts.from_step {
                FromStep::Nothing => {}
                FromStep::Tokens(table) => {
                    needs.n_vocab = needs.n_vocab.min(plan.weight(table).n_rows());
                    needs.n_positions = needs.n_positions.min(limits.n_ctx);
                }
                FromStep::Positions(table) => {
                    needs.n_positions = needs.n_positions.min(plan.weight(table).n_rows());
                }
                FromStep::Input(out) => {
                    let value = plan.value(out);
                    needs.input = Some((value.rows, value.cols));
                }
                FromStep::Adapters(n) => needs.n_adapters = n,
            }
            if let Some(KvAccess { layer, writes }) = facts.kv {
                needs.use_layer(plan, layer, writes, limits);
            }
            needs.has_states |= facts.state.is_some();
        }
        needs
    }

    fn use_layer(&mut self, plan: &Plan, layer: KvLayerId, writes: bool, limits: &Limits) {
        let (group, _) = plan.kv.group_of(layer);
        let Some(slot) = self.groups.get_mut(group) else { return };
        let layer = plan.kv.layer(layer);
        match layer.encoder_states {
            None => {
                self.n_positions = self.n_positions.min(limits.n_ctx);
                *slot = GroupUse::Sequence { window: layer.window };
            }
            Some(n) => {
                let before = matches!(slot, GroupUse::EncoderStates { written: true, .. });
                *slot = GroupUse::EncoderStates { n, written: writes || before };
            }
        }
    }

    /// Numbers of [`crate::Step::input`] in a step of so many tokens and outputs.
    pub fn input_len(&self, n_tokens: usize, n_outputs: usize) -> usize {
        self.input.map_or(0, |(rows, cols)| rows.count(n_tokens, n_outputs) * cols)
    }
}

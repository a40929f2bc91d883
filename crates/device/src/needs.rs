//! [`Needs`]: requirements of a plan on a step, computed once.

use crate::{FromStep, KvAccess, KvLayerId, Limits, Op, Plan, RowCount};

/// Use of a KV group by a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupUse {
    /// No use: the page tables are not read.
    Unused,
    /// Positions of the step's rows are written, and positions within the window are read.
    Sequence {
        /// Same as [`crate::KvGroup::window`].
        window: Option<usize>,
    },
    /// Encoder states: positions `0..n` of each span's slot.
    EncoderStates {
        /// Number of encoder states.
        n: usize,
        /// True if the plan writes the states: each span then has exactly `n` rows, from position 0
        /// on.
        written: bool,
    },
}

impl GroupUse {
    /// Returns true if the group holds positions of sequences.
    pub fn is_of_sequence(&self) -> bool {
        matches!(self, GroupUse::Sequence { .. })
    }
}

/// Requirements of a plan on a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Needs {
    /// Number of nodes of the plan.
    pub n_nodes: usize,
    /// Bound of token ids; `usize::MAX` for a plan without Embed, which reads no token.
    pub n_vocab: usize,
    /// Number of logits of an output row.
    pub n_logits: usize,
    /// Maximum number of positions of a sequence.
    pub n_positions: usize,
    /// Rows and columns of [`crate::Step::input`].
    pub input: Option<(RowCount, usize)>,
    /// Use of each KV group.
    pub groups: Vec<GroupUse>,
    /// True if the plan has recurrent layers, so that every span has a state.
    pub has_states: bool,
    /// Number of adapters to choose from, the neutral adapter 0 included; 0 for a plan without
    /// adapters.
    pub n_adapters: usize,
}

impl Needs {
    /// Requirements of a checked plan.
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

    /// Numbers of [`crate::Step::input`] in a step of `n_tokens` tokens and `n_outputs` outputs.
    pub fn input_len(&self, n_tokens: usize, n_outputs: usize) -> usize {
        self.input.map_or(0, |(rows, cols)| rows.count(n_tokens, n_outputs) * cols)
    }
}

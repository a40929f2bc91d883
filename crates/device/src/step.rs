//! One step: rows of tokens of one or more sequences, run through a program together.

/// Consecutive rows of one sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Which page tables: an index into the first dimension of [`Step::page_tables`].
    pub slot: u32,
    /// First row in the step.
    pub first_row: u32,
    /// Number of rows.
    pub n_rows: u32,
    /// Position of the first row in its sequence; the others follow.
    pub first_position: u32,
}

/// What is wanted of the output rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    /// All logits, read with [`crate::Program::logits`].
    Logits,
    /// The best token too, read with [`crate::Program::argmax`].
    Argmax,
}

/// The input of [`crate::Program::run`]. All lengths were checked by the engine.
#[derive(Clone, Copy, Debug)]
pub struct Step<'a> {
    /// Which of the program's plans.
    pub plan: usize,
    /// `(n_rows)` token ids, each below the vocabulary's size. A plan without Embed ignores their values.
    pub tokens: &'a [u32],
    /// What the plan's [`crate::Op::Input`] gives, row by row; empty without one.
    pub input: &'a [f32],
    /// Every row belongs to exactly one span; spans are in row order.
    pub spans: &'a [Span],
    /// `(n_slots, n_groups, pages_per_table)` page numbers. Position `p` lies in entry `p / page_len`.
    pub page_tables: &'a [u32],
    /// Entries of one table.
    pub pages_per_table: usize,
    /// `(n_outputs)` rows whose logits are wanted, ascending; may be empty.
    pub outputs: &'a [u32],
    /// What is wanted of them.
    pub want: Want,
}

impl<'a> Step<'a> {
    /// The page table of a slot for a KV group.
    pub fn page_table(&self, slot: u32, group: usize, n_groups: usize) -> &'a [u32] {
        let start = (slot as usize * n_groups + group) * self.pages_per_table;
        &self.page_tables[start..start + self.pages_per_table]
    }
}

impl Span {
    /// The position after the last row's.
    pub fn end(&self) -> usize {
        self.first_position as usize + self.n_rows as usize
    }
}

/// A [`Step`] that owns its parts, for tests and recordings.
#[derive(Clone, Debug, PartialEq)]
pub struct OwnedStep {
    /// As [`Step::plan`].
    pub plan: usize,
    /// As [`Step::tokens`].
    pub tokens: Vec<u32>,
    /// As [`Step::input`].
    pub input: Vec<f32>,
    /// As [`Step::spans`].
    pub spans: Vec<Span>,
    /// As [`Step::page_tables`].
    pub page_tables: Vec<u32>,
    /// As [`Step::pages_per_table`].
    pub pages_per_table: usize,
    /// As [`Step::outputs`].
    pub outputs: Vec<u32>,
    /// As [`Step::want`].
    pub want: Want,
}

impl OwnedStep {
    /// The step.
    pub fn borrow(&self) -> Step<'_> {
        Step {
            plan: self.plan,
            tokens: &self.tokens,
            input: &self.input,
            spans: &self.spans,
            page_tables: &self.page_tables,
            pages_per_table: self.pages_per_table,
            outputs: &self.outputs,
            want: self.want,
        }
    }
}

impl From<&Step<'_>> for OwnedStep {
    fn from(step: &Step) -> OwnedStep {
        OwnedStep {
            plan: step.plan,
            tokens: step.tokens.to_vec(),
            input: step.input.to_vec(),
            spans: step.spans.to_vec(),
            page_tables: step.page_tables.to_vec(),
            pages_per_table: step.pages_per_table,
            outputs: step.outputs.to_vec(),
            want: step.want,
        }
    }
}

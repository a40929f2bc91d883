//! The plan: a forward pass as a flat list of Ops.

use std::ops::Range;
use weights::{BlockType, Bytes, Planes, codec};

use crate::{KvLayout, Op, Place};

/// Index of a [`Value`] in its plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ValueId(pub u32);

/// Index of a [`Weight`] in its plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WeightId(pub u32);

/// Number of rows of a value, known when a step runs.
#[derive(Clone, Copy, Debug)]
pub enum RowCount {
    /// One row for each token of the step.
    Tokens,
    /// One row for each row whose logits are wanted.
    Outputs,
    /// This number of rows for each token, at least 1: token `i` has rows `k * i` to `k * (i + 1) -
    /// 1`. With 1 it equals [`Self::Tokens`].
    PerToken(usize),
}

impl RowCount {
    /// Rows for each token; `None` if there is a row for each output.
    pub const fn per_token(self) -> Option<usize> {
        match self {
            RowCount::Tokens => Some(1),
            RowCount::PerToken(k) => Some(k),
            RowCount::Outputs => None,
        }
    }

    /// Number of rows in a step of `n_tokens` tokens and `n_outputs` outputs.
    #[inline(always)]
    pub const fn count(self, n_tokens: usize, n_outputs: usize) -> usize {
        match self.per_token() {
            Some(k) => n_tokens * k,
            None => n_outputs,
        }
    }

    /// `k` rows for each of these rows; `None` for rows of outputs, or if there are too many.
    pub const fn times(self, k: usize) -> Option<RowCount> {
        match self.per_token() {
            Some(rows) => match rows.checked_mul(k) {
                Some(rows) => Some(RowCount::PerToken(rows)),
                None => None,
            },
            None => None,
        }
    }
}

impl PartialEq for RowCount {
    fn eq(&self, other: &RowCount) -> bool {
        self.per_token() == other.per_token()
    }
}

impl Eq for RowCount {}

impl std::hash::Hash for RowCount {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.per_token().hash(state);
    }
}

/// Type of an activation's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DType {
    /// 32-bit float.
    F32,
    /// 32-bit unsigned integer (ids of tokens and experts).
    U32,
}

/// An activation: `(rows, cols)`, row-major.
#[derive(Clone, Debug, PartialEq)]
pub struct Value {
    /// Name for people: `layer 3 q`.
    pub name: String,
    /// Number of rows.
    pub rows: RowCount,
    /// Columns.
    pub cols: usize,
    /// Type of its numbers, 4 bytes each.
    pub dtype: DType,
}

/// A parameter: a view of the file, or a small table made at load.
#[derive(Clone, Debug)]
pub struct Weight {
    /// Name in the file, or a description: `rope frequencies`.
    pub name: String,
    /// Outermost dimension first; a matrix is `[n_out, n_in]`, a stack of matrices `[n, n_out,
    /// n_in]`.
    pub shape: Vec<usize>,
    /// Storage type.
    pub block: BlockType,
    /// `n_rows * row_bytes` bytes; empty for a stack of matrices.
    pub data: Bytes,
    /// Scales and offsets of all rows, if `block` stores them apart from the values; empty for a
    /// stack of matrices.
    pub planes: Planes,
    /// The matrices of a stack, each anywhere in the files; empty for a single weight.
    pub parts: Vec<WeightPart>,
}

/// One matrix of a stack.
#[derive(Clone, Debug)]
pub struct WeightPart {
    /// Same as [`Weight::data`], for this matrix.
    pub data: Bytes,
    /// Same as [`Weight::planes`], for this matrix.
    pub planes: Planes,
}

impl WeightPart {
    fn views(&self) -> impl Iterator<Item = &Bytes> {
        std::iter::once(&self.data).chain(plane_views(&self.planes))
    }

    /// Size in bytes.
    pub fn n_bytes(&self) -> u64 {
        (self.data.len() + self.planes.n_bytes()) as u64
    }
}

fn plane_views(planes: &Planes) -> impl Iterator<Item = &Bytes> {
    planes.scales.iter().chain(&planes.biases)
}

impl Weight {
    /// A vector of f32, made at load.
    pub fn vector(name: impl Into<String>, values: &[f32]) -> Weight {
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        Weight {
            name: name.into(),
            shape: vec![values.len()],
            block: BlockType::F32,
            data: Bytes::from_slice(&bytes),
            planes: Planes::default(),
            parts: vec![],
        }
    }

    /// A stack `(parts.len(), n_out, n_in)` of matrices.
    pub fn stack(
        name: impl Into<String>,
        [n_out, n_in]: [usize; 2],
        block: BlockType,
        parts: Vec<WeightPart>,
    ) -> Weight {
        Weight {
            name: name.into(),
            shape: vec![parts.len(), n_out, n_in],
            block,
            data: Bytes::from_slice(&[]),
            planes: Planes::default(),
            parts,
        }
    }

    /// All its bytes: the one view, or the view of each part, and the planes of each.
    pub fn views(&self) -> impl Iterator<Item = &Bytes> {
        let whole = std::iter::once(&self.data).filter(|data| !data.is_empty());
        whole.chain(plane_views(&self.planes)).chain(self.parts.iter().flat_map(WeightPart::views))
    }

    /// Size in bytes.
    pub fn n_bytes(&self) -> u64 {
        self.views().map(|view| view.len() as u64).sum()
    }

    /// Product of all dimensions but the last.
    pub fn n_rows(&self) -> usize {
        self.shape.iter().rev().skip(1).product()
    }

    /// The last dimension.
    pub fn n_cols(&self) -> usize {
        self.shape.last().copied().unwrap_or(1)
    }

    /// Bytes of one row's values, without scales that are stored apart.
    pub fn row_bytes(&self) -> usize {
        self.block.row_bytes(self.n_cols())
    }

    /// Bytes of one row, including scales and offsets that are stored apart.
    pub fn n_bytes_of_row(&self) -> usize {
        let n_cols = self.n_cols();
        self.row_bytes() + self.block.row_scale_bytes(n_cols) + self.block.row_bias_bytes(n_cols)
    }

    /// Decodes rows of a weight that is no stack, as the codecs define it.
    ///
    /// # Panics
    /// The weight lacks these rows, which [`Plan::check`] excludes, or `out` has another length.
    pub fn decode_rows(&self, rows: Range<usize>, out: &mut [f32]) {
        let (n_cols, row_bytes) = (self.n_cols(), self.row_bytes());
        let data = &self.data[rows.start * row_bytes..rows.end * row_bytes];
        let planes = self.planes.as_slices().rows(self.block, n_cols, rows);
        codec::dequantize_rows(self.block, n_cols, data, planes, out);
    }
}

/// One Op of the plan, its layer for profiles and print-outs, and its place.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// The operation.
    pub op: Op,
    /// The transformer layer, if it belongs to one.
    pub layer: Option<u32>,
    /// Part of the layer that it computes, if the builder says so. A fused Op has the place of its
    /// first part.
    pub place: Option<Place>,
}

/// Kind of a plan's output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OutputKind {
    /// Logits over the vocabulary: a token can be chosen from them, and selects a row of the
    /// embedding in the next step.
    #[default]
    Logits,
    /// Hidden states, one for each output row, pooled or not: an embedding.
    Hidden,
}

/// A forward pass.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Activations.
    pub values: Vec<Value>,
    /// Parameters.
    pub weights: Vec<Weight>,
    /// The Ops, in order.
    pub nodes: Vec<Node>,
    /// The KV cache that KvWrite and Attention use.
    pub kv: KvLayout,
    /// The output, f32: logits `(n_outputs, n_vocab)`, or `(n_outputs, hidden)` with
    /// [`OutputKind::Hidden`].
    pub output: ValueId,
    /// `(n_outputs, 1)` u32.
    pub argmax: ValueId,
    /// Kind of [`Self::output`].
    pub output_kind: OutputKind,
    /// More f32 values that the caller reads with [`crate::Program::kept`].
    pub kept: Vec<ValueId>,
}

/// An inconsistent plan: a defect of its builder, or a checkpoint whose tensors do not fit each
/// other.
#[derive(Debug, thiserror::Error)]
#[error("plan, op {node} ({op}): {found}, expected {expected}")]
pub struct PlanError {
    /// Index of the node.
    pub node: usize,
    /// The operation, printed.
    pub op: String,
    /// The value or property that was found.
    pub found: String,
    /// The value or property that was expected.
    pub expected: String,
}

impl Plan {
    /// The activation.
    pub fn value(&self, id: ValueId) -> &Value {
        &self.values[id.0 as usize]
    }

    /// The parameter.
    pub fn weight(&self, id: WeightId) -> &Weight {
        &self.weights[id.0 as usize]
    }

    /// The primitives of all nodes, in order.
    pub fn primitives(&self) -> impl Iterator<Item = &Op> {
        self.nodes.iter().flat_map(|node| node.op.primitives())
    }

    /// Values that the caller reads: the output, the argmax, and the kept values.
    pub fn results(&self) -> impl Iterator<Item = ValueId> {
        [self.output, self.argmax].into_iter().chain(self.kept.iter().copied())
    }

    /// Values that each node writes for others: a later node reads them, or they are results. A
    /// device must write these values, even if parts of the same fused Op read them too. Other
    /// values of a fused Op may stay in registers.
    pub fn escaping(&self) -> Vec<Vec<ValueId>> {
        let mut last_reader = vec![0; self.values.len()];
        for (index, node) in self.nodes.iter().enumerate() {
            node.op.reads().iter().for_each(|id| last_reader[id.0 as usize] = index);
        }
        self.results().for_each(|id| last_reader[id.0 as usize] = usize::MAX);
        let of = |(index, node): (usize, &Node)| {
            let mut escaping = node.op.writes();
            escaping.retain(|id| last_reader[id.0 as usize] > index);
            escaping
        };
        self.nodes.iter().enumerate().map(of).collect()
    }
}

//! Differences of recurrent layers in GGUF files, as llama.cpp's converter writes them. Rates
//! replace logarithms, taps are matrices, factors are multiplied into the weights, and some
//! families have another order of value heads.

use weights::{BlockType, Bytes, Metadata, Naming, Planes, Tensor, Value};

use super::sink::{Sink, count, sections};
use crate::descriptor::{ArchDescriptor, RecurrentKind, RecurrentPlace};
use crate::error::{Error, Result};
use crate::names::{Key, TensorRole};
use crate::recurrent::{Multipliers, RecurrentSpec};
use crate::spec::{LayerSpec, ModelSpec};
use crate::tensors::shape;
use crate::transpose::value_bytes;

/// A change of a tensor's values after its rows are gathered.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) enum Change {
    /// No change.
    #[default]
    None,
    /// Logarithms become decay rates, `-exp(x)`, in F32.
    Rates,
    /// Each row is multiplied by a factor, in F32.
    Factors(Vec<f32>),
    /// Columns are reordered in pieces of `len`: piece `i` of the result is piece `order[i]`.
    Columns { len: usize, order: Vec<usize> },
}

impl Change {
    /// The type of the result for a type of the source.
    pub fn block(&self, block: BlockType) -> BlockType {
        match self {
            Change::None => block,
            Change::Rates | Change::Factors(_) => BlockType::F32,
            Change::Columns { .. } if value_bytes(block).is_some() => block,
            Change::Columns { .. } => BlockType::F32,
        }
    }

    /// Applies the change.
    pub fn of(&self, tensor: Tensor) -> Tensor {
        let n_cols = tensor.n_cols().max(1);
        match self {
            Change::None => tensor,
            Change::Rates => in_f32(&tensor, tensor.to_f32().into_iter().map(|v| -v.exp())),
            Change::Factors(factors) => {
                let factor = |at: usize| factors.get(at / n_cols).copied().unwrap_or(1.0);
                in_f32(&tensor, tensor.to_f32().into_iter().enumerate().map(|(at, v)| v * factor(at)))
            }
            Change::Columns { len, order } => {
                let plain = match value_bytes(tensor.block) {
                    Some(_) => tensor,
                    None => in_f32(&tensor, tensor.to_f32().into_iter()),
                };
                let piece = len * value_bytes(plain.block).unwrap_or(4);
                let pieces: Vec<&[u8]> = plain.data.chunks(piece.max(1)).collect();
                let rows = pieces.chunks(order.len().max(1));
                let moved: Vec<&[u8]> =
                    rows.flat_map(|row| order.iter().filter_map(|from| row.get(*from).copied())).collect();
                let data = Bytes::from_parts(&moved);
                Tensor { data, ..plain }
            }
        }
    }
}

fn in_f32(tensor: &Tensor, values: impl Iterator<Item = f32>) -> Tensor {
    let bytes: Vec<u8> = values.flat_map(f32::to_le_bytes).collect();
    let (data, planes) = (Bytes::from_slice(&bytes), Planes::default());
    Tensor { name: tensor.name.clone(), shape: tensor.shape.clone(), block: BlockType::F32, data, planes }
}

/// True if the checkpoint's factors are multiplied into the weights, because the format cannot
/// store them.
pub(super) fn multiplies(spec: &ModelSpec) -> bool {
    spec.multipliers != Multipliers::ONE
}

/// The model with its factors in the weights, as the format can store it.
pub(super) fn as_written(spec: &ModelSpec) -> ModelSpec {
    let mut written = spec.clone();
    if multiplies(spec) {
        let squared = spec.multipliers.attention_in.powi(2) * spec.multipliers.key;
        written.layers.iter_mut().for_each(|layer| layer.attention_scale /= squared);
        written.multipliers = Multipliers::ONE;
        (written.embedding_scale, written.logit_scale, written.tied_head) = (1.0, 1.0, false);
    }
    written
}

/// The factor multiplied into the weights of a role.
pub(super) fn factor(spec: &ModelSpec, role: TensorRole) -> f32 {
    use TensorRole::*;
    if !multiplies(spec) {
        return 1.0;
    }
    let m = &spec.multipliers;
    let part = |i: usize| m.scan_in * m.scan_parts[i];
    let factors = [
        (TokenEmbedding, spec.embedding_scale),
        (Output, spec.logit_scale),
        (AttnQ, m.attention_in),
        (AttnV, m.attention_in),
        (AttnK, m.attention_in * m.key),
        (AttnOut, m.attention_out),
        (RecurrentGate, part(0)),
        (RecurrentV, part(1)),
        (RecurrentK, part(2)),
        (RecurrentQ, part(3)),
        (RecurrentStep, part(4)),
        (RecurrentOut, m.scan_out),
        (FfnGate, m.ffn_gate),
        (FfnDown, m.ffn_out),
    ];
    factors.into_iter().find(|(of, _)| *of == role).map_or(1.0, |(_, factor)| factor)
}

/// For each head of the format's order, its place in the source. Head `h` of the format has the key
/// head `h % n`.
fn head_order(recurrent: &RecurrentSpec) -> Vec<usize> {
    let of_key = recurrent.n_heads / recurrent.n_groups.max(1);
    (0..recurrent.n_heads).map(|h| h % recurrent.n_groups * of_key + h / recurrent.n_groups).collect()
}

/// True if value heads are reordered.
pub(super) fn moves_heads(recurrent: &RecurrentSpec, target: &ArchDescriptor) -> bool {
    let tiled = target.recurrent.is_some_and(|r| r.tiled.of(Naming::Gguf));
    tiled && !recurrent.tiled && recurrent.n_heads != recurrent.n_groups
}

/// The order of the rows of some roles in the format; `None`: unchanged.
pub(super) fn row_order(
    spec: &ModelSpec,
    target: &ArchDescriptor,
    roles: &[TensorRole],
    layer: Option<usize>,
) -> Option<Vec<usize>> {
    use TensorRole::{ConvV, Rate, RecurrentBeta, RecurrentGate, RecurrentStep, RecurrentV, StepBias};
    let of_heads = |role: &TensorRole| {
        matches!(role, ConvV | Rate | RecurrentBeta | RecurrentGate | RecurrentStep | RecurrentV | StepBias)
    };
    let recurrent = recurrent(spec, layer).filter(|r| moves_heads(r, target))?;
    if !roles.iter().any(of_heads) {
        return None;
    }
    let mut order = Vec::new();
    for role in roles {
        let (first, n_rows) = (order.len(), shape(spec, *role, layer).first().copied().unwrap_or(0));
        if of_heads(role) {
            let len = n_rows / recurrent.n_heads.max(1);
            order.extend(head_order(&recurrent).iter().flat_map(|h| first + h * len..first + (h + 1) * len));
        } else {
            order.extend(first..first + n_rows);
        }
    }
    Some(order)
}

/// The numbers of a layer's recurrence.
pub(super) fn recurrent(spec: &ModelSpec, layer: Option<usize>) -> Option<RecurrentSpec> {
    spec.layers.get(layer?)?.recurrent
}

/// The change of a role's values, whose tensor holds the rows of `roles`.
pub(super) fn change(
    spec: &ModelSpec,
    target: &ArchDescriptor,
    role: TensorRole,
    roles: &[TensorRole],
    layer: Option<usize>,
) -> Change {
    if let Some(recurrent) = recurrent(spec, layer) {
        if role == TensorRole::Rate {
            return Change::Rates;
        }
        if role == TensorRole::RecurrentOut && moves_heads(&recurrent, target) {
            return Change::Columns { len: recurrent.head_dim, order: head_order(&recurrent) };
        }
    }
    if roles.iter().all(|role| factor(spec, *role) == 1.0) {
        return Change::None;
    }
    let of = |role: &TensorRole| {
        let n_rows = shape(spec, *role, layer).first().copied().unwrap_or(0);
        std::iter::repeat_n(factor(spec, *role), n_rows)
    };
    Change::Factors(roles.iter().flat_map(of).collect())
}

/// The shape of a recurrent layer's role in the format.
pub(super) fn shape_of(
    spec: &ModelSpec,
    role: TensorRole,
    layer: Option<usize>,
    source: &[usize],
) -> Vec<usize> {
    use TensorRole::{ConvK, ConvQ, ConvV, Rate, RecurrentNorm, Skip};
    let Some(recurrent) = recurrent(spec, layer) else { return source.to_vec() };
    let n_values: usize = source.iter().product();
    let scans = recurrent.kind == RecurrentKind::SelectiveScan;
    let convolves = [ConvQ, ConvK, ConvV].contains(&role);
    if convolves && recurrent.by_rows {
        vec![n_values / recurrent.conv_size, 1, recurrent.conv_size]
    } else if convolves && source.len() > 1 {
        vec![n_values / recurrent.conv_size, recurrent.conv_size]
    } else if scans && [Rate, Skip].contains(&role) {
        vec![n_values, 1]
    } else if scans && role == RecurrentNorm {
        vec![recurrent.n_groups, n_values / recurrent.n_groups.max(1)]
    } else {
        source.to_vec()
    }
}

/// Writes the numbers of recurrent layers.
pub(super) fn numbers(source: &Metadata, spec: &ModelSpec, sink: &mut Sink<'_>) -> Result<()> {
    let Some(recurrent) = spec.layers.iter().find_map(|l| l.recurrent) else {
        return match spec.family.recurrent {
            None => Ok(()),
            Some(_) => Err(Error::Export {
                what: "layers".to_owned(),
                found: "none that recurs".to_owned(),
                expected: format!("some, as {} has", spec.family.title),
            }),
        };
    };
    if recurrent.kind == RecurrentKind::ShortConv {
        sink.put(Key::ConvSize, count(recurrent.conv_size));
        return Ok(());
    }
    sink.put_as("ssm.conv_kernel", count(recurrent.conv_size));
    if recurrent.by_rows {
        // The recurrence has as many heads as attention, and the number of key heads tells which
        // layers attend.
        sink.put(Key::StateHeadDim, count(recurrent.head_dim));
        return Ok(());
    }
    sink.put(Key::StateHeads, count(recurrent.n_heads));
    sink.put(Key::StateInner, count(recurrent.inner()));
    sink.put(Key::StateGroups, count(recurrent.n_groups));
    sink.put(Key::StateRows, count(recurrent.rows));
    let attends = |layer: &LayerSpec| layer.attends;
    let place = spec.family.recurrent.map(|r| r.place);
    if recurrent.kind == RecurrentKind::GatedDelta {
        // An interval tells which layers attend. The position sections are written too, although
        // text alone does not use them.
        let every = spec.layers.iter().position(attends).map_or(spec.n_layers(), |first| first + 1);
        if let Some(l) =
            (0..spec.n_layers()).find(|l| spec.layers[*l].attends != (l + 1).is_multiple_of(every))
        {
            return Err(Error::Export {
                what: "attention of layers".to_owned(),
                found: format!("layer {l} outside the interval"),
                expected: format!("every one of {every}"),
            });
        }
        sink.put_as("full_attention_interval", count(every));
        if spec.vision.is_none() {
            let usual = vec![11, 11, 10];
            sections(source, usual, sink);
        }
    } else if place == Some(RecurrentPlace::InsteadOfAttention) {
        let turns = spec.layers.iter().any(|l| l.attends && l.rope.is_some());
        sink.put(Key::RopeUsed, Value::Bool(turns));
    }
    Ok(())
}

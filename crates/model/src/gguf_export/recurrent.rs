//! What GGUF holds otherwise of recurrent layers, as llama.cpp's converter writes it: rates instead of logarithms, taps as
//! matrices, factors multiplied into the weights, and for some families the heads of values in another order.

use weights::{BlockType, Bytes, Metadata, Naming, Planes, Tensor, Value};

use super::metadata::{Sink, count};
use crate::descriptor::{ArchDescriptor, RecurrentKind, RecurrentPlace};
use crate::error::{Error, Result};
use crate::names::{Key, TensorRole};
use crate::recurrent::{Multipliers, RecurrentSpec};
use crate::spec::{LayerSpec, ModelSpec};
use crate::tensors::{shape, value_bytes};

/// What happens to the values of a tensor after its rows were put together.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) enum Change {
    /// Nothing.
    #[default]
    None,
    /// Logarithms of sizes become rates of decay, `-exp(x)`; in F32.
    Rates,
    /// Each row times a factor; in F32.
    Factors(Vec<f32>),
    /// Columns in pieces of `len`: piece `i` of the result is piece `order[i]`.
    Columns { len: usize, order: Vec<usize> },
}

impl Change {
    /// The type of what comes out, from that of what goes in.
    pub fn block(&self, block: BlockType) -> BlockType {
        match self {
            Change::None => block,
            Change::Rates | Change::Factors(_) => BlockType::F32,
            Change::Columns { .. } if value_bytes(block).is_some() => block,
            Change::Columns { .. } => BlockType::F32,
        }
    }

    /// Do it.
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

/// Whether the factors of the checkpoint are multiplied into the weights: the format has no place for them.
pub(super) fn multiplies(spec: &ModelSpec) -> bool {
    spec.multipliers != Multipliers::ONE
}

/// The model as the format can say it: its factors are in the weights.
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

/// The factor that the weights of a role are multiplied by.
pub(super) fn factor(spec: &ModelSpec, role: TensorRole) -> f32 {
    use TensorRole::*;
    if !multiplies(spec) {
        return 1.0;
    }
    let m = &spec.multipliers;
    let part = |i: usize| m.scan_in * m.scan_parts[i];
    match role {
        TokenEmbedding => spec.embedding_scale,
        Output => spec.logit_scale,
        AttnQ | AttnV => m.attention_in,
        AttnK => m.attention_in * m.key,
        AttnOut => m.attention_out,
        RecurrentGate => part(0),
        RecurrentV => part(1),
        RecurrentK => part(2),
        RecurrentQ => part(3),
        RecurrentStep => part(4),
        RecurrentOut => m.scan_out,
        FfnGate => m.ffn_gate,
        FfnDown => m.ffn_out,
        _ => 1.0,
    }
}

/// Where the format has the heads of values so that head `h` has the key head `h % n`, the head that becomes each one.
fn head_order(recurrent: &RecurrentSpec) -> Vec<usize> {
    let of_key = recurrent.n_heads / recurrent.n_groups.max(1);
    (0..recurrent.n_heads).map(|h| h % recurrent.n_groups * of_key + h / recurrent.n_groups).collect()
}

/// Whether the heads of values change their places.
pub(super) fn moves_heads(recurrent: &RecurrentSpec, target: &ArchDescriptor) -> bool {
    let tiled = target.recurrent.is_some_and(|r| r.tiled.of(Naming::Gguf));
    tiled && !recurrent.tiled && recurrent.n_heads != recurrent.n_groups
}

/// The rows of some roles in the places that the format has them in; `None`: as they are.
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

/// What happens to the values of a role, whose tensor holds the rows of `roles`.
pub(super) fn change(
    spec: &ModelSpec,
    target: &ArchDescriptor,
    role: TensorRole,
    roles: &[TensorRole],
    layer: Option<usize>,
) -> Change {
    match (role, recurrent(spec, layer)) {
        (TensorRole::Rate, Some(_)) => return Change::Rates,
        (TensorRole::RecurrentOut, Some(r)) if moves_heads(&r, target) => {
            return Change::Columns { len: r.head_dim, order: head_order(&r) };
        }
        _ => {}
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

/// The shape in which the format has a role of a recurrent layer, where it is not the source's.
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
    match role {
        ConvQ | ConvK | ConvV if recurrent.by_rows => {
            vec![n_values / recurrent.conv_size, 1, recurrent.conv_size]
        }
        ConvQ | ConvK | ConvV if source.len() > 1 => {
            vec![n_values / recurrent.conv_size, recurrent.conv_size]
        }
        Rate | Skip if scans => vec![n_values, 1],
        RecurrentNorm if scans => vec![recurrent.n_groups, n_values / recurrent.n_groups.max(1)],
        _ => source.to_vec(),
    }
}

/// The numbers of recurrent layers.
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
        // Its heads are as many as those of attention, and what attends is said by their number of keys.
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
        // Which layers attend is said by a number, and so are the sections of positions, which text alone has no use for.
        let every = spec.layers.iter().position(attends).map_or(spec.n_layers(), |first| first + 1);
        if let Some(l) =
            (0..spec.n_layers()).find(|l| spec.layers[*l].attends != (l + 1).is_multiple_of(every))
        {
            return Err(Error::Export {
                what: "attention of layers".to_owned(),
                found: format!("a layer {l} that is out of turn"),
                expected: format!("every one of {every}"),
            });
        }
        sink.put_as("full_attention_interval", count(every));
        if spec.vision.is_none() {
            let usual = vec![11, 11, 10];
            super::metadata::sections(source, usual, sink);
        }
    } else if place == Some(RecurrentPlace::InsteadOfAttention) {
        let turns = spec.layers.iter().any(|l| l.attends && l.rope.is_some());
        sink.put(Key::RopeUsed, Value::Bool(turns));
    }
    Ok(())
}

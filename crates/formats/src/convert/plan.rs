//! The type that each tensor gets.
//!
//! If no rule of a profile matches and the target is a quantised type:
//!
//! - Vectors stay unchanged, and so do small, sensitive matrices, known by their names ([`KEPT`]).
//! - The embedding and the head ([`OUTER`]) become one step finer than the rest, because their
//!   error goes directly into the logits. They are a large part of a small model, and a small part
//!   of a large one.
//! - A matrix whose rows are not whole blocks gets smaller groups (`.base`) or the 32-value block
//!   type next in size (GGUF). If that does not fit either, it stays unchanged.
//!
//! A float target applies to matrices; `f32` also to vectors, since it stores all of them exactly.

use super::types::usual_group;
use super::{Error, Format, Options, Result, Wanted};
use crate::base::layer_order;
use weights::codec::repack;
use weights::{Affine, BlockType, ScaleType};
use weights::{Declaration, Source};

/// Parts of the names of matrices that stay unchanged: norms, expert routers, position and type
/// embeddings. They are small, and later layers do not repair their errors. The taps, rates and
/// skips of recurrent layers stay too, and so do AltUp matrices that llama.cpp keeps.
pub const KEPT: &[&str] = &[
    "norm",
    "ffn_gate_inp",
    "router",
    "mlp.gate.",
    "shared_expert_gate",
    "position_emb",
    "token_type",
    "conv1d",
    "shortconv.conv",
    "conv.conv",
    "ssm_a",
    "ssm_d",
    "altup",
    "laurel",
    "per_layer_model_proj",
];

/// Parts of the names of embeddings and heads.
pub const OUTER: &[&str] = &["token_embd", "embed_tokens", "word_embeddings", "lm_head"];

/// The way in which a tensor's bytes are converted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// The bytes are copied.
    Copy,
    /// Integers and scales are repacked.
    Repack,
    /// Values are decoded and encoded.
    Encode,
}

/// A tensor and its conversion.
#[derive(Clone, Copy, Debug)]
pub struct Planned {
    /// Index of the tensor in the source.
    pub tensor: usize,
    /// The tensor's new type.
    pub block: BlockType,
    /// Way of the conversion.
    pub action: Action,
}

/// All tensors in the order in which they are written.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Planned tensors.
    pub tensors: Vec<Planned>,
    /// Lines of the profile that matched no tensor.
    pub unmatched: Vec<String>,
}

impl Plan {
    /// Plans every tensor. Reads only the header.
    ///
    /// # Errors
    /// A tensor would lose more precision than allowed, or its shape does not fit the profile's
    /// type.
    pub fn new(source: &dyn Source, options: &Options) -> Result<Plan> {
        let mut declared: Vec<_> = source.declarations().into_iter().enumerate().collect();
        declared.sort_by_key(|(_, tensor)| layer_order(tensor.name));
        let n_rules = options.profile.as_ref().map_or(0, |p| p.n_rules());
        let mut used = vec![false; n_rules];
        let mut tensors = Vec::with_capacity(declared.len());
        for (index, tensor) in &declared {
            let rule = options.profile.as_ref().and_then(|p| p.find(tensor.name));
            let wanted = match rule {
                Some((rule, wanted)) => {
                    used[rule] = true;
                    as_ruled(tensor, wanted, options.target.format)?
                }
                None => by_default(tensor, options.target.wanted, options.target.format),
            };
            tensors.push(Planned { tensor: *index, ..decide(tensor, wanted, options)? });
        }
        let unmatched = used.iter().enumerate().filter(|(_, used)| !**used);
        let describe = |rule| options.profile.as_ref().map(|p| p.describe(rule)).unwrap_or_default();
        Ok(Plan { tensors, unmatched: unmatched.map(|(rule, _)| describe(rule)).collect() })
    }

    /// Bytes of all tensors, scales and offsets included.
    pub fn n_bytes(&self, source: &dyn Source) -> u64 {
        let declared = source.declarations();
        let bytes =
            |planned: &Planned| declared.get(planned.tensor).map_or(0, |tensor| planned.n_bytes(tensor));
        self.tensors.iter().map(bytes).sum()
    }
}

impl Planned {
    /// Bytes of this tensor in its new type.
    pub(super) fn n_bytes(&self, tensor: &Declaration<'_>) -> u64 {
        let (block, n_cols) = (self.block, tensor.n_cols());
        let row = block.row_bytes(n_cols) + block.row_scale_bytes(n_cols) + block.row_bias_bytes(n_cols);
        (tensor.n_rows() * row) as u64
    }
}

/// True for types of floats without blocks.
fn is_float(block: BlockType) -> bool {
    matches!(block, BlockType::F32 | BlockType::F16 | BlockType::BF16)
}

fn is_storable(block: BlockType, format: Format) -> bool {
    match format {
        Format::Gguf => block.gguf_id().is_some(),
        Format::Base => match block {
            BlockType::Affine(affine) => affine.scale() != ScaleType::F32,
            block => is_float(block),
        },
    }
}

fn fits(tensor: &Declaration<'_>, block: BlockType) -> bool {
    is_float(block) || (tensor.shape.len() > 1 && tensor.n_cols().is_multiple_of(block.block_len()))
}

/// The type of a tensor by a rule of the profile, which must fit.
fn as_ruled(tensor: &Declaration<'_>, wanted: Wanted, format: Format) -> Result<Option<BlockType>> {
    let Wanted::Type { block, fixed_group } = wanted else { return Ok(None) };
    let narrower = (!fixed_group && tensor.shape.len() > 1).then(|| fitting(tensor, block, format)).flatten();
    match narrower.unwrap_or(block) {
        block if fits(tensor, block) => Ok(Some(block)),
        block => Err(Error::Shape { tensor: tensor.name.to_owned(), shape: tensor.shape.to_vec(), block }),
    }
}

/// The type of a tensor by the target; `None` if it stays unchanged.
fn by_default(tensor: &Declaration<'_>, wanted: Wanted, format: Format) -> Option<BlockType> {
    let Wanted::Type { block, fixed_group } = wanted else { return None };
    if block == BlockType::F32 {
        return Some(block);
    }
    let kept = KEPT.iter().any(|part| tensor.name.contains(part));
    if tensor.shape.len() < 2 || kept {
        return None;
    }
    if is_float(block) {
        return Some(block);
    }
    let outer = tensor.name == "output.weight" || OUTER.iter().any(|part| tensor.name.contains(part));
    let block = if outer { finer(block, fixed_group) } else { block };
    fitting(tensor, block, format)
}

/// An affine type with the same kind of groups, but other bits and another group size.
fn resized(affine: Affine, bits: usize, group: usize) -> Option<BlockType> {
    Affine::new(bits, group, affine.scale(), affine.is_symmetric()).map(BlockType::Affine)
}

/// The next finer type.
fn finer(block: BlockType, fixed_group: bool) -> BlockType {
    use BlockType::*;
    match block {
        Affine(affine) => {
            let bits = weights::Affine::BITS.into_iter().find(|&bits| bits > affine.bits()).unwrap_or(8);
            let group = if fixed_group { affine.group() } else { usual_group(bits) };
            resized(affine, bits, group).unwrap_or(block)
        }
        Q2_K => Q3_K,
        Q3_K => Q4_K,
        Q4_K | IQ4_XS => Q5_K,
        Q5_K => Q6_K,
        Q4_0 | IQ4_NL | MXFP4 => Q5_0,
        Q4_1 => Q5_1,
        Q6_K | Q5_0 | Q5_1 => Q8_0,
        other => other,
    }
}

/// The type, or the nearest one that the row's length allows.
fn fitting(tensor: &Declaration<'_>, block: BlockType, format: Format) -> Option<BlockType> {
    use BlockType::*;
    if fits(tensor, block) {
        return Some(block);
    }
    let other = match block {
        Affine(affine) => {
            let groups = weights::Affine::GROUPS.into_iter().rev().filter(|&group| group < affine.group());
            let mut narrower = groups.filter_map(|group| resized(affine, affine.bits(), group));
            return narrower.find(|&block| fits(tensor, block));
        }
        Q2_K | Q3_K => Q4_0,
        IQ4_XS => IQ4_NL,
        Q4_K => Q5_0,
        Q5_K => Q5_1,
        Q6_K => Q8_0,
        _ => return None,
    };
    (format == Format::Gguf && fits(tensor, other)).then_some(other)
}

/// The conversion of a tensor to its type, if it is allowed.
fn decide(tensor: &Declaration<'_>, wanted: Option<BlockType>, options: &Options) -> Result<Planned> {
    let format = options.target.format;
    let planned = |block, action| Ok(Planned { tensor: 0, block, action });
    let twin = match tensor.block {
        BlockType::Affine(affine) => repack::block_twin(affine),
        block => repack::affine_twin(block).map(BlockType::Affine),
    };
    let twin = twin.filter(|&twin| is_storable(twin, format));
    match wanted {
        Some(block) if block == tensor.block => planned(block, Action::Copy),
        Some(block) if Some(block) == twin => planned(block, Action::Repack),
        // F32 stores every decoded value exactly.
        Some(block) if is_float(tensor.block) || block == BlockType::F32 || options.requantize => {
            planned(block, Action::Encode)
        }
        Some(to) => Err(Error::Lossy { tensor: tensor.name.to_owned(), from: tensor.block, to }),
        None if is_storable(tensor.block, format) => planned(tensor.block, Action::Copy),
        None => match twin {
            Some(twin) => planned(twin, Action::Repack),
            None => Err(Error::Unstorable { tensor: tensor.name.to_owned(), block: tensor.block, format }),
        },
    }
}

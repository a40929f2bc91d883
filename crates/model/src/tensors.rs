//! From roles to weights: finds each tensor under its name, checks its shape, and takes the rows that belong to the role.

use std::collections::{BTreeSet, HashMap};

use device::Weight;
use formats::{BlockType, Bytes, Checkpoint, Naming, Tensor, codec};

use crate::descriptor::{ArchDescriptor, QkNorm};
use crate::error::{Error, Result};
use crate::names::{MODEL_PREFIXES, TensorName, TensorRole};
use crate::spec::{LayerSpec, ModelSpec};

/// The tensors of a checkpoint, found by role.
pub(crate) struct Tensors<'a> {
    naming: Naming,
    family: &'static ArchDescriptor,
    model_prefix: &'static str,
    by_name: HashMap<&'a str, &'a Tensor>,
    used: BTreeSet<&'a str>,
    /// Whether vectors are decoded. If not, zeros stand for them, and no byte of a file is touched to check its tensors.
    decodes: bool,
}

/// Where a role's rows lie.
struct Located<'a> {
    tensor: &'a Tensor,
    stacked: &'static [TensorRole],
}

impl<'a> Tensors<'a> {
    pub fn new(checkpoint: &'a Checkpoint, family: &'static ArchDescriptor) -> Tensors<'a> {
        let naming = checkpoint.naming;
        let by_name: HashMap<_, _> = checkpoint.tensors.iter().map(|t| (t.name.as_str(), t)).collect();
        let mut tensors = Tensors {
            naming,
            family,
            model_prefix: MODEL_PREFIXES[0],
            by_name,
            used: BTreeSet::new(),
            decodes: true,
        };
        for prefix in MODEL_PREFIXES {
            tensors.model_prefix = prefix;
            if tensors.has(TensorRole::TokenEmbedding) {
                return tensors;
            }
        }
        tensors.model_prefix = MODEL_PREFIXES[0];
        tensors
    }

    /// From here on names, shapes and types only.
    pub fn without_values(&mut self) {
        self.decodes = false;
    }

    /// The rows of the table that speak of a role: those of the first of the family's tables that has any.
    fn rows(&self, role: TensorRole) -> Vec<&'static TensorName> {
        let of = |table: &&'static [TensorName]| table.iter().filter(|n| n.role == role).collect::<Vec<_>>();
        self.family.tensors.iter().map(of).find(|rows| !rows.is_empty()).unwrap_or_default()
    }

    fn names(
        &self,
        role: TensorRole,
        layer: Option<usize>,
        suffix: &str,
    ) -> Vec<(String, &'static [TensorRole])> {
        let expand = |n: &'static TensorName| {
            let name = n.expand(self.naming, self.model_prefix, layer)?;
            match name.strip_suffix('$') {
                Some(whole) => (suffix == "weight").then(|| (whole.to_owned(), n.stacked)),
                None => Some((format!("{name}.{suffix}"), n.stacked)),
            }
        };
        self.rows(role).into_iter().filter_map(expand).collect()
    }

    fn locate(&self, role: TensorRole, layer: Option<usize>, suffix: &str) -> Option<Located<'a>> {
        // Old encoders call the two vectors of a norm otherwise.
        let old = match suffix {
            "weight" => "gamma",
            _ => "beta",
        };
        let names = self.names(role, layer, suffix).into_iter().chain(self.names(role, layer, old));
        let find = |(name, stacked): (String, _)| {
            Some(Located { tensor: self.by_name.get(name.as_str())?, stacked })
        };
        names.into_iter().find_map(find)
    }

    /// Whether the file has a tensor for a role outside the layers.
    pub fn has(&self, role: TensorRole) -> bool {
        self.locate(role, None, "weight").is_some()
    }

    /// Whether it has one for a role in a layer.
    pub fn has_in(&self, role: TensorRole, layer: usize) -> bool {
        self.locate(role, Some(layer), "weight").is_some()
    }

    /// Rows of the embedding: the size of the vocabulary where no key says it.
    pub fn embedding_rows(&self) -> Option<usize> {
        match self.locate(TensorRole::TokenEmbedding, None, "weight")?.tensor.shape[..] {
            [rows, _] => Some(rows),
            _ => None,
        }
    }

    /// The values of a small vector outside the layers, if the file has it, whatever its length up to `max_len`.
    pub fn small_vector(&mut self, role: TensorRole, max_len: usize) -> Result<Option<Vec<f32>>> {
        let Some(Located { tensor, .. }) = self.locate(role, None, "weight") else { return Ok(None) };
        if tensor.shape.len() != 1 || tensor.n_cols() > max_len {
            return Err(bad_shape(tensor, role, format!("a vector of at most {max_len}")));
        }
        self.used.insert(&tensor.name);
        self.decode(tensor, 0, tensor.n_cols()).map(Some)
    }

    /// The weight matrix of a role, a view of the file.
    pub fn matrix(&mut self, spec: &ModelSpec, role: TensorRole, layer: Option<usize>) -> Result<Weight> {
        let shape = shape(spec, role, layer);
        let located = self.locate(role, layer, "weight").ok_or_else(|| self.missing(spec, role, layer))?;
        let (tensor, first) = self.check(spec, role, layer, &located, &shape)?;
        let n_rows = shape[0];
        if located.stacked.is_empty() {
            return Ok(Weight {
                name: tensor.name.clone(),
                shape,
                block: tensor.block,
                data: tensor.data.clone(),
                parts: vec![],
            });
        }
        let row = tensor.row_bytes();
        let data = tensor.data.slice(first * row..(first + n_rows) * row).ok_or_else(|| short(tensor))?;
        Ok(Weight {
            name: format!("{}[{first}..{}]", tensor.name, first + n_rows),
            shape,
            block: tensor.block,
            data,
            parts: vec![],
        })
    }

    /// The matrices of a role's experts, views of the file: each a tensor by itself, or all in one, where those of other
    /// roles may stand before or behind.
    pub fn experts(&mut self, spec: &ModelSpec, role: TensorRole, layer: Option<usize>) -> Result<Weight> {
        let shape = shape(spec, role, layer);
        let [n, n_out, _] = shape[..] else { return Err(self.missing(spec, role, layer)) };
        let names = self.names(role, layer, "weight");
        for (name, stacked) in &names {
            let tensor = |name: &str| self.by_name.get(name).copied();
            let each = name.contains("{e}");
            let Some(one) = tensor(&name.replace("{e}", "0")) else { continue };
            let mut parts = Vec::with_capacity(n);
            if each {
                for expert in 0..n {
                    let name = name.replace("{e}", &expert.to_string());
                    let found =
                        tensor(&name).ok_or_else(|| self.missing_name(name, role, layer, &shape[1..]))?;
                    if found.shape != shape[1..] || found.block != one.block {
                        return Err(bad_shape(
                            found,
                            role,
                            format!("shape {:?} of {}", &shape[1..], one.block),
                        ));
                    }
                    whole(found)?;
                    self.used.insert(&found.name);
                    parts.push(found.data.clone());
                }
            } else {
                let rows = |roles: &[TensorRole]| {
                    roles
                        .iter()
                        .map(|r| self::shape(spec, *r, layer).get(1).copied().unwrap_or(0))
                        .sum::<usize>()
                };
                let before = stacked.iter().position(|r| *r == role).map_or(0, |at| rows(&stacked[..at]));
                let all = if stacked.is_empty() { n_out } else { rows(stacked) };
                if one.shape != [n, all, shape[2]] {
                    return Err(bad_shape(one, role, format!("shape {:?}", [n, all, shape[2]])));
                }
                whole(one)?;
                self.used.insert(&one.name);
                let row = one.row_bytes();
                for expert in 0..n {
                    let first = (expert * all + before) * row;
                    let part = one.data.slice(first..first + n_out * row).ok_or_else(|| short(one))?;
                    parts.push(part);
                }
            }
            let name = if stacked.is_empty() { name.clone() } else { format!("{name} ({})", role.what()) };
            let name = name.replace("{e}", "*");
            return Ok(Weight { name, shape, block: one.block, data: Bytes::from_slice(&[]), parts });
        }
        Err(self.missing(spec, role, layer))
    }

    /// A vector of a role in f32, times a factor.
    pub fn scaled(
        &mut self,
        spec: &ModelSpec,
        role: TensorRole,
        layer: Option<usize>,
        factor: f32,
    ) -> Result<Weight> {
        let shape = shape(spec, role, layer);
        let located = self.locate(role, layer, "weight").ok_or_else(|| self.missing(spec, role, layer))?;
        let (tensor, first) = self.check(spec, role, layer, &located, &shape)?;
        let values: Vec<f32> =
            self.decode(tensor, first, shape[0])?.into_iter().map(|v| v * factor).collect();
        Ok(Weight::vector(&tensor.name, &values))
    }

    /// The single value of a role, if the file has it.
    pub fn number(
        &mut self,
        spec: &ModelSpec,
        role: TensorRole,
        layer: Option<usize>,
    ) -> Result<Option<f32>> {
        let Some(located) = self.locate(role, layer, "weight") else { return Ok(None) };
        let (tensor, first) = self.check(spec, role, layer, &located, &shape(spec, role, layer))?;
        Ok(self.decode(tensor, first, 1)?.first().copied())
    }

    /// The norm weight of a role, in f32, with the family's offset.
    pub fn norm(&mut self, spec: &ModelSpec, role: TensorRole, layer: Option<usize>) -> Result<Weight> {
        let shape = shape(spec, role, layer);
        let located = self.locate(role, layer, "weight").ok_or_else(|| self.missing(spec, role, layer))?;
        let (tensor, first) = self.check(spec, role, layer, &located, &shape)?;
        self.vector(tensor, first, shape[0], self.family.norm_offset.of(self.naming))
    }

    /// The bias of a role, in f32, if the file has one.
    pub fn bias(
        &mut self,
        spec: &ModelSpec,
        role: TensorRole,
        layer: Option<usize>,
    ) -> Result<Option<Weight>> {
        let Some(located) = self.locate(role, layer, "bias") else { return Ok(None) };
        let shape = vec![shape(spec, role, layer)[0]];
        let (tensor, first) = self.check(spec, role, layer, &located, &shape)?;
        self.vector(tensor, first, shape[0], 0.0).map(Some)
    }

    /// The position embeddings: a view of the file, or, where the file has types of tokens, a table made at load of the sum
    /// with the first type's row, which every token here has.
    pub fn positions(&mut self, spec: &ModelSpec) -> Result<Weight> {
        let positions = self.matrix(spec, TensorRole::PositionEmbedding, None)?;
        let Some(Located { tensor, .. }) = self.locate(TensorRole::TokenTypes, None, "weight") else {
            return Ok(positions);
        };
        if !matches!(tensor.shape[..], [rows, cols] if rows > 0 && cols == spec.hidden)
            || !tensor.n_cols().is_multiple_of(tensor.block.block_len())
            || tensor.data.len() != tensor.n_rows() * tensor.row_bytes()
        {
            return Err(bad_shape(tensor, TensorRole::TokenTypes, format!("rows of {}", spec.hidden)));
        }
        self.used.insert(&tensor.name);
        if !self.decodes {
            return Ok(positions);
        }
        let mut kind = vec![0.0; spec.hidden];
        let first = tensor.data.slice(0..tensor.row_bytes()).ok_or_else(|| short(tensor))?;
        codec::dequantize_row(tensor.block, &first, &mut kind);
        let mut sums = vec![0.0; positions.n_rows() * spec.hidden];
        for (row, bytes) in
            sums.chunks_exact_mut(spec.hidden).zip(positions.data.chunks_exact(positions.row_bytes()))
        {
            codec::dequantize_row(positions.block, bytes, row);
            row.iter_mut().zip(&kind).for_each(|(value, kind)| *value += kind);
        }
        let name = format!("{} + {}[0]", positions.name, tensor.name);
        Ok(Weight { shape: positions.shape, ..Weight::vector(name, &sums) })
    }

    /// An error that a bias is not there.
    pub fn missing_bias(&self, spec: &ModelSpec, role: TensorRole, layer: Option<usize>) -> Error {
        self.missing_as(role, layer, "bias", vec![shape(spec, role, layer)[0]])
    }

    fn missing(&self, spec: &ModelSpec, role: TensorRole, layer: Option<usize>) -> Error {
        self.missing_as(role, layer, "weight", shape(spec, role, layer))
    }

    fn missing_as(&self, role: TensorRole, layer: Option<usize>, suffix: &str, shape: Vec<usize>) -> Error {
        let names: Vec<String> = self.names(role, layer, suffix).into_iter().map(|(name, _)| name).collect();
        match self.missing_name(names.join(" or "), role, layer, &shape) {
            Error::MissingTensor { name, naming, role, shape } if suffix == "bias" => {
                Error::MissingTensor { name, naming, role: format!("{role} bias"), shape }
            }
            error => error,
        }
    }

    fn missing_name(&self, name: String, role: TensorRole, layer: Option<usize>, shape: &[usize]) -> Error {
        let place = layer.map(|l| format!("layer {l} ")).unwrap_or_default();
        let role = format!("{place}{}", role.what());
        Error::MissingTensor { name, naming: self.naming, role, shape: shape.to_vec() }
    }

    /// Check the whole tensor's shape, note that it is used, and return it with the role's first row.
    fn check(
        &mut self,
        spec: &ModelSpec,
        role: TensorRole,
        layer: Option<usize>,
        located: &Located<'a>,
        expected: &[usize],
    ) -> Result<(&'a Tensor, usize)> {
        let tensor = located.tensor;
        let mut shape_of_all = expected.to_vec();
        let mut first = 0;
        if !located.stacked.is_empty() {
            let rows = |roles: &[TensorRole]| roles.iter().map(|r| shape(spec, *r, layer)[0]).sum::<usize>();
            let before = located.stacked.iter().position(|r| *r == role).unwrap_or(0);
            first = rows(&located.stacked[..before]);
            shape_of_all[0] = rows(located.stacked);
        }
        if tensor.shape != shape_of_all {
            return Err(bad_shape(tensor, role, format!("shape {shape_of_all:?}")));
        }
        whole(tensor)?;
        self.used.insert(&tensor.name);
        Ok((tensor, first))
    }

    /// `len` values from `first`, in f32, with `offset` added. A view of the file where it is that already.
    fn vector(&self, tensor: &Tensor, first: usize, len: usize, offset: f32) -> Result<Weight> {
        if tensor.block == BlockType::F32 && offset == 0.0 {
            let view = tensor.data.slice(first * 4..(first + len) * 4).ok_or_else(|| short(tensor))?;
            // Kernels read vectors as slices of f32; the formats promise no alignment.
            if view.as_ptr().align_offset(4) == 0 {
                return Ok(Weight {
                    name: tensor.name.clone(),
                    shape: vec![len],
                    block: BlockType::F32,
                    data: view,
                    parts: vec![],
                });
            }
        }
        let values: Vec<f32> = self.decode(tensor, first, len)?.into_iter().map(|v| v + offset).collect();
        Ok(Weight::vector(&tensor.name, &values))
    }

    /// Values of a vector that is stored as plain numbers.
    fn decode(&self, tensor: &Tensor, first: usize, len: usize) -> Result<Vec<f32>> {
        if tensor.block.block_len() != 1 {
            return Err(Error::BadTensor {
                name: tensor.name.clone(),
                found: format!("type {}", tensor.block),
                expected: "a vector of F32, F16 or BF16".to_owned(),
            });
        }
        if !self.decodes {
            return Ok(vec![0.0; len]);
        }
        let size = tensor.block.block_bytes();
        let bytes: Bytes =
            tensor.data.slice(first * size..(first + len) * size).ok_or_else(|| short(tensor))?;
        let mut values = vec![0.0; len];
        codec::dequantize_row(tensor.block, &bytes, &mut values);
        Ok(values)
    }

    /// Values of all tensors that were asked for.
    pub fn n_parameters(&self) -> u64 {
        let size = |name: &&str| self.by_name.get(name).map_or(0, |t| t.n_rows() as u64 * t.n_cols() as u64);
        self.used.iter().map(size).sum()
    }

    /// Whether a tensor was asked for.
    pub fn is_used(&self, name: &str) -> bool {
        self.used.contains(name)
    }
}

/// The shape that the numbers give to a role's weight, outermost first.
fn shape(spec: &ModelSpec, role: TensorRole, layer: Option<usize>) -> Vec<usize> {
    use TensorRole::*;
    let none = LayerSpec::EMPTY;
    let layer = layer.and_then(|l| spec.layers.get(l)).unwrap_or(&none);
    let (hidden, head) = (spec.hidden, layer.head_dim);
    let (q, kv) = (layer.n_heads * head, layer.n_kv_heads * head);
    let whole_row = spec.family.qk_norm == QkNorm::WholeRow;
    let (n_experts, expert_ffn) = layer.experts.map_or((0, 0), |e| (e.n, e.ffn));
    let (n_layers, per_layer) = (spec.layers.len(), spec.per_layer_width);
    match role {
        TokenEmbedding | Output => vec![spec.n_vocab, hidden],
        PositionEmbedding => vec![spec.n_ctx_train, hidden],
        // As many rows as the file has.
        TokenTypes => vec![1, hidden],
        EmbeddingNorm => vec![hidden],
        OutputNorm | AttnNorm | PostAttnNorm | FfnNorm | PostFfnNorm => vec![hidden],
        RopeDivisors | RopeShort | RopeLong => vec![layer.rope.as_ref().map_or(0, |r| r.n_dims / 2)],
        AttnQ => vec![q, hidden],
        AttnK | AttnV => vec![kv, hidden],
        AttnQNorm => vec![if whole_row { q } else { head }],
        AttnKNorm => vec![if whole_row { kv } else { head }],
        AttnOut => vec![hidden, q],
        FfnGate | FfnUp => vec![layer.ffn, hidden],
        FfnDown => vec![hidden, layer.ffn],
        ExpertNorm | PostDenseNorm | PostExpertNorm | RouterScale | PostPerLayerNorm => vec![hidden],
        LayerScale => vec![1],
        SharedWeight => vec![1, hidden],
        Router => vec![n_experts, hidden],
        ExpertScale => vec![n_experts],
        ExpertGate | ExpertUp => vec![n_experts, expert_ffn, hidden],
        ExpertDown => vec![n_experts, hidden, expert_ffn],
        PerLayerEmbedding => vec![spec.n_vocab, n_layers * per_layer],
        PerLayerModel => vec![n_layers * per_layer, hidden],
        PerLayerNorm => vec![per_layer],
        PerLayerGate => vec![per_layer, hidden],
        PerLayerOut => vec![hidden, per_layer],
    }
}

fn bad_shape(tensor: &Tensor, role: TensorRole, expected: String) -> Error {
    Error::BadTensor {
        name: tensor.name.clone(),
        found: format!("shape {:?}", tensor.shape),
        expected: format!("{expected} ({})", role.what()),
    }
}

/// Whether a tensor has the bytes of its shape.
fn whole(tensor: &Tensor) -> Result<()> {
    if tensor.block.has_planes() {
        return Err(Error::BadTensor {
            name: tensor.name.clone(),
            found: format!("type {}, whose scales lie apart", tensor.block),
            expected: "a type whose blocks hold their scales".to_owned(),
        });
    }
    let blocks = tensor.n_cols().is_multiple_of(tensor.block.block_len());
    let fits = blocks && tensor.data.len() == tensor.n_rows() * tensor.row_bytes();
    if fits { Ok(()) } else { Err(short(tensor)) }
}

fn short(tensor: &Tensor) -> Error {
    let needed = tensor.n_rows() * tensor.row_bytes();
    Error::BadTensor {
        name: tensor.name.clone(),
        found: format!(
            "{} bytes in rows of {} values of type {}",
            tensor.data.len(),
            tensor.n_cols(),
            tensor.block
        ),
        expected: format!("{needed} bytes, in rows of whole blocks of {}", tensor.block.block_len()),
    }
}

//! From roles to weights: finds each tensor under its name, checks its shape, and takes the rows that belong to the role.
//!
//! Whatever is taken is also marked as used, so that what no layer asked for can be reported.

mod experts;
mod shape;
mod values;

use std::collections::{BTreeSet, HashMap};

use device::Weight;
use weights::{BlockType, Bytes, Checkpoint, LeftOut, Naming, Planes, Tensor};

use crate::descriptor::ArchDescriptor;
use crate::error::{Error, Result};
use crate::names::{Key, MEASURES, MODEL_PREFIXES, NEXT_PREFIX, TensorName, TensorRole};
use crate::spec::ModelSpec;

pub(crate) use experts::lies_as;
pub(crate) use shape::shape;

/// The tensors of a checkpoint, found by role.
pub(crate) struct Tensors<'a> {
    naming: Naming,
    family: &'static ArchDescriptor,
    model_prefix: &'static str,
    /// The layer whose names begin with [`NEXT_PREFIX`].
    next: Option<usize>,
    by_name: HashMap<&'a str, &'a Tensor>,
    /// What the file has and no weights are.
    left_out: &'a [LeftOut],
    used: BTreeSet<&'a str>,
    /// Another name of the embedding, the head's.
    alias: Option<&'a str>,
    /// Norms are stored with the 1 that the family leaves out: MLX adds it where it turns the taps of convolutions.
    has_whole_norms: bool,
    /// Whether vectors are decoded. If not, zeros stand for them, and no byte of a file is touched to check its tensors.
    decodes: bool,
}

/// Taps `(cols, size, 1)`, as MLX keeps them; those of others are `(cols, 1, size)`.
fn is_turned_convolution(tensor: &Tensor) -> bool {
    tensor.name.ends_with("conv1d.weight") && matches!(tensor.shape[..], [_, size, 1] if size > 1)
}

/// Where a role's rows lie.
struct Located<'a> {
    tensor: &'a Tensor,
    stacked: &'static [TensorRole],
    /// The tensor is `(n_in, n_out)`.
    transposed: bool,
}

impl<'a> Tensors<'a> {
    pub fn new(checkpoint: &'a Checkpoint, family: &'static ArchDescriptor) -> Tensors<'a> {
        let naming = checkpoint.naming;
        let by_name: HashMap<_, _> = checkpoint.tensors.iter().map(|t| (t.name.as_str(), t)).collect();
        let mut tensors = Tensors {
            naming,
            family,
            model_prefix: MODEL_PREFIXES[0],
            next: None,
            by_name,
            left_out: &checkpoint.left_out,
            used: BTreeSet::new(),
            alias: None,
            has_whole_norms: checkpoint.tensors.iter().any(is_turned_convolution),
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

    /// Go over to the names of another part of the same model.
    pub fn turn_to(&mut self, family: &'static ArchDescriptor) {
        self.family = family;
    }

    /// From here on names, shapes and types only.
    pub fn without_values(&mut self) {
        self.decodes = false;
    }

    /// The rows of the table that speak of a role: those of the first of the family's tables that has any.
    pub fn rows(&self, role: TensorRole) -> Vec<&'static TensorName> {
        let of = |table: &&'static [TensorName]| table.iter().filter(|n| n.role == role).collect::<Vec<_>>();
        self.family.tensors.iter().map(of).find(|rows| !rows.is_empty()).unwrap_or_default()
    }

    fn names(
        &self,
        role: TensorRole,
        layer: Option<usize>,
        suffix: &str,
    ) -> Vec<(String, &'static TensorName)> {
        let expand = |n: &'static TensorName| Some((self.name(n, layer, suffix)?, n));
        self.rows(role).into_iter().filter_map(expand).collect()
    }

    /// What a row of the table calls a tensor of this file.
    pub fn name(&self, row: &TensorName, layer: Option<usize>, suffix: &str) -> Option<String> {
        match layer {
            Some(l) if self.next == Some(l) => row.full_name(self.naming, NEXT_PREFIX, Some(0), suffix),
            layer => row.full_name(self.naming, self.model_prefix, layer, suffix),
        }
    }

    /// Whether this layer is the one that predicts one token more and has names of its own; they are its names from now on.
    pub fn names_next(&mut self, layer: usize) -> bool {
        self.next = Some(layer);
        if self.naming != Naming::HuggingFace || !self.has_in(TensorRole::NextProjection, layer) {
            self.next = None;
        }
        self.next.is_some()
    }

    /// The tensor of exactly this name.
    pub fn named(&self, name: &str) -> Option<&'a Tensor> {
        self.by_name.get(name).copied()
    }

    fn locate(&self, role: TensorRole, layer: Option<usize>, suffix: &str) -> Option<Located<'a>> {
        let old = old_suffix(suffix);
        let names = self.names(role, layer, suffix).into_iter().chain(self.names(role, layer, old));
        let find = |(name, row): (String, &'static TensorName)| {
            let transposed = suffix == "weight" && row.is_transposed(self.naming);
            Some(Located { tensor: self.by_name.get(name.as_str())?, stacked: row.stacked, transposed })
        };
        names.into_iter().find_map(find)
    }

    fn required(&self, spec: &ModelSpec, role: TensorRole, layer: Option<usize>) -> Result<Located<'a>> {
        self.locate(role, layer, "weight").ok_or_else(|| self.missing(spec, role, layer))
    }

    /// Whether the file has a tensor for a role outside the layers.
    pub fn has(&self, role: TensorRole) -> bool {
        self.locate(role, None, "weight").is_some()
    }

    /// Whether it has one for a role in a layer.
    pub fn has_in(&self, role: TensorRole, layer: usize) -> bool {
        self.locate(role, Some(layer), "weight").is_some()
    }

    /// Whether the head is the embedding: the file has none, or the embedding's bytes under another name.
    pub fn is_head_tied(&mut self) -> bool {
        let Some(head) = self.locate(TensorRole::Output, None, "weight") else { return true };
        let embedding = self.locate(TensorRole::TokenEmbedding, None, "weight");
        let tied = embedding.is_some_and(|e| same_bytes(e.tensor, head.tensor));
        self.alias = tied.then_some(&head.tensor.name);
        tied
    }

    /// A number as the shapes of tensors say it, for files whose metadata does not. `None`: no shape says it.
    pub fn measure(&self, key: Key) -> Result<Option<usize>> {
        let (min, max) = key.row().range;
        let Some((_, role, dimension)) = MEASURES.iter().find(|(k, ..)| *k == key) else { return Ok(None) };
        // The first layer speaks for all.
        let layer = matches!(key, Key::Ffn | Key::Layers | Key::LaurelRank).then_some(0);
        let Some(Located { tensor, .. }) = self.locate(*role, layer, "weight") else {
            return Err(self.missing_as(*role, layer, "weight", vec![]));
        };
        let n = match key {
            Key::Layers => self.highest_layer(*role).and_then(|l| l.checked_add(1)),
            _ => tensor.shape.get(*dimension).copied(),
        };
        match n.filter(|n| (min..=max).contains(&(*n as f64))) {
            Some(n) => Ok(Some(n)),
            None => Err(bad_shape(tensor, *role, format!("{} from {min} to {max}", key.row().what))),
        }
    }

    /// The highest number of a layer in the names of tensors, whichever they are; `role` tells how layers are called.
    fn highest_layer(&self, role: TensorRole) -> Option<usize> {
        // A number that no layer has, to find where it stands in the name.
        const MARK: usize = 999_999;
        let names =
            self.rows(role).into_iter().filter_map(|n| n.expand(self.naming, self.model_prefix, Some(MARK)));
        let numbers = names.filter_map(|name| {
            let (before, after) = name.split_once(&MARK.to_string())?;
            let end = after.chars().next().unwrap_or('.');
            let number = |name: &&str| name.strip_prefix(before)?.split_once(end)?.0.parse::<usize>().ok();
            self.by_name.keys().filter_map(number).max()
        });
        numbers.max()
    }

    /// The weight matrix of a role, a view of the file.
    pub fn matrix(&mut self, spec: &ModelSpec, role: TensorRole, layer: Option<usize>) -> Result<Weight> {
        let shape = shape(spec, role, layer);
        let located = self.required(spec, role, layer)?;
        if let [n_out, n_in, size] = shape[..] {
            return self.convolution(role, located.tensor, [n_out, n_in, size]);
        }
        let n_rows = shape[0];
        let n_beyond = match role {
            TensorRole::TokenEmbedding | TensorRole::Output => spec.n_vocab_beyond,
            _ => 0,
        };
        let whole_shape = [&[n_rows + n_beyond], &shape[1..]].concat();
        let (tensor, first) = self.check(spec, role, layer, &located, &whole_shape)?;
        if located.transposed {
            return self.turned(tensor, first, shape);
        }
        if located.stacked.is_empty() && n_beyond == 0 {
            return Ok(view_of(tensor, shape));
        }
        let (data, planes) = tensor.rows(first..first + n_rows).ok_or_else(|| short(tensor))?;
        let name = format!("{}[{first}..{}]", tensor.name, first + n_rows);
        Ok(Weight { name, shape, block: tensor.block, data, planes, parts: vec![] })
    }

    /// Columns of a tensor `(n_in, any)` as a matrix of `shape`, `(n_out, n_in)`: a copy, in F32 where it was blocks. Where
    /// nothing is decoded, a view of as many bytes stands for it.
    fn turned(&self, tensor: &Tensor, first: usize, shape: Vec<usize>) -> Result<Weight> {
        let name = format!("{}[{first}..{}] turned", tensor.name, first + shape[0]);
        let plain = self.plain_unless_turnable(tensor);
        let data = turned_bytes(&plain, 0, (first, 1), [shape[0], shape[1]], self.decodes)?;
        Ok(Weight { name, shape, block: plain.block, data, planes: Planes::default(), parts: vec![] })
    }

    /// The weight of a convolution `(n_out, n_in, size)` as a matrix `(n_out, n_in * size)`: a view of the file. Only where
    /// the scales of integers lie apart, one for each `size` values, it is decoded at load.
    fn convolution(&mut self, role: TensorRole, tensor: &'a Tensor, shape: [usize; 3]) -> Result<Weight> {
        let [n_out, n_in, size] = shape;
        if tensor.shape != shape {
            return Err(bad_shape(tensor, role, format!("shape {shape:?}")));
        }
        let matrix = vec![n_out, n_in * size];
        self.used.insert(&tensor.name);
        if tensor.block.has_planes() && tensor.planes.fit(tensor.block, tensor.n_rows(), tensor.n_cols()) {
            whole_bytes(tensor)?;
            let values = if self.decodes { tensor.to_f32() } else { vec![0.0; n_out * n_in * size] };
            return Ok(Weight { shape: matrix, ..Weight::vector(&tensor.name, &values) });
        }
        whole(tensor)?;
        Ok(view_of(tensor, matrix))
    }

    /// A tensor of single numbers, which can be turned: in F32 where it is blocks.
    fn plain_unless_turnable(&self, tensor: &Tensor) -> Tensor {
        if value_bytes(tensor.block).is_some() { tensor.clone() } else { self.plain(tensor) }
    }

    /// A tensor in F32.
    fn plain(&self, tensor: &Tensor) -> Tensor {
        let n = tensor.n_rows() * tensor.n_cols();
        let values = if self.decodes { tensor.to_f32() } else { vec![0.0; n] };
        let data = Weight::vector("", &values).data;
        Tensor { block: BlockType::F32, data, planes: Planes::default(), ..tensor.clone() }
    }

    /// The position embeddings: a view of the file, or, where the file has types of tokens, a table made at load of the sum
    /// with the first type's row, which every token here has.
    pub fn positions(&mut self, spec: &ModelSpec) -> Result<Weight> {
        let positions = self.matrix(spec, TensorRole::PositionEmbedding, None)?;
        let positions = self.without_first_rows(positions, spec.first_position);
        let Some(tensor) = self.token_types(spec)? else { return Ok(positions) };
        if !self.decodes {
            return Ok(positions);
        }
        let kind = self.decode(tensor, 0, spec.hidden)?;
        let mut sums = vec![0.0; positions.n_rows() * spec.hidden];
        positions.decode_rows(0..positions.n_rows(), &mut sums);
        for row in sums.chunks_exact_mut(spec.hidden) {
            row.iter_mut().zip(&kind).for_each(|(value, kind)| *value += kind);
        }
        let name = format!("{} + {}[0]", positions.name, tensor.name);
        Ok(Weight { shape: positions.shape, ..Weight::vector(name, &sums) })
    }

    /// A matrix from a row on.
    fn without_first_rows(&self, weight: Weight, n: usize) -> Weight {
        if n == 0 {
            return weight;
        }
        let (rows, cols) = (weight.n_rows() - n, weight.n_cols());
        let name = format!("{}[{n}..]", weight.name);
        let bytes = weight.row_bytes();
        match (weight.block.has_planes(), weight.data.slice(n * bytes..(n + rows) * bytes)) {
            (false, Some(data)) => Weight { name, shape: vec![rows, cols], data, ..weight },
            _ => {
                let mut values = vec![0.0; rows * cols];
                if self.decodes {
                    weight.decode_rows(n..n + rows, &mut values);
                }
                Weight { shape: vec![rows, cols], ..Weight::vector(name, &values) }
            }
        }
    }

    /// The types of tokens, `(any, hidden)`, if the file has them.
    fn token_types(&mut self, spec: &ModelSpec) -> Result<Option<&'a Tensor>> {
        let Some(Located { tensor, .. }) = self.locate(TensorRole::TokenTypes, None, "weight") else {
            return Ok(None);
        };
        if !matches!(tensor.shape[..], [rows, cols] if rows > 0 && cols == spec.hidden) {
            return Err(bad_shape(tensor, TensorRole::TokenTypes, format!("rows of {}", spec.hidden)));
        }
        whole(tensor)?;
        self.used.insert(&tensor.name);
        Ok(Some(tensor))
    }

    /// The first row of the types of tokens, in f32, if the file has them.
    pub fn first_type(&mut self, spec: &ModelSpec) -> Result<Option<Weight>> {
        let Some(tensor) = self.token_types(spec)? else { return Ok(None) };
        let row = self.decode(tensor, 0, spec.hidden)?;
        Ok(Some(Weight::vector(format!("{}[0]", tensor.name), &row)))
    }

    /// A matrix or vector by its own name, whatever shape it has.
    pub fn by_its_name(&mut self, name: &str) -> Result<Option<Weight>> {
        let Some(tensor) = self.named(name) else { return Ok(None) };
        whole(tensor)?;
        self.used.insert(&tensor.name);
        let shape = tensor.shape.clone();
        if shape.len() == 1 {
            return Ok(Some(self.vector(tensor, 0, shape[0], 0.0)?));
        }
        Ok(Some(view_of(tensor, shape)))
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
        if let Some(found) = self.left_out.iter().find(|found| names.contains(&found.name)) {
            return Error::BadTensor {
                name: found.name.clone(),
                found: found.what.clone(),
                expected: format!("weights of shape {shape:?} ({})", role.what()),
            };
        }
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
        if located.transposed {
            shape_of_all.reverse();
        }
        // Some biases of convolutions are matrices of one column, some matrices of one row are vectors.
        let same = matches!(
            (&tensor.shape[..], &shape_of_all[..]),
            ([n, 1], [len]) | ([n], [1, len]) if n == len
        );
        if tensor.shape != shape_of_all && !same {
            return Err(bad_shape(tensor, role, format!("shape {shape_of_all:?}")));
        }
        whole(tensor)?;
        self.used.insert(&tensor.name);
        Ok((tensor, first))
    }

    /// Values of all tensors that were asked for.
    pub fn n_parameters(&self) -> u64 {
        let size = |name: &&str| self.by_name.get(name).map_or(0, |t| t.n_rows() as u64 * t.n_cols() as u64);
        self.used.iter().map(size).sum()
    }

    /// Whether a tensor was asked for, or is the embedding under the head's name.
    pub fn is_used(&self, name: &str) -> bool {
        self.used.contains(name) || self.alias == Some(name)
    }
}

/// Old encoders call the two vectors of a norm otherwise.
pub(crate) fn old_suffix(suffix: &str) -> &'static str {
    match suffix {
        "weight" => "gamma",
        _ => "beta",
    }
}

/// Bytes of a value, of types without blocks.
pub(crate) fn value_bytes(block: BlockType) -> Option<usize> {
    match block {
        BlockType::F32 => Some(4),
        BlockType::F16 | BlockType::BF16 => Some(2),
        _ => None,
    }
}

/// Columns `first`, `first + step`, … of rows `above..above + n_in` of a tensor of single numbers, turned to `(n_out, n_in)`.
pub(crate) fn turned_bytes(
    tensor: &Tensor,
    above: usize,
    (first, step): (usize, usize),
    [n_out, n_in]: [usize; 2],
    decodes: bool,
) -> Result<Bytes> {
    let Some(size) = value_bytes(tensor.block) else {
        return Err(Error::BadTensor {
            name: tensor.name.clone(),
            found: format!("rows of {}", tensor.block),
            expected: "F32, F16 or BF16, since it is turned at load".to_owned(),
        });
    };
    if !decodes {
        return tensor.data.slice(0..n_out * n_in * size).ok_or_else(|| short(tensor));
    }
    let n_cols = tensor.n_cols();
    let mut turned = vec![0; n_out * n_in * size];
    for (c, row) in turned.chunks_exact_mut(n_in * size).enumerate() {
        for (r, value) in row.chunks_exact_mut(size).enumerate() {
            let at = ((above + r) * n_cols + first + c * step) * size;
            value.copy_from_slice(tensor.data.get(at..at + size).ok_or_else(|| short(tensor))?);
        }
    }
    Ok(Bytes::from_slice(&turned))
}

/// A tensor's bytes as a weight.
fn view_of(tensor: &Tensor, shape: Vec<usize>) -> Weight {
    let (data, planes) = (tensor.data.clone(), tensor.planes.clone());
    Weight { name: tensor.name.clone(), shape, block: tensor.block, data, planes, parts: vec![] }
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
    let (n_rows, n_cols) = (tensor.n_rows(), tensor.n_cols());
    if !tensor.planes.fit(tensor.block, n_rows, n_cols) {
        return Err(Error::BadTensor {
            name: tensor.name.clone(),
            found: format!("{} bytes of scales and offsets", tensor.planes.n_bytes()),
            expected: format!(
                "for each of {n_rows} rows {} of scales and {} of offsets ({})",
                tensor.block.row_scale_bytes(n_cols),
                tensor.block.row_bias_bytes(n_cols),
                tensor.block
            ),
        });
    }
    whole_bytes(tensor)
}

/// The same of its values, whatever stands beside them.
fn whole_bytes(tensor: &Tensor) -> Result<()> {
    let blocks = tensor.n_cols().is_multiple_of(tensor.block.block_len());
    let fits = blocks && tensor.data.len() == tensor.n_rows() * tensor.row_bytes();
    if fits { Ok(()) } else { Err(short(tensor)) }
}

/// Whether two tensors are the same view of the file.
fn same_bytes(a: &Tensor, b: &Tensor) -> bool {
    a.data.len() == b.data.len() && a.data.as_ptr() == b.data.as_ptr() && a.block == b.block
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

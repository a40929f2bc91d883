//! From roles to weights: finds each tensor by name, checks its shape, and selects the rows of the
//! role.
//!
//! Every tensor found is marked as used, so that unused ones can be reported.

mod experts;
mod shape;
mod values;

use std::collections::{BTreeSet, HashMap};

use device::Weight;
use weights::{BlockType, Checkpoint, LeftOut, Naming, Planes, Tensor};

use crate::descriptor::ArchDescriptor;
use crate::error::{Error, Result};
use crate::names::{KEYS_FROM_SHAPES, Key, MODEL_PREFIXES, NEXT_PREFIX, TensorName, TensorRole};
use crate::spec::ModelSpec;
use crate::transpose::{short, transposed_bytes, value_bytes};

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
    /// Tensors of the file that are not weights.
    left_out: &'a [LeftOut],
    used: BTreeSet<&'a str>,
    /// The head's name, if the head is the embedding under another name.
    alias: Option<&'a str>,
    /// True if norm weights include the 1 that the family's checkpoints leave out. MLX adds it when
    /// it transposes the taps of convolutions.
    has_whole_norms: bool,
    /// True if vectors are decoded. Otherwise zeros replace them, and checking tensors reads no
    /// byte of the file.
    decodes: bool,
}

/// True for taps `(cols, size, 1)`, as MLX stores them; other files store `(cols, 1, size)`.
fn is_transposed_convolution(tensor: &Tensor) -> bool {
    tensor.name.ends_with("conv1d.weight") && matches!(tensor.shape[..], [_, size, 1] if size > 1)
}

/// The tensor that holds a role's rows.
struct Located<'a> {
    tensor: &'a Tensor,
    stacked: &'static [TensorRole],
    /// True if the tensor is `(n_in, n_out)`.
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
            has_whole_norms: checkpoint.tensors.iter().any(is_transposed_convolution),
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

    /// Switches to the tensor names of another part of the same model.
    pub fn use_names_of(&mut self, family: &'static ArchDescriptor) {
        self.family = family;
    }

    /// Stops decoding values: only names, shapes and types are checked.
    pub fn without_values(&mut self) {
        self.decodes = false;
    }

    /// The names of a role: its rows in the first of the family's tables that has any.
    pub fn rows(&self, role: TensorRole) -> Vec<&'static TensorName> {
        let of = |table: &&'static [TensorName]| table.iter().filter(|n| n.holds(role)).collect::<Vec<_>>();
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

    /// The name of a tensor in this file, from a row of the table.
    pub fn name(&self, row: &TensorName, layer: Option<usize>, suffix: &str) -> Option<String> {
        match layer {
            Some(l) if self.next == Some(l) => row.full_name(self.naming, NEXT_PREFIX, Some(0), suffix),
            layer => row.full_name(self.naming, self.model_prefix, layer, suffix),
        }
    }

    /// True if this layer is for multi-token prediction and has names of its own. Lookups in the
    /// layer then use them.
    pub fn names_next(&mut self, layer: usize) -> bool {
        self.next = Some(layer);
        if self.naming != Naming::HuggingFace || !self.has_in(TensorRole::NextProjection, layer) {
            self.next = None;
        }
        self.next.is_some()
    }

    /// The tensor with exactly this name.
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

    /// True if the file has a tensor for a role outside the layers.
    pub fn has(&self, role: TensorRole) -> bool {
        self.locate(role, None, "weight").is_some()
    }

    /// True if the file has a tensor for a role in a layer.
    pub fn has_in(&self, role: TensorRole, layer: usize) -> bool {
        self.locate(role, Some(layer), "weight").is_some()
    }

    /// True if the head is the embedding: the file has no head, or stores the embedding's bytes
    /// under a second name.
    pub fn is_head_tied(&mut self) -> bool {
        let Some(head) = self.locate(TensorRole::Output, None, "weight") else { return true };
        let embedding = self.locate(TensorRole::TokenEmbedding, None, "weight");
        let tied = embedding.is_some_and(|e| same_bytes(e.tensor, head.tensor));
        self.alias = tied.then_some(&head.tensor.name);
        tied
    }

    /// Reads a number from tensor shapes, for files whose metadata lacks it. `None`: no shape tells
    /// it.
    pub fn measure(&self, key: Key) -> Result<Option<usize>> {
        let (min, max) = key.row().range;
        let Some((_, role, dimension)) = KEYS_FROM_SHAPES.iter().find(|(k, ..)| *k == key) else {
            return Ok(None);
        };
        // All layers are like the first.
        let layer = matches!(key, Key::Ffn | Key::Layers | Key::LaurelRank).then_some(0);
        let Some(Located { tensor, .. }) = self.locate(*role, layer, "weight") else {
            return Err(self.missing_as(*role, layer, "weight", vec![]));
        };
        let n = match key == Key::Layers {
            true => self.highest_layer(*role).and_then(|l| l.checked_add(1)),
            false => tensor.shape.get(*dimension).copied(),
        };
        match n.filter(|n| (min..=max).contains(&(*n as f64))) {
            Some(n) => Ok(Some(n)),
            None => Err(bad_shape(tensor, *role, format!("{} from {min} to {max}", key.row().what))),
        }
    }

    /// The highest layer number in tensor names. The name of `role` shows where the number is.
    fn highest_layer(&self, role: TensorRole) -> Option<usize> {
        // A placeholder for the layer number, which no layer has.
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

    /// The weight matrix of a role, a view of the file if its layout allows.
    pub fn matrix(&mut self, spec: &ModelSpec, role: TensorRole, layer: Option<usize>) -> Result<Weight> {
        let shape = shape(spec, role, layer);
        let located = self.required(spec, role, layer)?;
        if let [n_out, n_in, size] = shape[..] {
            return self.convolution(role, located.tensor, [n_out, n_in, size]);
        }
        let n_rows = shape[0];
        let of_tokens = matches!(role, TensorRole::TokenEmbedding | TensorRole::Output);
        let n_beyond = if of_tokens { spec.n_vocab_beyond } else { 0 };
        let whole_shape = [&[n_rows + n_beyond], &shape[1..]].concat();
        let (tensor, first) = self.check(spec, role, layer, &located, &whole_shape)?;
        if located.transposed {
            return self.transposed(tensor, first, shape);
        }
        if located.stacked.is_empty() && n_beyond == 0 {
            return Ok(view_of(tensor, shape));
        }
        let (data, planes) = tensor.rows(first..first + n_rows).ok_or_else(|| short(tensor))?;
        let name = format!("{}[{first}..{}]", tensor.name, first + n_rows);
        Ok(Weight { name, shape, block: tensor.block, data, planes, parts: vec![] })
    }

    /// Columns of a tensor `(n_in, any)` as a matrix `(n_out, n_in)` of `shape`: a copy, in F32 if
    /// the tensor has blocks. If nothing is decoded, a view of the same size replaces it.
    fn transposed(&self, tensor: &Tensor, first: usize, shape: Vec<usize>) -> Result<Weight> {
        let name = format!("{}[{first}..{}] transposed", tensor.name, first + shape[0]);
        let plain = self.unblocked(tensor);
        let data = transposed_bytes(&plain, 0, (first, 1), [shape[0], shape[1]], self.decodes)?;
        Ok(Weight { name, shape, block: plain.block, data, planes: Planes::default(), parts: vec![] })
    }

    /// The weight of a convolution `(n_out, n_in, size)` as a matrix `(n_out, n_in * size)`, a view
    /// of the file. It is decoded at load only if scales are stored apart, one for each `size`
    /// values.
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

    /// The tensor, or a copy in F32 if it has blocks, which cannot be transposed.
    fn unblocked(&self, tensor: &Tensor) -> Tensor {
        if value_bytes(tensor.block).is_some() { tensor.clone() } else { self.plain(tensor) }
    }

    /// A copy of a tensor in F32.
    fn plain(&self, tensor: &Tensor) -> Tensor {
        let n = tensor.n_rows() * tensor.n_cols();
        let values = if self.decodes { tensor.to_f32() } else { vec![0.0; n] };
        let data = Weight::vector("", &values).data;
        Tensor { block: BlockType::F32, data, planes: Planes::default(), ..tensor.clone() }
    }

    /// The position embeddings, a view of the file. If the file has token types, a table is
    /// computed that adds the first type's row, which every token has.
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

    /// A matrix without its first `n` rows.
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

    /// The embeddings of token types, `(any, hidden)`, if the file has them.
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

    /// The embedding of the first token type in f32, if the file has types.
    pub fn first_type(&mut self, spec: &ModelSpec) -> Result<Option<Weight>> {
        let Some(tensor) = self.token_types(spec)? else { return Ok(None) };
        let row = self.decode(tensor, 0, spec.hidden)?;
        Ok(Some(Weight::vector(format!("{}[0]", tensor.name), &row)))
    }

    /// A matrix or vector by its name in the file, of any shape.
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

    /// An error that a bias is missing.
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

    /// Checks the whole tensor's shape and marks it as used. Returns it with the role's first row.
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
        // Some biases of convolutions have one column, and some matrices of one row are stored as
        // vectors.
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

    /// Number of values of all used tensors.
    pub fn n_parameters(&self) -> u64 {
        let size = |name: &&str| self.by_name.get(name).map_or(0, |t| t.n_rows() as u64 * t.n_cols() as u64);
        self.used.iter().map(size).sum()
    }

    /// True if a tensor was used, or is the embedding under the head's name.
    pub fn is_used(&self, name: &str) -> bool {
        self.used.contains(name) || self.alias == Some(name)
    }
}

/// The name that old encoders have for a norm's weight or bias.
pub(crate) fn old_suffix(suffix: &str) -> &'static str {
    match suffix {
        "weight" => "gamma",
        _ => "beta",
    }
}

/// A weight that is a view of the whole tensor.
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

/// Checks that a tensor has the bytes of its shape, scales and offsets included.
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

/// Checks that a tensor has the bytes of its values.
fn whole_bytes(tensor: &Tensor) -> Result<()> {
    let blocks = tensor.n_cols().is_multiple_of(tensor.block.block_len());
    let fits = blocks && tensor.data.len() == tensor.n_rows() * tensor.row_bytes();
    if fits { Ok(()) } else { Err(short(tensor)) }
}

/// True if two tensors are the same bytes of the file.
fn same_bytes(a: &Tensor, b: &Tensor) -> bool {
    a.data.len() == b.data.len() && a.data.as_ptr() == b.data.as_ptr() && a.block == b.block
}

//! From roles to weights: finds each tensor under its name, checks its shape, and takes the rows that belong to the role.
//!
//! Past 600 lines: whatever is taken is also marked as used, so that what no layer asked for can be reported.

use std::collections::{BTreeSet, HashMap};

use device::{Weight, WeightPart};
use weights::{BlockType, Bytes, Checkpoint, Naming, Planes, Tensor, codec};

use crate::descriptor::RecurrentKind;
use crate::descriptor::{ArchDescriptor, QkNorm};
use crate::error::{Error, Result};
use crate::names::{Key, MEASURES, MODEL_PREFIXES, NEXT_PREFIX, TensorName, TensorRole};
use crate::spec::{LayerSpec, ModelSpec};

/// The tensors of a checkpoint, found by role.
pub(crate) struct Tensors<'a> {
    naming: Naming,
    family: &'static ArchDescriptor,
    model_prefix: &'static str,
    /// The layer whose names begin with [`NEXT_PREFIX`].
    next: Option<usize>,
    by_name: HashMap<&'a str, &'a Tensor>,
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

    /// The values of a small vector outside the layers, if the file has it, whatever its length up to `max_len`.
    pub fn small_vector(&mut self, role: TensorRole, max_len: usize) -> Result<Option<Vec<f32>>> {
        let Some(Located { tensor, .. }) = self.locate(role, None, "weight") else { return Ok(None) };
        if tensor.shape.len() != 1 || tensor.n_cols() > max_len {
            return Err(bad_shape(tensor, role, format!("a vector of at most {max_len}")));
        }
        whole(tensor)?;
        self.used.insert(&tensor.name);
        self.decode(tensor, 0, tensor.n_cols()).map(Some)
    }

    /// The weight matrix of a role, a view of the file.
    pub fn matrix(&mut self, spec: &ModelSpec, role: TensorRole, layer: Option<usize>) -> Result<Weight> {
        let shape = shape(spec, role, layer);
        let located = self.locate(role, layer, "weight").ok_or_else(|| self.missing(spec, role, layer))?;
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
            return Ok(Weight {
                name: tensor.name.clone(),
                shape,
                block: tensor.block,
                data: tensor.data.clone(),
                planes: tensor.planes.clone(),
                parts: vec![],
            });
        }
        let (data, planes) = tensor.rows(first..first + n_rows).ok_or_else(|| short(tensor))?;
        let name = format!("{}[{first}..{}]", tensor.name, first + n_rows);
        Ok(Weight { name, shape, block: tensor.block, data, planes, parts: vec![] })
    }

    /// Columns of a tensor `(n_in, any)` as a matrix of `shape`, `(n_out, n_in)`: a copy, in F32 where it was blocks. Where
    /// nothing is decoded, a view of as many bytes stands for it.
    fn turned(&self, tensor: &Tensor, first: usize, shape: Vec<usize>) -> Result<Weight> {
        let name = format!("{}[{first}..{}] turned", tensor.name, first + shape[0]);
        let plain = if value_bytes(tensor.block).is_some() { tensor.clone() } else { self.plain(tensor) };
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
        Ok(Weight {
            name: tensor.name.clone(),
            shape: matrix,
            block: tensor.block,
            data: tensor.data.clone(),
            planes: tensor.planes.clone(),
            parts: vec![],
        })
    }

    /// The matrices of a role's experts, views of the file: each a tensor by itself, or all in one, where those of other
    /// roles may stand before or after.
    pub fn experts(&mut self, spec: &ModelSpec, role: TensorRole, layer: Option<usize>) -> Result<Weight> {
        let shape = shape(spec, role, layer);
        let [n, n_out, _] = shape[..] else { return Err(self.missing(spec, role, layer)) };
        let names = self.names(role, layer, "weight");
        for (i, (name, row)) in names.iter().enumerate() {
            let stacked = row.stacked;
            let tensor = |name: &str| self.by_name.get(name).copied();
            let each = name.contains("{e}");
            let Some(one) = tensor(&name.replace("{e}", "0")) else { continue };
            let again = names.iter().skip(i + 1).any(|(other, _)| other == name);
            if again && !lies_as(spec, row, layer, one, self.naming) {
                continue;
            }
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
                    parts.push(WeightPart { data: found.data.clone(), planes: found.planes.clone() });
                }
            } else {
                let rows = |roles: &[TensorRole]| {
                    roles
                        .iter()
                        .map(|r| self::shape(spec, *r, layer).get(1).copied().unwrap_or(0))
                        .sum::<usize>()
                };
                let place = stacked.iter().position(|r| *r == role).unwrap_or(0);
                let (before, step) = match row.interleaved {
                    true => (place, stacked.len()),
                    false => (rows(&stacked[..place]), 1),
                };
                let all = if stacked.is_empty() { n_out } else { rows(stacked) };
                if let Some(of_scales) = name.strip_suffix("_blocks") {
                    let scales_name = format!("{of_scales}_scales");
                    let scales = tensor(&scales_name).ok_or_else(|| {
                        self.missing_name(scales_name, role, layer, &[n, all, shape[2] / 32])
                    })?;
                    let found = [one, scales].map(|t| (t.shape.clone(), t.data.len()));
                    let n_blocks = n * all * (shape[2] / 32);
                    let expected = [
                        (vec![n, all, shape[2] / 32, 16], n_blocks * 16),
                        (vec![n, all, shape[2] / 32], n_blocks),
                    ];
                    if found != expected || !shape[2].is_multiple_of(32) {
                        return Err(bad_shape(
                            one,
                            role,
                            format!("shape {:?}, scales beside", expected[0].0),
                        ));
                    }
                    self.used.insert(&one.name);
                    self.used.insert(&scales.name);
                    return Ok(self.four_bits([one, scales], role, shape, (all, before, step)));
                }
                if row.is_transposed(self.naming) {
                    if one.shape != [n, shape[2], all] {
                        return Err(bad_shape(one, role, format!("shape {:?}", [n, shape[2], all])));
                    }
                    whole(one)?;
                    self.used.insert(&one.name);
                    let plain = if value_bytes(one.block).is_some() { one.clone() } else { self.plain(one) };
                    for expert in 0..n {
                        let above = expert * shape[2];
                        let data =
                            turned_bytes(&plain, above, (before, step), [n_out, shape[2]], self.decodes)?;
                        parts.push(WeightPart { data, planes: Planes::default() });
                    }
                    let name = format!("{name} ({}), turned", role.what());
                    let (data, planes) = (Bytes::from_slice(&[]), Planes::default());
                    return Ok(Weight { name, shape, block: plain.block, data, planes, parts });
                }
                if one.shape != [n, all, shape[2]] {
                    return Err(bad_shape(one, role, format!("shape {:?}", [n, all, shape[2]])));
                }
                whole(one)?;
                self.used.insert(&one.name);
                for expert in 0..n {
                    let first = expert * all + before;
                    let (data, planes) = one.rows(first..first + n_out).ok_or_else(|| short(one))?;
                    parts.push(WeightPart { data, planes });
                }
            }
            let name = if stacked.is_empty() { name.clone() } else { format!("{name} ({})", role.what()) };
            let name = name.replace("{e}", "*");
            let (data, planes) = (Bytes::from_slice(&[]), Planes::default());
            return Ok(Weight { name, shape, block: one.block, data, planes, parts });
        }
        Err(self.missing(spec, role, layer))
    }

    /// Rows of experts whose blocks of 4 bits and scales are tensors of their own, as blocks that hold both: a copy.
    fn four_bits(
        &self,
        [blocks, scales]: [&Tensor; 2],
        role: TensorRole,
        shape: Vec<usize>,
        (all, first, step): (usize, usize, usize),
    ) -> Weight {
        let [n, n_out, n_in] = [shape[0], shape[1], shape[2]];
        let per_row = n_in / 32;
        let bytes = per_row * 17;
        let nothing = Bytes::from_slice(&vec![0; if self.decodes { 0 } else { n_out * bytes }]);
        let part = |expert: usize| {
            if !self.decodes {
                return nothing.clone();
            }
            let mut rows = vec![0; n_out * bytes];
            for (r, row) in rows.chunks_exact_mut(bytes).enumerate() {
                let source = (expert * all + first + r * step) * per_row;
                for (b, block) in row.chunks_exact_mut(17).enumerate() {
                    let nibbles = &blocks.data[(source + b) * 16..][..16];
                    codec::mxfp4::from_pairs(scales.data[source + b], nibbles, block);
                }
            }
            Bytes::from_slice(&rows)
        };
        let parts = (0..n).map(|e| WeightPart { data: part(e), planes: Planes::default() }).collect();
        Weight {
            name: format!("{} ({})", blocks.name, role.what()),
            shape,
            block: BlockType::MXFP4,
            data: Bytes::from_slice(&[]),
            planes: Planes::default(),
            parts,
        }
    }

    /// The heads' matrices of latent attention, as stacks: from what of a query does not rotate to the latent
    /// `(n_heads, rank, plain)`, and from the latent to values `(n_heads, value, rank)`.
    pub fn latent_heads(&mut self, spec: &ModelSpec, layer: Option<usize>) -> Result<(Weight, Weight)> {
        use TensorRole::{AttnKB, AttnKvB, AttnVB};
        if self.locate(AttnKB, layer, "weight").is_some() {
            return Ok((self.experts(spec, AttnKB, layer)?, self.experts(spec, AttnVB, layer)?));
        }
        let (of_k, of_v) = (shape(spec, AttnKB, layer), shape(spec, AttnVB, layer));
        let ([n, rank, plain], [_, value, _]) = ([of_k[0], of_k[1], of_k[2]], [of_v[0], of_v[1], of_v[2]]);
        let located =
            self.locate(AttnKvB, layer, "weight").ok_or_else(|| self.missing(spec, AttnKvB, layer))?;
        let (tensor, _) = self.check(spec, AttnKvB, layer, &located, &shape(spec, AttnKvB, layer))?;
        let plainly = value_bytes(tensor.block).is_some();
        let (mut keys, mut values) = (Vec::with_capacity(n), Vec::with_capacity(n));
        for head in 0..n {
            let first = head * (plain + value);
            let (data, planes) = tensor.rows(first..first + plain).ok_or_else(|| short(tensor))?;
            let rows = Tensor { shape: vec![plain, rank], data, planes, ..tensor.clone() };
            let rows = if plainly { rows } else { self.plain(&rows) };
            let data = turned_bytes(&rows, 0, (0, 1), [rank, plain], self.decodes)?;
            keys.push(WeightPart { data, planes: Planes::default() });
            let (data, planes) =
                tensor.rows(first + plain..first + plain + value).ok_or_else(|| short(tensor))?;
            values.push(WeightPart { data, planes });
        }
        let block = if plainly { tensor.block } else { BlockType::F32 };
        let stack = |what: &str, shape, block, parts| Weight {
            name: format!("{} ({what})", tensor.name),
            shape,
            block,
            data: Bytes::from_slice(&[]),
            planes: Planes::default(),
            parts,
        };
        Ok((stack("keys, turned", of_k, block, keys), stack("values", of_v, tensor.block, values)))
    }

    /// A tensor in F32.
    fn plain(&self, tensor: &Tensor) -> Tensor {
        let n = tensor.n_rows() * tensor.n_cols();
        let values = if self.decodes { tensor.to_f32() } else { vec![0.0; n] };
        let data = Weight::vector("", &values).data;
        Tensor { block: BlockType::F32, data, planes: Planes::default(), ..tensor.clone() }
    }

    /// A vector of a role in f32, if the file has it: also the rows of one after another, where some of the rows of each may be
    /// another role's.
    pub fn vectors(
        &mut self,
        spec: &ModelSpec,
        role: TensorRole,
        layer: Option<usize>,
    ) -> Result<Option<Weight>> {
        let shape = shape(spec, role, layer);
        for (name, row) in self.names(role, layer, "weight") {
            let Some(tensor) = self.named(&name) else { continue };
            let n_stacked = row.stacked.len().max(1);
            let mut expected = shape.clone();
            expected.last_mut().into_iter().for_each(|n| *n *= n_stacked);
            let one_row = matches!(tensor.shape[..], [1, n] if expected == [n]);
            if tensor.shape != expected && !one_row {
                return Err(bad_shape(tensor, role, format!("shape {expected:?}")));
            }
            whole(tensor)?;
            self.used.insert(&tensor.name);
            let first = row.stacked.iter().position(|r| *r == role).unwrap_or(0);
            let all = self.plain(tensor).to_f32();
            let values: Vec<f32> = all.into_iter().skip(first).step_by(n_stacked).collect();
            let name = if n_stacked > 1 { format!("{name} ({})", role.what()) } else { name };
            return Ok(Some(Weight::vector(name, &values)));
        }
        Ok(None)
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

    /// The matrix of a role in f32, each column times the factor that the vector of another role has for it.
    pub fn columns_scaled(
        &mut self,
        spec: &ModelSpec,
        role: TensorRole,
        factors: TensorRole,
        layer: Option<usize>,
    ) -> Result<Weight> {
        let matrix = self.matrix(spec, role, layer)?;
        let factors = self.flat_values(spec, factors, layer)?.1;
        let mut values = vec![0.0; matrix.n_rows() * matrix.n_cols()];
        if self.decodes {
            matrix.decode_rows(0..matrix.n_rows(), &mut values);
        }
        for row in values.chunks_exact_mut(factors.len().max(1)) {
            row.iter_mut().zip(&factors).for_each(|(value, factor)| *value *= factor);
        }
        let name = format!("{} with scaled columns", matrix.name);
        Ok(Weight { shape: matrix.shape, ..Weight::vector(name, &values) })
    }

    /// The values of a role in f32, times a factor, in whatever shape the file has them: of taps the middle or last dimension may
    /// be 1, of a norm in groups these may be rows.
    pub fn flat(
        &mut self,
        spec: &ModelSpec,
        role: TensorRole,
        layer: Option<usize>,
        factor: f32,
    ) -> Result<Weight> {
        let (name, mut values) = self.flat_values(spec, role, layer)?;
        if factor != 1.0 {
            values.iter_mut().for_each(|v| *v *= factor);
        }
        Ok(Weight { shape: shape(spec, role, layer), ..Weight::vector(name, &values) })
    }

    /// The same, with the name that they have as a weight.
    pub fn flat_values(
        &mut self,
        spec: &ModelSpec,
        role: TensorRole,
        layer: Option<usize>,
    ) -> Result<(String, Vec<f32>)> {
        let shape = shape(spec, role, layer);
        let located = self.locate(role, layer, "weight").ok_or_else(|| self.missing(spec, role, layer))?;
        let (tensor, stack) = (located.tensor, located.stacked);
        let rows =
            |roles: &[TensorRole]| roles.iter().map(|r| self::shape(spec, *r, layer)[0]).sum::<usize>();
        let mut all = shape.clone();
        let mut before = 0;
        if !stack.is_empty() {
            all[0] = rows(stack);
            before = rows(&stack[..stack.iter().position(|r| *r == role).unwrap_or(0)]);
        }
        let squeezed = |shape: &[usize]| shape.iter().copied().filter(|n| *n != 1).collect::<Vec<_>>();
        let n_values = tensor.n_rows() * tensor.n_cols();
        let grouped = all.len() == 1 && tensor.shape.len() == 2 && n_values == all[0];
        if squeezed(&tensor.shape) != squeezed(&all) && !grouped {
            return Err(bad_shape(tensor, role, format!("shape {all:?}")));
        }
        whole(tensor)?;
        self.used.insert(&tensor.name);
        let name = if stack.is_empty() {
            tensor.name.clone()
        } else {
            format!("{}[{before}..{}]", tensor.name, before + shape[0])
        };
        let row: usize = shape[1..].iter().product();
        let len = shape[0] * row;
        if !self.decodes {
            return Ok((name, vec![0.0; len]));
        }
        let values = tensor.to_f32();
        let own = values.get(before * row..before * row + len).map(<[f32]>::to_vec);
        own.map(|values| (name, values)).ok_or_else(|| short(tensor))
    }

    /// The rates of a recurrent layer. GGUF files hold them as they are, others the logarithm of their size.
    pub fn rate(&mut self, spec: &ModelSpec, layer: Option<usize>) -> Result<Weight> {
        let (name, mut values) = self.flat_values(spec, TensorRole::Rate, layer)?;
        if self.naming != Naming::Gguf {
            values.iter_mut().for_each(|v| *v = -v.exp());
        }
        if let Some(bad) = values.iter().find(|rate| rate.is_nan() || **rate > 0.0) {
            return Err(Error::BadTensor {
                name,
                found: format!("a rate of {bad}"),
                expected: "rates of decay, none above 0".to_owned(),
            });
        }
        Ok(Weight::vector(name, &values))
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
        self.vector(tensor, first, shape[0], self.norm_offset())
    }

    /// What is added to the weights of norms.
    pub fn norm_offset(&self) -> f32 {
        if self.has_whole_norms { 0.0 } else { self.family.norm_offset.of(self.naming) }
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
        let mut bias = self.vector(tensor, first, shape[0], 0.0)?;
        if !located.stacked.is_empty() {
            bias.name = format!("{}[{first}..{}]", tensor.name, first + shape[0]);
        }
        Ok(Some(bias))
    }

    /// The position embeddings: a view of the file, or, where the file has types of tokens, a table made at load of the sum
    /// with the first type's row, which every token here has.
    pub fn positions(&mut self, spec: &ModelSpec) -> Result<Weight> {
        let positions = self.matrix(spec, TensorRole::PositionEmbedding, None)?;
        let positions = self.without_first_rows(positions, spec.first_position);
        let Some(Located { tensor, .. }) = self.locate(TensorRole::TokenTypes, None, "weight") else {
            return Ok(positions);
        };
        if !matches!(tensor.shape[..], [rows, cols] if rows > 0 && cols == spec.hidden) {
            return Err(bad_shape(tensor, TensorRole::TokenTypes, format!("rows of {}", spec.hidden)));
        }
        whole(tensor)?;
        self.used.insert(&tensor.name);
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

    /// The first row of the types of tokens, in f32, if the file has them.
    pub fn first_type(&mut self, spec: &ModelSpec) -> Result<Option<Weight>> {
        let Some(Located { tensor, .. }) = self.locate(TensorRole::TokenTypes, None, "weight") else {
            return Ok(None);
        };
        if !matches!(tensor.shape[..], [rows, cols] if rows > 0 && cols == spec.hidden) {
            return Err(bad_shape(tensor, TensorRole::TokenTypes, format!("rows of {}", spec.hidden)));
        }
        whole(tensor)?;
        self.used.insert(&tensor.name);
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
        let (data, planes) = (tensor.data.clone(), tensor.planes.clone());
        Ok(Some(Weight {
            name: tensor.name.clone(),
            shape,
            block: tensor.block,
            data,
            planes,
            parts: vec![],
        }))
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
                    planes: Planes::default(),
                    parts: vec![],
                });
            }
        }
        let values: Vec<f32> = self.decode(tensor, first, len)?.into_iter().map(|v| v + offset).collect();
        Ok(Weight::vector(&tensor.name, &values))
    }

    /// `len` values from `first` of the first row, or of the only column, of a tensor that is [`whole`], in whatever type it
    /// is stored.
    fn decode(&self, tensor: &Tensor, first: usize, len: usize) -> Result<Vec<f32>> {
        if !self.decodes {
            return Ok(vec![0.0; len]);
        }
        let n_rows = if tensor.n_cols() == 1 { tensor.n_rows() } else { 1 };
        let (data, planes) = tensor.rows(0..n_rows).ok_or_else(|| short(tensor))?;
        let mut values = vec![0.0; n_rows * tensor.n_cols()];
        codec::dequantize_rows(tensor.block, tensor.n_cols(), &data, planes.as_slices(), &mut values);
        values.get(first..first + len).map(<[f32]>::to_vec).ok_or_else(|| short(tensor))
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

/// Whether the matrices of experts lie as a row of the table says: of two rows of one name their shapes choose.
pub(crate) fn lies_as(
    spec: &ModelSpec,
    row: &TensorName,
    layer: Option<usize>,
    tensor: &Tensor,
    naming: Naming,
) -> bool {
    let [n, n_out, n_in] = shape(spec, row.role, layer)[..] else { return true };
    let of = |role: &TensorRole| shape(spec, *role, layer).get(1).copied().unwrap_or(0);
    let all = if row.stacked.is_empty() { n_out } else { row.stacked.iter().map(of).sum() };
    tensor.shape == if row.is_transposed(naming) { [n, n_in, all] } else { [n, all, n_in] }
}

/// The shape that the numbers give to a role's weight, outermost first.
pub(crate) fn shape(spec: &ModelSpec, role: TensorRole, layer: Option<usize>) -> Vec<usize> {
    use TensorRole::*;
    let none = LayerSpec::EMPTY;
    let layer = layer.and_then(|l| spec.layers.get(l)).unwrap_or(&none);
    let (hidden, head) = (spec.hidden, layer.head_dim);
    let (q, kv) = (layer.n_heads * head, layer.n_kv_heads * head);
    let latent = layer.latent;
    let whole_row = spec.family.qk_norm == QkNorm::WholeRow;
    let (n_experts, expert_ffn) = layer.experts.map_or((0, 0), |e| (e.n, e.ffn));
    let (n_layers, per_layer) = (spec.layers.len(), spec.per_layer_width);
    let (shared, inner) = layer.recurrent.map_or((0, 0), |r| (r.shared(), r.inner()));
    let (heads, conv) = layer.recurrent.map_or((0, 0), |r| (r.n_heads, r.conv_size));
    // Of a recurrence by rows: the rows of a head's state, and the columns of a head.
    let by_rows = layer.recurrent.filter(|r| r.by_rows).map(|r| (r.rows, r.head_dim));
    let expert_in = layer.experts.and_then(|e| e.latent).unwrap_or(hidden);
    let size = spec.family.convolutions.iter().find(|c| c.role == role).map_or(0, |c| c.size);
    match role {
        TokenEmbedding | Output => vec![spec.n_vocab, hidden],
        PositionEmbedding => vec![spec.n_ctx_train + spec.first_position, hidden],
        // As many rows as the file has.
        TokenTypes => vec![1, hidden],
        EmbeddingNorm => vec![hidden],
        NextEmbeddingNorm | NextHiddenNorm | NextOutputNorm => vec![hidden],
        NextProjection => vec![hidden, 2 * hidden],
        OutputNorm | AttnNorm | PostAttnNorm | FfnNorm | PostFfnNorm => vec![hidden],
        RopeDivisors | RopeShort | RopeLong => vec![layer.rope.as_ref().map_or(0, |r| r.n_dims / 2)],
        AttnQ if spec.family.attention_gate => vec![2 * q, hidden],
        AttnQ => vec![latent.map_or(q, |l| layer.n_heads * (l.plain + l.turning)), hidden],
        AttnK | AttnV => vec![kv, hidden],
        AttnQNorm => vec![if whole_row { q } else { head }],
        AttnKNorm => vec![if whole_row { kv } else { head }],
        AttnOut => vec![hidden, latent.map_or(q, |l| layer.n_heads * l.value)],
        AttnSinks => vec![layer.n_heads],
        AttnQA => vec![latent.and_then(|l| l.query_rank).unwrap_or(0), hidden],
        AttnQANorm => vec![latent.and_then(|l| l.query_rank).unwrap_or(0)],
        AttnQB => vec![
            latent.map_or(0, |l| layer.n_heads * (l.plain + l.turning)),
            latent.and_then(|l| l.query_rank).unwrap_or(0),
        ],
        AttnKvA => vec![latent.map_or(0, |l| l.rank + l.turning), hidden],
        AttnKvANorm => vec![latent.map_or(0, |l| l.rank)],
        AttnKvB => latent.map_or(vec![0, 0], |l| vec![layer.n_heads * (l.plain + l.value), l.rank]),
        AttnKB => latent.map_or(vec![0; 3], |l| vec![layer.n_heads, l.rank, l.plain]),
        AttnVB => latent.map_or(vec![0; 3], |l| vec![layer.n_heads, l.value, l.rank]),
        RouterBias => vec![n_experts],
        ExpertGateBias | ExpertUpBias => vec![n_experts, expert_ffn],
        ExpertDownBias => vec![n_experts, hidden],
        FfnGate | FfnUp => vec![layer.ffn, hidden],
        FfnDown => vec![hidden, layer.ffn],
        ExpertNorm | PostDenseNorm | PostExpertNorm | RouterScale | PostPerLayerNorm => vec![hidden],
        LayerScale => vec![1],
        SharedWeight => vec![1, hidden],
        Router => vec![n_experts, hidden],
        ExpertScale => vec![n_experts],
        ExpertGate | ExpertUp => vec![n_experts, expert_ffn, expert_in],
        ExpertDown => vec![n_experts, expert_in, expert_ffn],
        PerLayerEmbedding => vec![spec.n_vocab, n_layers * per_layer],
        PerLayerModel => vec![n_layers * per_layer, hidden],
        PerLayerNorm => vec![per_layer],
        PerLayerGate => vec![per_layer, hidden],
        PerLayerOut => vec![hidden, per_layer],
        Conv1 => vec![hidden, spec.n_inputs, size],
        Conv2 => vec![hidden, hidden, size],
        CrossNorm => vec![hidden],
        CrossQ => vec![q, hidden],
        CrossK | CrossV => vec![kv, hidden],
        CrossOut => vec![hidden, q],
        RecurrentQ | RecurrentK => vec![shared, hidden],
        RecurrentV => vec![inner, hidden],
        RecurrentGate => vec![inner, by_rows.map_or(hidden, |(_, cols)| cols)],
        RecurrentBeta => vec![heads, hidden],
        RecurrentStep => by_rows.map_or(vec![heads, hidden], |(rows, cols)| vec![heads * rows, cols]),
        GateDown | StepDown => vec![by_rows.map_or(0, |(_, cols)| cols), hidden],
        RecurrentAll => vec![2 * (shared + inner), hidden],
        RecurrentBetaStep => vec![2 * heads, hidden],
        ConvQ | ConvK => vec![shared, conv],
        ConvV => vec![inner, conv],
        StepBias => vec![heads * by_rows.map_or(1, |(rows, _)| rows)],
        Rate | Skip => vec![heads],
        RecurrentNorm => vec![match layer.recurrent {
            Some(r) if r.kind == RecurrentKind::GatedDelta => r.head_dim,
            _ => inner,
        }],
        RecurrentOut => vec![hidden, inner],
        LatentDown => vec![expert_in, hidden],
        LatentUp => vec![hidden, expert_in],
        StreamsIn | StreamsOut => vec![spec.n_streams.saturating_sub(1), hidden, hidden],
        StreamNorm | StreamScale | LaurelNorm => vec![hidden],
        StreamRouter => vec![spec.n_streams, hidden],
        StreamPredictions => vec![spec.n_streams * spec.n_streams, spec.n_streams],
        StreamCorrections => vec![spec.n_streams, spec.n_streams],
        LaurelDown => vec![spec.laurel_rank, hidden],
        LaurelUp => vec![hidden, spec.laurel_rank],
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

//! Weights whose values are decoded at load: norms, biases, and weights stored in another layout
//! than the plan's.

use device::Weight;
use weights::{BlockType, Naming, Tensor, codec};

use super::{Located, Tensors, bad_shape, shape, view_of, whole};
use crate::error::{Error, Result};
use crate::names::TensorRole;
use crate::spec::ModelSpec;
use crate::transpose::short;

impl Tensors<'_> {
    /// The values of a vector outside the layers, of up to `max_len` values, if the file has it.
    pub fn small_vector(&mut self, role: TensorRole, max_len: usize) -> Result<Option<Vec<f32>>> {
        let Some(Located { tensor, .. }) = self.locate(role, None, "weight") else { return Ok(None) };
        if tensor.shape.len() != 1 || tensor.n_cols() > max_len {
            return Err(bad_shape(tensor, role, format!("a vector of at most {max_len}")));
        }
        whole(tensor)?;
        self.used.insert(&tensor.name);
        self.decode(tensor, 0, tensor.n_cols()).map(Some)
    }

    /// A vector of a role in f32, if the file has it. The vector may also be the rows of a matrix,
    /// of which some may belong to another role.
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
        let located = self.required(spec, role, layer)?;
        let (tensor, first) = self.check(spec, role, layer, &located, &shape)?;
        let values: Vec<f32> =
            self.decode(tensor, first, shape[0])?.into_iter().map(|v| v * factor).collect();
        Ok(Weight::vector(&tensor.name, &values))
    }

    /// The matrix of a role in f32, with each column times a factor from another role's vector.
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

    /// The values of a role in f32, times a factor, whatever the shape in the file. Taps may have a
    /// middle or last dimension of 1, and a grouped norm may have one row for each group.
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

    /// The values of [`Self::flat`], and the name of their weight.
    pub fn flat_values(
        &mut self,
        spec: &ModelSpec,
        role: TensorRole,
        layer: Option<usize>,
    ) -> Result<(String, Vec<f32>)> {
        let shape = shape(spec, role, layer);
        let located = self.required(spec, role, layer)?;
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

    /// The decay rates of a recurrent layer. GGUF files store rates, other files the logarithm of
    /// their negative.
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

    /// The norm weight of a role in f32, with the family's offset added.
    pub fn norm(&mut self, spec: &ModelSpec, role: TensorRole, layer: Option<usize>) -> Result<Weight> {
        let shape = shape(spec, role, layer);
        let located = self.required(spec, role, layer)?;
        let (tensor, first) = self.check(spec, role, layer, &located, &shape)?;
        self.vector(tensor, first, shape[0], self.norm_offset())
    }

    /// Offset added to norm weights.
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

    /// `len` values from `first`, in f32, with `offset` added. The result is a view of the file if
    /// it needs no conversion.
    pub(super) fn vector(&self, tensor: &Tensor, first: usize, len: usize, offset: f32) -> Result<Weight> {
        if tensor.block == BlockType::F32 && offset == 0.0 {
            let view = tensor.data.slice(first * 4..(first + len) * 4).ok_or_else(|| short(tensor))?;
            // Kernels read vectors as slices of f32, but the file formats promise no alignment.
            if view.as_ptr().align_offset(4) == 0 {
                return Ok(Weight { data: view, ..view_of(tensor, vec![len]) });
            }
        }
        let values: Vec<f32> = self.decode(tensor, first, len)?.into_iter().map(|v| v + offset).collect();
        Ok(Weight::vector(&tensor.name, &values))
    }

    /// `len` values from `first` of the first row, or of the only column, of a tensor checked by
    /// [`whole`].
    pub(super) fn decode(&self, tensor: &Tensor, first: usize, len: usize) -> Result<Vec<f32>> {
        if !self.decodes {
            return Ok(vec![0.0; len]);
        }
        let n_rows = if tensor.n_cols() == 1 { tensor.n_rows() } else { 1 };
        let (data, planes) = tensor.rows(0..n_rows).ok_or_else(|| short(tensor))?;
        let mut values = vec![0.0; n_rows * tensor.n_cols()];
        codec::dequantize_rows(tensor.block, tensor.n_cols(), &data, planes.as_slices(), &mut values);
        values.get(first..first + len).map(<[f32]>::to_vec).ok_or_else(|| short(tensor))
    }
}

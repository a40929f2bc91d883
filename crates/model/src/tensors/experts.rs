//! Stacks of matrices: the experts of a layer, and the heads of latent attention.

use device::{Weight, WeightPart};
use weights::{BlockType, Bytes, Naming, Planes, Tensor, codec};

use super::{Tensors, bad_shape, shape, whole};
use crate::error::Result;
use crate::names::{TensorName, TensorRole};
use crate::spec::ModelSpec;
use crate::transpose::{short, transposed_bytes, value_bytes};

/// The rows of an expert in a tensor that belong to a role.
struct Rows {
    /// Rows of an expert for all roles.
    all: usize,
    first: usize,
    /// Distance between rows of the role.
    step: usize,
}

impl<'a> Tensors<'a> {
    /// The matrices of a role's experts, views of the file. Each is a tensor, or one tensor holds
    /// them all, possibly with those of other roles.
    pub fn experts(&mut self, spec: &ModelSpec, role: TensorRole, layer: Option<usize>) -> Result<Weight> {
        let [n, n_out, n_in] = shape(spec, role, layer)[..] else {
            return Err(self.missing(spec, role, layer));
        };
        let names = self.names(role, layer, "weight");
        for (i, (name, row)) in names.iter().enumerate() {
            let Some(one) = self.named(&name.replace("{e}", "0")) else { continue };
            let again = names.iter().skip(i + 1).any(|(other, _)| other == name);
            if again && !lies_as(spec, row, layer, one, self.naming) {
                continue;
            }
            let shape = [n, n_out, n_in];
            if name.contains("{e}") {
                return self.apart(name, role, one, layer, shape);
            }
            let before = row.stacked.iter().position(|r| *r == role).unwrap_or(0);
            let rows = match row.stacked {
                [] => Rows { all: n_out, first: 0, step: 1 },
                stacked => Rows {
                    all: n_stacked(spec, stacked, layer),
                    first: if row.interleaved { before } else { n_stacked(spec, &stacked[..before], layer) },
                    step: if row.interleaved { stacked.len() } else { 1 },
                },
            };
            return match name.strip_suffix("_blocks") {
                Some(of_scales) => {
                    self.blocks_and_scales(one, &format!("{of_scales}_scales"), role, layer, shape, &rows)
                }
                None => self.together((name, row, role), one, shape, &rows),
            };
        }
        Err(self.missing(spec, role, layer))
    }

    /// The matrices of experts that each have a tensor, all of the first one's type.
    fn apart(
        &mut self,
        name: &str,
        role: TensorRole,
        first: &Tensor,
        layer: Option<usize>,
        [n, n_out, n_in]: [usize; 3],
    ) -> Result<Weight> {
        let shape = [n_out, n_in];
        let mut parts = Vec::with_capacity(n);
        for expert in 0..n {
            let name = name.replace("{e}", &expert.to_string());
            let found = self.named(&name).ok_or_else(|| self.missing_name(name, role, layer, &shape))?;
            if found.shape != shape || found.block != first.block {
                return Err(bad_shape(found, role, format!("shape {shape:?} of {}", first.block)));
            }
            whole(found)?;
            self.used.insert(&found.name);
            parts.push(WeightPart { data: found.data.clone(), planes: found.planes.clone() });
        }
        Ok(Weight::stack(name.replace("{e}", "*"), shape, first.block, parts))
    }

    /// The matrices of experts in one tensor `(n, rows.all, n_in)`. Transposed matrices are copied,
    /// in F32 if they have blocks.
    fn together(
        &mut self,
        (name, row, role): (&str, &TensorName, TensorRole),
        tensor: &'a Tensor,
        [n, n_out, n_in]: [usize; 3],
        rows: &Rows,
    ) -> Result<Weight> {
        let transposed = row.is_transposed(self.naming);
        let expected = if transposed { [n, n_in, rows.all] } else { [n, rows.all, n_in] };
        if tensor.shape != expected {
            return Err(bad_shape(tensor, role, format!("shape {expected:?}")));
        }
        whole(tensor)?;
        self.used.insert(&tensor.name);
        let mut parts = Vec::with_capacity(n);
        if transposed {
            let plain = self.unblocked(tensor);
            for expert in 0..n {
                let columns = (rows.first, rows.step);
                let data = transposed_bytes(&plain, expert * n_in, columns, [n_out, n_in], self.decodes)?;
                parts.push(WeightPart { data, planes: Planes::default() });
            }
            let name = format!("{name} ({}), transposed", role.what());
            return Ok(Weight::stack(name, [n_out, n_in], plain.block, parts));
        }
        for expert in 0..n {
            let first = expert * rows.all + rows.first;
            let (data, planes) = tensor.rows(first..first + n_out).ok_or_else(|| short(tensor))?;
            parts.push(WeightPart { data, planes });
        }
        Ok(Weight::stack(stack_name(name, row, role), [n_out, n_in], tensor.block, parts))
    }

    /// The matrices of experts whose 4-bit blocks and scales are separate tensors, copied to blocks
    /// that hold both.
    fn blocks_and_scales(
        &mut self,
        blocks: &'a Tensor,
        scales_name: &str,
        role: TensorRole,
        layer: Option<usize>,
        [n, n_out, n_in]: [usize; 3],
        rows: &Rows,
    ) -> Result<Weight> {
        let per_row = n_in / 32;
        let of_scales = [n, rows.all, per_row];
        let scales = self
            .named(scales_name)
            .ok_or_else(|| self.missing_name(scales_name.to_owned(), role, layer, &of_scales))?;
        let found = [blocks, scales].map(|t| (&t.shape[..], t.data.len()));
        let of_blocks = [n, rows.all, per_row, 16];
        let n_blocks = n * rows.all * per_row;
        if found != [(&of_blocks[..], n_blocks * 16), (&of_scales[..], n_blocks)] || !n_in.is_multiple_of(32)
        {
            return Err(bad_shape(blocks, role, format!("shape {of_blocks:?}, with matching scales")));
        }
        self.used.insert(&blocks.name);
        self.used.insert(&scales.name);
        let bytes = per_row * 17;
        let nothing = Bytes::from_slice(&vec![0; if self.decodes { 0 } else { n_out * bytes }]);
        let part = |expert: usize| {
            if !self.decodes {
                return nothing.clone();
            }
            let mut packed = vec![0; n_out * bytes];
            for (r, row) in packed.chunks_exact_mut(bytes).enumerate() {
                let source = (expert * rows.all + rows.first + r * rows.step) * per_row;
                for (b, block) in row.chunks_exact_mut(17).enumerate() {
                    let nibbles = &blocks.data[(source + b) * 16..][..16];
                    codec::mxfp4::from_pairs(scales.data[source + b], nibbles, block);
                }
            }
            Bytes::from_slice(&packed)
        };
        let parts = (0..n).map(|e| WeightPart { data: part(e), planes: Planes::default() }).collect();
        let name = format!("{} ({})", blocks.name, role.what());
        Ok(Weight::stack(name, [n_out, n_in], BlockType::MXFP4, parts))
    }

    /// The matrices of latent attention for each head, as stacks: from queries to the latent
    /// `(n_heads, rank, plain)`, and from the latent to values `(n_heads, value, rank)`.
    pub fn latent_heads(&mut self, spec: &ModelSpec, layer: Option<usize>) -> Result<(Weight, Weight)> {
        use TensorRole::{AttnKB, AttnKvB, AttnVB};
        if self.locate(AttnKB, layer, "weight").is_some() {
            return Ok((self.experts(spec, AttnKB, layer)?, self.experts(spec, AttnVB, layer)?));
        }
        let (of_k, of_v) = (shape(spec, AttnKB, layer), shape(spec, AttnVB, layer));
        let ([n, rank, plain], [_, value, _]) = ([of_k[0], of_k[1], of_k[2]], [of_v[0], of_v[1], of_v[2]]);
        let located = self.required(spec, AttnKvB, layer)?;
        let (tensor, _) = self.check(spec, AttnKvB, layer, &located, &shape(spec, AttnKvB, layer))?;
        let (mut keys, mut values) = (Vec::with_capacity(n), Vec::with_capacity(n));
        for head in 0..n {
            let first = head * (plain + value);
            let (data, planes) = tensor.rows(first..first + plain).ok_or_else(|| short(tensor))?;
            let rows = Tensor { shape: vec![plain, rank], data, planes, ..tensor.clone() };
            let rows = self.unblocked(&rows);
            let data = transposed_bytes(&rows, 0, (0, 1), [rank, plain], self.decodes)?;
            keys.push(WeightPart { data, planes: Planes::default() });
            let (data, planes) =
                tensor.rows(first + plain..first + plain + value).ok_or_else(|| short(tensor))?;
            values.push(WeightPart { data, planes });
        }
        let block = if value_bytes(tensor.block).is_some() { tensor.block } else { BlockType::F32 };
        let name = |what: &str| format!("{} ({what})", tensor.name);
        let keys = Weight::stack(name("keys, transposed"), [rank, plain], block, keys);
        Ok((keys, Weight::stack(name("values"), [value, rank], tensor.block, values)))
    }
}

/// True if a tensor has the layout that a row of the table describes. Two rows with one name are
/// told apart by the shape.
pub(crate) fn lies_as(
    spec: &ModelSpec,
    row: &TensorName,
    layer: Option<usize>,
    tensor: &Tensor,
    naming: Naming,
) -> bool {
    let [n, n_out, n_in] = shape(spec, row.role, layer)[..] else { return true };
    let all = if row.stacked.is_empty() { n_out } else { n_stacked(spec, row.stacked, layer) };
    tensor.shape == if row.is_transposed(naming) { [n, n_in, all] } else { [n, all, n_in] }
}

/// Rows of an expert's matrices for several roles.
fn n_stacked(spec: &ModelSpec, roles: &[TensorRole], layer: Option<usize>) -> usize {
    roles.iter().map(|role| shape(spec, *role, layer).get(1).copied().unwrap_or(0)).sum()
}

/// The name of a role's part of a tensor.
fn stack_name(name: &str, row: &TensorName, role: TensorRole) -> String {
    if row.stacked.is_empty() { name.to_owned() } else { format!("{name} ({})", role.what()) }
}

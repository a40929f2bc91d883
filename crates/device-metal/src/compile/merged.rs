//! The projection of a row that attention left in parts: it merges them itself, which saves a
//! dispatch.
//!
//! The contract is the header `kernels/linear/merged.h`. Every threadgroup of such a GEMV reads all
//! parts, so it is for a single row, and for rows that fit threadgroup memory; other readers get
//! `attention_merge`.

use super::call::{Call, ONE, each};
use super::draft::{AttentionParts, Draft};
use super::products::{BIASES_AT, OTHER_AT, OUTPUTS_AT, SHARED};
use crate::arguments::{LinearArguments, MergedArguments};
use crate::geometry::{GEMV_ROWS, MOST_ROW_COLUMNS, SPAN_COLUMNS};
use crate::gpu::{Fewer, MetalGpu};
use crate::kernels::{self, Kernel, linear};
use device::{Result, RowCount};
use device_lower::fields::{Projection, Tail};
use device_lower::table::{Extent, RowClass, When};
use device_lower::units::{Unit, after_selections};

impl<G: MetalGpu> Draft<'_, G> {
    /// Returns true if the next unit merges the parts: it multiplies the row by one matrix and is
    /// its only reader.
    pub(super) fn is_merged_next(&self, parts: &AttentionParts) -> bool {
        let (row, rest) = after_selections(parts.out, self.rest);
        let Some(Unit::Projection(p)) = rest.first().map(|next| &next.unit) else { return false };
        self.tokens == RowClass::One
            && p.x == row
            && p.norm.is_none()
            && p.matrices.len() == 1
            && !matches!(p.tail, Tail::Gate { .. })
            && parts.n_heads * parts.head_dim <= MOST_ROW_COLUMNS
            && self.compiler.is_read_once(parts.out)
    }

    /// The projection of the parts that the unit before left, if it left any; in which steps it
    /// runs.
    pub(super) fn merged_projection(&mut self, p: &Projection) -> Result<Option<When>> {
        let Some(parts) = self.parts.take() else { return Ok(None) };
        let Some(matrix) = p.matrices.first() else { return Ok(None) };
        let c = self.compiler;
        let weight = c.plan.weight(matrix.weight);
        let (block, n_in, n_out) = (weight.block, weight.n_cols(), weight.n_rows());
        let args = MergedArguments {
            linear: LinearArguments {
                n_in: n_in as u32,
                per_token: 1,
                x_stride: n_in as u32,
                row_bytes: weight.row_bytes() as u32,
                scale_bytes: block.row_scale_bytes(n_in) as u32,
                n_out_0: n_out as u32,
                ..Default::default()
            },
            n_heads: parts.n_heads as u32,
            head_dim: parts.head_dim as u32,
            n_splits: parts.n_splits as u32,
            has_sinks: u32::from(parts.sinks.is_some()),
        };
        let n_blocks = n_out.div_ceil(GEMV_ROWS);
        let (_, split) = c.profile.gemv_shape(n_blocks, n_in.div_ceil(SPAN_COLUMNS));
        let name = kernels::type_name(block);
        let kernel = Kernel { file: self.linear_file(block)?, function: format!("linear_{name}_merged") };
        let mut call = Call::new(kernel, &args)
            .bool(linear::NORM, false)
            .bool(linear::GATE, false)
            .bool(linear::UP, false)
            .bool(linear::ROW_GATE, false)
            .uint(linear::ACTIVATION, 0)
            .uint(linear::WEIGHTS, 1)
            .bool(linear::ARGMAX, false)
            .bool(linear::SOFTCAP, false)
            .bool(linear::BIAS, matrix.bias.is_some())
            .bool(linear::RESIDUAL, matches!(p.tail, Tail::Add { .. }))
            .uint(linear::SPLIT, split)
            .bind(BIASES_AT, c.weight_or_any(matrix.bias)?)
            .bind(21, c.weight_or_any(parts.sinks)?)
            .read(22, parts.partials)
            .read(23, parts.totals);
        call = self.bind_planes(call, 0, weight)?;
        call.constants.extend(self.type_constants(&[weight])?);
        call = match p.tail {
            Tail::Add { residual, out } => {
                call.read(OTHER_AT, self.value(residual)).write(OUTPUTS_AT, self.value(out))
            }
            // A gate has two matrices: `is_merged_next`.
            Tail::Store | Tail::Gate { .. } => call.write(OUTPUTS_AT, self.value(matrix.out)),
        };
        call = call.fill(SHARED, c.anything());
        let simdgroups = self.most_simdgroups(split, false);
        let groups = n_blocks.div_ceil((simdgroups / split) as usize);
        call.threadgroup_bytes = 16 * n_in.div_ceil(4) as u32;
        call.weight_bytes = c.plan.weight_bytes(matrix.weight);
        call.when = parts.when;
        let add = if matches!(p.tail, Tail::Add { .. }) { " + add" } else { "" };
        call.name = Some(format!("attention_merge + linear_{name}{add} (1 row)"));
        let grid = [Extent::Fixed(groups as u32), each(RowCount::Tokens), ONE];
        self.push(call.grid(grid, 32 * simdgroups).fewer(Fewer::MoreGroups(32 * split)))?;
        Ok(Some(parts.when))
    }
}

//! Additions of a branch to the residual stream, after norms of its own or as the sum of expert
//! products. With norms and one row, the stream's next product does the addition
//! (`linear/joined.h`). With many rows, the dispatch of the stream's next norms does it.
//!
//! The contracts are the headers `kernels/join.h`, `kernels/join.metal` and
//! `kernels/linear/joined.h`.

use super::call::{Call, ONE, each, per_token};
use super::draft::{Draft, Schedule};
use super::products::{NORM_AT, OTHER_AT, X_AT};
use crate::arguments::JoinArguments;
use crate::geometry::MOST_ROW_COLUMNS;
use crate::gpu::{Constant, MetalGpu};
use crate::kernels::join;
use device::{Result, ValueId};
use device_lower::fields::{Norm, Projection, Tail};
use device_lower::table::RowClass;
use device_lower::units::{Join, next_reader, norms_of_sum};

impl<'a, G: MetalGpu> Draft<'a, G> {
    pub(super) fn join(&mut self, j: &Join) -> Result<()> {
        let reader = next_reader(j.out, self.rest).map(|(_, reader)| reader);
        if reader.is_some_and(|p| self.is_joined_by(j, p)) {
            self.join = Some(*j);
            return Ok(());
        }
        self.join_dispatch(j, &self.norms_with(j.out))
    }

    /// The norms that are computed with a sum. With few rows the products normalise their input
    /// instead.
    pub(super) fn norms_with(&self, sum: ValueId) -> Vec<(Norm, ValueId)> {
        let reader = next_reader(sum, self.rest).map(|(_, reader)| reader);
        let tiles = reader.is_some_and(|p| matches!(self.schedule(p.x), Schedule::Gemm(_)));
        if tiles { norms_of_sum(sum, self.rest) } else { vec![] }
    }

    /// Returns true if a projection of one row computes the sum itself.
    fn is_joined_by(&self, j: &Join, p: &Projection) -> bool {
        let c = self.compiler;
        self.tokens == RowClass::One
            && self.class(j.out) == RowClass::One
            && self.schedule(p.x) == Schedule::Gemv(1)
            && !c.is_deterministic()
            && c.cols(j.out) <= MOST_ROW_COLUMNS
            && p.norm.is_none_or(|(norm, _)| norm.weight.is_some())
            && !matches!(p.tail, Tail::Add { .. })
            && self.parts_of(p).len() == 1
    }

    /// The constants of `join.h`.
    fn join_constants(j: &Join, parts: bool, n_norms: u32) -> [(u16, Constant); 5] {
        [
            (join::NORM, Constant::Bool(j.norm.is_some())),
            (join::WEIGHT, Constant::Bool(j.norm.is_some_and(|norm| norm.weight.is_some()))),
            (join::PAIR, Constant::Bool(j.pair.is_some())),
            (join::PARTS, Constant::Bool(parts)),
            (join::NORMS, Constant::UInt(n_norms)),
        ]
    }

    pub(super) fn join_arguments(&self, j: &Join, norm: Option<Norm>) -> JoinArguments {
        let c = self.compiler;
        JoinArguments {
            per_token: per_token(c.rows(j.out)),
            cols: c.cols(j.out) as u32,
            n_parts: 0,
            factor: j.factor,
            eps: j.norm.map_or(0.0, |norm| norm.eps),
            first_eps: j.pair.map_or(0.0, |pair| pair.norm.eps),
            other_eps: j.pair.map_or(0.0, |pair| pair.other_norm.eps),
            norm_eps: norm.map_or(0.0, |norm| norm.eps),
        }
    }

    /// A dispatch of its own, for all rows; with norms of the sum, which all add the same to the
    /// mean square.
    pub(super) fn join_dispatch(&mut self, j: &Join, norms: &[(Norm, ValueId)]) -> Result<()> {
        let c = self.compiler;
        let parts = self.expert_parts.take();
        self.normed.extend(norms.iter().map(|(_, out)| *out));
        let mut args = self.join_arguments(j, norms.first().map(|(norm, _)| *norm));
        args.n_parts = parts.map_or(0, |(_, weights)| c.cols(weights) as u32);
        let mut call = self
            .step_call("join.metal", &args)
            .read(2, self.value(j.x))
            .write(3, self.value(j.out))
            .bind(4, c.weight_or_any(j.norm.and_then(|norm| norm.weight))?)
            .read(5, self.value(j.residual))
            .bind(6, c.weight_or_any(j.pair.and_then(|pair| pair.norm.weight))?)
            .bind(8, c.weight_or_any(j.pair.and_then(|pair| pair.other_norm.weight))?);
        let other = parts.map(|(parts, _)| parts).or(j.pair.map(|pair| pair.other));
        let other = other.map(|other| self.value(other));
        let chosen = parts.map(|(_, weights)| self.value(weights));
        call = call.read_or_any(7, other, c.anything()).read_or_any(9, chosen, c.anything());
        for index in 0..3u8 {
            let norm = norms.get(index as usize);
            call = call
                .bind(10 + index, c.weight_or_any(norm.and_then(|(norm, _)| norm.weight))?)
                .write_or_any(13 + index, norm.map(|(_, out)| self.value(*out)), c.anything());
        }
        call.constants.extend(Self::join_constants(j, parts.is_some(), norms.len() as u32));
        let sum = if parts.is_some() { "expert_sum + " } else { "" };
        call.name = Some(format!("{sum}{}", join_name(j, norms.len())));
        let cols = c.cols(j.out);
        self.push(call.flexible([each(c.rows(j.out)), ONE, ONE], c.profile.norm_threads(cols)))
    }

    /// Bind what makes the row of `linear_<type>_joined`.
    pub(super) fn bind_join(&self, call: Call, j: &Join, norm: Option<Norm>) -> Result<Call> {
        let c = self.compiler;
        let mut call = call
            .read(X_AT, self.value(j.x))
            .bind(NORM_AT, c.weight_or_any(norm.and_then(|norm| norm.weight))?)
            .read(OTHER_AT, self.value(j.residual))
            .bind(20, c.weight_or_any(j.norm.and_then(|norm| norm.weight))?)
            .bind(21, c.weight_or_any(j.pair.and_then(|pair| pair.norm.weight))?)
            .bind(23, c.weight_or_any(j.pair.and_then(|pair| pair.other_norm.weight))?)
            .write(24, self.value(j.out));
        call = call.read_or_any(22, j.pair.map(|pair| self.value(pair.other)), c.anything());
        call.constants.extend(Self::join_constants(j, false, u32::from(norm.is_some())));
        call.threadgroup_bytes = 16 * c.cols(j.out).div_ceil(4) as u32;
        Ok(call)
    }
}

/// The name of a join in tables of timings.
pub(super) fn join_name(j: &Join, n_norms: usize) -> String {
    let pair = if j.pair.is_some() { "2 rms_norm + add + " } else { "" };
    let scale = if j.factor == 1.0 { "" } else { " + scale" };
    let norm = match n_norms {
        0 => String::new(),
        1 => " + rms_norm".to_owned(),
        n => format!(" + {n} rms_norm"),
    };
    let own = if j.norm.is_some() { "rms_norm + " } else { "" };
    format!("{pair}{own}add{scale}{norm}")
}

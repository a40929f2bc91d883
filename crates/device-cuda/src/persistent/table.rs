//! The table of phases that a persistent kernel runs, and the arguments of its launch
//! (`kernels/persistent/arguments.h`).

use super::header::{
    ADD, ADD_EXPERTS, CONTINUED, CONTINUES, EXCHANGE_ATTENDED, EXCHANGE_GATED, EXCHANGE_INPUT,
    EXCHANGE_MIDDLE, EXPERTS, GATE, HEAD, OF_THREE, QKV, REVERSED, ROUTE,
};
use super::{Persistent, Rows};
use crate::arguments::{PersistentArguments, PersistentPhase};
use crate::driver::Address;
use crate::layout::StepLayout;
use device::{Limits, Plan, RopeStyle, RouterScores, WeightId};

/// Bytes of weights that a block loads at the same time, about (NOTES.md).
const IN_FLIGHT: usize = 32_768;

/// Cycles from a block's own publication to its first poll (NOTES.md).
const POLL_DELAY: u32 = 100;

/// The addresses that a table has.
pub struct PhasePlaces<'a> {
    /// Packed weights, by phase.
    pub weights: &'a [Address],
    /// Biases of q, k and v one after the other, by layer, or 0.
    pub biases: &'a [Address],
    /// The address of a vector.
    pub vector: &'a dyn Fn(WeightId) -> device::Result<Address>,
    /// Address of a layer's part of the first page of its KV group, bytes of a page, first entry of
    /// the group in the page table.
    pub pages: &'a dyn Fn(device::KvLayerId) -> (Address, u32, u32),
}

impl Persistent {
    /// The table: layer after layer its phases, then the head.
    ///
    /// # Errors
    /// Returns the errors of `places`.
    pub fn phases(&self, plan: &Plan, places: &PhasePlaces<'_>) -> device::Result<Vec<PersistentPhase>> {
        let mut phases = Vec::with_capacity(self.products.len());
        for index in 0..self.decoder.layers.len() {
            self.qkv_phases(plan, places, index, &mut phases)?;
            self.later_phases(plan, places, index, &mut phases)?;
        }
        phases.push(PersistentPhase {
            kind: HEAD,
            input: EXCHANGE_INPUT,
            chunks: chunks(plan, self.decoder.head),
            ..PersistentPhase::default()
        });
        for ((phase, product), weights) in phases.iter_mut().zip(&self.products).zip(places.weights) {
            phase.weights = *weights;
            phase.codec = product.codec.number;
            phase.groups = product.groups as u32;
            (phase.k_quads, phase.warps) = (product.k_quads as u32, product.warps as u32);
        }
        Ok(phases)
    }

    /// The phases of a layer's q, k and v: one, or one for each part.
    fn qkv_phases(
        &self,
        plan: &Plan,
        places: &PhasePlaces<'_>,
        index: usize,
        phases: &mut Vec<PersistentPhase>,
    ) -> device::Result<()> {
        let layer = &self.decoder.layers[index];
        let optional = |id: Option<WeightId>| id.map_or(Ok(0), places.vector);
        let (pages, page_bytes, table) = (places.pages)(layer.kv);
        let mut first_row = 0;
        for (part, matrices) in self.qkv_parts.iter().enumerate() {
            phases.push(PersistentPhase {
                norm_or_sinks: optional(layer.sinks)?,
                bias: match places.biases[index] {
                    0 => 0,
                    bias => bias + 4 * u64::from(first_row),
                },
                q_norm_or_second_bias: optional(layer.q_norm)?,
                k_norm_or_factors: optional(layer.k_norm)?,
                pages,
                page_bytes,
                table,
                window: layer.window.unwrap_or(0) as u32,
                rotation: layer.rotation as u32,
                qkv_part: part_flags(part, self.qkv_parts.len()),
                first_row,
                kind: QKV,
                input: EXCHANGE_INPUT,
                chunks: chunks(plan, layer.qkv[0].0),
                ..PersistentPhase::default()
            });
            let matrices = &layer.qkv[matrices.clone()];
            first_row += matrices.iter().map(|(id, _)| plan.weight(*id).n_rows() as u32).sum::<u32>();
        }
        Ok(())
    }

    /// The phases of a layer after its attention: output matrix, router, gate and up, down.
    fn later_phases(
        &self,
        plan: &Plan,
        places: &PhasePlaces<'_>,
        index: usize,
        phases: &mut Vec<PersistentPhase>,
    ) -> device::Result<()> {
        let (layers, vector) = (&self.decoder.layers, places.vector);
        let layer = &layers[index];
        let optional = |id: Option<WeightId>| id.map_or(Ok(0), vector);
        let next_norm = layers.get(index + 1).map_or(self.decoder.norm, |next| next.norm);
        phases.push(PersistentPhase {
            norm_or_sinks: vector(layer.ffn_norm)?,
            post_norm: optional(layer.post_attention)?,
            bias: optional(layer.output_bias)?,
            kind: ADD,
            input: EXCHANGE_ATTENDED,
            chunks: chunks(plan, layer.output),
            ..PersistentPhase::default()
        });
        if let Some(router) = layer.router {
            phases.push(PersistentPhase {
                bias: optional(router.product_bias)?,
                q_norm_or_second_bias: optional(router.choice_bias)?,
                k_norm_or_factors: optional(router.scales)?,
                kind: ROUTE,
                input: EXCHANGE_MIDDLE,
                chunks: chunks(plan, router.matrix),
                ..PersistentPhase::default()
            });
        }
        let [gate_bias, up_bias] = layer.expert_biases.map_or([None; 2], |biases| biases.map(Some));
        phases.push(PersistentPhase {
            bias: optional(gate_bias)?,
            q_norm_or_second_bias: optional(up_bias)?,
            kind: if layer.router.is_some() { EXPERTS } else { GATE },
            input: EXCHANGE_MIDDLE,
            chunks: chunks(plan, layer.gate),
            activation: crate::compile::activation(layer.activation),
            gate_refill: u32::from(layer.router.is_none()),
            ..PersistentPhase::default()
        });
        phases.push(PersistentPhase {
            norm_or_sinks: vector(next_norm)?,
            post_norm: optional(layer.post_ffn)?,
            bias: optional(layer.down_bias)?,
            kind: if layer.router.is_some() { ADD_EXPERTS } else { ADD },
            input: EXCHANGE_GATED,
            chunks: chunks(plan, layer.down),
            ..PersistentPhase::default()
        });
        Ok(())
    }

    /// The arguments of a launch without addresses, and the bytes of its shared memory.
    pub fn arguments(
        &self,
        plan: &Plan,
        limits: &Limits,
        step: &StepLayout,
        shared_bytes: u32,
        rows: Rows,
    ) -> (PersistentArguments, u32) {
        let heads = self.decoder.heads;
        let (n_slots, shared) = self.ring(rows, shared_bytes);
        // A kernel does not read the number that is 0.
        let (n_splits, table_stride) = match rows {
            Rows::One => (self.n_splits() as u32, 0),
            Rows::Several => (0, step.table_stride()),
        };
        let scale = |index: usize| self.decoder.rotations.get(index).map_or(1.0, |(_, scale)| *scale);
        let mixture = self.mixture();
        let clamp = mixture.and_then(|mixture| mixture.clamp);
        let arguments = PersistentArguments {
            n_phases: self.products.len() as u32,
            rotation_scale1: scale(0),
            rotation_scale2: scale(1),
            interleaved: u32::from(heads.style == RopeStyle::Interleaved),
            hidden: plan.value(self.decoder.first).cols as u32,
            n_kv_heads: heads.n_kv_heads as u32,
            n_vocab: plan.weight(self.decoder.head).n_rows() as u32,
            n_splits,
            page_len: limits.page_len as u32,
            slot_bytes: self.slot() as u32,
            n_slots: n_slots as u32,
            eps: self.decoder.eps,
            attention_scale: heads.scale * std::f32::consts::LOG2_E,
            softcap: heads.softcap.unwrap_or(0.0),
            poll_delay: POLL_DELAY,
            // The end of a layer's weights is unknown until its experts are chosen.
            refill_gates: u32::from(mixture.is_none()),
            in_flight: IN_FLIGHT.div_ceil(self.slot_of_steps()).min(n_slots.saturating_sub(1)) as u32,
            stop_phase: self.products.len() as u32,
            most_quads: self.most_quads(rows) as u32,
            table_stride,
            n_experts: mixture.map_or(0, |mixture| mixture.n as u32),
            n_used: mixture.map_or(0, |mixture| mixture.n_used as u32),
            expert_ffn: mixture.map_or(0, |mixture| mixture.ffn as u32),
            expert_sigmoid: u32::from(mixture.is_some_and(|mixture| mixture.scores == RouterScores::Sigmoid)),
            expert_normalise: u32::from(mixture.is_some_and(|mixture| mixture.normalise)),
            expert_factor: mixture.map_or(1.0, |mixture| mixture.factor),
            expert_limit: clamp.map_or(0.0, |(_, limit)| limit),
            expert_alpha: clamp.map_or(0.0, |(alpha, _)| alpha),
            ..PersistentArguments::default()
        };
        (arguments, shared)
    }
}

/// Chunks of the input of a product.
fn chunks(plan: &Plan, id: WeightId) -> u32 {
    (plan.weight(id).n_cols() / 8) as u32
}

/// The flags of part `part` of `n` (`PersistentPhase::qkv_part`).
fn part_flags(part: usize, n: usize) -> u32 {
    let flags = [
        (part > 0, CONTINUES),
        (part + 1 < n, CONTINUED),
        (part == 1, REVERSED),
        (n == 3 && part != 1, OF_THREE),
    ];
    flags.iter().filter(|(is_set, _)| *is_set).map(|(_, flag)| flag).sum()
}

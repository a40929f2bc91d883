//! The kernel of several rows (`kernels/persistent/decode_rows.cuh`): which decoders it runs, and how many rows of them. It reads the
//! packed weights and the table of the kernel of one row. Where matrices are halves it is the only one, and runs steps of one row too.

use super::{
    EXCHANGE_BYTES, FEWEST_LARGE_SLOTS, FEWEST_SLOTS, MAX_BLOCKS, Mixture, Packing, Persistent, Product,
    SLOT_F16, fit,
};
use crate::profile::Profile;
use device::{Limits, Plan};
use device_lower::table::RowClass;

// The names of `persistent/arguments.h`; a test compares them.
pub(super) const EXCHANGE_ROWS_INPUT: usize = 0;
pub(super) const EXCHANGE_ROWS_MIDDLE: usize = 131_072;
pub(super) const EXCHANGE_ROWS_ATTENDED: usize = 262_144;
pub(super) const EXCHANGE_ROWS_GATED: usize = 393_216;
pub(super) const EXCHANGE_ROWS_QKV: usize = 917_504;
pub(super) const EXCHANGE_ROWS_PARTIALS: usize = 1_441_792;
pub(super) const EXCHANGE_ROWS_SQUARES: usize = 2_490_368;
pub(super) const EXCHANGE_ROWS: usize = 2_662_400;
pub(super) const TURNS_AT: usize = 2 * EXCHANGE_ROWS + 256;
pub(super) const TURNS: usize = 21_504;
pub(super) const MOST_ROWS: usize = 8;
pub(super) const MOST_OWN: usize = 32;
pub(super) const ROWS_INPUT: usize = 16_640;
pub(super) const FEWEST_QUADS: usize = 4;
pub(super) const ROWS_USED: usize = 8;
pub(super) const ROWS_CHOICE: usize = 1584;

/// Bytes of shared memory beside the ring, the input and the phases, more than the kernel of one row has.
pub(super) const SHARED_MORE: usize = 33_024;

/// Bytes of a column of all rows, as they are handed over.
const COLUMN: usize = 2 * MOST_ROWS;

/// Columns of a network, or of those of all experts of a row.
const MOST_GATED: usize = (EXCHANGE_ROWS_QKV - EXCHANGE_ROWS_GATED) / COLUMN;

/// Rows of a step that the kernel of one row computes one after the other, at most, of a mixture that has no kernel of several rows: more take
/// less time by a launch for each unit (docs/cuda.md).
pub const MOST_IN_TURN: usize = 3;

/// Bytes of gate and up of the experts of a token in a layer from which two rows take a launch each: products of several rows take more
/// instructions, which does not pay where two rows have few experts in common (NOTES.md).
const MOST_OF_TWO: usize = 24 << 20;

/// Which of the two kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rows {
    /// That of one row.
    One,
    /// That of several rows.
    Several,
}

impl Rows {
    /// Bytes of both its exchanges, the turn and, of several rows, cosines and sines of rows before a block's.
    pub fn exchange_bytes(self) -> usize {
        match self {
            Rows::One => EXCHANGE_BYTES,
            Rows::Several => TURNS_AT + MAX_BLOCKS * TURNS,
        }
    }
}

impl Persistent {
    /// The kernels that it has.
    pub fn kernels(&self) -> impl Iterator<Item = Rows> {
        let has_one = !self.has_halves();
        [(has_one, Rows::One), (self.several.is_ok(), Rows::Several)]
            .into_iter()
            .filter_map(|(has, rows)| has.then_some(rows))
    }

    /// The kernel of steps of a class.
    pub fn rows_of(&self, class: RowClass) -> Rows {
        if class == RowClass::Two && self.gate_bytes() > MOST_OF_TWO {
            return Rows::One;
        }
        let needs_several = class > RowClass::One || self.has_halves();
        if needs_several && self.several.is_ok() { Rows::Several } else { Rows::One }
    }

    /// Bytes of gate and up of the experts of a token in a layer; 0: there are no experts.
    fn gate_bytes(&self) -> usize {
        let bytes = |product: &Product| match product.packing {
            Packing::Bundles { .. } => product.bytes().1,
            _ => 0,
        };
        self.products.iter().map(bytes).max().unwrap_or(0)
    }

    /// Rows of a step that the kernel of one row computes one after the other, at most, where it takes such steps.
    pub(super) fn most_in_turn(&self, limits: &Limits, profile: &Profile) -> usize {
        let most = if self.mixture().is_some() { MOST_IN_TURN } else { 1 };
        most.min(profile.persistent_rows).min(limits.max_rows).min(limits.max_outputs).max(1)
    }

    /// Whether some matrix is one that only the kernel of several rows multiplies.
    pub(super) fn has_halves(&self) -> bool {
        self.products.iter().any(|product| product.codec.is_halves())
    }

    /// Rows of a step of the kernel of several rows, at most.
    ///
    /// # Errors
    /// Why it cannot run the plan, in words.
    pub(super) fn most_rows(&self, plan: &Plan, limits: &Limits, profile: &Profile) -> Result<usize, String> {
        let fewest = if self.has_halves() { 1 } else { 2 };
        let of_profile = profile.persistent_rows.max(1);
        if of_profile < fewest {
            return Err("the profile of this GPU does not have them".to_owned());
        }
        if let Some(Mixture { n_used, ffn, .. }) = self.mixture() {
            if !profile.other_shapes {
                return Err(
                    "a mixture of experts, whose kernel NVRTC compiles, which is not there".to_owned()
                );
            }
            fit([
                ("experts of a token", n_used, ROWS_USED),
                // A warp's part of an expert's units is received together.
                ("columns of an expert's network", ffn, 1024 * FEWEST_QUADS),
                ("columns of the experts' networks", n_used * ffn.next_multiple_of(128), MOST_GATED),
            ])?;
        }
        let heads = self.decoder.heads;
        let hidden = plan.value(self.decoder.first).cols;
        let (own, qkv_rows) = (self.own_rows(hidden), self.qkv_rows());
        let most_columns = (EXCHANGE_ROWS_MIDDLE - EXCHANGE_ROWS_INPUT) / COLUMN;
        let most_attended = (EXCHANGE_ROWS_GATED - EXCHANGE_ROWS_ATTENDED) / COLUMN;
        let most_qkv = EXCHANGE_ROWS_PARTIALS - EXCHANGE_ROWS_QKV;
        let most_partials = EXCHANGE_ROWS_SQUARES - EXCHANGE_ROWS_PARTIALS;
        fit([
            ("rows of the residual of a block", own, MOST_OWN),
            ("columns of the residual", hidden, most_columns),
            ("columns of attention", heads.n_heads * heads.head_dim, most_attended),
            ("columns of the network", self.ffn(plan), MOST_GATED),
            ("bytes of q, k and v", MOST_ROWS * qkv_rows * 4, most_qkv),
            ("bytes of partial attentions", self.n_blocks * self.partial_bytes(), most_partials),
        ])?;
        self.has_slots(Rows::Several, profile.shared_bytes)?;
        // Each row has a block for each KV head.
        let most = MOST_ROWS.min(self.n_blocks / heads.n_kv_heads.max(1)).min(of_profile);
        if most < fewest {
            return Err(format!("{} KV heads for {} blocks", heads.n_kv_heads, self.n_blocks));
        }
        match most.min(limits.max_rows).min(limits.max_outputs) {
            most if most < fewest => Err("no step has several outputs".to_owned()),
            most => Ok(most),
        }
    }

    /// That the ring is long enough.
    pub(super) fn has_slots(&self, rows: Rows, shared_bytes: u32) -> Result<(), String> {
        let fewest = if self.slot() >= SLOT_F16 { FEWEST_LARGE_SLOTS } else { FEWEST_SLOTS };
        match self.ring(rows, shared_bytes).0 {
            n if n >= fewest => Ok(()),
            n => Err(format!("{n} slots of shared memory, expected at least {fewest}")),
        }
    }
}

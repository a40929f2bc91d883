//! The kernel for several rows (`kernels/persistent/decode_rows.cuh`): its limits, and the steps
//! that use it. It reads the packed weights and the table of the kernel for one row. If some matrix
//! holds halves it is the only kernel, and runs steps of one row too.

use super::header::{
    EXCHANGE, EXCHANGE_ROWS_ATTENDED, EXCHANGE_ROWS_GATED, EXCHANGE_ROWS_INPUT, EXCHANGE_ROWS_MIDDLE,
    EXCHANGE_ROWS_PARTIALS, EXCHANGE_ROWS_QKV, EXCHANGE_ROWS_SQUARES, FEWEST_QUADS, MAX_BLOCKS, MOST_ROWS,
    ROTARY, ROTARY_AT, ROWS_MAX_OWN, ROWS_USED,
};
use super::products::{Packing, PhaseProduct};
use super::{Mixture, Persistent, Rows, fit};
use crate::profile::Profile;
use device::{Limits, Plan};
use device_lower::table::RowClass;

/// Bytes of both exchanges of the kernel for one row and of the turn.
pub(super) const EXCHANGE_BYTES: usize = 2 * EXCHANGE + 256;

/// Bytes of a column of all rows in an exchange.
const COLUMN: usize = 2 * MOST_ROWS;

/// Maximum number of columns of a network, or of the networks of all experts of a row.
const MOST_GATED: usize = (EXCHANGE_ROWS_QKV - EXCHANGE_ROWS_GATED) / COLUMN;

/// Maximum number of rows of a step that take a launch of the kernel for one row each. It holds for
/// mixtures without a kernel for several rows. More rows take less time by a launch for each unit
/// (docs/cuda.md).
pub const MOST_IN_TURN: usize = 3;

/// Maximum number of bytes of gate and up of a token's experts in a layer for which two rows share
/// a launch. Products of several rows take more instructions, which does not pay if two rows have
/// few large experts in common (NOTES.md).
const MOST_OF_TWO: usize = 24 << 20;

impl Rows {
    /// Bytes of both exchanges and the turn. The kernel for several rows also keeps cosines and
    /// sines of the rows before a block's own row.
    pub fn exchange_bytes(self) -> usize {
        match self {
            Rows::One => EXCHANGE_BYTES,
            Rows::Several => ROTARY_AT + MAX_BLOCKS * ROTARY,
        }
    }
}

impl Persistent {
    /// The kernels that run the plan.
    pub fn kernels(&self) -> impl Iterator<Item = Rows> {
        let has_one = !self.has_halves();
        [(has_one, Rows::One), (self.several.is_ok(), Rows::Several)]
            .into_iter()
            .filter_map(|(has, rows)| has.then_some(rows))
    }

    /// The kernel that runs steps of a class.
    pub fn rows_of(&self, class: RowClass) -> Rows {
        if class == RowClass::Two && self.gate_bytes() > MOST_OF_TWO {
            return Rows::One;
        }
        let needs_several = class > RowClass::One || self.has_halves();
        if needs_several && self.several.is_ok() { Rows::Several } else { Rows::One }
    }

    /// Bytes of gate and up of a token's experts in a layer, or 0 without experts.
    fn gate_bytes(&self) -> usize {
        let bytes = |product: &PhaseProduct| match product.packing {
            Packing::Bundles { .. } => product.bytes().1,
            Packing::Rows | Packing::Router | Packing::Down { .. } => 0,
        };
        self.products.iter().map(bytes).max().unwrap_or(0)
    }

    /// Maximum number of rows of a step that take a launch of the kernel for one row each.
    pub(super) fn most_in_turn(&self, limits: &Limits, profile: &Profile) -> usize {
        let most = if self.mixture().is_some() { MOST_IN_TURN } else { 1 };
        most.min(profile.persistent_rows).min(limits.max_rows).min(limits.max_outputs).max(1)
    }

    /// True if some matrix holds halves, which only the kernel for several rows multiplies.
    pub(super) fn has_halves(&self) -> bool {
        self.products.iter().any(|product| product.codec.is_halves())
    }

    /// Maximum number of rows of a step of the kernel for several rows.
    ///
    /// # Errors
    /// Returns the reason why that kernel cannot run the plan.
    pub(super) fn most_rows(&self, plan: &Plan, limits: &Limits, profile: &Profile) -> Result<usize, String> {
        let fewest = if self.has_halves() { 1 } else { 2 };
        let of_profile = profile.persistent_rows.max(1);
        if of_profile < fewest {
            return Err("the profile of this GPU has no kernel for several rows".to_owned());
        }
        if let Some(Mixture { n_used, ffn, .. }) = self.mixture() {
            if !profile.other_shapes {
                return Err(
                    "a mixture of experts: no kernel is prebuilt for it, and NVRTC was not found".to_owned()
                );
            }
            fit([
                ("experts of a token", n_used, ROWS_USED),
                // A warp receives its part of an expert's units at once.
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
            ("rows of the residual in a block", own, ROWS_MAX_OWN),
            ("columns of the residual", hidden, most_columns),
            ("columns of attention", heads.n_heads * heads.head_dim, most_attended),
            ("columns of the network", self.ffn(plan), MOST_GATED),
            ("bytes of q, k and v", MOST_ROWS * qkv_rows * 4, most_qkv),
            ("bytes of partial attentions", self.n_blocks * self.partial_bytes(), most_partials),
        ])?;
        self.has_slots(Rows::Several, profile.shared_bytes)?;
        // Each row needs a block for each KV head.
        let most = MOST_ROWS.min(self.n_blocks / heads.n_kv_heads.max(1)).min(of_profile);
        if most < fewest {
            return Err(format!(
                "{} blocks for {} KV heads, expected {fewest} for each",
                self.n_blocks, heads.n_kv_heads
            ));
        }
        match most.min(limits.max_rows).min(limits.max_outputs) {
            most if most < fewest => Err("no step has several outputs".to_owned()),
            most => Ok(most),
        }
    }
}

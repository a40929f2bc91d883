//! The kernel of several rows (`kernels/persistent/decode_rows.cuh`): which decoders it runs, and how many rows of them. It reads the
//! packed weights and the table of the kernel of one row.

use super::{EXCHANGE_BYTES, FEWEST_SLOTS, Persistent, fit};
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
pub(super) const EXCHANGE_ROWS: usize = 2_523_136;
pub(super) const MOST_ROWS: usize = 8;
pub(super) const MOST_OWN: usize = 32;
pub(super) const ROWS_INPUT: usize = 16_640;
pub(super) const FEWEST_QUADS: usize = 4;

/// Bytes of shared memory beside the ring, the input and the phases, more than the kernel of one row has.
pub(super) const SHARED_MORE: usize = 33_024;

/// Bytes of a column of all rows, as they are handed over.
const COLUMN: usize = 2 * MOST_ROWS;

/// Which of the two kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rows {
    /// That of one row.
    One,
    /// That of several rows, each of a sequence of its own.
    Several,
}

impl Rows {
    /// The kernel of steps of a class.
    pub fn of(class: RowClass) -> Rows {
        match class {
            RowClass::One => Rows::One,
            _ => Rows::Several,
        }
    }

    /// Bytes of both its exchanges and the turn.
    pub fn exchange_bytes(self) -> usize {
        match self {
            Rows::One => EXCHANGE_BYTES,
            Rows::Several => 2 * EXCHANGE_ROWS + 256,
        }
    }
}

impl Persistent {
    /// Rows of a step of the kernel of several rows, at most.
    ///
    /// # Errors
    /// Why it cannot run the plan, in words.
    pub(super) fn most_rows(&self, plan: &Plan, limits: &Limits, profile: &Profile) -> Result<usize, String> {
        if profile.persistent_rows < 2 || profile.rows_positions == 0 {
            return Err("the profile of this GPU does not have them".to_owned());
        }
        if self.mixture().is_some() {
            return Err("a mixture of experts".to_owned());
        }
        let heads = self.decoder.heads;
        let hidden = plan.value(self.decoder.first).cols;
        let (own, qkv_rows) = (self.own_rows(hidden), self.qkv_rows());
        let most_columns = (EXCHANGE_ROWS_MIDDLE - EXCHANGE_ROWS_INPUT) / COLUMN;
        let most_attended = (EXCHANGE_ROWS_GATED - EXCHANGE_ROWS_ATTENDED) / COLUMN;
        let most_gated = (EXCHANGE_ROWS_QKV - EXCHANGE_ROWS_GATED) / COLUMN;
        let most_qkv = EXCHANGE_ROWS_PARTIALS - EXCHANGE_ROWS_QKV;
        let most_partials = EXCHANGE_ROWS_SQUARES - EXCHANGE_ROWS_PARTIALS;
        fit([
            ("rows of the residual of a block", own, MOST_OWN),
            ("columns of the residual", hidden, most_columns),
            ("columns of attention", heads.n_heads * heads.head_dim, most_attended),
            ("columns of the network", self.ffn(plan), most_gated),
            ("bytes of q, k and v", MOST_ROWS * qkv_rows * 4, most_qkv),
            ("bytes of partial attentions", self.n_blocks * self.partial_bytes(), most_partials),
        ])?;
        self.has_slots(Rows::Several, profile.shared_bytes)?;
        // Each row has a block for each KV head.
        let most = MOST_ROWS.min(self.n_blocks / heads.n_kv_heads.max(1)).min(profile.persistent_rows);
        if most < 2 {
            return Err(format!("{} KV heads for {} blocks", heads.n_kv_heads, self.n_blocks));
        }
        match most.min(limits.max_rows).min(limits.max_outputs).min(limits.max_spans) {
            0 | 1 => Err("no step has several sequences".to_owned()),
            most => Ok(most),
        }
    }

    /// That the ring is long enough.
    pub(super) fn has_slots(&self, rows: Rows, shared_bytes: u32) -> Result<(), String> {
        match self.ring(rows, shared_bytes).0 {
            n if n >= FEWEST_SLOTS => Ok(()),
            n => Err(format!("{n} slots of shared memory, expected at least {FEWEST_SLOTS}")),
        }
    }
}

//! Sizes of the ring of shared memory that weights, keys and values are streamed through, and of
//! the shared memory of a block.

use super::header::{
    CHOICE, FEWEST_QUADS, INPUT, LEAST_SLOT, MAX_SLOTS, ROWS_CHOICE, ROWS_INPUT, shared, shared_rows,
};
use super::products::{PackedCodec, Packing, PhaseProduct};
use super::{Pages, Persistent, Rows};
use crate::arguments::PersistentPhase;

/// Bytes of a slot that holds two steps of `q4m`, whose units have 640 bytes. NOTES.md has the
/// times of other sizes.
const SLOT_640: usize = 10_240;

/// Bytes of a slot that holds a step of `f16`, or a tile of heads of 256 columns in F16.
const SLOT_F16: usize = 16_384;

/// Bytes of a slot that holds a step of `f16`, or two steps of `q8`.
pub(super) const SLOT_MIXED: usize = 18_432;

/// Slots below which the ring is too short to pay off.
const FEWEST_SLOTS: usize = 6;

/// Slots of at least [`SLOT_F16`] bytes below which the ring is too short to pay off.
const FEWEST_LARGE_SLOTS: usize = 4;

impl Persistent {
    /// The widest input that shared memory has room for, in units of 1,024 columns. The kernel for
    /// several rows streams inputs that are wider than the residual, which its first product reads.
    pub(super) fn most_quads(&self, rows: Rows) -> usize {
        let (n, fewest) = match rows {
            Rows::One => (self.products.len(), 1),
            Rows::Several => (1, FEWEST_QUADS),
        };
        self.products.iter().take(n).map(|product| product.k_quads).fold(fewest, usize::max)
    }

    /// Slots of the ring, and bytes of shared memory of a block.
    pub(super) fn ring(&self, rows: Rows, shared_bytes: u32) -> (usize, u32) {
        let heads = self.decoder.heads;
        let (d, h) = (heads.head_dim, heads.of_group());
        let (own, input, choice) = match rows {
            Rows::One => (shared(d, h), INPUT, CHOICE),
            Rows::Several => (shared_rows(d, h), ROWS_INPUT, ROWS_CHOICE),
        };
        let choice = if self.mixture().is_some() { choice } else { 0 };
        let phases = size_of::<PersistentPhase>() * self.products.len();
        let rest = own + input * self.most_quads(rows) + phases + choice;
        let n_slots = ((shared_bytes as usize).saturating_sub(rest) / self.slot()).min(MAX_SLOTS);
        (n_slots, (n_slots * self.slot() + rest) as u32)
    }

    /// Bytes of a slot: enough for [`Self::slot_of_steps`], for a tile of keys and values, and for
    /// 8 rows of an expert.
    pub(super) fn slot(&self) -> usize {
        let has_large_tiles = self.pages == Pages::F16 && self.decoder.heads.head_dim > 128;
        let of_tiles = if has_large_tiles { SLOT_F16 } else { 0 };
        self.slot_of_steps().max(of_tiles).max(self.expert_group().next_multiple_of(128))
    }

    /// Bytes of 8 rows of an expert's last matrix, or 0 without experts.
    pub(super) fn expert_group(&self) -> usize {
        let bytes = |product: &PhaseProduct| match product.packing {
            Packing::Down { units, .. } => units * product.codec.unit,
            Packing::Rows | Packing::Router | Packing::Bundles { .. } => 0,
        };
        self.products.iter().map(bytes).max().unwrap_or(0)
    }

    /// Bytes of a slot that whole steps of most products fill, and that hold a step of every
    /// product.
    pub(super) fn slot_of_steps(&self) -> usize {
        let are_most = |is: fn(PackedCodec) -> bool| {
            2 * self.products.iter().filter(|product| is(product.codec)).count() > self.products.len()
        };
        if are_most(PackedCodec::is_halves) {
            SLOT_F16
        } else if self.has_halves() {
            SLOT_MIXED
        } else if are_most(|codec| codec.unit == SLOT_640 / 16) {
            SLOT_640
        } else {
            LEAST_SLOT
        }
    }

    /// Checks that the ring is long enough.
    pub(super) fn has_slots(&self, rows: Rows, shared_bytes: u32) -> Result<(), String> {
        let fewest = if self.slot() >= SLOT_F16 { FEWEST_LARGE_SLOTS } else { FEWEST_SLOTS };
        match self.ring(rows, shared_bytes).0 {
            n if n >= fewest => Ok(()),
            n => Err(format!("{n} slots of shared memory, expected at least {fewest}")),
        }
    }
}

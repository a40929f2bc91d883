//! The numbers of recurrent layers.

use crate::descriptor::{ArchDescriptor, RecurrentKind};
use crate::error::Result;
use crate::keys::Keys;
use crate::names::Key;

/// A recurrent layer. A short convolution has one head as wide as the residual stream, and no state
/// besides its last rows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RecurrentSpec {
    /// The kind of recurrence.
    pub kind: RecurrentKind,
    /// Heads; a multiple of `n_groups`.
    pub n_heads: usize,
    /// Columns of a head's input and output.
    pub head_dim: usize,
    /// Groups of heads that share q and k.
    pub n_groups: usize,
    /// Rows of a head's state.
    pub rows: usize,
    /// Positions in the window of the short convolution before the recurrence.
    pub conv_size: usize,
    /// True if head `h` is in group `h % n_groups`; false if it is in group `h / (n_heads /
    /// n_groups)`.
    pub tiled: bool,
    /// True if the gate follows the norm.
    pub gate_after_norm: bool,
    /// True if each row of a state has its own decay. Steps and the gate are then projected through
    /// `head_dim` columns.
    pub by_rows: bool,
}

impl RecurrentSpec {
    /// Columns of all heads together.
    pub fn inner(&self) -> usize {
        self.n_heads * self.head_dim
    }

    /// Columns of q or k of all groups together.
    pub fn shared(&self) -> usize {
        self.n_groups * self.rows
    }

    /// Reads the numbers of the family's recurrent layers, if it has any.
    pub(crate) fn read(
        keys: &Keys<'_>,
        family: &ArchDescriptor,
        hidden: usize,
    ) -> Result<Option<RecurrentSpec>> {
        let Some(recurrent) = family.recurrent else { return Ok(None) };
        let conv_size = keys.need_count(Key::ConvSize)?;
        let kind = recurrent.kind;
        if kind == RecurrentKind::ShortConv {
            return Ok(Some(RecurrentSpec {
                kind,
                n_heads: 1,
                head_dim: hidden,
                n_groups: 1,
                rows: hidden,
                conv_size,
                tiled: false,
                gate_after_norm: false,
                by_rows: false,
            }));
        }
        let n_heads = keys.need_count(Key::StateHeads)?;
        let head_dim = match (keys.count(Key::StateHeadDim)?, keys.count(Key::StateInner)?) {
            (Some(head_dim), _) => head_dim,
            (None, Some(inner)) if inner.is_multiple_of(n_heads) => inner / n_heads,
            (None, Some(inner)) => {
                return Err(keys.bad(Key::StateInner, inner, format!("a multiple of the {n_heads} heads")));
            }
            (None, None) => return Err(keys.missing(Key::StateHeadDim)),
        };
        let n_groups = keys.need_count(Key::StateGroups)?;
        if !n_heads.is_multiple_of(n_groups) {
            return Err(keys.bad(Key::StateGroups, n_groups, format!("a divisor of the {n_heads} heads")));
        }
        Ok(Some(RecurrentSpec {
            kind,
            n_heads,
            head_dim,
            n_groups,
            rows: keys.need_count(Key::StateRows)?,
            conv_size,
            tiled: recurrent.tiled.of(keys.naming()),
            gate_after_norm: kind == RecurrentKind::GatedDelta
                || keys.flag(Key::GateAfterNorm)?.unwrap_or(false),
            by_rows: recurrent.by_rows,
        }))
    }
}

/// Factors that some checkpoints store apart from their weights. Converters to GGUF multiply them
/// into the weights.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Multipliers {
    /// Factor on the input of attention.
    pub attention_in: f32,
    /// Factor on the output of attention.
    pub attention_out: f32,
    /// Factor on keys.
    pub key: f32,
    /// Factor on the input of a scan.
    pub scan_in: f32,
    /// Factor on the output of a scan.
    pub scan_out: f32,
    /// Factors on the parts of a scan's projection: gate, v, k, q, step.
    pub scan_parts: [f32; 5],
    /// Factor on the gate of the feed-forward network, before its activation.
    pub ffn_gate: f32,
    /// Factor on the output of the feed-forward network.
    pub ffn_out: f32,
}

impl Multipliers {
    /// All factors 1.
    pub const ONE: Multipliers = Multipliers {
        attention_in: 1.0,
        attention_out: 1.0,
        key: 1.0,
        scan_in: 1.0,
        scan_out: 1.0,
        scan_parts: [1.0; 5],
        ffn_gate: 1.0,
        ffn_out: 1.0,
    };

    pub(crate) fn read(keys: &Keys<'_>) -> Result<Multipliers> {
        let one = |key: Key| Ok::<_, crate::Error>(keys.real(key)?.unwrap_or(1.0) as f32);
        fn several<const N: usize>(keys: &Keys<'_>, key: Key) -> Result<[f32; N]> {
            let Some(list) = keys.reals(key)? else { return Ok([1.0; N]) };
            let n = list.len();
            list.try_into().map_err(|_| keys.bad(key, format!("{n} numbers"), format!("{N} numbers")))
        }
        let [ffn_gate, ffn_out] = several(keys, Key::FfnFactors)?;
        Ok(Multipliers {
            attention_in: one(Key::AttentionIn)?,
            attention_out: one(Key::AttentionOutFactor)?,
            key: one(Key::KeyFactor)?,
            scan_in: one(Key::ScanIn)?,
            scan_out: one(Key::ScanOut)?,
            scan_parts: several(keys, Key::ScanFactors)?,
            ffn_gate,
            ffn_out,
        })
    }
}

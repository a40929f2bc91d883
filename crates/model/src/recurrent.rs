//! The numbers of recurrent layers, and which layers are.

use crate::descriptor::{ArchDescriptor, RecurrentKind, RecurrentPlace};
use crate::error::Result;
use crate::keys::Keys;
use crate::names::{Key, TensorRole};
use crate::tensors::Tensors;

/// A recurrent layer. A short convolution has one head as wide as the residual stream, and no state but its rows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RecurrentSpec {
    /// Which recurrence.
    pub kind: RecurrentKind,
    /// Heads; a multiple of `n_groups`.
    pub n_heads: usize,
    /// Columns of a head of what goes in and of what comes out.
    pub head_dim: usize,
    /// Groups of heads that share where things go in the state and what comes out.
    pub n_groups: usize,
    /// Rows of a head's state.
    pub rows: usize,
    /// Positions that the convolution before it sees.
    pub conv_size: usize,
    /// Head `h` is of group `h % n_groups`, and not of `h / (n_heads / n_groups)`.
    pub tiled: bool,
    /// Its gate follows its norm.
    pub gate_after_norm: bool,
    /// Each row of a state decays by itself; steps and the gate come through as many columns as a head has.
    pub by_rows: bool,
}

impl RecurrentSpec {
    /// Columns of all heads.
    pub fn inner(&self) -> usize {
        self.n_heads * self.head_dim
    }

    /// Columns of all groups.
    pub fn shared(&self) -> usize {
        self.n_groups * self.rows
    }

    /// The numbers of the family's recurrent layers, if it has any.
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
            gate_after_norm: match kind {
                RecurrentKind::GatedDelta => true,
                _ => keys.flag(Key::GateAfterNorm)?.unwrap_or(false),
            },
            by_rows: recurrent.by_rows,
        }))
    }
}

/// What mixes the positions of a sequence in a layer: recurrence, attention, both, or nothing.
pub(crate) struct Mixers {
    pub attends: bool,
    pub recurs: bool,
}

impl Mixers {
    /// Of layer `l`, as its tensors say where the family leaves it to them.
    pub fn of(family: &ArchDescriptor, tensors: &Tensors<'_>, l: usize) -> Mixers {
        let has = |role| tensors.has_in(role, l);
        // Attention's output may have the same name as a recurrence's; a decay it has none.
        let tells = match family.recurrent.map(|r| r.kind) {
            Some(RecurrentKind::ShortConv) | None => TensorRole::RecurrentOut,
            Some(RecurrentKind::GatedDelta | RecurrentKind::SelectiveScan) => TensorRole::Rate,
        };
        let (attends, recurs) = match family.recurrent.map(|r| r.place) {
            None => (true, false),
            Some(RecurrentPlace::Everywhere) => (false, true),
            Some(RecurrentPlace::BesideAttention) => (true, true),
            Some(RecurrentPlace::InsteadOfAttention) => {
                let recurs = has(tells);
                (!recurs, recurs)
            }
            Some(RecurrentPlace::OneMixer) => (has(TensorRole::AttnOut), has(TensorRole::RecurrentOut)),
        };
        Mixers { attends, recurs }
    }
}

/// Factors that some checkpoints keep apart from their weights; converters to GGUF multiply them in.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Multipliers {
    /// On the input of attention.
    pub attention_in: f32,
    /// On its output.
    pub attention_out: f32,
    /// On keys.
    pub key: f32,
    /// On the input of a scan.
    pub scan_in: f32,
    /// On its output.
    pub scan_out: f32,
    /// On the parts of its projection: gate, v, k, q, step.
    pub scan_parts: [f32; 5],
    /// On the gate of the feed-forward network, before its function.
    pub ffn_gate: f32,
    /// On its output.
    pub ffn_out: f32,
}

impl Multipliers {
    /// None.
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

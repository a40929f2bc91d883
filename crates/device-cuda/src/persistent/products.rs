//! The products of a decoder in the order of the phases: how each is packed, and the number of
//! blocks that share them.

use super::FoundDecoder;
use super::header::{
    BUNDLE, CODEC_F16, CODEC_FP4, CODEC_NL, CODEC_Q2M, CODEC_Q3, CODEC_Q4, CODEC_Q4M, CODEC_Q5M, CODEC_Q6,
    CODEC_Q8, ROUTER_STEP, UNIT_F16, UNIT_FP4, UNIT_NL, UNIT_Q2M, UNIT_Q3, UNIT_Q4, UNIT_Q4M, UNIT_Q5M,
    UNIT_Q6, UNIT_Q8,
};
use super::pattern::{Layer, Mixture};
use crate::products::has_activation;
use ::weights::BlockType;
use device::{Plan, WeightId};
use std::ops::Range;

/// The first codec that prebuilt kernels lack; they lack all codecs after it too.
const FIRST_RARE: u32 = CODEC_Q2M;

/// A codec of packed weights (`PERSISTENT_CODEC_*`) and the bytes of its unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PackedCodec {
    pub(super) number: u32,
    pub(super) unit: usize,
}

impl PackedCodec {
    /// The codec of a type, or `None` if the kernels have none.
    pub fn of(block: BlockType) -> Option<PackedCodec> {
        use BlockType::*;
        let (number, unit) = match block {
            Q4_0 => (CODEC_Q4, UNIT_Q4),
            Q4_1 | Q4_K => (CODEC_Q4M, UNIT_Q4M),
            Q8_0 => (CODEC_Q8, UNIT_Q8),
            Q6_K => (CODEC_Q6, UNIT_Q6),
            Q5_0 | Q5_1 | Q5_K => (CODEC_Q5M, UNIT_Q5M),
            F16 | BF16 => (CODEC_F16, UNIT_F16),
            Q2_K => (CODEC_Q2M, UNIT_Q2M),
            Q3_K => (CODEC_Q3, UNIT_Q3),
            IQ4_NL | IQ4_XS => (CODEC_NL, UNIT_NL),
            MXFP4 => (CODEC_FP4, UNIT_FP4),
            _ => return None,
        };
        Some(PackedCodec { number, unit })
    }

    /// True if only the kernel for several rows has the codec.
    pub(super) fn is_halves(self) -> bool {
        self.number == CODEC_F16
    }

    /// True if prebuilt kernels lack the codec.
    pub(super) fn is_rare(self) -> bool {
        self.number >= FIRST_RARE
    }
}

/// Columns of a unit.
const UNIT_COLUMNS: usize = 128;

/// Warps that multiply, and most units of a step.
const WARPS: usize = 8;

/// The fewest units of a warp that cover a row of `n_cols` columns, and the fewest warps that then
/// have units.
pub(super) fn units(n_cols: usize) -> (usize, usize) {
    let units = n_cols.div_ceil(UNIT_COLUMNS);
    let of_warp = units.div_ceil(WARPS).max(1);
    (of_warp, units.div_ceil(of_warp))
}

/// The product of a phase.
#[derive(Clone, Copy, Debug)]
pub(super) struct PhaseProduct {
    pub codec: PackedCodec,
    /// The parts that blocks share: groups of rows, a router's experts, or bundles of the experts
    /// that a token uses.
    pub groups: usize,
    /// Units of a group that a warp multiplies.
    pub k_quads: usize,
    /// Warps that have columns, which is the number of units of a step.
    pub warps: usize,
    pub packing: Packing,
}

/// The order of a product's packed weights (`persistent/arguments.h`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Packing {
    /// Groups in the order in which blocks read them.
    Rows,
    /// Rows of floats.
    Router,
    /// For each of `n` experts, `bundles` of gate and up. A token uses `n_used` experts.
    Bundles { n: usize, n_used: usize, bundles: usize },
    /// For each of `n` experts, groups of `units`. A token uses `n_used` experts.
    Down { n: usize, n_used: usize, units: usize },
}

impl PhaseProduct {
    /// Bytes of one expert, or of the whole product without experts.
    pub fn part_bytes(&self) -> usize {
        match self.packing {
            Packing::Rows => self.groups * self.k_quads * self.step(),
            Packing::Router => self.groups * self.k_quads * ROUTER_STEP,
            Packing::Bundles { bundles, .. } => bundles * BUNDLE * self.k_quads * self.step(),
            Packing::Down { units, .. } => self.groups * units * self.codec.unit,
        }
    }

    /// Bytes of a step: 8 rows by a unit for each warp that has columns, in whole lines of L2.
    fn step(&self) -> usize {
        (self.warps * self.codec.unit).next_multiple_of(128)
    }

    /// Packed bytes, and the bytes of them that a token reads.
    pub fn bytes(&self) -> (usize, usize) {
        let of = self.part_bytes();
        match self.packing {
            Packing::Rows | Packing::Router => (of, of),
            Packing::Bundles { n, n_used, .. } | Packing::Down { n, n_used, .. } => (n * of, n_used * of),
        }
    }
}

/// The parts of q, k and v (0, 1, 2) that are multiplied together, equal in all layers. There is
/// one part if in every layer all three have one type.
pub(super) fn qkv_parts(plan: &Plan, decoder: &FoundDecoder) -> Vec<Range<usize>> {
    let block = |layer: &Layer, which: usize| plan.weight(layer.qkv[which].0).block;
    let differ = |which: usize| decoder.layers.iter().any(|of| block(of, which) != block(of, which + 1));
    let mut starts = vec![0];
    starts.extend((0..2).filter(|which| differ(*which)).map(|which| which + 1));
    let ends = starts.iter().skip(1).chain([&3]);
    starts.iter().zip(ends).map(|(start, end)| *start..*end).collect()
}

/// The products of all phases, in order.
///
/// # Errors
/// Returns the first product that the kernels do not support.
pub(super) fn products(
    plan: &Plan,
    decoder: &FoundDecoder,
    qkv_parts: &[Range<usize>],
) -> Result<Vec<PhaseProduct>, String> {
    let of = |ids: &[WeightId], groups: usize| -> Result<PhaseProduct, String> {
        let weight = plan.weight(ids[0]);
        // Mixtures need the kernel for one row, which does not multiply halves.
        let is_dense = decoder.layers.iter().all(|layer| layer.router.is_none());
        let Some(codec) = PackedCodec::of(weight.block).filter(|codec| is_dense || !codec.is_halves()) else {
            return Err(format!("{} in {}, a type without a persistent kernel", weight.name, weight.block));
        };
        if let Some(other) = ids.iter().map(|id| plan.weight(*id)).find(|other| other.block != weight.block) {
            return Err(format!(
                "{} in {} but {} in {}, expected one type",
                other.name, other.block, weight.name, weight.block
            ));
        }
        let (k_quads, warps) = units(weight.n_cols());
        Ok(PhaseProduct { codec, groups, k_quads, warps, packing: Packing::Rows })
    };
    let rows = |id: WeightId| plan.weight(id).n_rows();
    let mut products = Vec::new();
    for layer in &decoder.layers {
        if !has_activation(layer.activation) {
            return Err(format!("the activation {:?}", layer.activation));
        }
        let qkv = layer.qkv.map(|(weight, _)| weight);
        for part in qkv_parts {
            let ids = &qkv[part.clone()];
            products.push(of(ids, ids.iter().map(|id| rows(*id)).sum::<usize>() / 8)?);
        }
        products.push(of(&[layer.output], rows(layer.output).div_ceil(8))?);
        if let Some(router) = layer.router {
            let Mixture { n, n_used, ffn, .. } = router.mixture;
            let (bundles, units) = (ffn.div_ceil(16), ffn.div_ceil(UNIT_COLUMNS));
            let gate = of(&[layer.gate, layer.up], n_used * bundles)?;
            let down = of(&[layer.down], rows(layer.down) / n.max(1) / 8)?;
            let of_all = PhaseProduct { warps: WARPS, ..gate };
            products.push(PhaseProduct { groups: n, packing: Packing::Router, ..of_all });
            products.push(PhaseProduct { packing: Packing::Bundles { n, n_used, bundles }, ..of_all });
            let k_quads = (n_used * units).div_ceil(WARPS);
            products.push(PhaseProduct {
                k_quads,
                warps: WARPS,
                packing: Packing::Down { n, n_used, units },
                ..down
            });
            continue;
        }
        products.push(of(&[layer.gate, layer.up], 2 * rows(layer.gate).div_ceil(8))?);
        products.push(of(&[layer.down], rows(layer.down).div_ceil(8))?);
    }
    products.push(of(&[decoder.head], rows(decoder.head).div_ceil(8))?);
    Ok(products)
}

/// Blocks of a launch on `n` multiprocessors: the largest number that divides the rows of every
/// product of a layer evenly. It is `n` if that number leaves out more than a tenth of them. More
/// blocks would not be faster, since a phase ends when the block with most rows does (NOTES.md).
pub(super) fn even_blocks(plan: &Plan, decoder: &FoundDecoder, n: usize) -> usize {
    let groups = |id: WeightId| plan.weight(id).n_rows().div_ceil(8);
    let of_layer = |layer: &Layer| {
        let qkv = layer.qkv.iter().map(|(id, _)| groups(*id)).sum();
        // A block has whole pairs of groups of gate and up.
        let network = layer.router.map_or([groups(layer.gate), groups(layer.down)], |router| {
            let Mixture { n, n_used, ffn, .. } = router.mixture;
            [n_used * ffn.div_ceil(16), groups(layer.down) / n.max(1)]
        });
        [qkv, groups(layer.output), network[0], network[1]]
    };
    let is_even = |n: &usize| {
        decoder.layers.iter().all(|layer| of_layer(layer).iter().all(|groups| groups.is_multiple_of(*n)))
    };
    (n - n / 10..=n).rev().filter(|n| *n > 0).find(is_even).unwrap_or(n)
}

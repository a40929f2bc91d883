//! The products of a decoder in the order of the kernel's phases: how each is packed, and how many blocks share them.

use super::Decoder;
use super::pattern::{Layer, Mixture};
use crate::products::has_activation;
use ::weights::BlockType;
use device::{Plan, WeightId};
use std::ops::Range;

/// Halves, which only the kernel of several rows multiplies.
const CODEC_F16: u32 = 5;

/// From this one on codecs are not in the kernels that are files.
const FIRST_RARE: u32 = 6;

/// How a product's weights are packed (`PERSISTENT_CODEC_*`): the codec and the bytes of a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Codec {
    pub(super) number: u32,
    pub(super) unit: usize,
}

impl Codec {
    /// Of a type; `None`: the kernel has none.
    pub fn of(block: BlockType) -> Option<Codec> {
        use BlockType::*;
        let (number, unit) = match block {
            Q4_0 => (0, 576),
            Q4_1 | Q4_K => (1, 640),
            Q8_0 => (2, 1088),
            Q6_K => (3, 896),
            Q5_0 | Q5_1 | Q5_K => (4, 768),
            F16 | BF16 => (CODEC_F16, 2048),
            Q2_K => (FIRST_RARE, 512),
            Q3_K => (7, 640),
            IQ4_NL | IQ4_XS => (8, 576),
            MXFP4 => (9, 576),
            _ => return None,
        };
        Some(Codec { number, unit })
    }

    /// Whether only the kernel of several rows has it.
    pub(super) fn is_halves(self) -> bool {
        self.number == CODEC_F16
    }

    /// Whether kernels that are files lack it.
    pub(super) fn is_rare(self) -> bool {
        self.number >= FIRST_RARE
    }
}

/// Groups of rows of a bundle of gate and up of an expert.
pub(super) const BUNDLE: usize = 4;

/// Bytes of 1,024 columns of a router.
const ROUTER_STEP: usize = 4096;

/// Columns of a unit.
const UNIT_COLUMNS: usize = 128;

/// Warps that multiply, and the units of a step of all of them.
const WARPS: usize = 8;

/// Of a row of so many columns: the units of a warp, as few as there can be, and the warps that have some, as few as then can be.
pub(super) fn units(n_cols: usize) -> (usize, usize) {
    let units = n_cols.div_ceil(UNIT_COLUMNS);
    let of_warp = units.div_ceil(WARPS).max(1);
    (of_warp, units.div_ceil(of_warp))
}

/// A product of a phase.
#[derive(Clone, Copy, Debug)]
pub(super) struct Product {
    pub codec: Codec,
    /// What blocks share: groups of rows; a router's experts; bundles of the experts that a token uses.
    pub groups: usize,
    /// Units of a group that a warp multiplies.
    pub k_quads: usize,
    /// Units of a step: warps that have columns.
    pub warps: usize,
    pub packing: Packing,
}

/// How a product's weights are packed (`persistent/arguments.h`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Packing {
    /// Groups by block.
    Rows,
    /// Rows of floats.
    Router,
    /// Of each of `n` experts, of which a token uses `n_used`, `bundles` of gate and up.
    Bundles { n: usize, n_used: usize, bundles: usize },
    /// Of each of `n` experts, of which a token uses `n_used`, groups of `units`.
    Down { n: usize, n_used: usize, units: usize },
}

impl Product {
    /// Bytes of one expert, or of all where there are none.
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

    /// Bytes as packed, and those that a token reads.
    pub fn bytes(&self) -> (usize, usize) {
        let of = self.part_bytes();
        match self.packing {
            Packing::Rows | Packing::Router => (of, of),
            Packing::Bundles { n, n_used, .. } | Packing::Down { n, n_used, .. } => (n * of, n_used * of),
        }
    }
}

/// Which of q, k and v (0, 1, 2) are multiplied together, the same in all layers: all of them, or in parts of which each layer has one type.
pub(super) fn qkv_parts(plan: &Plan, decoder: &Decoder) -> Vec<Range<usize>> {
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
/// What the kernel does not take, in words.
pub(super) fn products(
    plan: &Plan,
    decoder: &Decoder,
    qkv_parts: &[Range<usize>],
) -> Result<Vec<Product>, String> {
    let of = |ids: &[WeightId], groups: usize| -> Result<Product, String> {
        let weight = plan.weight(ids[0]);
        // Mixtures have the kernel of one row alone.
        let is_dense = decoder.layers.iter().all(|layer| layer.router.is_none());
        let Some(codec) = Codec::of(weight.block).filter(|codec| is_dense || !codec.is_halves()) else {
            return Err(format!("{} in {}", weight.name, weight.block));
        };
        if let Some(other) = ids.iter().map(|id| plan.weight(*id)).find(|other| other.block != weight.block) {
            return Err(format!(
                "{} in {} beside {} in {}",
                other.name, other.block, weight.name, weight.block
            ));
        }
        let (k_quads, warps) = units(weight.n_cols());
        Ok(Product { codec, groups, k_quads, warps, packing: Packing::Rows })
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
            let of_all = Product { warps: WARPS, ..gate };
            products.push(Product { groups: n, packing: Packing::Router, ..of_all });
            products.push(Product { packing: Packing::Bundles { n, n_used, bundles }, ..of_all });
            let k_quads = (n_used * units).div_ceil(WARPS);
            products.push(Product {
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

/// Blocks of a launch, one a multiprocessor: the most that share the rows of every product of a layer equally, if no more than a tenth of `n`
/// stays out, else `n`. More would not be faster: a phase ends when the block with most rows does (NOTES.md).
pub(super) fn even_blocks(plan: &Plan, decoder: &Decoder, n: usize) -> usize {
    let groups = |id: WeightId| plan.weight(id).n_rows().div_ceil(8);
    let of_layer = |layer: &Layer| {
        let qkv = layer.qkv.iter().map(|(id, _)| groups(*id)).sum();
        // Of gate and up a block has whole pairs of groups.
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

//! Products on tensor cores with packed weights (`kernels/gemm`): the packed format of each type,
//! the matrices that are packed together, and the tiles of a launch. This module needs no GPU.

use device::{Activation, Plan};
use device_lower::fields::{Projection, Tail};
use weights::BlockType;

/// The family of kernels that multiply several rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Products {
    /// Kernels that decode a type's planes while they multiply (`linear/gemm.cuh`,
    /// `linear/gemv.cuh`).
    Planes,
    /// `mma.sync` with packed weights, from compute capability 8.0 on.
    Mma,
    /// `wgmma` with packed weights, `mma.sync` for few rows; compute capability 9.0.
    Wgmma,
}

/// Maximum number of bytes of shared memory of `wgmma` kernels (`GEMM_SHARED_LIMIT`,
/// gemm/gemm_wgmma.h).
pub const WGMMA_SHARED: u32 = 232_448;

/// The packed format of a tile of 64 x 64 weights (gemm/codec.h).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Codec {
    /// Name in kernels and files, such as `q4`.
    pub name: &'static str,
    /// Bytes of a tile of 64 x 64 weights.
    pub tile: usize,
}

impl Codec {
    /// The packed format of a type; `None`: it has only planes.
    pub fn of(block: BlockType) -> Option<Codec> {
        use BlockType::*;
        let (name, tile) = match block {
            Q4_0 => ("q4", 2304),
            Q4_1 | Q4_K => ("q4m", 2560),
            Q5_0 => ("q5", 2816),
            Q5_1 | Q5_K => ("q5m", 3072),
            Q6_K => ("q6", 3584),
            Q8_0 => ("q8", 4352),
            Q2_K => ("q2m", 2048),
            Q3_K => ("q3", 2048),
            IQ4_NL | IQ4_XS => ("nl", 2304),
            MXFP4 => ("fp4", 2304),
            F16 | BF16 => ("f16", 8192),
            Affine(affine) => match affine.bits() {
                2 => ("q2m", 2048),
                3 => ("q3m", 2048),
                4 => ("q4m", 2560),
                5 => ("q5m", 3072),
                6 => ("q6m", 3584),
                8 => ("q8m", 4608),
                _ => return None,
            },
            F32 | I8_ROWS | I16_ROWS => return None,
            IQ2_XXS | IQ2_XS | IQ3_XXS | IQ1_S | IQ3_S | IQ2_S | IQ1_M | TQ1_0 | TQ2_0 | NVFP4 | Q1_0 => {
                return None;
            }
        };
        Some(Codec { name, tile })
    }

    /// The kernel of `gemm/repack.cu` that packs a type.
    pub fn repack(block: BlockType) -> String {
        match block {
            BlockType::Affine(affine) => format!("repack_affine_{}", affine.bits()),
            block => format!("repack_{}", block.name().to_lowercase()),
        }
    }
}

/// Number of tiles of 64 columns that cover `n_cols`, rounded up to an even number.
pub fn k_tiles(n_cols: usize) -> usize {
    2 * n_cols.div_ceil(128)
}

/// A kernel of products, identified by its instructions and by the rows of its tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tile {
    method: Method,
    width: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Method {
    /// `mma.sync`, weights loaded straight to registers (gemm/gemm_few.h). The number is that of
    /// 16-row slabs of weights per block.
    Few(usize),
    /// `mma.sync`, weights staged in shared memory (gemm/gemm_mma.h).
    Mma,
    /// `wgmma` (gemm/gemm_wgmma.h).
    Wgmma,
}

const fn few(width: usize, slabs: usize) -> Tile {
    Tile { method: Method::Few(slabs), width }
}

const fn mma(width: usize) -> Tile {
    Tile { method: Method::Mma, width }
}

const fn wgmma(width: usize) -> Tile {
    Tile { method: Method::Wgmma, width }
}

/// Maximum number of tiles of a family of kernels.
pub const MOST_TILES: usize = 11;

const HOPPER: [Tile; MOST_TILES] = [
    few(8, 2),
    few(8, 1),
    few(16, 2),
    few(16, 1),
    wgmma(32),
    wgmma(64),
    wgmma(96),
    wgmma(128),
    wgmma(160),
    wgmma(192),
    wgmma(256),
];
const AMPERE: [Tile; 7] = [few(8, 2), few(8, 1), few(16, 2), few(16, 1), mma(32), mma(64), mma(128)];

impl Tile {
    /// The tiles of a family of kernels.
    pub fn all(products: Products) -> &'static [Tile] {
        match products {
            Products::Planes => &[],
            Products::Mma => &AMPERE,
            Products::Wgmma => &HOPPER,
        }
    }

    fn family(self) -> &'static str {
        match self.method {
            Method::Few(_) => "few",
            Method::Mma => "mma",
            Method::Wgmma => "wgmma",
        }
    }

    /// The file of the kernel for a packed format.
    pub fn file(self, codec: Codec) -> String {
        format!("gemm/{}_{}.cu", self.family(), codec.name)
    }

    /// Input rows of a tile.
    pub fn width(self) -> usize {
        self.width
    }

    /// The name of the kernel for a packed format.
    pub fn kernel(self, codec: Codec) -> String {
        let name = format!("gemm_{}_{}_{}", self.family(), codec.name, self.width);
        match self.method {
            Method::Few(slabs) => format!("{name}_{slabs}"),
            Method::Mma | Method::Wgmma => name,
        }
    }

    /// Threads of a block.
    pub fn threads(self) -> u32 {
        match self.method {
            Method::Few(_) | Method::Mma => 256,
            Method::Wgmma => 384,
        }
    }

    /// Blocks that a multiprocessor runs at once.
    pub fn blocks_a_processor(self) -> usize {
        match self.method {
            Method::Few(_) | Method::Mma => 2,
            Method::Wgmma => 1,
        }
    }

    /// Weight rows of a tile.
    fn weight_rows(self) -> usize {
        match self.method {
            Method::Few(slabs) => 16 * slabs,
            Method::Mma | Method::Wgmma => 128,
        }
    }

    /// Bytes of shared memory, as `GemmFew` (gemm/gemm_few.h), `GemmStages` (gemm/gemm_wgmma.h) and
    /// `GemmMmaStages` (gemm/gemm_mma.h) lay it out.
    pub fn shared(self, codec: Codec) -> u32 {
        let stage = self.width * 128 + 2 * codec.tile;
        let bytes = match self.method {
            Method::Few(slabs) => {
                let slot = slabs * (codec.tile / 4) + self.width * 128;
                let sums = 4 * self.width * (16 * slabs + 4);
                8 * (((98_304 - 8 * sums) / (8 * slot)).min(8) * slot + sums)
            }
            Method::Mma => (if stage * 4 <= 98_304 { 4 } else { 3 }) * stage + 16,
            Method::Wgmma => {
                const REST: usize = 2048 + 2 * 32 * 68 * 4;
                let stage = stage.next_multiple_of(1024);
                ((WGMMA_SHARED as usize - REST) / stage).min(12) * stage + REST
            }
        };
        bytes as u32
    }

    /// Modelled time of `n_tiles` tiles on `n_processors` multiprocessors, in units of 4 cycles.
    /// Each tile has `k_tiles` of K, in `n_splits` parts. The model is fitted to the measurements
    /// in `kernels/gemm/NOTES.md`.
    fn cost(self, n_tiles: usize, k_tiles: usize, n_splits: usize, n_processors: usize) -> usize {
        let width = self.width;
        // `latency` is that of the first weights. Unpacking a tile's weights takes as long as
        // multiplying `least_rows` rows by them.
        let (latency, least_rows) = match self.method {
            Method::Few(slabs) => {
                let steps = k_tiles.div_ceil(8);
                let rounds = n_tiles.div_ceil(n_processors * self.blocks_a_processor());
                return 900
                    + match n_tiles > n_processors {
                        // One block per multiprocessor is bound by the latency of its weights; two
                        // share the bandwidth.
                        false => steps * (95 + 50 * slabs),
                        true => rounds * (steps * (10 + 160 * slabs + 13 * width / 2) + 150),
                    };
            }
            Method::Mma => (1300, 80),
            Method::Wgmma => (1300, 96),
        };
        let waves = (n_tiles * n_splits).div_ceil(n_processors);
        let tile = 2 * (k_tiles / 2).div_ceil(n_splits) * width.max(least_rows) + 600 + 4 * width;
        let join = if n_splits > 1 { 300 + 6 * n_splits * width } else { 0 };
        latency + waves * (tile + join)
    }
}

/// A product with packed weights: its size, and the kernels that may compute it.
#[derive(Clone, Copy, Debug)]
pub struct PackedProduct {
    /// The family of kernels from which its tile is chosen.
    pub products: Products,
    /// The packed format of its weights.
    pub codec: Codec,
    /// Number of the kernel of each tile.
    pub kernels: [u32; MOST_TILES],
    /// Packed rows of weights.
    pub n_out: usize,
    /// Number of tiles of 64 columns.
    pub k_tiles: usize,
    /// The only allowed tile, in tests; `None`: all are allowed.
    pub only: Option<usize>,
}

/// The tile and the grid of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Index of the tile in [`Tile::all`].
    pub tile: usize,
    /// Number of parts into which K is split.
    pub n_splits: usize,
    /// Number of blocks.
    pub n_blocks: usize,
}

/// Maximum number of floats of partial sums of a launch, on a GPU with `n_processors`
/// multiprocessors.
pub fn partial_floats(n_processors: usize) -> usize {
    n_processors * 128 * 128
}

impl PackedProduct {
    /// The fastest cut for `n_rows` rows, by the model of `Tile::cost`.
    pub fn cut(&self, n_rows: usize, n_processors: usize) -> Cut {
        let mut best = (usize::MAX, Cut { tile: 0, n_splits: 1, n_blocks: 1 });
        let allowed = |(index, _): &(usize, &Tile)| self.only.is_none_or(|only| only == *index);
        for (index, tile) in Tile::all(self.products).iter().enumerate().filter(allowed) {
            let n_tiles = n_rows.div_ceil(tile.width) * self.n_out.div_ceil(tile.weight_rows());
            let most_splits = match tile.method {
                Method::Mma | Method::Wgmma if n_tiles < n_processors => {
                    let scratch = partial_floats(n_processors) / (n_tiles * 128 * tile.width);
                    (n_processors / n_tiles).min(scratch).clamp(1, self.k_tiles / 2)
                }
                Method::Few(_) | Method::Mma | Method::Wgmma => 1,
            };
            for n_splits in 1..=most_splits {
                let cost = tile.cost(n_tiles, self.k_tiles, n_splits, n_processors);
                if cost < best.0 {
                    let n_blocks = (n_tiles * n_splits).min(n_processors * tile.blocks_a_processor());
                    best = (cost, Cut { tile: index, n_splits, n_blocks });
                }
            }
        }
        best.1
    }

    /// The tile with this index, and the number of its kernel.
    pub fn kernel(&self, tile: usize) -> (Tile, u32) {
        (Tile::all(self.products)[tile], self.kernels[tile])
    }
}

/// Sizes of products with experts. A step's rows are grouped by expert, each row once for each
/// expert that it uses.
#[derive(Clone, Copy, Debug)]
pub struct ExpertSizes {
    /// The family of kernels from which the tile is chosen.
    pub products: Products,
    /// Number of experts.
    pub n: usize,
    /// Number of experts of a row.
    pub k: usize,
    /// The only allowed tile, in tests; `None`: all are allowed.
    pub only: Option<usize>,
}

impl ExpertSizes {
    /// Maximum rows of the grouped input. The rows of each expert begin at a multiple of 8.
    pub fn packed_rows(n: usize, k: usize, n_rows: usize) -> usize {
        n_rows * k + 7 * n
    }

    /// Index in [`Tile::all`] of the tile for all expert products of a step. It is the cheapest one
    /// if rows choose experts at random: most experts then have at most the mean number of rows
    /// plus two standard deviations.
    pub fn tile(&self, n_rows: usize) -> usize {
        let mean = (n_rows * self.k) as f64 / self.n.max(1) as f64;
        let most = (mean + 2.0 * mean.sqrt()).ceil().max(1.0) as usize;
        let cost = |tile: &Tile| {
            // As in `Tile::cost`.
            let least_rows = if tile.method == Method::Wgmma { 96 } else { 80 };
            most.div_ceil(tile.width) * (tile.width.max(least_rows) + 40)
        };
        let tiles = Tile::all(self.products);
        let allowed = |index: &usize| match self.only {
            Some(only) => only == *index,
            // Experts give enough blocks without the smallest tile.
            None => tiles[*index].method != Method::Few(1),
        };
        (0..tiles.len()).filter(allowed).min_by_key(|index| cost(&tiles[*index])).unwrap_or(0)
    }
}

/// The choice that the launcher makes for a command, by the rows of the step.
#[derive(Clone, Copy, Debug)]
pub enum AtLaunch {
    /// No choice.
    Nothing,
    /// The tile of a product, and the number of parts of K.
    Cut(PackedProduct),
    /// The tile of a product with the matrices of experts.
    Grouped(PackedProduct, ExpertSizes),
    /// The rows of a tile, for the kernel that groups rows by expert.
    Width(ExpertSizes),
    /// The one-row persistent kernel for this row of the step. It is skipped if the step has fewer
    /// rows.
    Row(usize),
}

/// Matrices that are packed together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Indices of the matrices among those of the projection.
    pub matrices: Vec<usize>,
    /// True if rows of the gate and of up alternate.
    pub gate: bool,
}

/// The matrices of a projection, grouped by `kinds`, the kernels that multiply by them. Each group
/// is one launch.
pub fn groups<K: PartialEq>(p: &Projection, kinds: &[K]) -> Vec<Group> {
    let same = kinds.iter().all(|kind| *kind == kinds[0]);
    if matches!(p.tail, Tail::Gate { .. }) && same && kinds.len() == 2 {
        return vec![Group { matrices: vec![0, 1], gate: true }];
    }
    let mut groups: Vec<Group> = Vec::new();
    for (index, kind) in kinds.iter().enumerate() {
        match groups.iter_mut().find(|group| kinds[group.matrices[0]] == *kind) {
            Some(group) => group.matrices.push(index),
            None => groups.push(Group { matrices: vec![index], gate: false }),
        }
    }
    groups
}

/// Returns true if the epilogue of packed products supports an activation.
pub fn has_activation(kind: Activation) -> bool {
    match kind {
        Activation::Silu | Activation::GeluTanh | Activation::GeluErf | Activation::Relu => true,
        Activation::Sigmoid | Activation::Identity | Activation::ReluSquared | Activation::Softplus => false,
    }
}

/// The packed format of all matrices of a group; `None`: they have only planes.
pub fn codec_of(plan: &Plan, p: &Projection, group: &Group) -> Option<Codec> {
    let of = |index: usize| Codec::of(plan.weight(p.matrices[index].weight).block);
    let codec = of(group.matrices[0])?;
    let fits = match p.tail {
        Tail::Gate { kind, .. } if group.gate => {
            has_activation(kind) && p.matrices.iter().all(|m| m.bias.is_none())
        }
        Tail::Gate { .. } | Tail::Add { .. } | Tail::Store => true,
    };
    (fits && group.matrices.iter().all(|index| of(*index) == Some(codec))).then_some(codec)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn product(n_out: usize, n_cols: usize) -> PackedProduct {
        let codec = Codec { name: "q4", tile: 2304 };
        PackedProduct {
            products: Products::Wgmma,
            codec,
            kernels: [0; MOST_TILES],
            n_out,
            k_tiles: k_tiles(n_cols),
            only: None,
        }
    }

    fn width(n_out: usize, n_cols: usize, n_rows: usize) -> (usize, usize) {
        let cut = product(n_out, n_cols).cut(n_rows, 132);
        (HOPPER[cut.tile].width, cut.n_splits)
    }

    /// The widths and splits that were fastest in measurements (kernels/gemm/NOTES.md).
    #[test]
    fn long_prompts_get_the_widths_that_were_fastest() {
        assert_eq!(width(1024, 2048, 2048), (128, 1));
        assert_eq!(width(3072, 2048, 2048), (192, 1));
        assert_eq!(width(4096, 1024, 2048), (256, 1));
        assert_eq!(width(2048, 8192, 2048), (256, 1));
    }

    /// The tiles are within 5 % of the fastest measured ones (kernels/gemm/NOTES.md).
    #[test]
    fn few_rows_get_the_tiles_that_were_fastest() {
        let tile = |n_out, n_cols, n_rows| HOPPER[product(n_out, n_cols).cut(n_rows, 132).tile];
        for n_rows in [2, 8] {
            assert_eq!(tile(2048, 2048, n_rows), few(8, 1));
            assert_eq!(tile(2048, 8192, n_rows), few(8, 1));
            assert_eq!(tile(16_384, 2048, n_rows), few(8, 2));
            assert_eq!(tile(6144, 4096, n_rows), few(8, 2));
            assert_eq!(tile(24_576, 4096, n_rows), few(8, 2));
        }
        assert_eq!(tile(24_576, 4096, 16), few(16, 2));
        assert_eq!(tile(3072, 2048, 32), few(16, 2));
        assert_eq!(tile(2048, 8192, 32), few(16, 2));
        assert_eq!(width(16_384, 2048, 32), (32, 1));
        assert_eq!(width(4096, 12_288, 32), (32, 4));
        assert_eq!(width(6144, 4096, 64), (64, 2));
        assert_eq!(width(16_384, 2048, 128), (128, 1));
    }

    #[test]
    fn parts_of_k_stay_within_their_scratch() {
        assert!(width(2048, 8192, 100).1 > 1);
        for n_out in [64, 1024, 3072, 151_936] {
            for n_cols in [64, 1024, 8192] {
                for n_rows in [1, 8, 9, 33, 64, 200, 512, 4096] {
                    let cut = product(n_out, n_cols).cut(n_rows, 132);
                    let tile = HOPPER[cut.tile];
                    let n_tiles = n_rows.div_ceil(tile.width) * n_out.div_ceil(tile.weight_rows());
                    let floats = n_tiles * cut.n_splits * 128 * HOPPER[cut.tile].width;
                    assert!(
                        cut.n_splits == 1 || floats <= partial_floats(132),
                        "{n_out} {n_cols} {n_rows}: {cut:?}"
                    );
                    assert!(cut.n_splits == 1 || n_tiles <= 132 && cut.n_splits <= k_tiles(n_cols) / 2);
                    assert!(cut.n_blocks >= 1);
                }
            }
        }
    }

    #[test]
    fn experts_get_tiles_that_most_of_them_fit_in() {
        let width = |n_rows| {
            let experts = ExpertSizes { products: Products::Wgmma, n: 128, k: 8, only: None };
            HOPPER[experts.tile(n_rows)].width
        };
        // On average an expert has 16, 32, 64 and 128 rows.
        assert_eq!([256, 512, 1024, 2048].map(width), [32, 64, 96, 160]);
        // If no tile is wide enough, the rows of an expert are split evenly into several tiles.
        assert!([192, 256].contains(&width(16_384)));
        assert_eq!(ExpertSizes::packed_rows(128, 8, 100), 800 + 896);
    }

    /// The sizes equal those that ptxas reported for `gemm_wgmma_shared_q4_256` and its siblings.
    #[test]
    fn shared_memory_is_what_the_kernels_ask_for() {
        let q4 = Codec { name: "q4", tile: 2304 };
        assert_eq!(wgmma(256).shared(q4), 5 * 37 * 1024 + 19456);
        assert_eq!(wgmma(32).shared(q4), 12 * 9 * 1024 + 19456);
        assert_eq!(mma(64).shared(q4), 4 * 12_800 + 16);
        assert_eq!(few(8, 1).shared(q4), 8 * (7 * 1600 + 4 * 8 * 20));
    }
}

//! Vision models: the tower that encodes images, the place of its rows in a text, and the plans of
//! both.
//!
//! A tower is one of [`TOWERS`], plain data, with the numbers of a checkpoint. It runs as several
//! plans whose results the caller passes on: stages over patches, and projectors over squares of
//! joined patches. A stage ends where attention changes between windows and whole images, and at a
//! tap. A window is a span of rows. Inputs that depend on a patch's place (learned positions,
//! cosines and sines) are computed here and follow its pixels.
//!
//! The text model has a second plan for steps with image rows ([`GivenRows`]), whose input is
//! embeddings instead of tokens.

mod build;
mod descriptor;
mod given;
pub(crate) mod mmproj;
mod places;
mod read;
mod recipe;

use device::{Activation, Plan, Weight};
use weights::Checkpoint;

pub use descriptor::{
    BothWays, ImageMarks, Joining, MmprojNames, PatchPositions, ProjectorStep, SizingKind, TOWERS, Turning,
    VisionDescriptor,
};
pub use given::GivenRows;
pub use mmproj::with_mmproj;
pub use places::{Grid, Order};
pub use recipe::{Filter, Recipe, Sizing};

use crate::error::Result;

/// Colour channels of a pixel.
pub const CHANNELS: usize = 3;

/// A tower with the numbers of a checkpoint, and what the text model needs of it.
#[derive(Clone, Debug)]
pub struct VisionSpec {
    /// The kind of tower.
    pub tower: &'static VisionDescriptor,
    /// Columns of a patch's state.
    pub hidden: usize,
    /// Heads of attention.
    pub n_heads: usize,
    /// Layers of the tower.
    pub n_layers: usize,
    /// Columns of the feed-forward network.
    pub ffn: usize,
    /// Epsilon of the norms.
    pub norm_eps: f32,
    /// Activation of the feed-forward network.
    pub activation: Activation,
    /// Pixels a side of a patch.
    pub patch: usize,
    /// Frames of a patch; an image fills all of them.
    pub frames: usize,
    /// Patches a side of the square that becomes one row of the text.
    pub merge: usize,
    /// Pixels a side of images, if the tower has a fixed size.
    pub side: Option<usize>,
    /// Positions a side of the learned table, or on each axis.
    pub table_side: usize,
    /// Text rows a side of a window, if the tower has windows.
    pub window: Option<usize>,
    /// Layers with full attention in a tower with windows, ascending.
    pub full_layers: Vec<usize>,
    /// Base of the tower's RoPE frequencies.
    pub rotation_base: f64,
    /// Layers of the text model in which image rows attend to later rows of their image.
    pub both_ways: BothWays,
    /// Layers whose states are also added in the first layers of the text model, ascending.
    pub taps: Vec<usize>,
    /// Columns of a row of the text.
    pub out: usize,
    /// Token that stands for a row.
    pub token: u32,
    /// Token whose per-layer inputs a row has, if layers have such inputs.
    pub input_token: u32,
    /// Text of the token that stands for a row, if it is not the tower's default.
    pub row: Option<String>,
    /// Pairs of a head of the text model that rotate by time, row and column, if positions have
    /// three axes.
    pub sections: [usize; 3],
    /// Preprocessing of images.
    pub recipe: Recipe,
    /// Prefixes of the tower's and the projector's names.
    prefixes: [&'static str; 2],
}

/// A plan of a tower, with some of its layers.
#[derive(Clone, Debug)]
pub struct VisionStage {
    /// The plan. The first stage reads pixels and positions, others read states; with RoPE, cosines
    /// and sines follow. The result is the states of all rows.
    pub plan: Plan,
    /// True if spans are windows; false if they are images.
    pub windowed: bool,
    /// Index of the tap that reads the result.
    pub tap: Option<usize>,
}

/// The plans of a tower.
#[derive(Clone, Debug)]
pub struct VisionPlans {
    /// Stages of the tower, in order.
    pub stages: Vec<VisionStage>,
    /// The plan from joined patches to rows of the text.
    pub projector: Plan,
    /// Projector of each tap.
    pub taps: Vec<Plan>,
    /// Learned position embeddings.
    pub positions: Option<Weight>,
    /// `(hidden)` each: the vector subtracted from the scaled mean of joined patches, and the
    /// vector that multiplies the difference.
    pub standard: Option<[Vec<f32>; 2]>,
}

/// A preprocessed image.
#[derive(Clone, Debug, PartialEq)]
pub struct Picture {
    /// Hash of the patches, for caches: equal for equal images.
    pub hash: [u64; 2],
    /// Parts of the image, each a run of rows in the text.
    pub tiles: Vec<Tile>,
    /// Rows and columns of the tiles before the last, which is the whole image; `None`: the whole
    /// image is the only tile.
    pub layout: Option<(usize, usize)>,
}

/// A part of an image.
#[derive(Clone, Debug, PartialEq)]
pub struct Tile {
    /// Rows and columns of patches.
    pub grid: Grid,
    /// `(patches, channels * frames * patch * patch)`, square by square ([`Grid`]).
    pub pixels: Vec<f32>,
}

impl VisionSpec {
    /// The plans of the tower.
    ///
    /// # Errors
    /// The checkpoint is not the one that this spec was read from.
    pub fn plans(&self, checkpoint: &Checkpoint) -> Result<VisionPlans> {
        self.build(checkpoint, None)
    }

    /// Columns of a patch's pixels.
    pub fn patch_len(&self) -> usize {
        CHANNELS * self.frames * self.patch * self.patch
    }

    /// Columns of a head.
    pub fn head_dim(&self) -> usize {
        self.hidden / self.n_heads
    }

    /// Maximum number of text rows of an image that must be in one step because they attend to each
    /// other; 0: an image may be split.
    pub fn rows_at_once(&self) -> usize {
        match (self.both_ways, self.recipe.sizing) {
            (BothWays::Never, _) => 0,
            (_, Sizing::Rows { most, .. }) => most,
            (_, Sizing::Pixels { unit, most, .. }) => most / (unit * unit),
            (_, Sizing::Exact(height, width)) => {
                let unit = self.patch * self.merge;
                (height / unit) * (width / unit)
            }
            (_, Sizing::Tiles { tile, .. }) => (tile / (self.patch * self.merge)).pow(2),
        }
    }

    /// Text rows of a tile.
    pub fn rows_of(&self, grid: Grid) -> usize {
        grid.rows * grid.cols / (self.merge * self.merge)
    }

    /// Checks that the tower can read an image: its tiles are whole squares with all pixels.
    ///
    /// # Errors
    /// The message states what was found, and what was expected.
    pub fn check(&self, picture: &Picture) -> std::result::Result<(), String> {
        for tile in &picture.tiles {
            let Grid { rows, cols } = tile.grid;
            let per_side = self.side.map(|side| side / self.patch);
            if rows == 0
                || cols == 0
                || !rows.is_multiple_of(self.merge)
                || !cols.is_multiple_of(self.merge)
                || per_side.is_some_and(|n| (rows, cols) != (n, n))
            {
                return Err(format!(
                    "an image of {rows} x {cols} patches, expected multiples of {}",
                    self.merge
                ));
            }
            if self.tower.positions == PatchPositions::Axes && rows.max(cols) > self.table_side {
                let most = self.table_side;
                return Err(format!("an image of {rows} x {cols} patches, expected at most {most} a side"));
            }
            let expected = rows * cols * self.patch_len();
            if tile.pixels.len() != expected {
                return Err(format!("an image of {} numbers, expected {expected}", tile.pixels.len()));
            }
        }
        Ok(())
    }

    /// The patches of a tile from its colours `(channels, height, width)`; `None` if a side is not
    /// a multiple of joined patches.
    pub fn tile(&self, colours: &[f32], height: usize, width: usize) -> Option<Tile> {
        let unit = self.patch * self.merge;
        if !height.is_multiple_of(unit)
            || !width.is_multiple_of(unit)
            || colours.len() != CHANNELS * height * width
        {
            return None;
        }
        let grid = Grid { rows: height / self.patch, cols: width / self.patch };
        let mut pixels = Vec::with_capacity(grid.rows * grid.cols * self.patch_len());
        for (row, col) in grid.squares(self.merge) {
            for channel in colours.chunks_exact(height * width) {
                for _ in 0..self.frames {
                    for y in row * self.patch..(row + 1) * self.patch {
                        let first = y * width + col * self.patch;
                        pixels.extend_from_slice(&channel[first..first + self.patch]);
                    }
                }
            }
        }
        Some(Tile { grid, pixels })
    }
}

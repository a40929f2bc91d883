//! Models that see: the tower that encodes images, how its rows stand in a text, and the plans of both.
//!
//! A tower is one of [`TOWERS`], plain data, with the numbers of a checkpoint. It runs as a few plans, one after another, whose
//! results the caller hands on: the stages of the tower itself, over patches, and the projectors, over squares of joined patches.
//! A stage ends where attention goes over from windows to whole images, and where a tap is. What windows are is then only how rows
//! lie in spans. What depends on a patch's place (learned positions, cosines and sines) is input beside its pixels, made here.
//!
//! The text model has a second plan for steps with rows of images ([`GivenRows`]): its input is embeddings instead of tokens.

mod build;
mod descriptor;
mod given;
pub(crate) mod mmproj;
mod places;
mod recipe;

use std::collections::BTreeSet;

use device::{Activation, Plan, Weight};
use weights::{Checkpoint, Metadata, Naming, Value};

pub use descriptor::{
    BothWays, ImageMarks, Joining, PatchPositions, ProjectorStep, SizingKind, TOWERS, Turning,
    VisionDescriptor,
};
pub use given::GivenRows;
pub use mmproj::{MmprojNames, with_mmproj};
pub use places::{Grid, Order};
pub use recipe::{Filter, Recipe, Sizing};

use crate::error::{Error, Result};

/// Colours of a pixel.
pub const CHANNELS: usize = 3;

/// A tower with the numbers of a checkpoint, and what the text model must know of it.
#[derive(Clone, Debug)]
pub struct VisionSpec {
    /// Which kind.
    pub tower: &'static VisionDescriptor,
    /// Columns of a patch's state.
    pub hidden: usize,
    /// Heads of its attention.
    pub n_heads: usize,
    /// Its layers.
    pub n_layers: usize,
    /// Columns of its network.
    pub ffn: usize,
    /// Added in norms.
    pub norm_eps: f32,
    /// The network's function.
    pub activation: Activation,
    /// Pixels a side of a patch.
    pub patch: usize,
    /// How often a patch's pixels follow each other: the frames of a patch, which are one image.
    pub frames: usize,
    /// Patches a side of the square that becomes one row of the text.
    pub merge: usize,
    /// Pixels a side of the one size of images, where there is one.
    pub side: Option<usize>,
    /// Positions a side of the learned table, or of each axis.
    pub table_side: usize,
    /// Rows of the text a side of a window, where there are windows.
    pub window: Option<usize>,
    /// Layers that see the whole image though there are windows, ascending.
    pub full_layers: Vec<usize>,
    /// Base of the frequencies by which patches turn.
    pub rotation_base: f64,
    /// Rows of an image that see those after them: in which layers of the text.
    pub both_ways: BothWays,
    /// Layers whose states also go to the first layers of the text model, ascending.
    pub taps: Vec<usize>,
    /// Columns of a row of the text.
    pub out: usize,
    /// The token that stands for a row.
    pub token: u32,
    /// The token whose inputs of layers a row has, where layers have such.
    pub input_token: u32,
    /// Its text, where it is not the tower's usual one.
    pub row: Option<String>,
    /// Pairs of a head of the text model that turn by time, row and column, where positions have three axes.
    pub sections: [usize; 3],
    /// How pictures become patches.
    pub recipe: Recipe,
    /// Before the names of the tower and of the projector.
    prefixes: [&'static str; 2],
}

/// One of the plans of a tower: some layers over patches.
#[derive(Clone, Debug)]
pub struct VisionStage {
    /// Input: of the first, pixels and positions; of others, states; where patches turn, cosines and sines besides. Result: states,
    /// all rows.
    pub plan: Plan,
    /// Spans are windows, and not images.
    pub windowed: bool,
    /// A tap that reads its result.
    pub tap: Option<usize>,
}

/// The plans of a tower.
#[derive(Clone, Debug)]
pub struct VisionPlans {
    /// The tower, in order.
    pub stages: Vec<VisionStage>,
    /// From joined patches to rows of the text.
    pub projector: Plan,
    /// The same for each tap.
    pub taps: Vec<Plan>,
    /// The learned positions.
    pub positions: Option<Weight>,
    /// `(hidden)` each: what is subtracted from the scaled mean of joined patches, and what that is multiplied by.
    pub standard: Option<[Vec<f32>; 2]>,
}

/// A picture made ready for the tower.
#[derive(Clone, Debug, PartialEq)]
pub struct Picture {
    /// What its patches are made of, for caches: equal for equal pictures.
    pub hash: [u64; 2],
    /// Its parts, each a run of rows in the text.
    pub tiles: Vec<Tile>,
    /// Rows and columns of the tiles before the last, which is the whole picture; absent: it is all there is.
    pub layout: Option<(usize, usize)>,
}

/// A part of a picture.
#[derive(Clone, Debug, PartialEq)]
pub struct Tile {
    /// Its patches.
    pub grid: Grid,
    /// `(patches, channels * frames * patch * patch)`, square by square ([`Grid`]).
    pub pixels: Vec<f32>,
}

impl VisionSpec {
    /// The tower of a checkpoint, if it has one that is known. The text model has rows of `out` columns and heads with `n_pairs` pairs
    /// of columns that turn.
    ///
    /// # Errors
    /// A number is not there or cannot be, or a tensor is missing.
    pub(crate) fn from_checkpoint(
        checkpoint: &Checkpoint,
        out: usize,
        n_pairs: usize,
    ) -> Result<Option<(VisionSpec, BTreeSet<String>)>> {
        // Of GGUF files only those have one that were put together with the tower's.
        if !matches!(checkpoint.naming, Naming::HuggingFace | Naming::Gguf) {
            return Ok(None);
        }
        let metadata = &checkpoint.metadata;
        let Some(kind) = metadata.str("model_type") else { return Ok(None) };
        let Some(tower) = TOWERS.iter().find(|tower| tower.hf.contains(&kind)) else { return Ok(None) };
        let there = |prefix: &&&str| checkpoint.tensor(&format!("{prefix}{}.weight", tower.patch)).is_some();
        // Some conversions leave the tower out.
        let Some(prefix) = tower.prefixes.iter().find(there) else { return Ok(None) };
        let spec = VisionSpec::read(metadata, tower, prefix, checkpoint, (out, n_pairs))?;
        let mut used = BTreeSet::new();
        spec.build(checkpoint, Some(&mut used))?;
        Ok(Some((spec, used)))
    }

    fn read(
        metadata: &Metadata,
        tower: &'static VisionDescriptor,
        prefix: &'static str,
        checkpoint: &Checkpoint,
        (out, n_pairs): (usize, usize),
    ) -> Result<VisionSpec> {
        let numbers = Numbers { metadata, tower };
        let count = |keys: &[&str], most: usize| numbers.need(keys, most);
        let hidden = count(&["hidden_size", "embed_dim"], 1 << 16)?;
        let n_heads = count(&["num_attention_heads", "num_heads"], 1 << 10)?;
        let n_layers = count(&["num_hidden_layers", "depth"], 1 << 10)?;
        let patch = count(&["patch_size"], 1 << 8)?;
        if !hidden.is_multiple_of(n_heads)
            || tower.turning != Turning::None && !(hidden / n_heads).is_multiple_of(4)
        {
            return Err(numbers.bad(
                "num_heads",
                n_heads,
                format!("heads that divide {hidden} columns evenly"),
            ));
        }
        for (key, expected) in [("head_dim", hidden / n_heads), ("num_key_value_heads", n_heads)] {
            let key = format!("vision_config.{key}");
            if let Some(found) = numbers.top(&key, 1 << 16)?.filter(|found| *found != expected) {
                let expected = format!("{expected}, as of {n_heads} heads of queries in {hidden} columns");
                return Err(numbers.bad(&key, found, expected));
            }
        }
        let fixed = tower.positions == PatchPositions::Table;
        let side = if fixed { Some(count(&["image_size"], 1 << 14)?) } else { None };
        let per_side = side.map_or(0, |side| side / patch);
        let merge = match tower.sizing {
            SizingKind::Square => {
                let rows = numbers.top("mm_tokens_per_image", 1 << 16)?.unwrap_or(256);
                let of_side = (rows as f64).sqrt() as usize;
                if of_side == 0 || of_side * of_side != rows || !per_side.is_multiple_of(of_side) {
                    let expected = format!("the square of a divisor of {per_side}, the patches a side");
                    return Err(numbers.bad("mm_tokens_per_image", rows, expected));
                }
                per_side / of_side
            }
            SizingKind::Tiles => numbers.top("scale_factor", 64)?.unwrap_or(2),
            SizingKind::Pixels => count(&["spatial_merge_size"], 64)?,
            SizingKind::Rows => count(&["pooling_kernel_size"], 64)?,
        };
        if let Some(side) = side
            && (!side.is_multiple_of(patch) || !per_side.is_multiple_of(merge) || per_side == 0)
        {
            let expected = format!("a multiple of {merge} patches of {patch} pixels");
            return Err(numbers.bad("vision_config.image_size", side, expected));
        }
        let table_side = match tower.positions {
            PatchPositions::None => 0,
            PatchPositions::Table => per_side,
            PatchPositions::Axes => count(&["position_embedding_size"], 1 << 20)?,
            PatchPositions::Stretched => {
                let n = count(&["num_position_embeddings"], 1 << 22)?;
                let of_side = (n as f64).sqrt() as usize;
                if of_side * of_side != n {
                    return Err(numbers.bad(
                        "vision_config.num_position_embeddings",
                        n,
                        "a square".to_owned(),
                    ));
                }
                of_side
            }
        };
        let layers = |key: &str| -> Result<Vec<usize>> {
            let list = numbers.list(&format!("vision_config.{key}"))?.unwrap_or_default();
            if !list.is_sorted_by(|a, b| a < b) {
                let found = format!("{list:?}");
                return Err(numbers.bad(
                    &format!("vision_config.{key}"),
                    found,
                    "ascending layers".to_owned(),
                ));
            }
            match list.last().filter(|last| **last >= n_layers) {
                Some(last) => {
                    let expected = format!("layers below {n_layers}");
                    Err(numbers.bad(&format!("vision_config.{key}"), last, expected))
                }
                None => Ok(list),
            }
        };
        let full_layers = layers("fullatt_block_indexes")?;
        let windowed = metadata.get("vision_config.fullatt_block_indexes").is_some();
        let window = match windowed {
            true => Some((count(&["window_size"], 1 << 14)? / merge / patch).max(1)),
            false => None,
        };
        let taps = if tower.tap_projector.is_empty() { vec![] } else { layers("deepstack_visual_indexes")? };
        let token = ["image_token_id", "image_token_index"].iter().find_map(|key| metadata.usize(key));
        let token = token.and_then(|token| u32::try_from(token).ok()).ok_or_else(|| Error::MissingKey {
            keys: "image_token_id, image_token_index".to_owned(),
            expected: "the token that stands for a row of an image".to_owned(),
        })?;
        let sections = match tower.axes {
            None => [0; 3],
            Some(_) => numbers.sections(tower.sections, n_pairs)?,
        };
        let activation = match metadata
            .str("vision_config.hidden_act")
            .or(metadata.str("vision_config.hidden_activation"))
        {
            None => tower.activation,
            Some("silu") => Activation::Silu,
            Some("gelu_pytorch_tanh" | "gelu_new") => Activation::GeluTanh,
            Some("gelu") => Activation::GeluErf,
            Some(_) => {
                let found = metadata.str("vision_config.hidden_act").unwrap_or_default().to_owned();
                return Err(numbers.bad(
                    "vision_config.hidden_act",
                    found,
                    "silu, gelu or gelu_pytorch_tanh".to_owned(),
                ));
            }
        };
        let there = |p: &&&str| {
            tower.projector.iter().any(|step| match step {
                ProjectorStep::Linear(name) => checkpoint.tensor(&format!("{p}{name}.weight")).is_some(),
                ProjectorStep::Turned(name) => checkpoint.tensor(&format!("{p}{name}")).is_some(),
                ProjectorStep::Norm(..) | ProjectorStep::PlainNorm | ProjectorStep::Activate(_) => false,
            })
        };
        let projector = tower.projector_prefixes.iter().find(there).or(tower.projector_prefixes.first());
        let frames = match tower.sizing {
            SizingKind::Pixels => count(&["temporal_patch_size"], 16)?,
            SizingKind::Square | SizingKind::Tiles | SizingKind::Rows => 1,
        };
        let said = |key: &str| {
            let keys = [format!("text_config.{key}"), key.to_owned()];
            keys.into_iter().find(|key| metadata.get(key).is_some_and(|value| !matches!(value, Value::Null)))
        };
        let both_ways = match tower.both_ways {
            BothWays::InWindowsIfSaid => match said("use_bidirectional_attention") {
                Some(key) if metadata.str(&key) == Some("vision") => BothWays::InWindowsIfSaid,
                Some(_) | None => BothWays::Never,
            },
            always_or_never => always_or_never,
        };
        let input_token = said("pad_token_id").and_then(|key| metadata.usize(&key)).unwrap_or(0);
        Ok(VisionSpec {
            recipe: Recipe::read(metadata, tower, side, patch * merge)?,
            tower,
            hidden,
            n_heads,
            n_layers,
            ffn: count(&["intermediate_size"], 1 << 18)?,
            norm_eps: ["layer_norm_eps", "rms_norm_eps"]
                .iter()
                .find_map(|key| metadata.f64(&format!("vision_config.{key}")))
                .unwrap_or(1e-6) as f32,
            activation,
            patch,
            frames,
            merge,
            side,
            table_side,
            window,
            full_layers,
            rotation_base: metadata
                .f64("vision_config.rope_parameters.rope_theta")
                .unwrap_or(tower.rotation_base),
            both_ways,
            taps,
            out,
            token,
            input_token: u32::try_from(input_token).unwrap_or(0),
            row: match checkpoint.naming {
                Naming::Gguf => metadata.str("image_token").map(str::to_owned),
                _ => None,
            },
            sections,
            prefixes: [prefix, projector.copied().unwrap_or_default()],
        })
    }

    /// The plans of the tower.
    ///
    /// # Errors
    /// The checkpoint is not the one that this was read from.
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

    /// Most rows of the text of an image whose rows must be in one step, since they see each other; 0: they need not be.
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

    /// Rows of the text of a tile.
    pub fn rows_of(&self, grid: Grid) -> usize {
        grid.rows * grid.cols / (self.merge * self.merge)
    }

    /// Whether a picture is one that this tower can see: its tiles are whole squares, and have the pixels of their patches.
    ///
    /// # Errors
    /// What was found, and what was expected.
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
                return Err(format!("{} numbers of an image, expected {expected}", tile.pixels.len()));
            }
        }
        Ok(())
    }

    /// Patches of a tile from its colours `(channels, height, width)`; `None`: the sides are no multiples of joined patches.
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

/// Numbers of config.json.
struct Numbers<'a> {
    metadata: &'a Metadata,
    tower: &'static VisionDescriptor,
}

impl Numbers<'_> {
    fn bad(&self, key: &str, found: impl ToString, expected: String) -> Error {
        Error::BadKey { key: key.to_owned(), found: found.to_string(), expected }
    }

    /// A number at the top, from 1 to `most`.
    fn top(&self, key: &str, most: usize) -> Result<Option<usize>> {
        match self.metadata.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => {
                let n = self.metadata.usize(key).filter(|n| (1..=most).contains(n));
                let found = || crate::keys::show(value);
                n.map(Some).ok_or_else(|| self.bad(key, found(), format!("a number from 1 to {most}")))
            }
        }
    }

    /// A number of the tower, or its usual one.
    fn need(&self, keys: &[&str], most: usize) -> Result<usize> {
        for key in keys {
            if let Some(n) = self.top(&format!("vision_config.{key}"), most)? {
                return Ok(n);
            }
        }
        let usual = self.tower.defaults.iter().find(|(key, _)| keys.contains(key));
        usual.map(|(_, n)| *n).ok_or_else(|| Error::MissingKey {
            keys: keys.iter().map(|key| format!("vision_config.{key}")).collect::<Vec<_>>().join(", "),
            expected: format!("a number from 1 to {most}"),
        })
    }

    fn list(&self, key: &str) -> Result<Option<Vec<usize>>> {
        match self.metadata.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::Array(weights::Array::Int(list))) => {
                let list: Option<Vec<usize>> = list.iter().map(|n| usize::try_from(*n).ok()).collect();
                list.map(Some).ok_or_else(|| self.bad(key, "a negative number", "layers".to_owned()))
            }
            Some(other) => Err(self.bad(key, crate::keys::show(other), "a list of layers".to_owned())),
        }
    }

    /// The sections of a head's pairs, of which there are `n_pairs`.
    fn sections(&self, usual: [usize; 3], n_pairs: usize) -> Result<[usize; 3]> {
        let mut found = None;
        for config in ["text_config.", ""] {
            for object in ["rope_parameters.", "rope_scaling."] {
                let key = format!("{config}{object}mrope_section");
                if let (None, Some(list)) = (&found, self.list(&key)?) {
                    found = Some((key, list));
                }
            }
        }
        let (key, list) = match found {
            Some((key, list)) => (key, list),
            // The usual ones are of the usual head.
            None if usual.iter().sum::<usize>() == n_pairs => return Ok(usual),
            None => {
                return Err(Error::MissingKey {
                    keys: "rope_parameters.mrope_section, rope_scaling.mrope_section".to_owned(),
                    expected: format!("three numbers that make {n_pairs}"),
                });
            }
        };
        match list[..] {
            [t, h, w] if t.checked_add(h).and_then(|n| n.checked_add(w)) == Some(n_pairs) => Ok([t, h, w]),
            _ => Err(self.bad(&key, format!("{list:?}"), format!("three numbers that make {n_pairs}"))),
        }
    }
}

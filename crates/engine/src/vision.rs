//! Images: a tower runs as a program of its own, and its output replaces tokens of a sequence.
//!
//! A row of an image has an id that is no token's, a hash of the picture. So the prefix cache,
//! forks and parking treat images as they do text, and equal pictures share pages. Steps with such
//! rows run the program's second plan, whose input is embeddings: those of tokens beside those of
//! images ([`model::GivenRows`]).
//!
//! If positions have three axes (M-RoPE), an image has fewer positions than rows. The text after
//! the last image is not moved to earlier positions. Instead, everything up to the end of that
//! image gets rotary positions that are later by the difference. Attention depends only on
//! differences of positions, so the scores are the same. An answer is then decoded like any text,
//! at the position that is its row's index. Prompts share cached rows only if their differences are
//! the same.

use std::collections::VecDeque;
use std::sync::Arc;

use device::{Device, Limits, Numerics, Plan, Program, Span, Step, Want};
use model::{GivenRows, Grid, ImageMarks, Joining, Picture, SizingKind, Tile, VisionPlans, VisionSpec};

use crate::{Error, Model, Result};

/// First id of image rows; smaller ids are tokens.
pub(crate) const IMAGE_IDS: u32 = 1 << 31;

/// Most `f32` values of image rows in the cache of encoded pictures.
const MOST_KEPT: usize = 64 << 20;

/// A tile of a picture as the text model reads it.
#[derive(Debug)]
pub(crate) struct Encoded {
    /// Ids of the rows.
    ids: Vec<u32>,
    /// Embeddings, `(rows, hidden)`.
    rows: Vec<f32>,
    /// Embeddings for each tap of the tower, each `(rows, hidden)`.
    taps: Vec<Vec<f32>>,
    /// Text rows from top to bottom, and from left to right.
    grid: (u32, u32),
}

impl Encoded {
    fn n_values(&self) -> usize {
        self.rows.len() * (1 + self.taps.len())
    }
}

/// Consecutive rows of an image in a sequence.
#[derive(Debug)]
struct Run {
    first: usize,
    of: Arc<Encoded>,
    /// Positions saved by the images before this one.
    saved_before: usize,
}

impl Run {
    fn end(&self) -> usize {
        self.first + self.of.ids.len()
    }

    /// Positions that this image saves: its rows less the positions that it has.
    fn saves(&self) -> usize {
        self.of.ids.len() - self.of.grid.0.max(self.of.grid.1) as usize
    }
}

/// The images of a sequence.
#[derive(Debug)]
pub(crate) struct Images {
    /// Runs in the order of their positions.
    runs: Vec<Run>,
    /// Positions saved by all images; 0 if positions have one axis.
    saved: usize,
    both_ways: bool,
}

impl Images {
    /// The run that holds a position.
    fn run(&self, position: usize) -> Option<&Run> {
        let next = self.runs.partition_point(|run| run.end() <= position);
        self.runs.get(next).filter(|run| run.first <= position)
    }

    /// Returns true if the row at a position belongs to the plan of given rows.
    pub(crate) fn is_given(&self, position: usize) -> bool {
        match self.both_ways {
            true => self.run(position).is_some(),
            false => self.runs.last().is_some_and(|run| position < run.end()),
        }
    }

    /// End of the rows from `position` on that may be in one step of the plan that the first of
    /// them needs. The second value is true if all of them must be in that step.
    pub(crate) fn end_of_step(&self, position: usize) -> (usize, bool) {
        match (self.both_ways, self.run(position)) {
            (false, _) => (usize::MAX, false),
            (true, Some(run)) => (run.end(), true),
            (true, None) => (
                self.runs.iter().map(|run| run.first).find(|first| *first > position).unwrap_or(usize::MAX),
                false,
            ),
        }
    }

    /// The largest of the first `n` positions that does not split an image that must be whole in a
    /// step.
    pub(crate) fn whole(&self, n: usize) -> usize {
        match self.run(n) {
            Some(run) if self.both_ways => run.first,
            _ => n,
        }
    }

    /// Value that is mixed into the sequence's salt: only sequences that save the same number of
    /// positions share pages.
    pub(crate) fn salt(&self) -> u64 {
        if self.saved == 0 { 0 } else { mixed(self.saved as u64) }
    }

    /// Append the input of the plan of given rows for a position.
    fn push_row(&self, given: &GivenRows, position: usize, token: u32, out: &mut Vec<f32>) {
        let Some(run) = self.run(position) else {
            let before = self.runs.iter().take_while(|run| run.end() <= position);
            let saved = if given.has_axes() { self.saved - before.map(Run::saves).sum::<usize>() } else { 0 };
            return given.push_token(token, [(position + saved) as u32; 3], out);
        };
        let row = position - run.first;
        let start = (run.first + self.saved.saturating_sub(run.saved_before)) as u32;
        let (down, right) = (row as u32 / run.of.grid.1, row as u32 % run.of.grid.1);
        let range = row * given.hidden..(row + 1) * given.hidden;
        let taps = run.of.taps.iter().filter_map(|tap| tap.get(range.clone()));
        let embedding = run.of.rows.get(range.clone()).unwrap_or_default();
        given.push_image(embedding, taps, [start, start + down, start + right], out);
    }
}

/// Last steps of SplitMix64.
fn mixed(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// A tower on a device, and a cache of encoded pictures.
pub(crate) struct Vision {
    spec: VisionSpec,
    plans: VisionPlans,
    given: GivenRows,
    device: Arc<dyn Device>,
    /// Number of patches and program; compiled for the first image, and again for a larger one.
    program: Option<(usize, Box<dyn Program>)>,
    numerics: Numerics,
    /// Encoded pictures by their hash, the most recently used last.
    seen: VecDeque<([u64; 2], Vec<Arc<Encoded>>)>,
}

impl Vision {
    pub(crate) fn new(
        spec: VisionSpec,
        plans: VisionPlans,
        given: GivenRows,
        device: Arc<dyn Device>,
        numerics: Numerics,
    ) -> Vision {
        Vision { spec, plans, given, device, program: None, numerics, seen: VecDeque::new() }
    }

    /// Encode images, and replace the placeholders of a prompt by the ids of their rows.
    pub(crate) fn place(
        &mut self,
        tokens: &mut [u32],
        pictures: &[Arc<Picture>],
        max_rows: usize,
    ) -> Result<Images> {
        let mut encoded = Vec::new();
        let n_expected: usize =
            pictures.iter().flat_map(|p| &p.tiles).map(|tile| self.spec.rows_of(tile.grid)).sum();
        let n_found = tokens.iter().filter(|token| **token == self.spec.token).count();
        if n_found != n_expected {
            let token = self.spec.token;
            return Err(Error::Placeholders { token, n_found, n_expected, n_images: pictures.len() });
        }
        for picture in pictures {
            encoded.extend(self.encode(picture)?);
        }
        let mut images = Images { runs: Vec::new(), saved: 0, both_ways: self.given.both_ways };
        let mut position = 0;
        for of in encoded {
            let next = tokens[position..].iter().position(|token| *token == self.spec.token);
            let first = position + next.unwrap_or(0);
            let end = first + of.ids.len();
            if !tokens.get(first..end).is_some_and(|ids| ids.iter().all(|token| *token == self.spec.token)) {
                return Err(Error::ImageSplit { position: first, n_rows: of.ids.len() });
            }
            if images.both_ways && of.ids.len() > max_rows {
                return Err(Error::Option {
                    name: "chunk",
                    value: max_rows.to_string(),
                    expected: format!("at least {}, the rows of an image", of.ids.len()),
                });
            }
            tokens[first..end].copy_from_slice(&of.ids);
            let run = Run { first, of, saved_before: images.saved };
            images.saved += if self.given.has_axes() { run.saves() } else { 0 };
            position = end;
            images.runs.push(run);
        }
        Ok(images)
    }

    /// Append the input of the plan of given rows for the row at a position of a sequence.
    pub(crate) fn push_row(&self, images: Option<&Images>, position: usize, token: u32, out: &mut Vec<f32>) {
        match images {
            Some(images) => images.push_row(&self.given, position, token, out),
            None => self.given.push_token(token, [position as u32; 3], out),
        }
    }

    /// Token that replaces the id of an image row, for plans that read tokens beside the input.
    pub(crate) fn layer_input(&self) -> Option<u32> {
        self.given.layer_input
    }

    pub(crate) fn both_ways(&self) -> bool {
        self.given.both_ways
    }

    /// Encoded tiles of a picture, from the cache or computed now.
    fn encode(&mut self, picture: &Picture) -> Result<Vec<Arc<Encoded>>> {
        if let Some(at) = self.seen.iter().position(|(hash, _)| *hash == picture.hash)
            && let Some(known) = self.seen.remove(at)
        {
            let tiles = known.1.clone();
            self.seen.push_back(known);
            return Ok(tiles);
        }
        self.spec.check(picture).map_err(Error::BadImage)?;
        let mut tiles = Vec::with_capacity(picture.tiles.len());
        let mut n_before = 0;
        for tile in &picture.tiles {
            let encoded = self.encode_tile(tile, picture.hash, n_before)?;
            n_before += encoded.ids.len();
            tiles.push(Arc::new(encoded));
        }
        self.seen.push_back((picture.hash, tiles.clone()));
        let size = |tiles: &Vec<Arc<Encoded>>| tiles.iter().map(|tile| tile.n_values()).sum::<usize>();
        while self.seen.len() > 1 && self.seen.iter().map(|(_, tiles)| size(tiles)).sum::<usize>() > MOST_KEPT
        {
            self.seen.pop_front();
        }
        Ok(tiles)
    }

    fn encode_tile(&mut self, tile: &Tile, hash: [u64; 2], n_before: usize) -> Result<Encoded> {
        let Grid { rows, cols } = tile.grid;
        let (n_patches, unit) = (rows * cols, self.spec.merge * self.spec.merge);
        self.make_room(n_patches)?;
        let order = self.spec.order(tile.grid);
        let positions = self.spec.positions(&self.plans, tile.grid);
        let turns = self.spec.turns(tile.grid);
        let patches: Vec<usize> =
            order.squares.iter().flat_map(|square| square * unit..(square + 1) * unit).collect();
        let windows: Vec<usize> = order.windows.iter().map(|n| n * unit).collect();
        let mut states = Vec::new();
        let mut taps = Vec::new();
        for index in 0..self.plans.stages.len() {
            let input = {
                let parts: [&[f32]; 2] = if index == 0 { [&tile.pixels, &positions] } else { [&states, &[]] };
                let mut input = Vec::with_capacity(n_patches * self.spec.stage_cols(index == 0));
                for (at, patch) in patches.iter().enumerate() {
                    // States are already in the tower's order.
                    let of = |values: &[f32], row: usize| {
                        let cols = values.len() / n_patches;
                        row * cols..(row + 1) * cols
                    };
                    for part in parts {
                        let row = if index == 0 { *patch } else { at };
                        input.extend_from_slice(&part[of(part, row)]);
                    }
                    input.extend_from_slice(&turns[of(&turns, *patch)]);
                }
                input
            };
            let (windowed, tap) = (self.plans.stages[index].windowed, self.plans.stages[index].tap);
            let spans = if windowed { windows.clone() } else { vec![n_patches] };
            states = self.run(index, &input, &spans)?;
            if let Some(tap) = tap {
                taps.push(self.project(self.plans.stages.len() + 1 + tap, &states, &order.squares)?);
            }
        }
        let rows_of_text = self.project(self.plans.stages.len(), &states, &order.squares)?;
        let n_rows = n_patches / unit;
        let id = |row: usize| {
            let word = mixed(hash[0] ^ mixed(hash[1] ^ (n_before + row) as u64));
            IMAGE_IDS | (word as u32 & (IMAGE_IDS - 1))
        };
        Ok(Encoded {
            ids: (0..n_rows).map(id).collect(),
            rows: rows_of_text,
            taps,
            grid: ((rows / self.spec.merge) as u32, (cols / self.spec.merge) as u32),
        })
    }

    /// Project states in the tower's order to text rows in the image's order.
    fn project(&mut self, plan: usize, states: &[f32], squares: &[usize]) -> Result<Vec<f32>> {
        let (hidden, unit) = (self.spec.hidden, self.spec.merge * self.spec.merge);
        let joined = match self.spec.tower.joining {
            Joining::Concatenated => states.to_vec(),
            Joining::Averaged | Joining::Standardised { .. } => {
                let mut means = Vec::with_capacity(states.len() / unit);
                for square in states.chunks_exact(hidden * unit) {
                    let sum = |column: usize| square.iter().skip(column).step_by(hidden).sum::<f32>();
                    means.extend((0..hidden).map(|column| sum(column) / unit as f32));
                }
                if self.spec.tower.joining != Joining::Averaged {
                    let factor = (hidden as f32).sqrt();
                    means.iter_mut().for_each(|mean| *mean *= factor);
                }
                if let Some([bias, scale]) = &self.plans.standard {
                    for row in means.chunks_exact_mut(hidden) {
                        row.iter_mut().zip(bias.iter().zip(scale)).for_each(|(x, (b, s))| *x = (*x - b) * s);
                    }
                }
                means
            }
        };
        let found = self.run(plan, &joined, &[squares.len()])?;
        let cols = self.spec.out;
        let mut rows = vec![0.0; found.len()];
        for (row, square) in found.chunks_exact(cols).zip(squares) {
            rows[square * cols..(square + 1) * cols].copy_from_slice(row);
        }
        Ok(rows)
    }

    /// Run a plan of the tower over spans with the given numbers of rows. Returns all rows of its
    /// result.
    fn run(&mut self, plan: usize, input: &[f32], spans: &[usize]) -> Result<Vec<f32>> {
        let Some((_, program)) = &mut self.program else { return Ok(Vec::new()) };
        let n_rows: usize = spans.iter().sum();
        let rows: Vec<u32> = (0..n_rows as u32).collect();
        let mut first_row = 0;
        let span = |(slot, n): (usize, &usize)| {
            let span = Span { slot: slot as u32, first_row, n_rows: *n as u32, first_position: 0 };
            first_row += *n as u32;
            span
        };
        let spans: Vec<Span> = spans.iter().enumerate().map(span).collect();
        let step = Step {
            plan,
            tokens: &vec![0; n_rows],
            input,
            spans: &spans,
            outputs: &rows,
            wants: &vec![Want::LOGITS; n_rows],
            ..Step::default()
        };
        program.run(&step)?;
        Ok(program.logits().to_vec())
    }

    /// Compile a program for images of this many patches, if there is none.
    fn make_room(&mut self, n_patches: usize) -> Result<()> {
        if self.program.as_ref().is_some_and(|(room, _)| *room >= n_patches) {
            return Ok(());
        }
        self.program = None;
        let room = n_patches.next_power_of_two().max(256);
        let fused = |plan: &Plan| device_lower::fusion::fuse(plan, self.device.fusion());
        let stages = self.plans.stages.iter().map(|stage| &stage.plan);
        let plans: Vec<Plan> =
            stages.chain([&self.plans.projector]).chain(&self.plans.taps).map(fused).collect();
        let limits = tower_limits(self.device.as_ref(), room, self.numerics);
        let items = self.device.memory_plan(&plans, &limits)?.items;
        let (bytes, memory) = (items.iter().map(|item| item.bytes).sum::<u64>(), self.device.memory());
        if memory.total > 0 && bytes > memory.free {
            let what = format!("images of {n_patches} patches; a smaller picture needs less");
            return Err(device::Error::OutOfMemory { device: self.device.name(), what, bytes }.into());
        }
        self.program = Some((room, self.device.compile(&plans, &limits)?));
        Ok(())
    }
}

fn tower_limits(device: &dyn Device, n_patches: usize, numerics: Numerics) -> Limits {
    Limits {
        max_rows: n_patches,
        max_outputs: n_patches,
        max_spans: n_patches,
        n_ctx: n_patches,
        page_len: device.page_len(),
        n_pages: vec![],
        n_states: 0,
        background_rows: 0,
        kv_type: device.kv_types().first().copied().unwrap_or(device::KvType::F32),
        numerics,
    }
}

/// Check that a device can run a tower.
///
/// # Errors
/// It cannot; the error names what is missing.
pub(crate) fn check_tower(plans: &VisionPlans, device: &dyn Device) -> device::Result<()> {
    let limits = tower_limits(device, 256, Numerics::Fast);
    let stages = plans.stages.iter().map(|stage| &stage.plan);
    for plan in stages.chain([&plans.projector]).chain(&plans.taps) {
        let plan = device_lower::fusion::fuse(plan, device.fusion());
        device.memory_plan(std::slice::from_ref(&plan), &limits)?;
    }
    Ok(())
}

impl Model {
    /// Description of the image tower, if the model sees.
    pub fn vision(&self) -> Option<&VisionSpec> {
        self.spec().vision.as_ref()
    }

    /// Description of the image tower.
    ///
    /// # Errors
    /// The model sees no images.
    pub fn need_vision(&self) -> Result<&VisionSpec> {
        self.vision().ok_or_else(|| Error::NoVision { file: self.path().to_owned() })
    }

    /// Expand the image placeholders of a prompt's text: each becomes one placeholder for each row,
    /// with the marks around them.
    ///
    /// # Errors
    /// The model sees no images, or the number of placeholders is not that of the pictures.
    pub fn expand_images(&self, text: &str, pictures: &[Arc<Picture>]) -> Result<String> {
        let spec = self.need_vision()?;
        let ImageMarks { placeholder, .. } = spec.tower.marks;
        let n_found = text.matches(placeholder).count();
        if n_found != pictures.len() {
            return Err(Error::PlaceholderTexts { placeholder, n_found, n_images: pictures.len() });
        }
        let mut parts = text.split(placeholder);
        let mut expanded = parts.next().unwrap_or_default().to_owned();
        for (part, picture) in parts.zip(pictures) {
            expanded.push_str(&text_of(spec, picture));
            expanded.push_str(part);
        }
        Ok(expanded)
    }
}

/// Text that replaces the placeholder of a picture.
fn text_of(spec: &VisionSpec, picture: &Picture) -> String {
    let ImageMarks { before, after, whole, .. } = spec.tower.marks;
    let rows = |tile: &Tile| spec.row_text().repeat(spec.rows_of(tile.grid));
    if spec.tower.sizing != SizingKind::Tiles {
        return picture.tiles.iter().map(|tile| format!("{before}{}{after}", rows(tile))).collect();
    }
    let mut text = String::new();
    let Some((last, tiles)) = picture.tiles.split_last() else { return text };
    if let Some((_, n_cols)) = picture.layout {
        for (at, tile) in tiles.iter().enumerate() {
            let (down, right) = (at / n_cols.max(1), at % n_cols.max(1));
            text.push_str(&format!("{before}<row_{}_col_{}>{}", down + 1, right + 1, rows(tile)));
            if right + 1 == n_cols {
                text.push('\n');
            }
        }
        text.push('\n');
    }
    text.push_str(&format!("{before}{whole}{}{after}", rows(last)));
    text
}

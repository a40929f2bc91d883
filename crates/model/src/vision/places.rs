//! Places of patches: their order, windows, and inputs that depend on the place.

use device::Weight;

use super::{PatchPositions, SizingKind, Turning, VisionPlans, VisionSpec};

/// The patches of an image or tile. They are ordered by squares of joined patches, row by row, and
/// row by row within a square.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Grid {
    /// Rows of patches, from top to bottom.
    pub rows: usize,
    /// Columns of patches, from left to right.
    pub cols: usize,
}

impl Grid {
    /// Row and column of each patch, in order, for squares of `merge` patches a side.
    pub fn squares(self, merge: usize) -> impl Iterator<Item = (usize, usize)> {
        let (square_cols, inner) = (self.cols / merge, merge * merge);
        (0..self.rows * self.cols).map(move |i| {
            let (square, i) = (i / inner, i % inner);
            (square / square_cols * merge + i / merge, square % square_cols * merge + i % merge)
        })
    }
}

/// The order of an image's squares: window by window, if the tower has windows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Order {
    /// Indices of the squares.
    pub squares: Vec<usize>,
    /// Number of squares in each window.
    pub windows: Vec<usize>,
}

impl VisionSpec {
    /// The order of an image's squares. Without windows all squares are in one, in their usual
    /// order.
    pub fn order(&self, grid: Grid) -> Order {
        let (rows, cols) = (grid.rows / self.merge, grid.cols / self.merge);
        let Some(side) = self.window else {
            return Order { squares: (0..rows * cols).collect(), windows: vec![rows * cols] };
        };
        let mut order = Order { squares: Vec::with_capacity(rows * cols), windows: Vec::new() };
        for top in (0..rows).step_by(side) {
            for left in (0..cols).step_by(side) {
                let before = order.squares.len();
                for row in top..(top + side).min(rows) {
                    order.squares.extend((left..(left + side).min(cols)).map(|col| row * cols + col));
                }
                order.windows.push(order.squares.len() - before);
            }
        }
        order
    }

    /// Input columns of a stage, the first or a later one.
    pub fn stage_cols(&self, first: bool) -> usize {
        let positions = if self.tower.positions == PatchPositions::None { 0 } else { self.hidden };
        let own = if first { self.patch_len() + positions } else { self.hidden };
        own + if self.tower.turning == Turning::None { 0 } else { self.hidden }
    }

    /// `(patches, hidden)`: the learned position embedding of each patch, in order; empty if there
    /// are none.
    pub fn positions(&self, plans: &VisionPlans, grid: Grid) -> Vec<f32> {
        let Some(table) = &plans.positions else { return Vec::new() };
        if self.tower.positions == PatchPositions::Axes {
            return self.positions_of_axes(table, grid);
        }
        let mut all = vec![0.0; table.n_rows() * self.hidden];
        table.decode_rows(0..table.n_rows(), &mut all);
        let row_of =
            |row: usize, col: usize| &all[(row * self.table_side + col) * self.hidden..][..self.hidden];
        let mut out = Vec::with_capacity(grid.rows * grid.cols * self.hidden);
        for (row, col) in grid.squares(self.merge) {
            if self.tower.positions == PatchPositions::Table {
                let place = |at: usize, n: usize| {
                    if self.tower.sizing == SizingKind::Tiles { bucket(at, n) } else { at }
                };
                out.extend_from_slice(row_of(place(row, grid.rows), place(col, grid.cols)));
                continue;
            }
            let (top, down) = stretched(row, grid.rows, self.table_side);
            let (left, right) = stretched(col, grid.cols, self.table_side);
            let next = |at: usize| (at + 1).min(self.table_side - 1);
            let corners = [
                row_of(top, left),
                row_of(top, next(left)),
                row_of(next(top), left),
                row_of(next(top), next(left)),
            ];
            let factors =
                [(1.0 - down) * (1.0 - right), (1.0 - down) * right, down * (1.0 - right), down * right];
            out.extend(
                (0..self.hidden).map(|c| corners.iter().zip(factors).map(|(row, f)| row[c] * f).sum::<f32>()),
            );
        }
        out
    }

    /// `(patches, hidden)`: position embeddings from two concatenated tables, of which only the
    /// needed rows are decoded.
    fn positions_of_axes(&self, table: &Weight, grid: Grid) -> Vec<f32> {
        let rows_of = |first: usize, n: usize| {
            let mut rows = vec![0.0; n * self.hidden];
            table.decode_rows(first..first + n, &mut rows);
            rows
        };
        let (of_cols, of_rows) = (rows_of(0, grid.cols), rows_of(self.table_side, grid.rows));
        let mut out = Vec::with_capacity(grid.rows * grid.cols * self.hidden);
        for (row, col) in grid.squares(self.merge) {
            let (a, b) = (&of_cols[col * self.hidden..], &of_rows[row * self.hidden..]);
            out.extend(a.iter().zip(b).take(self.hidden).map(|(a, b)| a + b));
        }
        out
    }

    /// `(patches, hidden)`: the cosines of each patch for every head, then its sines; empty without
    /// RoPE. Half of a head's pairs rotates by rows and half by columns, in the order of
    /// [`Turning`].
    pub fn turns(&self, grid: Grid) -> Vec<f32> {
        if self.tower.turning == Turning::None {
            return Vec::new();
        }
        let quarter = self.head_dim() / 4;
        let frequency = |i: usize| self.rotation_base.powf(-(i as f64) / quarter as f64) as f32;
        let frequencies: Vec<f32> = (0..quarter).map(frequency).collect();
        let mut out = Vec::with_capacity(grid.rows * grid.cols * self.hidden);
        for (row, col) in grid.squares(self.merge) {
            let axes = if self.tower.turning == Turning::Halves { [col, row] } else { [row, col] };
            let angles: Vec<f32> =
                axes.iter().flat_map(|at| frequencies.iter().map(move |f| *at as f32 * f)).collect();
            for function in [f32::cos, f32::sin] {
                for _ in 0..self.n_heads {
                    out.extend(angles.iter().map(|angle| function(*angle)));
                }
            }
        }
        out
    }
}

/// Interpolation of place `at` of `n` in a table of `side` entries with aligned ends: the entry
/// before, and the distance beyond it.
fn stretched(at: usize, n: usize, side: usize) -> (usize, f32) {
    if n <= 1 {
        return (0, 0.0);
    }
    let place = at as f32 * (side - 1) as f32 / (n - 1) as f32;
    let before = (place.floor() as usize).min(side - 1);
    (before, place - before as f32)
}

/// The table entry for place `at` of `n`: the bucket of `at / n` among buckets that begin at
/// multiples of `1 / n`. Exact arithmetic would give `at`. If `n` is not a power of two, rounding
/// moves some, as in training.
fn bucket(at: usize, n: usize) -> usize {
    let place = (at as f32 * (1.0 / n as f32)).min(1.0 - 1e-6);
    let step = 1.0 / n as f64;
    (1..n).filter(|i| (step + (*i - 1) as f64 * step) as f32 <= place).count()
}

//! The flat tables: what is dispatched for a step, and where barriers stand.

use crate::gpu::{Binding, Dispatch, Encoder, Gpu, Place};
use device::{CommandInfo, Rows};
use std::ops::Range;

/// Rows of a step, by which schedules differ: GEMV of one, two, four or eight rows, or tiles of 32 or 64 rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RowClass {
    /// 1
    One,
    /// 2
    Two,
    /// 3 and 4
    Four,
    /// 5 to 8
    Eight,
    /// 9 to 32
    Tile,
    /// More.
    Many,
}

impl RowClass {
    /// All, ascending.
    pub const ALL: [RowClass; 6] =
        [RowClass::One, RowClass::Two, RowClass::Four, RowClass::Eight, RowClass::Tile, RowClass::Many];

    /// Of a number of rows.
    pub const fn of(n: usize) -> RowClass {
        match n {
            0 | 1 => RowClass::One,
            2 => RowClass::Two,
            3 | 4 => RowClass::Four,
            5..=8 => RowClass::Eight,
            9..=32 => RowClass::Tile,
            _ => RowClass::Many,
        }
    }

    /// Most rows; `None`: no bound.
    pub const fn most(self) -> Option<usize> {
        match self {
            RowClass::One => Some(1),
            RowClass::Two => Some(2),
            RowClass::Four => Some(4),
            RowClass::Eight => Some(8),
            RowClass::Tile => Some(32),
            RowClass::Many => None,
        }
    }

    /// Of so many rows for each of these.
    pub const fn times(self, k: usize) -> RowClass {
        match self.most() {
            Some(most) => RowClass::of(most * k),
            None => RowClass::Many,
        }
    }
}

/// One dimension of a grid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// Always so many.
    Fixed(u32),
    /// `ceil(rows * multiple / divisor)`
    PerRow {
        /// Which rows.
        rows: Rows,
        /// Units of a row.
        multiple: u32,
        /// Units of a threadgroup.
        divisor: u32,
    },
    /// `n_experts + rows * k / pairs`: tiles of the pairs of rows and their `k` experts.
    Tiles {
        /// Which rows.
        rows: Rows,
        /// Experts of a row.
        k: u32,
        /// Pairs of a tile.
        pairs: u32,
        /// Experts.
        n_experts: u32,
    },
}

/// In which steps a command runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// In all.
    Always,
    /// Where the best token is wanted, of a step by itself.
    Argmax,
    /// Where no sequence is long.
    Short,
    /// Where some sequence is.
    Long,
}

/// Sizes of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sizes {
    /// Tokens.
    pub n_rows: usize,
    /// Rows whose logits are wanted.
    pub n_outputs: usize,
    /// Whether the best token is wanted.
    pub argmax: bool,
    /// Whether what chooses it makes it the next step's, behind the table.
    pub chained: bool,
    /// Whether a sequence is so long that its positions are split over threadgroups.
    pub long: bool,
}

impl Extent {
    fn count(self, sizes: &Sizes) -> u32 {
        match self {
            Extent::Fixed(n) => n,
            Extent::PerRow { rows, multiple, divisor } => {
                let rows = rows.count(sizes.n_rows, sizes.n_outputs) as u64;
                (rows * u64::from(multiple)).div_ceil(u64::from(divisor)) as u32
            }
            Extent::Tiles { rows, k, pairs, n_experts } => {
                match rows.count(sizes.n_rows, sizes.n_outputs) as u32 {
                    0 => 0,
                    n => n_experts + n * k / pairs,
                }
            }
        }
    }
}

/// What a part of a command touches, for barriers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Space {
    /// Bytes of a buffer.
    Buffer(u16),
    /// The pages of a KV layer, all of them.
    Kv(u32),
}

/// Bytes that a command reads or writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Region {
    /// Of what.
    pub space: Space,
    /// Which.
    pub bytes: Range<u64>,
}

impl Region {
    fn meets(&self, other: &Region) -> bool {
        self.space == other.space && self.bytes.start < other.bytes.end && other.bytes.start < self.bytes.end
    }
}

/// One dispatch of a table.
pub struct Command<G: Gpu> {
    /// What runs.
    pub pipeline: G::Pipeline,
    /// Buffers.
    pub bindings: Box<[Binding]>,
    /// At buffer 0.
    pub arguments: Box<[u8]>,
    /// Bytes of `[[threadgroup(0)]]`.
    pub threadgroup_bytes: u32,
    /// Threadgroups.
    pub grid: [Extent; 3],
    /// Threads of each.
    pub threads: [u32; 3],
    /// In which steps it runs.
    pub when: When,
    /// What it reads.
    pub reads: Vec<Region>,
    /// What it writes.
    pub writes: Vec<Region>,
}

impl<G: Gpu> Command<G> {
    /// Threadgroups; `None`: there is nothing to do.
    fn threadgroups(&self, sizes: &Sizes) -> Option<[u32; 3]> {
        let threadgroups = self.grid.map(|extent| extent.count(sizes));
        let runs = match self.when {
            When::Always => true,
            When::Argmax => sizes.argmax && !sizes.chained,
            When::Short => !sizes.long,
            When::Long => sizes.long,
        };
        (runs && !threadgroups.contains(&0)).then_some(threadgroups)
    }

    /// Write it into an encoder; whether there was anything to do.
    pub fn encode(&self, encoder: &mut G::Encoder, buffers: &[G::Buffer], sizes: &Sizes) -> bool {
        let threadgroups = self.threadgroups(sizes);
        if let Some(threadgroups) = threadgroups {
            self.dispatch(threadgroups, encoder, buffers);
        }
        threadgroups.is_some()
    }

    fn dispatch(&self, threadgroups: [u32; 3], encoder: &mut G::Encoder, buffers: &[G::Buffer]) {
        let dispatch = Dispatch {
            pipeline: &self.pipeline,
            bindings: &self.bindings,
            arguments: &self.arguments,
            threadgroup_bytes: self.threadgroup_bytes,
            threadgroups,
            threads: self.threads,
        };
        encoder.dispatch(&dispatch, buffers);
    }
}

/// A table: commands in order, and before which of them a barrier stands.
pub struct Table<G: Gpu> {
    /// Replayed in order.
    pub commands: Vec<Command<G>>,
    /// By command: whether a barrier stands before it.
    pub barriers: Vec<bool>,
    /// By command.
    pub infos: Vec<CommandInfo>,
    /// Where the head leaves the largest of each of its parts, and of how many.
    pub bests: Option<(Place, usize)>,
}

impl<G: Gpu> Table<G> {
    /// Of commands, with as few barriers as what they read and write allows.
    pub fn new(
        commands: Vec<Command<G>>,
        infos: Vec<CommandInfo>,
        bests: Option<(Place, usize)>,
    ) -> Table<G> {
        let regions: Vec<_> = commands.iter().map(|c| (c.reads.as_slice(), c.writes.as_slice())).collect();
        Table { barriers: barriers(&regions), commands, infos, bests }
    }

    /// Write all of it.
    pub fn encode(&self, encoder: &mut G::Encoder, buffers: &[G::Buffer], sizes: &Sizes) {
        // What is left out leaves its barrier to what follows.
        let mut due = false;
        for (command, barrier) in self.commands.iter().zip(&self.barriers) {
            due |= barrier;
            let Some(threadgroups) = command.threadgroups(sizes) else { continue };
            if std::mem::take(&mut due) {
                encoder.barrier();
            }
            command.dispatch(threadgroups, encoder, buffers);
        }
    }
}

/// Before which commands a barrier must stand, of what each reads and writes: before one that reads what another of its group
/// writes, or writes what another reads or writes.
fn barriers(commands: &[(&[Region], &[Region])]) -> Vec<bool> {
    let mut barriers = Vec::with_capacity(commands.len());
    let mut first = 0;
    for (index, (reads, writes)) in commands.iter().enumerate() {
        let meets = |a: &[Region], b: &[Region]| a.iter().any(|a| b.iter().any(|b| a.meets(b)));
        let conflict = commands[first..index].iter().any(|(other_reads, other_writes)| {
            meets(reads, other_writes) || meets(writes, other_reads) || meets(writes, other_writes)
        });
        if conflict {
            first = index;
        }
        barriers.push(conflict);
    }
    barriers
}

/// A place and the bytes behind it, as a region of its buffer.
pub fn region(place: Place, bytes: usize) -> Region {
    Region { space: Space::Buffer(place.buffer), bytes: place.offset..place.offset + bytes as u64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(start: u64, end: u64) -> Region {
        Region { space: Space::Buffer(0), bytes: start..end }
    }

    #[test]
    fn barriers_stand_where_bytes_meet_and_nowhere_else() {
        let kv = |layer: u32| Region { space: Space::Kv(layer), bytes: 0..u64::MAX };
        // (reads, writes)
        let commands = [
            (vec![], vec![at(0, 10)]),
            (vec![at(0, 10)], vec![at(10, 20)]), // reads what the first wrote
            (vec![at(0, 10)], vec![at(20, 30)]), // with the one before
            (vec![at(0, 10)], vec![at(30, 40), kv(0)]), // with them
            (vec![kv(1)], vec![at(40, 50)]),     // another layer
            (vec![kv(0)], vec![at(50, 60)]),     // reads the layer
            (vec![], vec![at(55, 56)]),          // writes over it
            (vec![], vec![at(60, 61)]),          // touches nothing of it
            (vec![], vec![Region { space: Space::Buffer(1), bytes: 55..56 }]),
        ];
        let regions: Vec<_> = commands.iter().map(|(r, w)| (r.as_slice(), w.as_slice())).collect();
        let expected = [false, true, false, false, false, true, true, false, false];
        assert_eq!(barriers(&regions), expected);
    }

    #[test]
    fn classes_and_extents() {
        let most = [0, 1, 2, 3, 5, 8, 9, 33].map(|n| RowClass::of(n).most().unwrap_or(0));
        assert_eq!(most, [1, 1, 2, 4, 8, 8, 32, 0]);
        assert_eq!(RowClass::Four.times(2), RowClass::Eight);
        assert_eq!(RowClass::Tile.times(2), RowClass::Many);
        let sizes = Sizes { n_rows: 5, n_outputs: 2, ..Sizes::default() };
        let per_row = |rows| Extent::PerRow { rows, multiple: 100, divisor: 256 }.count(&sizes);
        assert_eq!([per_row(Rows::Tokens), per_row(Rows::Outputs), per_row(Rows::PerToken(2))], [2, 1, 4]);
        let tiles = Extent::Tiles { rows: Rows::Tokens, k: 7, pairs: 32, n_experts: 3 };
        assert_eq!(tiles.count(&sizes), 4);
    }
}

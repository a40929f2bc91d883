//! The flat table of commands that a program replays: the kernel, operands and conditions of each
//! command, and the barriers between commands.
//!
//! A [`Command`] has a fixed size and is plain data. Parts of variable length (operands,
//! parameters, byte ranges) are in arrays of the table, and the command holds slices of these. So a
//! device can walk the table, record it into a graph, or upload it unchanged. [`Table::runs`] alone
//! defines the order of commands and which of them wait for earlier ones.

use device::{CommandInfo, RowCount, ValueId};
use std::ops::Range;

/// Class of the number of rows of a step. Schedules differ between classes.
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
    /// More than 32.
    Many,
}

impl RowClass {
    /// All classes, ascending.
    pub const ALL: [RowClass; 6] =
        [RowClass::One, RowClass::Two, RowClass::Four, RowClass::Eight, RowClass::Tile, RowClass::Many];

    /// The class of a number of rows.
    pub const fn of(n: usize) -> RowClass {
        match n {
            0 | 1 => RowClass::One,
            2 => RowClass::Two,
            3 | 4 => RowClass::Four,
            5..=8 => RowClass::Eight,
            9..=32 => RowClass::Tile,
            33.. => RowClass::Many,
        }
    }

    /// Largest number of rows; `None` if unbounded.
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

    /// The class of `k` rows for each row of this class.
    pub const fn times(self, k: usize) -> RowClass {
        match self.most() {
            Some(most) => RowClass::of(most * k),
            None => RowClass::Many,
        }
    }
}

/// One dimension of a grid, in threadgroups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// A constant number.
    Fixed(u32),
    /// `ceil(rows * multiple / divisor)`
    PerRow {
        /// Kind of the rows.
        rows: RowCount,
        /// Units of a row.
        multiple: u32,
        /// Units of a threadgroup.
        divisor: u32,
    },
    /// `n_experts + rows * k / pairs`: tiles of pairs of a row and one of its `k` experts.
    Tiles {
        /// Kind of the rows.
        rows: RowCount,
        /// Experts of a row.
        k: u32,
        /// Pairs of a tile.
        pairs: u32,
        /// Experts.
        n_experts: u32,
    },
    /// One threadgroup for each sequence of the step.
    Spans,
}

impl Extent {
    fn count(self, sizes: &StepSizes) -> u32 {
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
            Extent::Spans => sizes.n_spans as u32,
        }
    }
}

/// Condition on steps in which a command runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// All steps.
    Always,
    /// Steps with biases or penalties on an output's logits.
    Penalties,
    /// Steps with a mask on an output's tokens.
    Masks,
    /// Steps that want the best token of an output.
    Best,
    /// Steps that want the best token of an output and change no output's logits.
    BestOfPlain,
    /// Steps that want the best token of an output and change some output's logits, by biases,
    /// penalties or a mask.
    BestOfChanged,
    /// Steps that sample an output's token.
    Sample,
    /// Steps without a long sequence.
    Short,
    /// Steps with a long sequence.
    Long,
}

/// Sizes and conditions of a step, as a table needs them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepSizes {
    /// Number of tokens.
    pub n_rows: usize,
    /// Number of rows whose logits are wanted.
    pub n_outputs: usize,
    /// True if the program chooses the best token of some output.
    pub best: bool,
    /// True if the program samples the token of some output.
    pub sample: bool,
    /// True if the program applies biases or penalties to some output's logits.
    pub penalties: bool,
    /// True if the program applies some output's mask.
    pub masks: bool,
    /// True if a sequence is so long that its positions are split over threadgroups.
    pub long: bool,
    /// Number of sequences.
    pub n_spans: usize,
    /// True if one launch computes the whole step, on a device with a table for such steps.
    pub whole: bool,
}

impl When {
    fn holds(self, sizes: &StepSizes) -> bool {
        match self {
            When::Always => true,
            When::Penalties => sizes.penalties,
            When::Masks => sizes.masks,
            When::Best => sizes.best,
            When::BestOfPlain => sizes.best && !sizes.penalties && !sizes.masks,
            When::BestOfChanged => sizes.best && (sizes.penalties || sizes.masks),
            When::Sample => sizes.sample,
            When::Short => !sizes.long,
            When::Long => sizes.long,
        }
    }
}

/// A byte in a buffer of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Location {
    /// Index into the program's buffers.
    pub buffer: u16,
    /// Bytes from its start.
    pub offset: u64,
}

/// Memory that a kernel's parameter points to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operand {
    /// Index of the parameter.
    pub index: u8,
    /// Start of the memory.
    pub location: Location,
    /// Bytes that the kernel may access; 0 for all up to the buffer's end.
    pub len: u64,
}

/// Memory that several commands may access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Space {
    /// Bytes of a buffer.
    Buffer(u16),
    /// The pages of a KV layer, all of them.
    Kv(u32),
}

/// Bytes that a command reads or writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// The memory.
    pub space: Space,
    /// First byte.
    pub start: u64,
    /// One past the last byte.
    pub end: u64,
}

impl Region {
    /// Bytes of a buffer.
    pub fn of(location: Location, bytes: usize) -> Region {
        let (start, space) = (location.offset, Space::Buffer(location.buffer));
        Region { space, start, end: start + bytes as u64 }
    }

    /// All pages of a KV layer.
    pub fn kv(layer: device::KvLayerId) -> Region {
        Region { space: Space::Kv(layer.0), start: 0, end: u64::MAX }
    }

    fn overlaps(&self, other: &Region) -> bool {
        self.space == other.space && self.start < other.end && other.start < self.end
    }
}

/// Range of elements of one of the table's arrays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slice {
    /// Index of the first element.
    pub first: u32,
    /// Number of elements.
    pub n: u32,
}

impl Slice {
    fn range(self) -> Range<usize> {
        self.first as usize..(self.first + self.n) as usize
    }
}

/// One dispatch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Command {
    /// Index into the device's kernels.
    pub kernel: u32,
    /// Slice of the table's operands.
    pub operands: Slice,
    /// Slice of the table's parameters, in bytes.
    pub parameters: Slice,
    /// Slice of the table's regions that the command reads.
    pub reads: Slice,
    /// Slice of the table's regions that the command writes.
    pub writes: Slice,
    /// Slice of the table's values that the command writes.
    pub values: Slice,
    /// Threadgroups.
    pub grid: [Extent; 3],
    /// Threads of each threadgroup.
    pub threads: u32,
    /// Bytes of memory that each threadgroup shares.
    pub threadgroup_bytes: u32,
    /// Condition on the step.
    pub when: When,
    /// True if the command must wait for the commands since the last barrier: it reads what one of
    /// them writes, or writes what one of them reads or writes.
    pub barrier: bool,
}

/// A dispatch to be added to a table.
#[derive(Clone, Copy, Debug)]
pub struct NewCommand<'a> {
    /// Index into the device's kernels.
    pub kernel: u32,
    /// Memory that its parameters point to.
    pub operands: &'a [Operand],
    /// Parameters passed by value.
    pub parameters: &'a [u8],
    /// Regions that it reads and other commands write.
    pub reads: &'a [Region],
    /// Regions that the command writes.
    pub writes: &'a [Region],
    /// Values that the command writes.
    pub values: &'a [ValueId],
    /// Threadgroups.
    pub grid: [Extent; 3],
    /// Threads of each threadgroup.
    pub threads: u32,
    /// Bytes of memory that each threadgroup shares.
    pub threadgroup_bytes: u32,
    /// Condition on the step.
    pub when: When,
}

/// Commands in order.
#[derive(Clone, Debug, Default)]
pub struct Table {
    commands: Vec<Command>,
    operands: Vec<Operand>,
    parameters: Vec<u8>,
    regions: Vec<Region>,
    values: Vec<ValueId>,
    infos: Vec<CommandInfo>,
    /// Index of the first command since the last barrier.
    group: usize,
}

/// A command that runs in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Index in the table.
    pub index: usize,
    /// True if a barrier precedes it.
    pub barrier: bool,
    /// Threadgroups in each dimension, none of them 0.
    pub threadgroups: [u32; 3],
}

impl Table {
    /// Adds a command. A barrier precedes it only if the bytes that it reads and writes require
    /// one.
    pub fn push(&mut self, new: NewCommand, info: CommandInfo) {
        let barrier = self.conflicts(new.reads, new.writes);
        if barrier {
            self.group = self.commands.len();
        }
        let command = Command {
            kernel: new.kernel,
            operands: append(&mut self.operands, new.operands),
            parameters: append(&mut self.parameters, new.parameters),
            reads: append(&mut self.regions, new.reads),
            writes: append(&mut self.regions, new.writes),
            values: append(&mut self.values, new.values),
            grid: new.grid,
            threads: new.threads,
            threadgroup_bytes: new.threadgroup_bytes,
            when: new.when,
            barrier,
        };
        self.commands.push(command);
        self.infos.push(info);
    }

    /// Returns true if a command since the last barrier writes a region that is read, or reads or
    /// writes a region that is written.
    fn conflicts(&self, reads: &[Region], writes: &[Region]) -> bool {
        let overlap = |a: &[Region], b: &[Region]| a.iter().any(|a| b.iter().any(|b| a.overlaps(b)));
        self.commands[self.group..].iter().any(|other| {
            let (other_reads, other_writes) = (self.regions(other.reads), self.regions(other.writes));
            overlap(reads, other_writes) || overlap(writes, other_reads) || overlap(writes, other_writes)
        })
    }

    /// The commands.
    pub fn commands(&self) -> &[Command] {
        &self.commands
    }

    /// Descriptions of the commands for people, one for each.
    pub fn infos(&self) -> &[CommandInfo] {
        &self.infos
    }

    /// Memory that the parameters of a command point to.
    pub fn operands(&self, command: &Command) -> &[Operand] {
        &self.operands[command.operands.range()]
    }

    /// Parameters of a command passed by value.
    pub fn parameters(&self, command: &Command) -> &[u8] {
        &self.parameters[command.parameters.range()]
    }

    /// Regions that a command reads, or writes.
    pub fn regions(&self, slice: Slice) -> &[Region] {
        &self.regions[slice.range()]
    }

    /// Threadgroups of a command in a step; `None` if it does not run.
    pub fn threadgroups(&self, index: usize, sizes: &StepSizes) -> Option<[u32; 3]> {
        let command = &self.commands[index];
        let threadgroups = command.grid.map(|extent| extent.count(sizes));
        (command.when.holds(sizes) && !threadgroups.contains(&0)).then_some(threadgroups)
    }

    /// Number of commands up to the last one that belongs to a node up to `node`.
    pub fn until(&self, node: usize) -> usize {
        self.infos.iter().rposition(|info| info.node <= node).map_or(0, |last| last + 1)
    }

    /// Returns true if a region holds a value after the first `n` commands of a step. Then one of
    /// them wrote the value, and no later one wrote anything else there.
    pub fn holds(&self, value: ValueId, region: &Region, sizes: &StepSizes, n: usize) -> bool {
        let mut holds = false;
        for run in self.runs(sizes).take_while(|run| run.index < n) {
            let command = &self.commands[run.index];
            if self.regions(command.writes).iter().any(|written| written.overlaps(region)) {
                holds = self.values[command.values.range()].contains(&value);
            }
        }
        holds
    }

    /// Commands that run in a step, in order. A command that does not run passes its barrier to the
    /// next one.
    pub fn runs(&self, sizes: &StepSizes) -> impl Iterator<Item = Run> {
        let mut due = false;
        self.commands.iter().enumerate().filter_map(move |(index, command)| {
            due |= command.barrier;
            let threadgroups = self.threadgroups(index, sizes)?;
            Some(Run { index, barrier: std::mem::take(&mut due), threadgroups })
        })
    }
}

/// Appends elements to an array, and returns their range.
fn append<T: Copy>(array: &mut Vec<T>, elements: &[T]) -> Slice {
    let slice = Slice { first: array.len() as u32, n: elements.len() as u32 };
    array.extend_from_slice(elements);
    slice
}

#[cfg(test)]
mod tests {
    use super::*;
    use device::KvLayerId;

    fn at(start: u64, end: u64) -> Region {
        Region { space: Space::Buffer(0), start, end }
    }

    /// A table of commands that read and write these regions.
    fn table(commands: &[(Vec<Region>, Vec<Region>)], whens: &[When]) -> Table {
        let mut table = Table::default();
        for (index, (reads, writes)) in commands.iter().enumerate() {
            let info = CommandInfo { kernel: index.to_string(), node: index, layer: None, weight_bytes: 0 };
            let operand =
                Operand { index: 7, location: Location { buffer: 3, offset: index as u64 }, len: 0 };
            let new = NewCommand {
                kernel: index as u32,
                operands: &vec![operand; index],
                parameters: &vec![index as u8; 16 * index],
                reads,
                writes,
                values: &vec![ValueId(index as u32); writes.len()],
                grid: [Extent::Fixed(1); 3],
                threads: 32,
                threadgroup_bytes: 0,
                when: whens.get(index).copied().unwrap_or(When::Always),
            };
            table.push(new, info);
        }
        table
    }

    #[test]
    fn barriers_stand_where_bytes_overlap_and_nowhere_else() {
        let kv = |layer: u32| Region::kv(KvLayerId(layer));
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
            (vec![], vec![Region { space: Space::Buffer(1), start: 55, end: 56 }]),
            (vec![], vec![at(60, 61)]), // writes the same bytes
        ];
        let table = table(&commands, &[]);
        let found = Vec::from_iter(table.commands().iter().map(|command| command.barrier));
        assert_eq!(found, [false, true, false, false, false, true, true, false, false, true]);
    }

    #[test]
    fn a_command_that_does_not_run_leaves_its_barrier_to_the_next() {
        let chain = [(vec![], vec![at(0, 1)]), (vec![at(0, 1)], vec![at(1, 2)]), (vec![], vec![at(2, 3)])];
        let table = table(&chain, &[When::Always, When::Long, When::Always]);
        let run = |index, barrier| Run { index, barrier, threadgroups: [1; 3] };
        let sizes = StepSizes { n_rows: 1, ..StepSizes::default() };
        assert_eq!(Vec::from_iter(table.runs(&sizes)), [run(0, false), run(2, true)]);
        let long = StepSizes { long: true, ..sizes };
        assert_eq!(Vec::from_iter(table.runs(&long)), [run(0, false), run(1, true), run(2, false)]);
    }

    #[test]
    fn a_command_finds_its_own_operands_and_parameters() {
        let nothing = (vec![], vec![]);
        let table = table(&[nothing.clone(), nothing.clone(), nothing], &[]);
        for (index, command) in table.commands().iter().enumerate() {
            let offsets = table.operands(command).iter().map(|operand| operand.location.offset);
            assert_eq!(Vec::from_iter(offsets), vec![index as u64; index]);
            assert_eq!(table.parameters(command), vec![index as u8; 16 * index]);
            assert_eq!(table.infos()[index].node, index);
        }
    }

    #[test]
    fn a_value_is_there_until_its_bytes_are_written_again() {
        let commands =
            [(vec![], vec![at(0, 4)]), (vec![], vec![at(4, 8)]), (vec![], vec![]), (vec![], vec![at(2, 5)])];
        let table = table(&commands, &[When::Always, When::Always, When::Always, When::Long]);
        let sizes = StepSizes { n_rows: 1, ..StepSizes::default() };
        let holds = |value, sizes: &StepSizes, n| table.holds(ValueId(value), &at(0, 4), sizes, n);
        assert_eq!([0, 1, 3, 4].map(|n| holds(0, &sizes, n)), [false, true, true, true]);
        let long = StepSizes { long: true, ..sizes };
        assert_eq!([3, 4].map(|n| holds(0, &long, n)), [true, false]);
        assert!(!holds(1, &sizes, 4), "another's region");
        assert_eq!([0, 2, 9].map(|node| table.until(node)), [1, 3, 4]);
    }

    #[test]
    fn classes_and_extents() {
        let most = [0, 1, 2, 3, 5, 8, 9, 33].map(|n| RowClass::of(n).most().unwrap_or(0));
        assert_eq!(most, [1, 1, 2, 4, 8, 8, 32, 0]);
        assert_eq!(RowClass::Four.times(2), RowClass::Eight);
        assert_eq!(RowClass::Tile.times(2), RowClass::Many);
        let sizes = StepSizes { n_rows: 5, n_outputs: 2, ..StepSizes::default() };
        let per_row = |rows| Extent::PerRow { rows, multiple: 100, divisor: 256 }.count(&sizes);
        assert_eq!(
            [per_row(RowCount::Tokens), per_row(RowCount::Outputs), per_row(RowCount::PerToken(2))],
            [2, 1, 4]
        );
        let tiles = Extent::Tiles { rows: RowCount::Tokens, k: 7, pairs: 32, n_experts: 3 };
        assert_eq!(tiles.count(&sizes), 4);
    }
}

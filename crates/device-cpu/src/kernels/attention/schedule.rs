//! The attention of a step as a list of work units, written once before the step runs. Its inputs
//! are positions and page numbers only.
//!
//! Rows of a prompt are *whole* units: a tile of neighbouring rows and a KV head, over all
//! positions that the rows see. A few rows with many positions would be too few units, so the
//! positions of a span of one tile are *split*. A unit is then a chunk of positions, with all KV
//! heads if a row is alone, which is the order of memory. Chunks are at absolute multiples of
//! [`Sizes::chunk_len`]. A row's partial results are combined in ascending order, so its bits
//! depend on its own context only.
//!
//! The file is past 600 lines with its tests, which count the chunks of each row.
//!
//! # Shared pages
//!
//! Sequences whose page tables begin with the same pages read these pages together. A chunk within
//! the common pages is one unit for the rows of all these sequences and one KV head. The spans are
//! sorted by their page tables, so that common prefixes are neighbours.
//!
//! # Order
//!
//! Workers take units from a shared counter, so large units come first. The order is whole tiles by
//! their cost, then shared chunks, then the chunks of single rows, row by row.

use super::tile::Row;
use device::{Limits, Span};
use std::cmp::Reverse;
use std::ops::Range;

/// Least units of each worker in a step without whole tiles, if there are enough heads.
const UNITS: usize = 4;
/// Number of rows whose longest contexts can all be split; lower if fewer spans are allowed.
const MAX_ROWS: usize = 64;
/// Lower bound of that number, since a span may have several rows.
const MIN_ROWS: usize = 4;

/// Rows of a step to schedule.
#[derive(Clone, Copy)]
pub struct StepRows<'a> {
    /// Spans in row order.
    pub spans: &'a [Span],
    /// Output rows, ascending.
    pub outputs: &'a [u32],
    /// `(n_slots, n_groups, pages_per_table)`
    pub page_tables: &'a [u32],
    /// Entries of one table.
    pub pages_per_table: usize,
    /// KV groups.
    pub n_groups: usize,
}

/// Facts that the units of an Attention depend on. Attentions with equal shapes share a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScheduleShape {
    /// Index of the KV group, and so of its page table.
    pub group: usize,
    /// Positions that a row sees, its own included.
    pub window: usize,
    /// True if the window begins at a multiple of its length.
    pub chunked: bool,
    /// True if a row also sees later rows of its span.
    pub both_ways: bool,
    /// KV heads.
    pub n_kv_heads: usize,
    /// Rows of a tile.
    pub tile_rows: usize,
    /// True if only the step's output rows are computed.
    pub of_outputs: bool,
}

/// The sizes of a schedule, from a program's limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Positions of a chunk, a multiple of every block's length.
    pub chunk_len: usize,
    /// Maximum number of rows of a step.
    pub max_rows: usize,
    /// Maximum number of chunks of all split rows together.
    pub max_chunks: usize,
    /// Positions of a page.
    pub page_len: usize,
    /// Maximum number of spans of a step.
    pub max_spans: usize,
}

impl Sizes {
    /// Sizes for these limits. Chunks have at least 256 positions, and a sequence at most 64
    /// chunks.
    pub fn new(limits: &Limits) -> Sizes {
        let chunk_len = limits.n_ctx.div_ceil(64).next_multiple_of(256).max(256);
        Sizes {
            chunk_len,
            max_rows: limits.max_rows,
            max_chunks: limits.max_spans.clamp(MIN_ROWS, MAX_ROWS) * limits.n_ctx.div_ceil(chunk_len),
            page_len: limits.page_len,
            max_spans: limits.max_spans,
        }
    }

    /// Maximum number of rows that are split.
    pub fn split_rows(&self) -> usize {
        self.max_chunks.min(self.max_rows)
    }

    /// Maximum number of units of a schedule.
    pub fn units(&self, n_kv_heads: usize, tile_rows: usize) -> usize {
        (self.max_rows.div_ceil(tile_rows) + self.max_spans + self.max_chunks) * n_kv_heads
    }

    /// Bytes of a schedule of `n_units`.
    pub fn bytes(&self, n_units: usize) -> usize {
        n_units * size_of::<AttentionUnit>()
            + self.max_rows * size_of::<Row>()
            + self.split_rows() * size_of::<Split>()
            + self.max_spans * size_of::<u32>()
    }

    /// Chunks that contain some of these positions.
    pub fn chunks(&self, positions: &Range<usize>) -> Range<usize> {
        positions.start / self.chunk_len..positions.end.div_ceil(self.chunk_len)
    }

    /// Positions of a chunk that are among these positions.
    pub fn within(&self, chunk: usize, positions: &Range<usize>) -> Range<usize> {
        positions.start.max(chunk * self.chunk_len)..positions.end.min((chunk + 1) * self.chunk_len)
    }
}

/// A unit of work for one worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttentionUnit {
    /// Rows of one span and a KV head, over all positions that the rows see.
    Whole {
        /// Index of the first row in [`Schedule::rows`].
        first: u32,
        /// Rows.
        n_rows: u32,
        /// Slot of the page table.
        slot: u32,
        /// The KV head.
        kv_head: u32,
    },
    /// Split rows that share the pages of a chunk. Several rows are computed for one KV head only.
    Chunk {
        /// Index of the first row in [`Schedule::rows`] and [`Schedule::split`].
        first: u32,
        /// Rows.
        n_rows: u32,
        /// Index of the chunk.
        chunk: u32,
        /// The first KV head.
        first_head: u16,
        /// KV heads.
        n_heads: u16,
    },
}

/// A row whose positions are split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Split {
    /// Slot of the page table.
    pub slot: u32,
    /// Index of the first chunk's partial result in the step.
    pub first_partial: u32,
    /// Index of its first chunk.
    pub first_chunk: u32,
    /// Number of its chunks.
    pub n_chunks: u32,
    /// Positions whose pages are shared with the row before; all positions if both are of one span.
    shared: u32,
}

impl Split {
    fn has(&self, chunk: u32) -> bool {
        (self.first_chunk..self.first_chunk + self.n_chunks).contains(&chunk)
    }

    /// Index of a chunk's partial result.
    pub fn partial(&self, chunk: u32) -> usize {
        (self.first_partial + chunk - self.first_chunk) as usize
    }
}

/// Units of a step. Its buffers are allocated once.
#[derive(Debug)]
pub struct Schedule {
    sizes: Sizes,
    /// Split rows first, in the order of `split`, then rows of whole tiles.
    rows: Vec<Row>,
    split: Vec<Split>,
    units: Vec<AttentionUnit>,
    /// Indices of the spans that are split.
    order: Vec<u32>,
}

impl Schedule {
    /// A schedule with room for `n_units` ([`Sizes::units`]).
    pub fn new(sizes: Sizes, n_units: usize) -> Schedule {
        Schedule {
            sizes,
            rows: Vec::with_capacity(sizes.max_rows),
            split: Vec::with_capacity(sizes.split_rows()),
            units: Vec::with_capacity(n_units),
            order: Vec::with_capacity(sizes.max_spans),
        }
    }

    /// Sizes of the schedule.
    pub fn sizes(&self) -> &Sizes {
        &self.sizes
    }

    /// Rows that units refer to.
    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// The split rows, which come first in [`Self::rows`].
    pub fn split(&self) -> &[Split] {
        &self.split
    }

    /// Units in the order in which workers take them.
    pub fn units(&self) -> &[AttentionUnit] {
        &self.units
    }

    /// Writes the units of a step for `n_workers`. Allocates nothing.
    pub fn write(&mut self, shape: &ScheduleShape, step: &StepRows<'_>, n_workers: usize) {
        self.rows.clear();
        self.split.clear();
        self.units.clear();
        self.order.clear();
        self.choose_spans(shape, step);
        self.sort_spans(shape, step);
        self.split_rows(shape, step);
        self.whole_tiles(shape, step);
        let rows = &self.rows;
        self.units.sort_unstable_by_key(|unit| match unit {
            AttentionUnit::Whole { first, n_rows, .. } => {
                let last = (first + n_rows - 1) as usize;
                Reverse((shape.seen(rows[last].position).len() as u64 * u64::from(*n_rows), *first))
            }
            AttentionUnit::Chunk { first, .. } => Reverse((0, *first)),
        });
        self.shared_chunks(shape);
        self.single_chunks(shape, n_workers);
    }

    /// Chooses the spans to split: those of one tile, single rows first, while there is room for
    /// their partial results.
    fn choose_spans(&mut self, shape: &ScheduleShape, step: &StepRows<'_>) {
        let (mut rows_left, mut chunks_left) = (self.sizes.split_rows(), self.sizes.max_chunks);
        for single in [true, false] {
            for (index, span) in step.spans.iter().enumerate() {
                let n_rows = span.n_rows as usize;
                // Spans whose rows see later rows are not split.
                let most = if shape.both_ways { 1 } else { shape.tile_rows };
                if (n_rows == 1) != single || n_rows > most {
                    continue;
                }
                let last = span.first_position + span.n_rows - 1;
                // Upper bound: as if each row had the chunks of all rows.
                let seen = shape.seen(span.first_position).start..shape.seen(last).end;
                let n_chunks = self.sizes.chunks(&seen).len() * n_rows;
                if n_rows <= rows_left && n_chunks <= chunks_left {
                    rows_left -= n_rows;
                    chunks_left -= n_chunks;
                    self.order.push(index as u32);
                }
            }
        }
    }

    /// Sorts the spans so that common prefixes of pages are neighbours.
    fn sort_spans(&mut self, shape: &ScheduleShape, step: &StepRows<'_>) {
        let page_len = self.sizes.page_len;
        let key = |index: &u32| {
            let span = &step.spans[*index as usize];
            (pages(shape, step, span, page_len), span.first_row)
        };
        self.order.sort_unstable_by(|a, b| key(a).cmp(&key(b)));
    }

    /// Adds the computed rows of the chosen spans.
    fn split_rows(&mut self, shape: &ScheduleShape, step: &StepRows<'_>) {
        let (mut first_partial, mut before) = (0, None::<&Span>);
        for index in &self.order {
            let span = &step.spans[*index as usize];
            for i in 0..span.n_rows {
                let row = Row::causal(span.first_row + i, span.first_position + i);
                if !shape.wants(step, row.row, 1) {
                    continue;
                }
                let shared = before.map_or(0, |before| {
                    if before.slot == span.slot {
                        return u32::MAX;
                    }
                    let pages = |span| pages(shape, step, span, self.sizes.page_len);
                    let (a, b) = (pages(before), pages(span));
                    let same = a.iter().zip(b).take_while(|(a, b)| a == b).count();
                    (same * self.sizes.page_len) as u32
                });
                before = Some(span);
                let chunks = self.sizes.chunks(&shape.seen(row.position));
                self.rows.push(row);
                self.split.push(Split {
                    slot: span.slot,
                    first_partial,
                    first_chunk: chunks.start as u32,
                    n_chunks: chunks.len() as u32,
                    shared,
                });
                first_partial += chunks.len() as u32;
            }
        }
    }

    /// Adds the tiles of all other spans as units.
    fn whole_tiles(&mut self, shape: &ScheduleShape, step: &StepRows<'_>) {
        for (index, span) in step.spans.iter().enumerate() {
            if self.order.contains(&(index as u32)) {
                continue;
            }
            for before in (0..span.n_rows).step_by(shape.tile_rows) {
                let n_rows = (span.n_rows - before).min(shape.tile_rows as u32);
                if !shape.wants(step, span.first_row + before, n_rows) {
                    continue;
                }
                let first = self.rows.len() as u32;
                self.rows.extend((before..before + n_rows).map(|i| {
                    let row = Row::causal(span.first_row + i, span.first_position + i);
                    if shape.both_ways { Row { end: span.end() as u32, ..row } } else { row }
                }));
                self.units.extend((0..shape.n_kv_heads as u32).map(|kv_head| AttentionUnit::Whole {
                    first,
                    n_rows,
                    slot: span.slot,
                    kv_head,
                }));
            }
        }
    }

    /// End of the rows that share the pages of a chunk with row `first`, which has this chunk.
    fn end_of_shared(&self, first: usize, chunk: u32) -> usize {
        let end = (chunk + 1) as usize * self.sizes.chunk_len;
        let with_previous = |row: &Split| row.shared as usize >= end && row.has(chunk);
        first + 1 + self.split[first + 1..].iter().take_while(|row| with_previous(row)).count()
    }

    /// Adds units of chunks that several rows read together.
    fn shared_chunks(&mut self, shape: &ScheduleShape) {
        let n_chunks = self.split.iter().map(|row| row.first_chunk + row.n_chunks).max().unwrap_or(0);
        for chunk in 0..n_chunks {
            let mut first = 0;
            while first < self.split.len() {
                if !self.split[first].has(chunk) {
                    first += 1;
                    continue;
                }
                let end = self.end_of_shared(first, chunk);
                // Tiles have equal sizes, so that the last one is not a small rest. A row that is
                // alone has none.
                let n_tiles = if end == first + 1 { 0 } else { (end - first).div_ceil(shape.tile_rows) };
                for tile in 0..n_tiles {
                    let rows =
                        first + (end - first) * tile / n_tiles..first + (end - first) * (tile + 1) / n_tiles;
                    self.units.extend((0..shape.n_kv_heads as u16).map(|first_head| AttentionUnit::Chunk {
                        first: rows.start as u32,
                        n_rows: rows.len() as u32,
                        chunk,
                        first_head,
                        n_heads: 1,
                    }));
                }
                first = end;
            }
        }
    }

    /// Adds units of chunks that a row reads alone: with all heads, or with some of them if there
    /// would be few units.
    fn single_chunks(&mut self, shape: &ScheduleShape, n_workers: usize) {
        let n_before = self.units.len();
        let n = self.write_single_chunks(shape, 0);
        let n_parts = (UNITS * n_workers).div_ceil((n_before + n).max(1)).min(shape.n_kv_heads);
        self.write_single_chunks(shape, n_parts);
    }

    /// Writes those units with the heads in `n_parts` parts, and returns the number of chunks.
    fn write_single_chunks(&mut self, shape: &ScheduleShape, n_parts: usize) -> usize {
        let head = |part: usize| (shape.n_kv_heads * part / n_parts) as u16;
        let mut n = 0;
        for first in 0..self.split.len() {
            let row = self.split[first];
            for chunk in row.first_chunk..row.first_chunk + row.n_chunks {
                if self.is_shared(first, chunk) {
                    continue;
                }
                n += 1;
                self.units.extend((0..n_parts).map(|part| AttentionUnit::Chunk {
                    first: first as u32,
                    n_rows: 1,
                    chunk,
                    first_head: head(part),
                    n_heads: head(part + 1) - head(part),
                }));
            }
        }
        n
    }

    /// True if a row reads a chunk together with one of its neighbours.
    fn is_shared(&self, row: usize, chunk: u32) -> bool {
        let end = (chunk + 1) as usize * self.sizes.chunk_len;
        let both = |a: usize, b: usize| {
            self.split[b].shared as usize >= end && self.split[a].has(chunk) && self.split[b].has(chunk)
        };
        row > 0 && both(row - 1, row) || row + 1 < self.split.len() && both(row, row + 1)
    }
}

impl ScheduleShape {
    /// Positions that a row at `position` sees.
    fn seen(&self, position: u32) -> Range<usize> {
        super::tile::seen(self.window, self.chunked, position as usize)
    }

    /// True if some of these rows are computed.
    fn wants(&self, step: &StepRows<'_>, first: u32, n: u32) -> bool {
        let next = step.outputs.partition_point(|row| *row < first);
        !self.of_outputs || step.outputs.get(next).is_some_and(|row| *row < first + n)
    }
}

/// Entries of a page table that a span uses.
fn pages<'a>(shape: &ScheduleShape, step: &StepRows<'a>, span: &Span, page_len: usize) -> &'a [u32] {
    let first = (span.slot as usize * step.n_groups + shape.group) * step.pages_per_table;
    &step.page_tables[first..first + span.end().div_ceil(page_len)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use device::{KvType, Numerics, PAGE_NONE};

    const PAGE_LEN: usize = 64;
    const ENTRIES: usize = 64;

    fn limits(max_spans: usize) -> Limits {
        Limits {
            max_rows: 512,
            max_outputs: 64,
            max_spans,
            n_ctx: ENTRIES * PAGE_LEN,
            page_len: PAGE_LEN,
            n_pages: vec![1 << 16],
            n_states: 0,
            background_rows: 0,
            kv_type: KvType::I16,
            numerics: Numerics::Fast,
        }
    }

    const SHAPE: ScheduleShape = ScheduleShape {
        group: 0,
        window: usize::MAX,
        chunked: false,
        both_ways: false,
        n_kv_heads: 3,
        tile_rows: 21,
        of_outputs: false,
    };

    /// Spans of `(rows before, rows, pages shared with the first sequence)`, in which all rows are
    /// outputs.
    struct TestSteps {
        spans: Vec<Span>,
        tables: Vec<u32>,
        outputs: Vec<u32>,
    }

    fn steps(spans: &[(usize, usize, usize)]) -> TestSteps {
        let (mut first_row, mut tables, mut next) = (0, vec![], 0);
        let mut found = vec![];
        for (slot, (before, n, shared)) in spans.iter().enumerate() {
            let (n_rows, slot) = (*n as u32, slot as u32);
            found.push(Span { slot, first_row, n_rows, first_position: *before as u32 });
            first_row += n_rows;
            let mut table = vec![PAGE_NONE; ENTRIES];
            for (entry, page) in table.iter_mut().enumerate().take((before + n).div_ceil(PAGE_LEN)) {
                *page = if entry < *shared { tables[entry] } else { next };
                next += 1;
            }
            tables.extend(table);
        }
        TestSteps { spans: found, tables, outputs: (0..first_row).collect() }
    }

    impl TestSteps {
        fn schedule(&self, shape: &ScheduleShape, n_workers: usize, max_spans: usize) -> Schedule {
            let step = StepRows {
                spans: &self.spans,
                outputs: &self.outputs,
                page_tables: &self.tables,
                pages_per_table: ENTRIES,
                n_groups: 1,
            };
            let sizes = Sizes::new(&limits(max_spans));
            let mut schedule = Schedule::new(sizes, sizes.units(shape.n_kv_heads, shape.tile_rows));
            let room = (schedule.units.capacity(), schedule.rows.capacity(), schedule.split.capacity());
            schedule.write(shape, &step, n_workers);
            schedule.write(shape, &step, n_workers);
            let after = (schedule.units.capacity(), schedule.rows.capacity(), schedule.split.capacity());
            assert_eq!(after, room, "it allocates nothing");
            schedule
        }
    }

    /// Checks that every computed row has each of its chunks once for each KV head, in pages of its
    /// own table. Partial results must not overlap.
    fn check(steps: &TestSteps, shape: &ScheduleShape, schedule: &Schedule) {
        let table = |slot: u32| &steps.tables[slot as usize * ENTRIES..][..ENTRIES];
        let slot_of = |row: u32| {
            let span =
                steps.spans.iter().find(|s| (s.first_row..s.first_row + s.n_rows).contains(&row)).unwrap();
            (span.slot, span.first_position + row - span.first_row)
        };
        let mut met = std::collections::BTreeMap::<(u32, u32, u32), usize>::new();
        for unit in schedule.units() {
            match *unit {
                AttentionUnit::Whole { first, n_rows, slot, kv_head } => {
                    assert!(n_rows as usize <= shape.tile_rows);
                    for row in &schedule.rows()[first as usize..(first + n_rows) as usize] {
                        assert_eq!(slot_of(row.row), (slot, row.position));
                        for chunk in schedule.sizes.chunks(&shape.seen(row.position)) {
                            *met.entry((row.row, chunk as u32, kv_head)).or_default() += 1;
                        }
                    }
                }
                AttentionUnit::Chunk { first, n_rows, chunk, first_head, n_heads } => {
                    assert!(n_rows == 1 || n_heads == 1 && n_rows as usize <= shape.tile_rows);
                    let rows = first as usize..(first + n_rows) as usize;
                    let pages = |slot: u32, row: &Row| {
                        let seen = schedule.sizes.within(chunk as usize, &shape.seen(row.position));
                        table(slot)[seen.start / PAGE_LEN..seen.end.div_ceil(PAGE_LEN)].to_vec()
                    };
                    for (row, split) in
                        schedule.rows()[rows.clone()].iter().zip(&schedule.split()[rows.clone()])
                    {
                        assert_eq!(slot_of(row.row), (split.slot, row.position));
                        assert_eq!(pages(split.slot, row), pages(schedule.split()[rows.start].slot, row));
                        for head in first_head..first_head + n_heads {
                            *met.entry((row.row, chunk, u32::from(head))).or_default() += 1;
                        }
                    }
                }
            }
        }
        let mut wanted = std::collections::BTreeMap::new();
        for row in (0..steps.outputs.last().map_or(0, |r| r + 1))
            .filter(|row| !shape.of_outputs || steps.outputs.contains(row))
        {
            for chunk in schedule.sizes.chunks(&shape.seen(slot_of(row).1)) {
                wanted.extend((0..shape.n_kv_heads as u32).map(|head| ((row, chunk as u32, head), 1)));
            }
        }
        met.retain(|key, _| wanted.contains_key(key));
        assert_eq!(met, wanted);
        let mut next = 0;
        for split in schedule.split() {
            assert_eq!(split.first_partial, next);
            next += split.n_chunks;
        }
        assert!(next as usize <= schedule.sizes.max_chunks);
    }

    /// Number of positions read, counted for each KV head.
    fn positions_read(shape: &ScheduleShape, schedule: &Schedule) -> usize {
        let of_rows = |first: u32, n: u32| {
            let rows = &schedule.rows()[first as usize..(first + n) as usize];
            rows.iter().map(|row| shape.seen(row.position).end).max().unwrap()
        };
        let of_unit = |unit: &AttentionUnit| match *unit {
            AttentionUnit::Whole { first, n_rows, .. } => of_rows(first, n_rows),
            AttentionUnit::Chunk { first, n_rows, chunk, n_heads, .. } => {
                let positions = 0..of_rows(first, n_rows);
                schedule.sizes.within(chunk as usize, &positions).len() * n_heads as usize
            }
        };
        schedule.units().iter().map(of_unit).sum()
    }

    #[test]
    fn every_row_meets_every_chunk_once() {
        let cases: &[&[(usize, usize, usize)]] = &[
            &[(0, 1, 0)],
            &[(4000, 1, 0)],
            &[(1000, 1, 0), (10, 1, 0), (300, 1, 0)],
            &[(1000, 1, 0), (0, 200, 0), (300, 1, 0), (2000, 5, 0)],
            &[(1000, 1, 0), (1000, 1, 12), (700, 1, 4), (900, 1, 8), (50, 1, 0), (1000, 21, 12)],
            &[(4000, 1, 0); 20],
            &[(500, 64, 0), (500, 64, 0)],
        ];
        let shapes = [
            SHAPE,
            ScheduleShape { window: 300, ..SHAPE },
            ScheduleShape { window: 300, chunked: true, ..SHAPE },
            ScheduleShape { tile_rows: 1, ..SHAPE },
            ScheduleShape { tile_rows: 2, n_kv_heads: 1, ..SHAPE },
            ScheduleShape { of_outputs: true, ..SHAPE },
        ];
        for case in cases {
            for shape in &shapes {
                for (n_workers, max_spans) in [(1, 1), (2, 8), (16, 64)] {
                    let mut steps = steps(case);
                    if shape.of_outputs {
                        steps.outputs.retain(|row| row % 3 == 0);
                    }
                    check(&steps, shape, &steps.schedule(shape, n_workers, max_spans));
                }
            }
        }
    }

    #[test]
    fn common_pages_are_read_once() {
        let apart = steps(&[(2047, 1, 0); 8]);
        let mut spans = [(2047, 1, 32); 8];
        spans[0].2 = 0;
        let shared = steps(&spans);
        let read = |steps: &TestSteps| positions_read(&SHAPE, &steps.schedule(&SHAPE, 2, 8));
        assert_eq!(read(&apart), 8 * 3 * 2048);
        assert_eq!(read(&shared), 3 * 2048);
        // A prefix of two pages and half of a chunk's four is not shared.
        let little = steps(&[(2047, 1, 0), (2047, 1, 2)]);
        assert_eq!(read(&little), 2 * 3 * 2048);
        // More rows than a tile has become two tiles.
        let mut spans = [(2047, 1, 32); 32];
        spans[0].2 = 0;
        assert_eq!(positions_read(&SHAPE, &steps(&spans).schedule(&SHAPE, 2, 32)), 2 * 3 * 2048);
    }

    #[test]
    fn a_step_of_few_rows_has_work_for_all_workers() {
        for n_workers in [2, 4, 8] {
            for n in 1..=9 {
                let schedule = steps(&vec![(4000, 1, 0); n]).schedule(&SHAPE, n_workers, 8);
                let largest = schedule.units().iter().map(|unit| match unit {
                    AttentionUnit::Whole { .. } => 4001,
                    AttentionUnit::Chunk { n_heads, .. } => 256 * *n_heads as usize,
                });
                let (largest, all) = (largest.max().unwrap(), 3 * 4001 * n);
                assert!(largest * n_workers * 2 <= all, "{n} rows, {n_workers} workers: {largest} of {all}");
            }
        }
    }
}

//! Launches of a step's commands: one by one, as a graph, or each between timed events.

use super::CudaMachine;
use super::noted::N_COPIES;
use crate::arguments::{ExpertTilesArguments, GemmArguments, PersistentArguments, StepLoadArguments};
use crate::compile::Commands;
use crate::driver::{Event, Graph, MAX_ARGUMENT_BYTES, NAME, Start};
use crate::products::{AtLaunch, PackedProduct, Tile};
use device::{Error, Result, Step, Timing};
use device_gpu::inputs::{self, Begun};
use device_gpu::machine::{Machine, masks_at};
use device_lower::table::StepSizes;
use std::ops::Range;

/// Offset of `n_splits` in the arguments of a product, in bytes.
const N_SPLITS: usize = std::mem::offset_of!(GemmArguments, n_splits);

/// Offset of `width` in the arguments of the kernel that groups rows by expert, in bytes.
const WIDTH: usize = std::mem::offset_of!(ExpertTilesArguments, width);

/// Steps with more rows than this are launched in parts, so that they can be stopped early.
const LONG_STEP: usize = 1024;

/// Parts of a long step that its caller may stop.
const PARTS: usize = 8;

/// Graphs by plan and sizes of a step, which decide the commands and their blocks.
pub(super) struct Graphs {
    /// Entries, unordered.
    entries: Vec<Entry>,
    most: usize,
    clock: u64,
}

struct Entry {
    plan: usize,
    sizes: StepSizes,
    /// `None` after the first launch, which is command by command. The second launch records it.
    graph: Option<Graph>,
    used: u64,
}

impl Graphs {
    pub(super) fn new(most: usize) -> Graphs {
        Graphs { entries: Vec::with_capacity(most + 1), most, clock: 0 }
    }
}

impl CudaMachine {
    /// Copies the regions of a launch's steps to the GPU, after all earlier steps.
    pub(super) fn load_step(&self, begun: &Begun) -> Result<()> {
        let [copies0, copies1, copies2, copies3, copies4, copies5, copies6, copies7] =
            self.noted(begun).copies;
        let n_words = self.noted(begun).copies.iter().map(|copy| copy.n_words).max().unwrap_or(0);
        let arguments = StepLoadArguments {
            from: self.steps_address,
            to: self.memory.step_buffer.start(),
            region_words: (self.step.region / 4) as u32,
            first_region: (begun.ticket % self.step.in_flight as u64) as u32,
            n_regions: self.step.in_flight as u32,
            reserved: 0,
            copies0,
            copies1,
            copies2,
            copies3,
            copies4,
            copies5,
            copies6,
            copies7,
        };
        // A range takes about one round trip over the bus. Blocks of their own for all ranges
        // overlap these round trips.
        let n_blocks = n_words.div_ceil(256).clamp(1, 64);
        self.context.launch(
            self.functions.step_load,
            [n_blocks, N_COPIES as u32, 1 + self.noted(begun).more_steps],
            256,
            0,
            Start::Early,
            bytemuck::bytes_of(&arguments),
        )
    }

    /// Number of rows of a command. In a step without outputs, commands after the selection of
    /// output rows have no rows and must not be launched. They would read expert ids that nothing
    /// wrote.
    fn rows_of_command(&self, begun: &Begun, index: usize) -> usize {
        let commands = self.table(begun.plan, &begun.sizes);
        let n_rows = commands.rows[index].count(begun.sizes.n_rows, begun.sizes.n_outputs);
        match commands.at_launch[index] {
            AtLaunch::Row(row) => usize::from(row < n_rows),
            AtLaunch::Nothing | AtLaunch::Cut(_) | AtLaunch::Grouped(..) | AtLaunch::Width(_) => n_rows,
        }
    }

    /// Launches one command.
    fn launch_command(&self, begun: &Begun, index: usize, blocks: [u32; 3], start: Start) -> Result<()> {
        let commands = self.table(begun.plan, &begun.sizes);
        let command = &commands.table.commands()[index];
        let parameters = commands.table.parameters(command);
        let start = if commands.together[index] { Start::Together } else { start };
        let mut bytes = [0u8; MAX_ARGUMENT_BYTES];
        let Some(place) = bytes.get_mut(..parameters.len()) else {
            return self.failed(format!("{} bytes of arguments", parameters.len()));
        };
        place.copy_from_slice(parameters);
        // Every argument struct begins with `n_rows`.
        let n_rows = self.rows_of_command(begun, index) as u32;
        place[..4].copy_from_slice(&n_rows.to_le_bytes());
        let packed = |product: &PackedProduct, tile: usize, n_blocks: usize, place: &[u8]| {
            let (tile, kernel) = product.kernel(tile);
            let (function, grid) = (self.functions.by_number[kernel as usize], [n_blocks as u32, 1, 1]);
            let shared = tile.shared(product.codec);
            self.context.launch(function, grid, tile.threads(), shared, start, place)
        };
        let usual = |place: &[u8]| {
            let function = self.functions.by_number[command.kernel as usize];
            self.context.launch(function, blocks, command.threads, command.threadgroup_bytes, start, place)
        };
        let result = match &commands.at_launch[index] {
            AtLaunch::Nothing => usual(place),
            AtLaunch::Cut(product) => {
                let cut = product.cut(n_rows as usize, self.n_processors);
                place[N_SPLITS..][..4].copy_from_slice(&(cut.n_splits as u32).to_le_bytes());
                packed(product, cut.tile, cut.n_blocks, place)
            }
            AtLaunch::Row(row) => {
                let mut arguments: PersistentArguments = bytemuck::pod_read_unaligned(place);
                arguments.more_steps = self.noted(begun).more_steps;
                let of_sequence = self.noted(begun).sequences[*row] * self.step.table_stride();
                arguments.page_table += 4 * u64::from(of_sequence);
                usual(bytemuck::bytes_of(&arguments))
            }
            // Any number of blocks computes all tiles.
            AtLaunch::Grouped(product, experts) => {
                let index = experts.tile(n_rows as usize);
                let n_blocks = self.n_processors * product.kernel(index).0.blocks_a_processor();
                packed(product, index, n_blocks, place)
            }
            AtLaunch::Width(experts) => {
                let width = Tile::all(experts.products)[experts.tile(n_rows as usize)].width();
                place[WIDTH..][..4].copy_from_slice(&(width as u32).to_le_bytes());
                usual(place)
            }
        };
        result.map_err(|error| match error {
            Error::Failed { device, reason } => {
                let kernel = &commands.table.infos()[index].kernel;
                Error::Failed { device, reason: format!("{kernel}, blocks {blocks:?}: {reason}") }
            }
            error => error,
        })
    }

    fn launch_commands(&self, begun: &Begun, range: Range<usize>) -> Result<()> {
        let Commands { table, together, .. } = self.table(begun.plan, &begun.sizes);
        let runs = table.runs(&begun.sizes).skip_while(|run| run.index < range.start);
        // The first command waits until the step is copied to the GPU. Later ones start early: they
        // may read the step's numbers and the results of earlier steps before they wait for the
        // previous command. In steps of one launch the first command starts early too, since it
        // reads neither before it waits.
        let mut start = if begun.sizes.whole && range.start == 0 { Start::Early } else { Start::After };
        let runs = runs.take_while(|run| run.index < range.end);
        for run in runs.filter(|run| self.rows_of_command(begun, run.index) > 0) {
            self.launch_command(begun, run.index, run.threadgroups, start)?;
            start = if together[run.index] { Start::After } else { Start::Early };
        }
        Ok(())
    }

    /// Copies a step to the GPU, and launches a range of its commands.
    pub(super) fn launch_range(&self, begun: &Begun, range: Range<usize>) -> Result<()> {
        self.load_step(begun)?;
        self.launch_commands(begun, range)
    }

    /// Launches all commands of a step, as a graph if a step of these sizes came before. A long
    /// step that its caller may stop is launched in parts; between them the caller is polled. While
    /// the GPU runs one part, the next is launched. Commands that need masks are launched once the
    /// masks are written.
    pub(super) fn launch_whole(&mut self, step: &Step, begun: &Begun) -> Result<Event> {
        self.with_event(|program| match step.stop.is_some() && begun.sizes.n_rows > LONG_STEP {
            true => program.launch_parts(step, begun),
            false => program
                .load_step(begun)
                .and_then(|()| program.launch_graph(begun))
                .and_then(|()| program.launch_masked(step, begun)),
        })
    }

    /// Calls `launch`, and records an event after it.
    pub(super) fn with_event(
        &mut self,
        launch: impl FnOnce(&mut CudaMachine) -> Result<()>,
    ) -> Result<Event> {
        let event = match self.events.pop() {
            Some(event) => event,
            None => self.context.event(false)?,
        };
        match launch(self).and_then(|()| event.record()) {
            Ok(()) => Ok(event),
            Err(error) => {
                self.events.push(event);
                Err(error)
            }
        }
    }

    /// Index of the first command that needs the step's masks; past all commands if it has none.
    fn masks_at(&self, begun: &Begun) -> usize {
        masks_at(&self.table(begun.plan, &begun.sizes).table, &begun.sizes)
    }

    /// Launches the commands after the step's graph, which choose among the tokens that masks
    /// allow. The host computes the masks while the GPU computes logits.
    fn launch_masked(&mut self, step: &Step, begun: &Begun) -> Result<()> {
        if !begun.sizes.masks {
            return Ok(());
        }
        inputs::write_masks(self, &self.step.clone(), step, begun);
        self.launch_commands(begun, self.masks_at(begun)..usize::MAX)
    }

    fn launch_parts(&mut self, step: &Step, begun: &Begun) -> Result<()> {
        self.load_step(begun)?;
        let n = self.table(begun.plan, &begun.sizes).table.commands().len();
        let masks_at = self.masks_at(begun);
        let mut running: Option<Event> = None;
        let mut result = Ok(());
        for part in 0..PARTS {
            let range = part * n / PARTS..(part + 1) * n / PARTS;
            if range.contains(&masks_at) {
                inputs::write_masks(self, &self.step.clone(), step, begun);
            }
            result = self.launch_commands(begun, range);
            let next = match self.events.pop() {
                Some(event) => event,
                None => self.context.event(false)?,
            };
            result = result.and_then(|()| next.record());
            if let Some(before) = running.replace(next) {
                result = result.and_then(|()| before.wait());
                self.events.push(before);
            }
            if result.is_ok() && step.is_stopped() {
                result = Err(Error::Stopped { device: NAME });
            }
            if result.is_err() {
                break;
            }
        }
        self.events.extend(running);
        if result.is_err() {
            // The step must not run any more when its caller receives the error.
            self.context.finish()?;
        }
        result
    }

    /// Launches the commands before those that need masks. The few commands of a step in one launch
    /// are not recorded as a graph. A graph starts only when all earlier work is done, but a single
    /// kernel can start while the previous one ends.
    pub(super) fn launch_graph(&mut self, begun: &Begun) -> Result<()> {
        let end = self.masks_at(begun);
        if begun.sizes.whole {
            return self.launch_commands(begun, 0..end);
        }
        self.graphs.clock += 1;
        let clock = self.graphs.clock;
        let found = self.graphs.entries.iter_mut().find(|e| e.plan == begun.plan && e.sizes == begun.sizes);
        match found {
            Some(entry) => {
                entry.used = clock;
                if let Some(graph) = &entry.graph {
                    return self.context.launch_graph(graph);
                }
            }
            None => {
                if self.graphs.entries.len() >= self.graphs.most {
                    let oldest = self.graphs.entries.iter().enumerate().min_by_key(|(_, e)| e.used);
                    if let Some(index) = oldest.map(|(index, _)| index) {
                        self.graphs.entries.swap_remove(index);
                    }
                }
                let (plan, sizes) = (begun.plan, begun.sizes);
                self.graphs.entries.push(Entry { plan, sizes, graph: None, used: clock });
                return self.launch_commands(begun, 0..end);
            }
        }
        let graph = self.context.capture(|| self.launch_commands(begun, 0..end))?;
        self.context.launch_graph(&graph)?;
        let found = self.graphs.entries.iter_mut().find(|e| e.plan == begun.plan && e.sizes == begun.sizes);
        if let Some(entry) = found {
            entry.graph = Some(graph);
        }
        Ok(())
    }

    /// Launches each command between two timed events.
    pub(super) fn launch_timed(&self, begun: &Begun, before: usize, timings: &mut Vec<Timing>) -> Result<()> {
        let table = &self.table(begun.plan, &begun.sizes).table;
        let (first, from, to) =
            (self.context.event(true)?, self.context.event(true)?, self.context.event(true)?);
        if begun.sizes.n_rows > 0 {
            self.load_step(begun)?;
        }
        first.record()?;
        for command in 0..table.commands().len() {
            let blocks = table.threadgroups(command, &begun.sizes);
            let blocks = blocks.filter(|_| self.rows_of_command(begun, command) > 0);
            from.record()?;
            if let Some(blocks) = blocks {
                self.launch_command(begun, command, blocks, Start::After)?;
            }
            to.record()?;
            to.wait()?;
            let start = from.since(&first)?;
            let duration = if blocks.is_some() { to.since(&from)? } else { 0.0 };
            timings.push(Timing { command: before + command, start, duration });
        }
        Ok(())
    }
}

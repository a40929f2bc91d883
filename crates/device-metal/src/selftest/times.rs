//! The measurements of the report: dispatches, commands of whole steps, products, attention. What
//! says most comes first, since time may be short.

use super::models::{self, ExpertShape, ProductShape, Shape};
use super::{Decoder, Effort};
use crate::MetalDevice;
use crate::alone::Alone;
use crate::gpu::{Encoder, Memory, MetalGpu, Request};
use device::{CommandInfo, Program, Result, Timing};
use device_check::block_types;
use device_gpu::replayer::Times;
use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;
use weights::BlockType;

/// The result of a measurement.
#[derive(Clone, Debug, Default)]
pub struct Measured {
    /// Lines for the reader.
    pub lines: Vec<String>,
    /// Numbers by name, for programs: seconds, bytes and operations.
    pub numbers: Vec<(String, f64)>,
}

impl Measured {
    fn number(&mut self, name: &str, value: f64) {
        self.numbers.push((name.to_owned(), value));
    }
}

/// A measurement of the report.
#[derive(Clone, Copy, Debug)]
pub enum Measurement {
    /// Dispatches, barriers and command buffers without work.
    Overheads,
    /// Peak rates of memory and arithmetic.
    Peaks,
    /// The commands of a step: one by one, and all in one command buffer.
    Commands {
        /// The model.
        shape: Shape,
        /// Rows of the step.
        n_rows: usize,
        /// Position of its first row.
        position: usize,
    },
    /// A product of rows by a matrix.
    Product {
        /// The matrix.
        product: ProductShape,
        /// Rows of x.
        n_rows: usize,
    },
    /// Decode attention, unsplit and split.
    Attention {
        /// The model.
        shape: Shape,
        /// Position of the row.
        position: usize,
    },
}

/// All measurements in the order of their importance. `every` selects each n-th of the types that
/// come last.
pub fn measurements(effort: &Effort, every: usize) -> Vec<Measurement> {
    use BlockType::*;
    let mut all = vec![Measurement::Overheads, Measurement::Peaks];
    let [_, chunk] = effort.rows;
    let [first, middle, last] = effort.positions;
    for shape in effort.listed {
        all.push(Measurement::Commands { shape, n_rows: 1, position: middle });
        all.push(Measurement::Commands { shape, n_rows: chunk, position: 0 });
    }
    let product = |block, [n_out, n_in]: [usize; 2], has_norm, n_rows| Measurement::Product {
        product: ProductShape { block, n_out, n_in, has_norm },
        n_rows,
    };
    // The products of the dense model: one row, with its head, then a chunk.
    let Shape { hidden, ffn, n_vocab, .. } = effort.model;
    for (shape, has_norm) in [
        ([hidden, hidden], false),
        ([hidden, hidden], true),
        ([ffn, hidden], false),
        ([ffn, hidden], true),
        ([hidden, ffn], false),
    ] {
        all.push(product(Q4_0, shape, has_norm, 1));
    }
    all.push(product(Q6_K, [n_vocab, hidden], true, 1));
    for block in [Q4_0, Q8_0, Q4_K, Q6_K, F16, F32] {
        all.push(product(block, [ffn, hidden], false, chunk));
    }
    all.push(product(Q4_0, [hidden, ffn], false, chunk));
    for block in [Q8_0, Q4_K, Q6_K, F16] {
        all.push(product(block, [ffn, hidden], true, 1));
    }
    for shape in &effort.listed[..2] {
        for position in [first, middle, last] {
            all.push(Measurement::Attention { shape: *shape, position });
        }
        all.push(Measurement::Commands {
            shape: *shape,
            n_rows: chunk,
            position: last.saturating_sub(chunk),
        });
    }
    for block in block_types().into_iter().step_by(every.max(1)) {
        for (n_rows, n_in) in [(1, 1024), (2, 1024), (4, 1024), (8, 1024), (64, 1024), (1, 8192), (8, 8192)] {
            let a_row = ProductShape { block, n_out: 1, n_in, has_norm: false }.n_bytes();
            let n_out = (effort.matrix_bytes / a_row.max(1)).next_multiple_of(64);
            all.push(product(block, [n_out, n_in], false, n_rows));
        }
    }
    all
}

impl Measurement {
    /// Name in a report.
    pub fn name(&self) -> String {
        match self {
            Measurement::Overheads => "overheads".to_owned(),
            Measurement::Peaks => "peaks".to_owned(),
            Measurement::Commands { shape, n_rows, position } => {
                format!("{}, {n_rows} rows from position {position} on", shape.name)
            }
            Measurement::Product { product: ProductShape { block, n_out, n_in, has_norm }, n_rows } => {
                let norm = if *has_norm { "norm, " } else { "" };
                format!("{norm}{block} {n_out} x {n_in}, {n_rows} rows")
            }
            Measurement::Attention { shape, position } => {
                format!("attention of {}, position {position}", shape.name)
            }
        }
    }

    /// Measures.
    ///
    /// # Errors
    /// The device refused or failed.
    pub fn run<G: MetalGpu>(&self, device: &MetalDevice<G>, effort: &Effort) -> Result<Measured> {
        match self {
            Measurement::Overheads => {
                let seconds = overheads(device.gpu(), if effort.n_runs > 1 { 200 } else { 2 })?;
                let [dispatch, barrier, following, waited] = seconds.map(|seconds| seconds * 1e6);
                let line = format!(
                    "a dispatch {dispatch:.2} µs, with a barrier {barrier:.2} µs, a command buffer that follows another \
                     {following:.1} µs, one that is waited for {waited:.1} µs"
                );
                let names = ["dispatch", "barrier", "following", "waited"].map(str::to_owned);
                Ok(Measured { lines: vec![line], numbers: names.into_iter().zip(seconds).collect() })
            }
            Measurement::Peaks => {
                let peaks = crate::peaks::measure(device.gpu())?;
                let (bytes, ops) = (peaks.read_bytes_per_second, peaks.f32_ops_per_second);
                let line = format!("{:.0} GB/s read, {:.2} TFLOP/s in f32", bytes / 1e9, ops / 1e12);
                let numbers =
                    vec![("bytes per second".to_owned(), bytes), ("ops per second".to_owned(), ops)];
                Ok(Measured { lines: vec![line], numbers })
            }
            Measurement::Commands { shape, n_rows, position } => {
                commands(device, shape, *n_rows, *position, effort)
            }
            Measurement::Product { product, n_rows } => {
                let n = effort.matrix_bytes.div_ceil(product.n_bytes());
                // Enough rows are limited by arithmetic, and need no matrices beyond the caches.
                let n = if *n_rows > 64 { 1 } else { n.clamp(1, 256) };
                let (times, bytes) = time_products(device, product, n, *n_rows, effort)?;
                let ops = 2.0 * (product.n_out * product.n_in * n_rows) as f64;
                let mut measured = Measured::default();
                measured.lines.push(format!(
                    "{:36} {:9.1} µs, {:6.1} GB/s, {:6.2} TFLOP/s, waited for {:.1} µs",
                    self.name(),
                    times.gpu * 1e6,
                    bytes / times.gpu / 1e9,
                    ops / times.gpu / 1e12,
                    times.wall * 1e6,
                ));
                measured.number("gpu seconds", times.gpu);
                measured.number("wall seconds", times.wall);
                measured.number("bytes", bytes);
                measured.number("ops", ops);
                Ok(measured)
            }
            Measurement::Attention { shape, position } => {
                let seconds = attention(device, shape, *position, effort)?;
                let [whole, split] = seconds.map(|seconds| seconds * 1e6);
                let mut measured = Measured::default();
                measured.lines.push(format!("{}: {whole:.1} µs, split {split:.1} µs", self.name()));
                measured.number("gpu seconds", seconds[0]);
                measured.number("gpu seconds, split", seconds[1]);
                Ok(measured)
            }
        }
    }
}

/// Times of one of `n` products by different matrices, one after the other, and the bytes of its
/// matrix.
fn time_products<G: MetalGpu>(
    device: &MetalDevice<G>,
    product: &ProductShape,
    n: usize,
    n_rows: usize,
    effort: &Effort,
) -> Result<(Times, f64)> {
    let effort =
        &Effort { rows: [n_rows, n_rows], prompt: n_rows, positions: [0; 3], n_tokens: 1, ..*effort };
    let mut decoder = Decoder::new(device, &models::products(product, n), effort)?;
    let (step, infos) = (decoder.rows(n_rows, 0), decoder.program.commands(0, n_rows));
    let is_product = |info: &CommandInfo| info.kernel.contains("linear");
    let wanted: Vec<usize> = (0..infos.len()).filter(|index| is_product(&infos[*index])).collect();
    let bytes: u64 = wanted.iter().map(|index| infos[*index].weight_bytes).sum();
    let begun = decoder.program.begin_alone(&step.borrow())?;
    let machine = decoder.program.machine();
    let times = effort.median(&mut |repetitions| machine.time_commands(&begun, &wanted, repetitions))?;
    let n = wanted.len().max(1) as f64;
    let times = Times { gpu: times.gpu / n, wall: times.wall / n, encode: times.encode / n };
    Ok((times, bytes as f64 / n))
}

/// The commands of a step, by kernel: each in a command buffer of its own. Then the times of all in
/// one command buffer.
fn commands<G: MetalGpu>(
    device: &MetalDevice<G>,
    shape: &Shape,
    n_rows: usize,
    position: usize,
    effort: &Effort,
) -> Result<Measured> {
    let effort = &Effort { rows: [n_rows, n_rows], prompt: n_rows, ..*effort };
    let mut decoder = Decoder::new(device, &models::model(shape), effort)?;
    let (step, infos) = (decoder.rows(n_rows, position), decoder.program.commands(0, n_rows));
    let mut of_commands: Vec<Vec<f64>> = vec![vec![]; infos.len()];
    let mut timings: Vec<Timing> = vec![];
    for _ in 0..=effort.n_runs {
        timings.clear();
        decoder.program.run_timed(&step.borrow(), &mut timings)?;
        timings.iter().for_each(|timing| of_commands[timing.command].push(timing.duration));
    }
    let mut of_kernels: BTreeMap<&str, (usize, f64, u64)> = BTreeMap::new();
    for (info, seconds) in infos.iter().zip(&mut of_commands) {
        seconds.sort_by(f64::total_cmp);
        let median = seconds.get(seconds.len() / 2).copied().unwrap_or(0.0);
        if median > 0.0 {
            let (n, sum, bytes) = of_kernels.entry(&info.kernel).or_default();
            (*n, *sum, *bytes) = (*n + 1, *sum + median, *bytes + info.weight_bytes);
        }
    }
    let begun = decoder.program.begin_alone(&step.borrow())?;
    let (machine, all) = (decoder.program.machine(), (0..infos.len()).collect::<Vec<_>>());
    let times = effort.median(&mut |repetitions| machine.time_commands(&begun, &all, repetitions))?;
    let mut measured = Measured::default();
    measured.lines.push(format!(
        "{}, {n_rows} rows from position {position} on: {:.1} µs on the GPU, {:.1} µs waited for, {:.1} µs encoded \
         by the CPU, without the choice of a token; alone in command buffers:",
        shape.name,
        times.gpu * 1e6,
        times.wall * 1e6,
        times.encode * 1e6,
    ));
    measured.number("gpu seconds", times.gpu);
    measured.number("wall seconds", times.wall);
    measured.number("encode seconds", times.encode);
    let of_experts = of_kernels.iter().filter(|(kernel, _)| kernel.contains("expert_linear"));
    let in_experts: f64 = of_experts.map(|(_, (_, sum, _))| sum).sum();
    for (kernel, (n, sum, bytes)) in of_kernels {
        let mut line = format!("    {n:4} x {:9.1} µs {kernel}", sum / n as f64 * 1e6);
        if let Some(ops) = ops(kernel, shape, n_rows, position) {
            line += &format!(", {:.2} TFLOP/s", ops * n as f64 / sum / 1e12);
        }
        // A chunk reads more experts than a token, and shares their weights among its rows.
        if bytes > 0 && n_rows == 1 {
            line += &format!(", {:.1} GB/s of weights", bytes as f64 / sum / 1e9);
        }
        measured.lines.push(line);
        measured.number(kernel, sum);
    }
    if let Some(ExpertShape { n_used, .. }) = shape.experts {
        // Gate, up and down.
        let ops = 6.0 * (shape.hidden * shape.ffn * n_used * n_rows * shape.n_layers) as f64;
        let rate = ops / in_experts / 1e12;
        measured.lines.push(format!("    products of experts, {n_rows} rows: {rate:.2} TFLOP/s"));
        measured.number("ops of experts", ops);
        measured.number("seconds of experts", in_experts);
    }
    Ok(measured)
}

/// Operations of one attention of a step.
fn ops(kernel: &str, shape: &Shape, n_rows: usize, position: usize) -> Option<f64> {
    // Keys that each row sees, summed over rows.
    let keys = n_rows * position + n_rows * (n_rows + 1) / 2;
    let is_attention = kernel.contains("attention_prefill") || kernel.contains("attention_decode");
    is_attention.then_some(4.0 * (shape.n_heads * shape.head_dim * keys) as f64)
}

/// Seconds of decode attention at a position, unsplit and split.
fn attention<G: MetalGpu>(
    device: &MetalDevice<G>,
    shape: &Shape,
    position: usize,
    effort: &Effort,
) -> Result<[f64; 2]> {
    let mut seconds = [0.0; 2];
    let plan = models::model(&Shape { n_layers: 1, ..*shape });
    let effort = &Effort { rows: [1; 2], prompt: 1, positions: [position; 3], ..*effort };
    for (split, seconds) in [usize::MAX, 1].into_iter().zip(&mut seconds) {
        let mut decoder = Decoder::new(&device.splitting(split), &plan, effort)?;
        let (step, infos) = (decoder.rows(1, position), decoder.program.commands(0, 1));
        let is_wanted =
            |name: &str| name.contains("attention_decode") && name.contains("(split)") == (split == 1);
        if let Some(index) = infos.iter().position(|info| is_wanted(&info.kernel)) {
            let begun = decoder.program.begin_alone(&step.borrow())?;
            let machine = decoder.program.machine();
            *seconds = effort.median(&mut |n| machine.time_commands(&begun, &[index], n))?.gpu;
        }
    }
    Ok(seconds)
}

/// Seconds of a nearly empty dispatch: without a barrier, with one, in a command buffer of its own,
/// and in one that is waited for. Command buffers follow each other as steps in flight do (by
/// tracked hazards or a fence, as `--metal-encoder` says).
///
/// # Errors
/// The device refused or failed.
fn overheads<G: MetalGpu>(gpu: &G, n: usize) -> Result<[f64; 4]> {
    let request = Request::plain("peaks.metal", "multiply_add", 256);
    let kernel = Alone::new(gpu, &request, &[(2, 0)], 0, [1, 32])?;
    let buffers = [gpu.allocate(Memory::Device, "sums", 4096)?];
    let submit = |n: usize, barriers: bool| {
        gpu.submit(&mut |encoder| {
            for _ in 0..n {
                kernel.encode(encoder, &buffers);
                if barriers {
                    encoder.barrier();
                }
            }
        })
    };
    let run = |n: usize, barriers: bool| submit(n, barriers).and_then(|ticket| gpu.wait(&ticket));
    run(n, true)?;
    let per = |barriers: bool| run(n, barriers).map(|seconds| seconds / n as f64);
    let (plain, ordered) = (per(false)?, per(true)?);
    let begun = Instant::now();
    let mut in_flight = VecDeque::new();
    for _ in 0..n {
        in_flight.push_back(submit(1, false)?);
        if in_flight.len() > 4
            && let Some(first) = in_flight.pop_front()
        {
            gpu.wait(&first)?;
        }
    }
    for ticket in in_flight {
        gpu.wait(&ticket)?;
    }
    let following = begun.elapsed().as_secs_f64() / n as f64;
    let begun = Instant::now();
    for _ in 0..n {
        run(1, false)?;
    }
    Ok([plain, ordered, following, begun.elapsed().as_secs_f64() / n as f64])
}

//! The kernels against the interpreter of the same table, phase by phase: a launch stops after a
//! phase, and what the phase published is compared. They run on a GPU, or on an emulated one.

use super::interpreter::Interpreter;
use super::*;
use crate::CudaDevice;
use crate::arguments::Span;
use crate::driver::{Address, Buffer, Start};
use device_testing::{EmulatedGpu, Rng};
use std::collections::BTreeMap;
use std::ops::Range;

/// Memory that the test places vectors in, one after the other.
struct Memory<'a> {
    device: &'a CudaDevice,
    buffer: Buffer,
    used: u64,
}

impl Memory<'_> {
    fn new(device: &CudaDevice) -> Memory<'_> {
        let buffer = Buffer::new(device.context(), "a test's memory", 32 << 20).unwrap();
        Memory { device, buffer, used: 0 }
    }

    /// Reserves bytes and returns their address.
    fn reserve(&mut self, bytes: usize) -> Address {
        let at = self.buffer.start() + self.used;
        self.used += bytes.next_multiple_of(256) as u64;
        at
    }

    fn put<T: bytemuck::Pod>(&mut self, values: &[T]) -> Address {
        let bytes: &[u8] = bytemuck::cast_slice(values);
        let at = self.reserve(bytes.len());
        self.device.context().upload(at, bytes).unwrap();
        self.device.context().finish().unwrap();
        at
    }

    fn read(&self, at: Address, n: usize) -> Vec<u32> {
        let mut words = vec![0u32; n];
        self.device.context().download(at, bytemuck::cast_slice_mut(&mut words)).unwrap();
        words
    }
}

/// The 8 values of a chunk, as the kernel for one row (`chunk_of`) or for several rows
/// (`make_fine_chunk`) publishes them.
fn chunk(rows: Rows, words: &[u32]) -> [f32; 8] {
    let [x, y, z, w] = [words[0], words[1], words[2], words[3]];
    match rows {
        Rows::One => {
            let scale = f32::from_bits((z >> 16 & 0xfff) << 19);
            let low = x & 0x00ff_ffff | (y & 0xff) << 24;
            let high = y >> 8 & 0xffff | (z & 0xffff) << 16;
            let mut values = [0.0; 8];
            for (value, byte) in values.iter_mut().zip([low.to_le_bytes(), high.to_le_bytes()].concat()) {
                *value = f32::from(byte as i8) * scale;
            }
            values
        }
        Rows::Several => {
            let scale = f32::from_bits((x >> 10 & 63 | y >> 4 & 0xfc0) << 19);
            let of = |word: u32, shift: u32| ((word >> shift & 0x3ff) as f32 - 512.0) * scale;
            [of(x, 0), of(y, 0), of(x, 16), of(y, 16), of(z, 0), of(w, 0), of(z, 16), of(w, 16)]
        }
    }
}

/// A decoder whose table, weights and vectors are on a GPU.
struct OnGpu<'a> {
    mine: Persistent,
    memory: Memory<'a>,
    arguments: PersistentArguments,
    shared: u32,
    phases: Vec<PersistentPhase>,
    weights: PersistentWeights,
    rows: Rows,
}

impl<'a> OnGpu<'a> {
    /// The subject, and the vectors of the plan by their addresses.
    fn new(device: &'a CudaDevice, plan: &Plan, rows: Rows) -> (OnGpu<'a>, BTreeMap<u64, Vec<f32>>) {
        let profile = Profile { persistent: true, ..device.profile().clone() };
        let limits = f16(&plan.kv);
        let mine = Persistent::new(plan, &lower(plan, profile.passes), &limits, &profile).unwrap();
        let found = Ok(mine.clone());
        let packed = PersistentPlan::new(std::iter::once((plan, &found)));
        let weights = packed.load(device.context(), device.kernels()).unwrap().unwrap();
        let mut memory = Memory::new(device);
        let (mut vectors, mut addresses) = (BTreeMap::new(), BTreeMap::new());
        for (index, weight) in plan.weights.iter().enumerate() {
            if weight.block == BlockType::F32 && weight.parts.is_empty() && weight.n_rows() == 1 {
                let words = weight.data.as_chunks::<4>().0;
                let values: Vec<f32> = words.iter().map(|word| f32::from_le_bytes(*word)).collect();
                let at = memory.put(&values);
                addresses.insert(WeightId(index as u32), at);
                vectors.insert(at, values);
            }
        }
        let heads = mine.decoder.heads;
        let bytes_of_layer = 4 * heads.n_kv_heads * limits.page_len * heads.head_dim;
        let pages = memory.reserve(bytes_of_layer * plan.kv.layers.len());
        let page_of = |layer: device::KvLayerId| {
            (pages + u64::from(layer.0) * bytes_of_layer as u64, bytes_of_layer as u32, 0)
        };
        let places = PhasePlaces {
            weights: &weights.phases(0),
            biases: &weights.biases(0),
            vector: &|id| Ok(addresses[&id]),
            pages: &page_of,
        };
        let phases = mine.phases(plan, &places).unwrap();
        let step = StepLayout::new(std::slice::from_ref(plan), &limits, 4);
        let (base, shared) = mine.arguments(plan, &limits, &step, profile.shared_bytes, rows);
        let frequencies = |at: usize| mine.decoder.rotations.get(at).map_or(0, |(id, _)| addresses[id]);
        let arguments = PersistentArguments {
            n_rows: 1,
            phases: memory.put(&phases),
            x: memory.reserve(4 * base.hidden as usize),
            first_norm: addresses[&mine.decoder.layers[0].norm],
            frequencies1: frequencies(0),
            frequencies2: frequencies(1),
            position: memory.reserve(4),
            page_table: memory.put(&[0u32; 64]),
            row_spans: memory.put(&[0u32]),
            spans: memory.put(&[Span { n_rows: 1, ..Span::default() }]),
            logits: memory.reserve(4 * base.n_vocab as usize),
            exchange: weights.exchange(rows),
            ..base
        };
        (OnGpu { mine, memory, arguments, shared, phases, weights, rows }, vectors)
    }

    /// Launches the phases up to `stop` of a step of one row.
    fn launch(&self, x: &[f32], position: u32, stop: usize) {
        let device = self.memory.device;
        let (context, kernels) = (device.context(), device.kernels());
        let file = self.mine.general_file(self.rows, kernels);
        let name = self.mine.kernel(self.rows).name();
        let (function, _module) = kernels.function(&file, &name, self.shared).unwrap();
        context.clear(self.arguments.exchange, self.rows.exchange_bytes()).unwrap();
        context.upload(self.arguments.x, bytemuck::cast_slice(x)).unwrap();
        context.upload(self.arguments.position, &position.to_le_bytes()).unwrap();
        context.finish().unwrap();
        let arguments = PersistentArguments { stop_phase: stop as u32, ..self.arguments };
        let grid = [self.mine.n_blocks() as u32, 1, 1];
        let bytes = bytemuck::bytes_of(&arguments);
        context.launch(function, grid, THREADS, self.shared, Start::Together, bytes).unwrap();
        context.finish().unwrap();
    }

    /// Chunks of a part of the exchange as numbers.
    fn published(&self, input: u32, chunks: Range<usize>) -> Vec<f32> {
        let (at, words) = match self.rows {
            Rows::One => (input as usize, 4),
            Rows::Several => {
                let parts = [
                    (EXCHANGE_INPUT, header::EXCHANGE_ROWS_INPUT),
                    (EXCHANGE_MIDDLE, header::EXCHANGE_ROWS_MIDDLE),
                    (EXCHANGE_ATTENDED, header::EXCHANGE_ROWS_ATTENDED),
                    (EXCHANGE_GATED, header::EXCHANGE_ROWS_GATED),
                ];
                (parts.into_iter().find(|(part, _)| *part == input).unwrap().1, 32)
            }
        };
        let from = self.arguments.exchange + (at + 4 * words * chunks.start) as u64;
        let all = self.memory.read(from, words * chunks.len());
        all.chunks_exact(words).flat_map(|words| chunk(self.rows, words)).collect()
    }

    /// The vectors that the kernel and the interpreter published in a phase; `None` if nothing that
    /// is comparable.
    fn both(&self, phase: usize, interpreter: &Interpreter<'_>, result: &[f32]) -> Option<[Vec<f32>; 2]> {
        let p = &self.phases[phase];
        let input = match p.kind {
            QKV if p.qkv_part & CONTINUED == 0 => EXCHANGE_ATTENDED,
            QKV | ROUTE => return None,
            GATE | EXPERTS => EXCHANGE_GATED,
            HEAD => {
                let logits = self.memory.read(self.arguments.logits, self.arguments.n_vocab as usize);
                return Some([logits.into_iter().map(f32::from_bits).collect(), result.to_vec()]);
            }
            _ if p.input == EXCHANGE_GATED => EXCHANGE_INPUT,
            _ => EXCHANGE_MIDDLE,
        };
        let expected = interpreter.published(input).to_vec();
        let found = if p.kind == EXPERTS {
            // Chunks of an expert are padded to units of 128 columns.
            let of_expert = self.arguments.expert_ffn as usize;
            let padded = of_expert.div_ceil(128) * 16;
            let experts = 0..self.arguments.n_used as usize;
            experts.flat_map(|j| self.published(input, j * padded..j * padded + of_expert / 8)).collect()
        } else {
            self.published(input, 0..expected.len() / 8)
        };
        Some([found, expected])
    }
}

/// The size of a difference relative to the size of the expected numbers.
fn relative(found: &[f32], expected: &[f32]) -> f32 {
    let square = |x: f32| x * x;
    let difference: f32 = found.iter().zip(expected).map(|(a, b)| square(a - b)).sum();
    (difference / expected.iter().map(|x| square(*x)).sum::<f32>()).sqrt()
}

/// Compares the third position of a decoder after each phase.
fn check_phases(device: &CudaDevice, shape: Decoder, seed: u64, rows: Rows) {
    let plan = shape.plan(seed);
    let (subject, mut vectors) = OnGpu::new(device, &plan, rows);
    let (offsets, biases) = subject.weights.plan().offsets(0);
    let base = subject.phases[0].weights - offsets[0] as u64;
    vectors.extend(biases.into_iter().flatten().map(|(offset, values)| (base + offset as u64, values)));
    let heads = subject.mine.decoder.heads;
    let packed = subject.weights.plan();
    let mut interpreter =
        Interpreter::new(subject.arguments, subject.phases.clone(), heads, (packed, base), vectors);
    let mut random = Rng::new(seed);
    let n = subject.phases.len();
    let mut x = vec![];
    for position in 0..3 {
        x = (0..subject.arguments.hidden).map(|_| random.normal()).collect();
        interpreter.step(&x, position, n);
        subject.launch(&x, position as u32, n);
    }
    for stop in 1..=n {
        let results = interpreter.step(&x, 2, stop);
        subject.launch(&x, 2, stop);
        if let Some([found, expected]) = subject.both(stop - 1, &interpreter, &results[stop - 1]) {
            // Activations are integers of 8 or 10 bits, whose errors add up over the layers.
            let error = relative(&found, &expected);
            let kind = subject.phases[stop - 1].kind;
            assert!(error < 0.05, "{shape:?}, {rows:?}: phase {} of kind {kind}: {error}", stop - 1);
        }
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU: cargo xtask gpu-test"]
fn phases_of_the_kernels_on_cuda() {
    let device = CudaDevice::new(0).unwrap();
    let dense = Decoder { n_layers: 2, bias: true, head_norms: true, post_norms: true, ..Decoder::SMALL };
    // One kernel has all kinds of phases: the first layer is dense, the second a mixture.
    let experts = Some(Experts { first_dense: true, bias: true, ..Experts::SMALL });
    check_phases(&device, Decoder { experts, ..dense }, 1, Rows::One);
    check_phases(&device, dense, 2, Rows::Several);
}

#[test]
fn phases_agree_on_an_emulated_gpu() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/tmp");
    let test = concat!(module_path!(), "::phases_of_the_kernels_on_cuda");
    let test = test.split_once("::").map_or(test, |(_, path)| path);
    EmulatedGpu::build(folder).and_then(|gpu| gpu.test(16, &[test])).unwrap();
}

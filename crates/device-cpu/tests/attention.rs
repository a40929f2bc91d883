//! Attention of a batch: a row has the same bits as alone, whatever shares its step and its pages.

#![allow(clippy::unwrap_used)]

use device::{
    Device, KvLayer, KvType, Limits, Numerics, OwnedStep, PAGE_NONE, Plan, Program, RopeStyle, Span,
};
use device_lower::fusion;
use device_testing::{AttentionOptions, BEST_AND_LOGITS, PlanBuilder, committed};
use ingle_device_cpu::{CpuDevice, Isa, Options};
use weights::BlockType;

/// Vocabulary of the test's model.
const N_VOCAB: u32 = 50;

/// Shape of an Attention.
#[derive(Clone, Copy, Debug)]
struct Shape {
    head_dim: usize,
    n_heads: usize,
    n_kv_heads: usize,
    page_len: usize,
    kv_type: KvType,
    options: AttentionOptions,
}

/// A plan of two layers of attention. All rows of the first layer are read, but only the outputs of
/// the last. Keys of the first layer have large biases and RoPE.
fn plan(shape: &Shape, device: &CpuDevice) -> Plan {
    let Shape { head_dim, n_heads, n_kv_heads, options, .. } = *shape;
    let mut b = PlanBuilder::new(4, N_VOCAB as usize);
    let mut x = b.embed(64);
    for is_last in [false, true] {
        let window = options.window;
        let layer = b.kv_layer(KvLayer {
            n_kv_heads,
            head_dim,
            window,
            encoder_states: None,
            values_are_keys: false,
        });
        let q = b.linear(x, n_heads * head_dim, BlockType::F32, false);
        let mut k = b.linear_with_bias(x, n_kv_heads * head_dim, if is_last { 0.0 } else { 20.0 });
        if !is_last {
            k = b.rope(k, head_dim, head_dim, RopeStyle::Half);
        }
        let v = b.linear(x, n_kv_heads * head_dim, BlockType::F32, false);
        b.kv_write(k, v, layer);
        let y = b.attention(q, layer, n_heads, options);
        let y = b.select_rows_of_last(y, is_last);
        let residual = b.select_rows_of_last(x, is_last);
        let y = b.linear(y, 64, BlockType::F32, false);
        let sum = b.add(residual, y);
        x = b.rms_norm(sum, 64);
    }
    let logits = b.linear(x, N_VOCAB as usize, BlockType::F32, false);
    fusion::fuse(&b.finish(logits), device.fusion())
}

/// A sequence, with its pages and its length.
#[derive(Clone)]
struct Sequence {
    table: Vec<u32>,
    len: usize,
    /// Text of the sequence; equal texts have equal tokens.
    text: fn(usize, usize) -> u32,
    index: usize,
}

/// A program and its sequences, with one page allocator.
struct Running<'a> {
    program: Box<dyn Program + 'a>,
    plan: &'a Plan,
    limits: Limits,
    sequences: Vec<Sequence>,
    next_page: u32,
}

impl<'a> Running<'a> {
    fn new(device: &'a CpuDevice, plan: &'a Plan, limits: &Limits) -> Running<'a> {
        let program = device.compile(std::slice::from_ref(plan), limits).and_then(committed).unwrap();
        Running { program, plan, limits: limits.clone(), sequences: vec![], next_page: 0 }
    }

    /// Adds an empty sequence.
    fn add(&mut self, index: usize, text: fn(usize, usize) -> u32) {
        let table = vec![PAGE_NONE; self.limits.n_ctx / self.limits.page_len];
        self.sequences.push(Sequence { table, len: 0, text, index });
    }

    /// Adds a sequence that begins with the first `n_pages` of another one.
    fn fork(&mut self, from: usize, n_pages: usize, index: usize, text: fn(usize, usize) -> u32) {
        self.add(index, text);
        let pages = self.sequences[from].table[..n_pages].to_vec();
        let fork = self.sequences.last_mut().unwrap();
        fork.table[..n_pages].copy_from_slice(&pages);
        fork.len = n_pages * self.limits.page_len;
    }

    /// Runs the next rows of some sequences, and returns the bits of the logits of each sequence's
    /// last row.
    fn step(&mut self, rows: &[(usize, usize)]) -> Vec<Vec<u32>> {
        let (mut spans, mut tokens, mut outputs) = (vec![], vec![], vec![]);
        for (slot, n_rows) in rows {
            let sequence = &mut self.sequences[*slot];
            let (first, end) = (sequence.len, sequence.len + n_rows);
            let (first_row, n) = (tokens.len() as u32, *n_rows as u32);
            spans.push(Span { slot: *slot as u32, first_row, n_rows: n, first_position: first as u32 });
            tokens.extend((first..end).map(|at| (sequence.text)(sequence.index, at)));
            outputs.push(tokens.len() as u32 - 1);
            for entry in first / self.limits.page_len..end.div_ceil(self.limits.page_len) {
                if sequence.table[entry] == PAGE_NONE {
                    sequence.table[entry] = self.next_page;
                    self.next_page += 1;
                }
            }
            sequence.len = end;
        }
        let n_groups = self.plan.kv.groups.len();
        let step = OwnedStep {
            tokens,
            spans,
            wants: vec![BEST_AND_LOGITS; outputs.len()],
            outputs,
            page_tables: self.sequences.iter().flat_map(|s| s.table.repeat(n_groups)).collect(),
            pages_per_table: self.limits.n_ctx / self.limits.page_len,
            ..OwnedStep::default()
        };
        self.program.run(&step.borrow()).unwrap();
        let bits: Vec<u32> = self.program.logits().iter().map(|x| x.to_bits()).collect();
        assert!(bits.iter().all(|bits| f32::from_bits(*bits).is_finite()));
        bits.chunks(N_VOCAB as usize).map(<[u32]>::to_vec).collect()
    }

    /// Extends a sequence to a length, in chunks of a prompt.
    fn prefill(&mut self, slot: usize, len: usize) {
        while self.sequences[slot].len < len {
            let n = (len - self.sequences[slot].len).min(self.limits.max_rows);
            self.step(&[(slot, n)]);
        }
    }
}

/// A text that all sequences share up to position 600.
fn prompt(index: usize, at: usize) -> u32 {
    if at < 600 { (at * 7 % 48) as u32 } else { ((at * 5 + index * 11) % N_VOCAB as usize) as u32 }
}

/// A different text for each sequence.
fn own(index: usize, at: usize) -> u32 {
    ((at * 7 + index * 13) % N_VOCAB as usize) as u32
}

fn limits_of(shape: &Shape, plan: &Plan) -> Limits {
    let page_len = shape.page_len;
    Limits {
        max_rows: 128,
        max_outputs: 16,
        max_spans: 8,
        n_ctx: 1024,
        page_len,
        n_pages: vec![8 * 1024 / page_len; plan.kv.groups.len()],
        n_states: 0,
        background_rows: 0,
        kv_type: shape.kv_type,
        numerics: Numerics::Deterministic,
    }
}

/// Every shape on the fastest instruction set, and some shapes on the others, which are slow to
/// prefill.
fn devices_and_shapes(threads: usize) -> Vec<(CpuDevice, Isa, Shape)> {
    let mut found = vec![];
    for (i, isa) in Isa::available().into_iter().rev().enumerate() {
        for shape in shapes().into_iter().skip(i).step_by(if i == 0 { 1 } else { 5 }) {
            let device = CpuDevice::new(Options { threads: Some(threads), isa: Some(isa) }).unwrap();
            found.push((device, isa, shape));
        }
    }
    found
}

/// Shapes of heads, groups and pages, with and without window, sinks and softcap.
fn shapes() -> Vec<Shape> {
    let plain = AttentionOptions::default();
    let all = AttentionOptions {
        softcap: Some(20.0),
        window: Some(300),
        chunked: false,
        both_ways: false,
        sinks: true,
    };
    let heads = [
        (32, 4, 2, 16, plain),
        (64, 9, 3, 32, plain),
        (80, 3, 3, 64, all),
        (96, 8, 1, 128, plain),
        (128, 5, 1, 256, AttentionOptions { sinks: true, ..plain }),
        (16, 40, 1, 64, AttentionOptions { window: Some(130), ..plain }),
        (16, 40, 1, 64, AttentionOptions { window: Some(130), chunked: true, ..plain }),
    ];
    let types = [KvType::I16, KvType::I8, KvType::F16, KvType::F32];
    let mut shapes = vec![];
    for (i, (head_dim, n_heads, n_kv_heads, page_len, options)) in heads.into_iter().enumerate() {
        // Every shape has two KV types, and every type has three shapes.
        for kv_type in [types[i % 4], types[(i + 1 + i / 4) % 4]] {
            shapes.push(Shape { head_dim, n_heads, n_kv_heads, page_len, kv_type, options });
        }
    }
    shapes
}

/// Sequences of different lengths have their own pages; a step has single rows, a few rows, and a
/// prompt's rows.
#[test]
fn a_batch_gives_each_row_the_bits_that_it_has_alone() {
    for (device, isa, shape) in devices_and_shapes(3) {
        let plan = plan(&shape, &device);
        let limits = limits_of(&shape, &plan);
        let lengths = [700, 3, 257, 512, 600];
        let steps: [&[(usize, usize)]; 4] = [
            &[(0, 1), (1, 1), (2, 1), (3, 1), (4, 1)],
            &[(0, 1), (1, 60), (2, 5), (4, 1)],
            &[(3, 1), (1, 1)],
            &[(4, 3), (0, 1), (2, 1), (1, 70), (3, 2)],
        ];
        let mut batch = Running::new(&device, &plan, &limits);
        lengths.iter().enumerate().for_each(|(i, _)| batch.add(i, own));
        lengths.iter().enumerate().for_each(|(i, len)| batch.prefill(i, *len));
        let mut together = vec![vec![]; lengths.len()];
        for step in steps {
            for ((slot, _), bits) in step.iter().zip(batch.step(step)) {
                together[*slot].push(bits);
            }
        }
        for (slot, len) in lengths.into_iter().enumerate() {
            let mut alone = Running::new(&device, &plan, &limits);
            alone.add(slot, own);
            alone.prefill(0, len);
            let rows = steps.iter().flat_map(|step| step.iter().filter(|(s, _)| *s == slot));
            for ((_, n), together) in rows.zip(&together[slot]) {
                assert_eq!(&alone.step(&[(0, *n)])[0], together, "{isa} {shape:?}, sequence {slot}");
            }
        }
    }
}

/// Sequences' tables begin with the same pages, some share more pages than others, and one shares
/// none.
#[test]
fn pages_that_are_shared_give_the_bits_of_pages_that_are_not() {
    for (device, isa, shape) in devices_and_shapes(2) {
        let plan = plan(&shape, &device);
        let limits = limits_of(&shape, &plan);
        let mut batch = Running::new(&device, &plan, &limits);
        batch.add(0, prompt);
        batch.prefill(0, 520);
        let of = |positions: usize| positions / limits.page_len;
        batch.fork(0, of(512), 1, prompt);
        batch.add(2, own);
        batch.fork(0, of(256), 3, prompt);
        batch.fork(0, of(512), 4, prompt);
        batch.fork(1, of(512), 5, prompt);
        let lengths = [630, 700, 530, 610, 601, 515];
        lengths.iter().enumerate().for_each(|(slot, len)| batch.prefill(slot, *len));
        let steps: [&[(usize, usize)]; 3] = [
            &[(5, 1), (2, 1), (0, 1), (3, 1), (1, 1), (4, 1)],
            &[(1, 4), (0, 1), (2, 70), (3, 1)],
            &[(0, 1), (4, 1)],
        ];
        let mut together = vec![vec![]; lengths.len()];
        for step in steps {
            for ((slot, _), bits) in step.iter().zip(batch.step(step)) {
                together[*slot].push(bits);
            }
        }
        for (slot, len) in lengths.into_iter().enumerate() {
            let mut alone = Running::new(&device, &plan, &limits);
            alone.add(slot, if slot == 2 { own } else { prompt });
            alone.prefill(0, len);
            let rows = steps.iter().flat_map(|step| step.iter().filter(|(s, _)| *s == slot));
            for ((_, n), together) in rows.zip(&together[slot]) {
                assert_eq!(&alone.step(&[(0, *n)])[0], together, "{isa} {shape:?}, sequence {slot}");
            }
        }
    }
}

/// A row has the same bits for any division of a prompt into steps, and any length of pages.
#[test]
fn neither_chunks_nor_pages_change_bits() {
    const LEN: usize = 290;
    for (device, isa, shape) in devices_and_shapes(2) {
        let mut want = None;
        for (page_len, chunks) in [
            (16, &[128, 128, 33][..]),
            (128, &[1, 126, 1, 2, 127, 32]),
            (32, &[7, 57, 64, 100, 61]),
            (256, &[97, 97, 95]),
        ] {
            let shape = Shape { page_len, ..shape };
            let plan = plan(&shape, &device);
            let mut running = Running::new(&device, &plan, &limits_of(&shape, &plan));
            running.add(3, own);
            chunks.iter().for_each(|n| drop(running.step(&[(0, *n)])));
            assert_eq!(running.sequences[0].len, LEN - 1, "{chunks:?}");
            let got = running.step(&[(0, 1)]);
            assert_eq!(*want.get_or_insert_with(|| got.clone()), got, "{isa} {shape:?} {chunks:?}");
        }
    }
}

//! What a token costs, counted by the emulator: dispatches, barriers, bytes of device memory against the least possible, bytes
//! of threadgroup memory, SIMD-group instructions; and from it a PREDICTION of tokens a second on an M4 Pro.
//!
//!     cargo run --release -p ingle-device-metal --example cost_table [model ...] [position]
//!
//! Nothing here was timed on Apple hardware. A layer is run once with one and once with two of its kind; what the second adds is
//! what each layer costs. Weights are noise, in the shapes and the types of the models.
#![allow(clippy::unwrap_used)]

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
fn main() {
    table::main();
}

#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
fn main() {
    eprintln!("the emulator runs on Linux on x86-64");
}

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod table {
    use device::testing::{AttentionOptions, PlanBuilder, Rng, limits, stored};
    use device::{
        Activation, DType, Device, KvLayer, KvType, Limits, Op, OwnedStep, Plan, RopeStyle, Rows, Span,
        ValueId, Want, Weight, WeightId, WeightPart, fusion,
    };
    use formats::{BlockType, Bytes, Planes};
    use ingle_device_metal::MetalDevice;
    use ingle_device_metal::gpu::emulated::{EmulatedGpu, Options};

    /// Position of the token that is decoded, if no other is asked for.
    const POSITION: usize = 511;

    /// Bytes a second of an M4 Pro's memory, and what of it kernels reach.
    const BANDWIDTH: f64 = 273e9 * 0.9;

    /// Published seconds of a dispatch that waits for the one before, and of one that does not wait alone.
    const DISPATCH: [f64; 2] = [1.3e-6, 0.5e-6];

    /// A model's shapes.
    struct Shapes {
        name: &'static str,
        n_layers: usize,
        hidden: usize,
        n_heads: usize,
        n_kv_heads: usize,
        head_dim: usize,
        ffn: usize,
        n_vocab: usize,
        qk_norm: bool,
        /// Experts, those of a token, and the width of each.
        experts: Option<(usize, usize, usize)>,
        /// Tokens a second that others publish for an M4 Pro: the most, and llama.cpp's.
        published: (f64, f64),
    }

    const MODELS: [Shapes; 4] = [
        Shapes {
            name: "Qwen3-0.6B",
            n_layers: 28,
            hidden: 1024,
            n_heads: 16,
            n_kv_heads: 8,
            head_dim: 128,
            ffn: 3072,
            n_vocab: 151_936,
            qk_norm: true,
            experts: None,
            published: (464.0, 297.0),
        },
        Shapes {
            name: "Llama-3.2-1B",
            n_layers: 16,
            hidden: 2048,
            n_heads: 32,
            n_kv_heads: 8,
            head_dim: 64,
            ffn: 8192,
            n_vocab: 128_256,
            qk_norm: false,
            experts: None,
            published: (295.0, 230.0),
        },
        Shapes {
            name: "Llama-3.2-3B",
            n_layers: 28,
            hidden: 3072,
            n_heads: 24,
            n_kv_heads: 8,
            head_dim: 128,
            ffn: 8192,
            n_vocab: 128_256,
            qk_norm: false,
            experts: None,
            published: (119.0, 102.0),
        },
        Shapes {
            name: "Qwen3-30B-A3B",
            n_layers: 48,
            hidden: 2048,
            n_heads: 32,
            n_kv_heads: 4,
            head_dim: 128,
            ffn: 0,
            n_vocab: 151_936,
            qk_norm: true,
            experts: Some((128, 8, 768)),
            published: (84.0, 81.0),
        },
    ];

    /// Rows that differ; the others repeat them.
    const N_DIFFERENT: usize = 16;

    fn noise(n_out: usize, n_in: usize, block: BlockType) -> Weight {
        let weight = stored(&mut Rng::new(5), "noise", N_DIFFERENT.min(n_out), n_in, block, 0.05);
        let data: Vec<u8> = weight.data.iter().copied().cycle().take(n_out * weight.row_bytes()).collect();
        Weight { shape: vec![n_out, n_in], data: Bytes::from_slice(&data), ..weight }
    }

    fn linear(b: &mut PlanBuilder, x: ValueId, n_out: usize, block: BlockType) -> ValueId {
        let n_in = b.cols(x);
        let weight = b.weight(noise(n_out, n_in, block));
        linear_of(b, x, weight, n_out)
    }

    fn linear_of(b: &mut PlanBuilder, x: ValueId, weight: WeightId, n_out: usize) -> ValueId {
        let rows = if n_out > 100_000 { Rows::Outputs } else { Rows::Tokens };
        let out = b.value(rows, n_out, DType::F32);
        b.push(Op::Linear { x, weight, bias: None, out });
        out
    }

    fn experts(
        b: &mut PlanBuilder,
        x: ValueId,
        ids: ValueId,
        n: usize,
        n_out: usize,
        n_in: usize,
    ) -> ValueId {
        let part = noise(n_out, n_in, BlockType::Q4_0);
        let parts: Vec<WeightPart> = (0..n)
            .map(|_| WeightPart { data: Bytes::from_slice(&part.data), planes: Planes::default() })
            .collect();
        let weight =
            b.weight(Weight { shape: vec![n, n_out, n_in], data: Bytes::from_slice(&[]), parts, ..part });
        let out = b.value(Rows::Tokens, b.cols(ids) * n_out, DType::F32);
        b.push(Op::ExpertLinear { x, ids, weight, out });
        out
    }

    /// A model of so many layers of these shapes.
    fn plan(s: &Shapes, n_layers: u32) -> Plan {
        let block = BlockType::Q4_0;
        let mut b = PlanBuilder::new(1, 64);
        let table = b.weight(noise(s.n_vocab, s.hidden, BlockType::Q6_K));
        let mut x = b.value(Rows::Tokens, s.hidden, DType::F32);
        b.push(Op::Embed { table, scale: 1.0, out: x });
        for index in 0..n_layers {
            b.layer(Some(index));
            let (n_kv_heads, head_dim) = (s.n_kv_heads, s.head_dim);
            let layer = b.kv_layer(KvLayer { n_kv_heads, head_dim, window: None, memory: None });
            let norm = b.rms_norm(x, s.hidden);
            let mut q = linear(&mut b, norm, s.n_heads * s.head_dim, block);
            let mut k = linear(&mut b, norm, s.n_kv_heads * s.head_dim, block);
            let v = linear(&mut b, norm, s.n_kv_heads * s.head_dim, block);
            if s.qk_norm {
                q = b.rms_norm(q, s.head_dim);
                k = b.rms_norm(k, s.head_dim);
            }
            let q = b.rope(q, s.head_dim, s.head_dim, RopeStyle::Half);
            let k = b.rope(k, s.head_dim, s.head_dim, RopeStyle::Half);
            b.kv_write(k, v, layer);
            let y = b.attention(q, layer, s.n_heads, AttentionOptions::default());
            let y = linear(&mut b, y, s.hidden, block);
            x = b.add(x, y);
            let norm = b.rms_norm(x, s.hidden);
            let y = match s.experts {
                None => {
                    let (gate, up) = (linear(&mut b, norm, s.ffn, block), linear(&mut b, norm, s.ffn, block));
                    let y = b.gate(gate, up, Activation::Silu);
                    linear(&mut b, y, s.hidden, block)
                }
                Some((n, used, width)) => {
                    let router = linear(&mut b, norm, n, BlockType::F32);
                    let (ids, weights) = b.route(router, used, true, 1.0, false);
                    let gate = experts(&mut b, norm, ids, n, width, s.hidden);
                    let up = experts(&mut b, norm, ids, n, width, s.hidden);
                    let y = b.gate(gate, up, Activation::Silu);
                    let y = experts(&mut b, y, ids, n, s.hidden, width);
                    b.expert_sum(y, weights)
                }
            };
            x = b.add(x, y);
        }
        b.layer(None);
        let x = b.select_rows(x);
        let x = b.rms_norm(x, s.hidden);
        let logits = linear_of(&mut b, x, table, s.n_vocab);
        b.finish(logits)
    }

    /// Sums over the dispatches of a step.
    #[derive(Clone, Copy, Default)]
    struct Cost {
        dispatches: f64,
        barriers: f64,
        read: f64,
        written: f64,
        least: f64,
        threadgroup: f64,
        shuffles: f64,
        reductions: f64,
        matrices: f64,
    }

    impl Cost {
        fn combine(self, other: Cost, f: impl Fn(f64, f64) -> f64) -> Cost {
            Cost {
                dispatches: f(self.dispatches, other.dispatches),
                barriers: f(self.barriers, other.barriers),
                read: f(self.read, other.read),
                written: f(self.written, other.written),
                least: f(self.least, other.least),
                threadgroup: f(self.threadgroup, other.threadgroup),
                shuffles: f(self.shuffles, other.shuffles),
                reductions: f(self.reductions, other.reductions),
                matrices: f(self.matrices, other.matrices),
            }
        }
    }

    /// So many rows that end at a position.
    fn measure(s: &Shapes, n_layers: u32, n_rows: usize, position: usize) -> Cost {
        let cache = std::env::temp_dir().join("ingle-cost-table");
        let options = Options { counting: true, threads: 2, ..Options::new(cache) };
        let device = MetalDevice::new(EmulatedGpu::new(&options).unwrap());
        let plan = fusion::fuse(&plan(s, n_layers), device.fusion());
        let (n_ctx, page_len) = ((position + 1).next_multiple_of(1024), 64);
        let n_pages = vec![n_ctx / page_len; plan.kv.groups.len()];
        let limits = Limits {
            max_rows: n_rows,
            max_outputs: 1,
            max_spans: 1,
            n_ctx,
            page_len,
            n_pages,
            kv_type: KvType::F16,
            ..limits(&plan.kv)
        };
        let mut program = device.compile(std::slice::from_ref(&plan), &limits).unwrap();
        let first_position = position + 1 - n_rows;
        let step = OwnedStep {
            plan: 0,
            tokens: vec![3; n_rows],
            input: vec![],
            spans: vec![Span {
                slot: 0,
                first_row: 0,
                n_rows: n_rows as u32,
                first_position: first_position as u32,
            }],
            page_tables: (0..(n_ctx / page_len) as u32).collect(),
            pages_per_table: n_ctx / page_len,
            outputs: vec![n_rows as u32 - 1],
            want: Want::Argmax,
        };
        device.gpu().start_trace();
        program.run(&step.borrow()).unwrap();
        let trace = device.gpu().take_trace();
        let kv_bytes: usize = (0..plan.kv.layers.len() as u32)
            .map(|id| {
                plan.kv.layer_page_bytes(device::KvLayerId(id), limits.kv_type, 1) * (first_position + n_rows)
            })
            .sum();
        let mut cost =
            Cost { least: (plan.weight_bytes_per_token() + kv_bytes as u64) as f64, ..Cost::default() };
        for traced in trace {
            let (read, written) = traced.counters.device_bytes();
            cost = cost.combine(
                Cost {
                    dispatches: 1.0,
                    barriers: f64::from(u8::from(traced.after_barrier)),
                    read: read as f64,
                    written: written as f64,
                    least: 0.0,
                    threadgroup: (traced.counters.threadgroup_read + traced.counters.threadgroup_written)
                        as f64,
                    shuffles: traced.counters.simdgroup.shuffles as f64,
                    reductions: traced.counters.simdgroup.reductions as f64,
                    matrices: traced.counters.simdgroup.matrix_multiplies as f64,
                },
                |a, b| a + b,
            );
        }
        cost
    }

    /// Of a whole model.
    fn whole(s: &Shapes, n_rows: usize, position: usize) -> Cost {
        let (one, two) = (measure(s, 1, n_rows, position), measure(s, 2, n_rows, position));
        let layer = two.combine(one, |two, one| two - one);
        one.combine(layer, |one, layer| one + (s.n_layers as f64 - 1.0) * layer)
    }

    pub fn main() {
        let (numbers, wanted): (Vec<String>, Vec<String>) =
            std::env::args().skip(1).partition(|argument| argument.parse::<usize>().is_ok());
        let position = numbers.first().map_or(POSITION, |number| number.parse().unwrap());
        let models = MODELS.iter().filter(|s| wanted.is_empty() || wanted.iter().any(|w| s.name.contains(w)));
        println!(
            "A token at position {position}, Q4_0 (embedding and head Q6_K), F16 keys and values; counted, not timed:\n"
        );
        println!(
            "| model | dispatches | barriers | read MB | written MB | least MB | read / least | threadgroup MB | \
             shuffles k | reductions k | predicted tok/s (prediction) | published best, llama.cpp |"
        );
        println!("|---|---|---|---|---|---|---|---|---|---|---|---|");
        for s in models {
            let c = whole(s, 1, position);
            let tok = DISPATCH.map(|seconds| 1.0 / (c.read / BANDWIDTH + c.dispatches * seconds));
            println!(
                "| {} | {} | {} | {:.1} | {:.2} | {:.1} | {:.3} | {:.2} | {:.0} | {:.0} | {:.0} to {:.0} | {}, {} |",
                s.name,
                c.dispatches,
                c.barriers,
                c.read / 1e6,
                c.written / 1e6,
                c.least / 1e6,
                c.read / c.least,
                c.threadgroup / 1e6,
                c.shuffles / 1e3,
                c.reductions / 1e3,
                tok[0],
                tok[1],
                s.published.0,
                s.published.1
            );
        }
        if wanted.iter().any(|w| w == "prefill") {
            let s = &MODELS[0];
            let c = whole(s, 64, 63);
            println!(
                "\n{}, a prompt of 64 tokens: {} dispatches, {} barriers, {:.1} MB read, {:.1} MB threadgroup memory, {:.0} k 8x8x8 products",
                s.name,
                c.dispatches,
                c.barriers,
                c.read / 1e6,
                c.threadgroup / 1e6,
                c.matrices / 1e3
            );
        }
    }
}

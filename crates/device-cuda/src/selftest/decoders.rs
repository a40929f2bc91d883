//! Small decoders of odd shapes, with and without experts, that the persistent kernels can run.
//!
//! This file has over 600 lines because it lists many decoders. Each tests a shape, a type or an
//! option that the others lack.

use device::{
    Activation, KvLayer, KvType, Limits, OpKind, OwnedStep, Plan, RopeStyle, RouterGroups, ValueId,
};
use device_check::{AttentionOptions, BEST_AND_LOGITS, Case, PlanBuilder, Sequences, limits};
use weights::BlockType;

/// Configuration of a mixture of experts, which replaces the feed-forward network of a decoder.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)] // Said by the names.
pub struct Experts {
    pub n: usize,
    pub n_used: usize,
    pub ffn: usize,
    pub block: BlockType,
    /// Type of the router's matrix.
    pub router: BlockType,
    /// True if the router's product has a bias. It spreads the scores, so that rounding seldom
    /// changes the chosen experts.
    pub bias: bool,
    pub normalise: bool,
    pub factor: f32,
    /// True if each expert has a factor.
    pub scales: bool,
    /// True if scores are sigmoids, with biases for the choice, weights that sum to 2.5 and no
    /// factors.
    pub sigmoid: bool,
    /// True if experts are chosen by groups. It needs `sigmoid`.
    pub groups: bool,
    /// True if the first layer is dense.
    pub first_dense: bool,
    /// True if all three matrices have biases, and the gate is clamped.
    pub biases: bool,
}

impl Experts {
    /// A small mixture that the persistent kernel can run.
    pub const SMALL: Experts = Experts {
        n: 8,
        n_used: 2,
        ffn: 64,
        block: BlockType::Q4_0,
        router: BlockType::F32,
        bias: false,
        normalise: true,
        factor: 1.0,
        scales: false,
        sigmoid: false,
        groups: false,
        first_dense: false,
        biases: false,
    };

    /// Adds the mixture with input `x`, and returns its output. `down` is the type of the last
    /// matrix.
    fn add_to(
        self,
        b: &mut PlanBuilder,
        x: ValueId,
        hidden: usize,
        activation: Activation,
        down: BlockType,
    ) -> ValueId {
        let Experts { n, n_used, ffn, block, .. } = self;
        let router = match self.bias {
            true => b.linear_with_bias(x, n, 4.0),
            false => b.linear(x, n, self.router, false),
        };
        let (ids, weights) = match (self.sigmoid, self.groups) {
            (true, groups) => {
                let groups = groups.then_some(RouterGroups { n: 4, n_used: 2, n_best: 2 });
                b.route_by_sigmoids(router, n_used, groups)
            }
            _ => b.route(router, n_used, self.normalise, self.factor, self.scales),
        };
        let product = |b: &mut PlanBuilder, (x, each): (ValueId, bool), rows: usize, block: BlockType| {
            let y = b.expert_linear((x, each), ids, (n, rows), block);
            if self.biases { b.expert_bias(y, ids, n) } else { y }
        };
        let gate = product(b, (x, false), ffn, block);
        let up = product(b, (x, false), ffn, block);
        let y = match self.biases {
            true => b.gate_clamped(gate, up, 1.702, 1.5),
            false => b.gate(gate, up, activation),
        };
        let y = product(b, (y, true), hidden, down);
        b.expert_sum(y, weights)
    }
}

/// Types of some matrices in every second layer, from the first on, as in files that mix types.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)] // Said by the names.
pub struct Mix {
    pub k: BlockType,
    pub v: BlockType,
    /// Type of down, also of experts.
    pub down: BlockType,
}

/// Configuration of a decoder. `residual` is the number of columns of the residual.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)] // Said by the names.
pub struct Decoder {
    pub residual: usize,
    pub head_dim: usize,
    pub n_heads: usize,
    pub n_kv_heads: usize,
    pub ffn: usize,
    pub n_vocab: usize,
    pub n_layers: usize,
    pub block: BlockType,
    pub mix: Option<Mix>,
    pub head: BlockType,
    /// Type of the embedding table.
    pub embedding: BlockType,
    pub bias: bool,
    /// True if products that are added to the residual have a bias, except those of experts.
    pub added_bias: bool,
    pub head_norms: bool,
    pub post_norms: bool,
    /// True if every second layer has a window of 40 positions and no RoPE.
    pub windows: bool,
    pub softcap: Option<f32>,
    /// Softcap of the logits.
    pub cap: Option<f32>,
    pub sinks: bool,
    pub style: RopeStyle,
    pub activation: Activation,
    /// KV type of the pages.
    pub kv_type: KvType,
    pub experts: Option<Experts>,
}

impl Decoder {
    /// A small decoder that the persistent kernel can run.
    pub const SMALL: Decoder = Decoder {
        residual: 320,
        head_dim: 64,
        n_heads: 4,
        n_kv_heads: 2,
        ffn: 448,
        n_vocab: 301,
        n_layers: 3,
        block: BlockType::Q4_0,
        mix: None,
        head: BlockType::Q8_0,
        embedding: BlockType::Q8_0,
        bias: false,
        added_bias: false,
        head_norms: false,
        post_norms: false,
        windows: false,
        softcap: None,
        cap: None,
        sinks: false,
        style: RopeStyle::Half,
        activation: Activation::Silu,
        kv_type: KvType::F16,
        experts: None,
    };

    /// The decoder's plan. The output rows are selected after the last attention.
    pub fn plan(self, seed: u64) -> Plan {
        self.build(PlanBuilder::new(seed, self.n_vocab))
    }

    /// Like [`Self::plan`], with matrices of zero bytes.
    #[cfg(test)]
    pub fn blank_plan(self) -> Plan {
        self.build(PlanBuilder::blank(self.n_vocab))
    }

    /// Returns true if some matrix is in F16 or BF16. The kernel for several rows then also runs
    /// one-row steps.
    pub fn has_halves(self) -> bool {
        let mixed = self.mix.into_iter().flat_map(|mix| [mix.k, mix.v, mix.down]);
        mixed.chain([self.block, self.head]).any(BlockType::is_float)
    }

    fn build(self, mut b: PlanBuilder) -> Plan {
        let Decoder { residual: hidden, head_dim, n_heads, n_kv_heads, block, .. } = self;
        let mut x = b.embed_from(hidden, self.embedding, 2.0);
        for index in 0..self.n_layers {
            let is_last = index + 1 == self.n_layers;
            let is_second = self.windows && index % 2 == 1;
            let window = is_second.then_some(40);
            let pure = Mix { k: block, v: block, down: block };
            let mix = self.mix.filter(|_| index % 2 == 0);
            let Mix { k: k_block, v: v_block, down } = mix.unwrap_or(pure);
            let kv = KvLayer { n_kv_heads, head_dim, window, encoder_states: None, values_are_keys: false };
            let layer = b.kv_layer(kv);
            let residual = b.select_rows_of_last(x, is_last);
            let normed = b.rms_norm(x, hidden);
            let mut q = b.linear(normed, n_heads * head_dim, block, self.bias);
            let mut k = b.linear(normed, n_kv_heads * head_dim, k_block, self.bias);
            let v = b.linear(normed, n_kv_heads * head_dim, v_block, self.bias);
            if self.head_norms {
                q = b.rms_norm(q, head_dim);
                k = b.rms_norm(k, head_dim);
            }
            if !is_second {
                q = b.rope(q, head_dim, head_dim, self.style);
                k = b.rope(k, head_dim, head_dim, self.style);
            }
            b.kv_write(k, v, layer);
            let options =
                AttentionOptions { window, sinks: self.sinks, softcap: self.softcap, ..Default::default() };
            let y = b.attention(q, layer, n_heads, options);
            let y = b.select_rows_of_last(y, is_last);
            let mut y = b.linear(y, hidden, block, self.added_bias);
            if self.post_norms {
                y = b.rms_norm(y, hidden);
            }
            x = b.add(residual, y);
            let normed = b.rms_norm(x, hidden);
            let mut y = match self.experts {
                Some(experts) if index > 0 || !experts.first_dense => {
                    let down = mix.map_or(experts.block, |mix| mix.down);
                    experts.add_to(&mut b, normed, hidden, self.activation, down)
                }
                _ => {
                    let gate = b.linear(normed, self.ffn, block, false);
                    let up = b.linear(normed, self.ffn, block, false);
                    let y = b.gate(gate, up, self.activation);
                    b.linear(y, hidden, down, self.added_bias)
                }
            };
            if self.post_norms {
                y = b.rms_norm(y, hidden);
            }
            x = b.add(y, x);
        }
        let x = b.rms_norm(x, hidden);
        let logits = b.linear(x, self.n_vocab, self.head, false);
        let logits = self.cap.map_or(logits, |cap| b.softcap(logits, cap));
        b.finish(logits)
    }

    pub(super) fn limits(self, plan: &Plan) -> Limits {
        Limits { kv_type: self.kv_type, ..limits(&plan.kv) }
    }

    /// Largest effect of the rounding of keys and values on the results.
    fn rounding(self) -> f32 {
        match self.kv_type {
            KvType::Fp8 => 7e-2,
            KvType::Q8_0 => 3e-2,
            KvType::F32 | KvType::F16 | KvType::I16 | KvType::I8 => 2e-3,
        }
    }

    /// The test case of this decoder: single tokens, a prompt, a second sequence in the same step,
    /// and single tokens again. Then come steps with rows of several sequences and several rows of
    /// one sequence. Without experts they also cover both sides of a page's end, and positions
    /// beyond the window.
    pub(super) fn case(self, seed: u64) -> Case {
        let plan = self.plan(seed);
        let limits = self.limits(&plan);
        let mut sequences = Sequences::new(seed, &plan.kv, &limits, 64);
        let mut spans: Vec<&[(usize, usize)]> = vec![
            &[(0, 1)],
            &[(0, 1)],
            &[(0, 13)],
            &[(0, 1)],
            &[(0, 1)],
            &[(0, 1), (1, 17)],
            &[(1, 1)],
            &[(0, 1)],
            &[(1, 1)],
            &[(0, 1)],
        ];
        if self.experts.is_none() {
            spans.extend([
                &[(2, 15), (3, 45)][..],
                &[(3, 1), (0, 1)],
                &[(2, 1), (4, 1), (1, 1)],
                &[(5, 1), (2, 1), (0, 1), (4, 1), (3, 1)],
                &[(7, 1), (0, 1), (6, 1), (1, 1), (5, 1), (2, 1), (3, 1), (4, 1)],
                &[(0, 1), (1, 1), (2, 1), (3, 1), (4, 1), (5, 1), (6, 1), (7, 1)],
                &[(6, 1)],
                &[(6, 1), (3, 1)],
                &[(4, 2), (2, 1)],
                // Several rows of a sequence, across the ends of pages and of tiles of 16
                // positions.
                &[(5, 8)],
                &[(7, 3), (5, 5)],
                &[(5, 2), (7, 5), (2, 1)],
                &[(5, 6), (3, 2)],
                &[(3, 7)],
                &[(5, 1)],
            ]);
        } else {
            // Few rows, since with many rows rounding is likely to change the experts of one of
            // them.
            spans.extend([&[(1, 1), (0, 1)][..], &[(2, 1), (4, 1), (1, 1)], &[(3, 4)], &[(4, 2)], &[(0, 1)]]);
            spans.extend([&[(5, 1), (2, 1), (0, 1), (6, 1), (3, 1)][..], &[(7, 8)]]);
        }
        // The prompt has no outputs, so that commands after the selection of outputs have no rows.
        let prompt = |step: OwnedStep| step.with_outputs(vec![], BEST_AND_LOGITS);
        let steps = spans.into_iter().map(|spans| sequences.step(spans)).enumerate();
        let steps = steps.map(|(index, step)| if index == 2 { prompt(step) } else { step }).collect();
        let name = format!("decoder {seed} {self:?}");
        // Kernels for F16 and BF16 exchange activations with 10 bits instead of 8. The allowed
        // error is a third, 0.05, which `selftest::tolerance` computes from this value.
        let (block, tolerance) = match self.has_halves() {
            true => (BlockType::F16, (0.045 + self.rounding()) / 4.0),
            false => (self.block, self.rounding()),
        };
        Case { name, kind: OpKind::Fused, block, plans: vec![plan], limits, steps, tolerance }
    }
}

/// All test decoders. They cover every head shape, codec and option of the persistent kernel, over
/// F16, Q8_0 and FP8 pages. Others have rows that 128 blocks share equally, mixed types, F16 and
/// BF16 matrices, or head shapes whose kernels are generated.
pub fn decoders() -> Vec<Decoder> {
    let of = |kv_type: KvType| decoders_over_f16().into_iter().map(move |of| Decoder { kv_type, ..of });
    // The persistent kernel cannot read keys whose bias was subtracted before the store.
    let over_bytes =
        [KvType::Q8_0, KvType::Fp8].into_iter().flat_map(of).map(|of| Decoder { bias: false, ..of });
    // Blocks have more groups of rows than registers hold, also in odd numbers.
    let wide = Decoder { n_kv_heads: 8, n_layers: 1, ..Decoder::SMALL };
    let large = [
        Decoder { residual: 2048, n_heads: 32, ffn: 5120, ..wide },
        Decoder { residual: 3072, head_dim: 128, n_heads: 24, ffn: 1024, head: BlockType::Q4_0, ..wide },
    ];
    of(KvType::F16)
        .chain(over_bytes)
        .chain(large)
        .chain(mixed_decoders())
        .chain(half_decoders())
        .chain(other_shapes())
        .chain(rare_decoders())
        .collect()
}

/// Decoders with features that kernel files lack: rare codecs, sinks, biases of added products and
/// of experts, clamped gates.
fn rare_decoders() -> Vec<Decoder> {
    use BlockType::*;
    let small = Decoder::SMALL;
    let of_256 = Decoder { residual: 768, n_heads: 8, ffn: 1536, ..small };
    let experts = Experts { n: 6, n_used: 2, ffn: 256, bias: true, ..Experts::SMALL };
    let with_biases = Decoder { bias: true, added_bias: true, sinks: true, windows: true, ..small };
    vec![
        Decoder { block: Q2_K, head: Q6_K, windows: true, ..of_256 },
        Decoder {
            block: Q3_K,
            head: Q3_K,
            mix: Some(Mix { k: Q3_K, v: Q5_K, down: Q4_K }),
            bias: true,
            ..of_256
        },
        Decoder { residual: 1024, head_dim: 128, block: IQ4_NL, head: IQ4_NL, head_norms: true, ..of_256 },
        Decoder { block: IQ4_XS, head: Q8_0, post_norms: true, kv_type: KvType::Q8_0, ..of_256 },
        Decoder { residual: 544, n_heads: 6, ffn: 1120, block: MXFP4, head: MXFP4, ..small },
        Decoder { block: Q2_K, mix: Some(Mix { k: Q2_K, v: Q3_K, down: Q3_K }), head: F16, ..of_256 },
        Decoder { n_heads: 6, kv_type: KvType::Fp8, bias: false, ..with_biases },
        Decoder { head_dim: 128, n_heads: 4, n_kv_heads: 2, post_norms: true, head: BF16, ..with_biases },
        Decoder { head_dim: 256, n_heads: 2, n_kv_heads: 1, ..with_biases },
        // The rows of the feed-forward network are not whole units, and exceed a usual slot of the
        // ring.
        Decoder {
            residual: 576,
            n_heads: 16,
            block: Q8_0,
            experts: Some(Experts { ffn: 2080, block: MXFP4, biases: true, ..experts }),
            ..with_biases
        },
        Decoder {
            residual: 768,
            experts: Some(Experts {
                n: 4,
                n_used: 1,
                block: Q3_K,
                biases: true,
                normalise: false,
                ..experts
            }),
            ..small
        },
        Decoder {
            residual: 768,
            experts: Some(Experts { n: 5, n_used: 3, block: Q2_K, first_dense: true, ..experts }),
            ..small
        },
    ]
}

/// Decoders whose head shapes have no kernel file: heads of 256 columns, one query head per KV
/// head, and five to eight query heads per KV head.
fn other_shapes() -> Vec<Decoder> {
    use BlockType::*;
    let small = Decoder::SMALL;
    let large_heads = Decoder { head_dim: 256, head_norms: true, windows: true, ..small };
    let experts = Experts { n: 4, n_used: 1, bias: true, ..Experts::SMALL };
    vec![
        // Heads of 256 columns, with post-norms and windows.
        Decoder {
            residual: 1152,
            n_heads: 4,
            n_kv_heads: 1,
            ffn: 1536,
            n_layers: 4,
            post_norms: true,
            activation: Activation::GeluTanh,
            ..large_heads
        },
        Decoder {
            residual: 768,
            ffn: 512,
            n_kv_heads: 2,
            block: Q4_K,
            head: Q6_K,
            softcap: Some(30.0),
            cap: Some(20.0),
            ..large_heads
        },
        Decoder { n_heads: 2, style: RopeStyle::Interleaved, kv_type: KvType::Q8_0, ..large_heads },
        Decoder { n_heads: 2, n_kv_heads: 1, kv_type: KvType::Fp8, ..large_heads },
        Decoder { n_heads: 4, n_kv_heads: 4, style: RopeStyle::Interleaved, head: F16, ..large_heads },
        Decoder { n_heads: 3, n_kv_heads: 3, ..small },
        Decoder { head_dim: 128, n_heads: 4, n_kv_heads: 4, block: Q8_0, windows: true, ..small },
        // Seven, then six query heads per KV head.
        Decoder { residual: 896, n_heads: 14, bias: true, ..small },
        Decoder { residual: 1536, head_dim: 128, n_heads: 12, bias: true, n_layers: 2, ..small },
        Decoder { head_dim: 128, n_heads: 5, n_kv_heads: 1, head_norms: true, ..small },
        Decoder { residual: 512, n_heads: 8, n_kv_heads: 1, ffn: 768, block: Q6_K, ..small },
        Decoder { head_dim: 256, n_heads: 4, experts: Some(experts), ..small },
    ]
}

/// Decoders with F16 and BF16 matrices: all matrices, or only some of them, such as the head or
/// parts of q, k and v.
pub fn half_decoders() -> Vec<Decoder> {
    use BlockType::*;
    let small = Decoder::SMALL;
    let wide = Decoder { n_kv_heads: 8, n_layers: 1, ..small };
    let of_parts = Decoder { residual: 768, n_heads: 8, ffn: 1536, n_layers: 4, bias: true, ..small };
    vec![
        Decoder { block: BF16, head: BF16, bias: true, windows: true, ..small },
        // 128 blocks share the rows of each matrix equally.
        Decoder {
            residual: 1024,
            head_dim: 128,
            n_heads: 16,
            ffn: 3072,
            block: F16,
            head: F16,
            head_norms: true,
            n_vocab: 2051,
            kv_type: KvType::Q8_0,
            ..wide
        },
        Decoder { head: F16, post_norms: true, softcap: Some(30.0), kv_type: KvType::Fp8, ..small },
        Decoder {
            block: BF16,
            mix: Some(Mix { k: BF16, v: Q8_0, down: Q4_K }),
            head_norms: true,
            ..of_parts
        },
        Decoder { block: Q8_0, mix: Some(Mix { k: F16, v: BF16, down: F16 }), windows: true, ..of_parts },
        // Blocks have more groups of rows than registers hold.
        Decoder { residual: 2048, n_heads: 32, ffn: 5120, block: BF16, head: F16, ..wide },
    ]
}

/// Decoders with layers of two kinds: v and down have other types than the rest, as in files of
/// Q4_K_M, Q4_K_S, Q5_K_M and Q4_0. In some k differs too, and one is a mixture.
fn mixed_decoders() -> Vec<Decoder> {
    use BlockType::*;
    let k_m = Decoder {
        residual: 768,
        n_heads: 8,
        ffn: 1536,
        block: Q4_K,
        mix: Some(Mix { k: Q4_K, v: Q6_K, down: Q6_K }),
        head: Q6_K,
        ..Decoder::SMALL
    };
    let experts = Experts { n: 6, n_used: 3, ffn: 256, block: Q4_K, bias: true, ..Experts::SMALL };
    vec![
        Decoder { bias: true, ..k_m },
        // 128 blocks share the rows of each matrix equally, except those of v alone.
        Decoder {
            residual: 1024,
            head_dim: 128,
            n_heads: 16,
            n_kv_heads: 4,
            ffn: 2048,
            head_norms: true,
            n_vocab: 2051,
            ..k_m
        },
        Decoder { mix: Some(Mix { k: Q5_K, v: Q6_K, down: Q5_K }), windows: true, head_norms: true, ..k_m },
        Decoder {
            residual: 544,
            n_heads: 6,
            ffn: 1120,
            block: Q5_0,
            mix: Some(Mix { k: Q5_1, v: Q5_1, down: Q8_0 }),
            head: Q5_1,
            bias: true,
            ..Decoder::SMALL
        },
        Decoder { mix: Some(Mix { k: Q4_0, v: Q8_0, down: Q4_1 }), n_layers: 4, ..Decoder::SMALL },
        Decoder { experts: Some(experts), ..k_m },
    ]
}

/// Decoders that kernel files cover, over F16 pages.
fn decoders_over_f16() -> Vec<Decoder> {
    [dense_decoders(), mixtures(), wide_decoders()].concat()
}

fn dense_decoders() -> Vec<Decoder> {
    use BlockType::*;
    let small = Decoder::SMALL;
    let cap = Some(30.0);
    vec![
        small,
        Decoder {
            residual: 512,
            head_dim: 128,
            n_heads: 6,
            ffn: 1280,
            block: Q8_0,
            head: Q4_0,
            bias: true,
            head_norms: true,
            ..small
        },
        Decoder {
            residual: 768,
            n_heads: 8,
            ffn: 1536,
            block: Q4_K,
            head: Q6_K,
            head_norms: true,
            post_norms: true,
            windows: true,
            softcap: cap,
            style: RopeStyle::Interleaved,
            activation: Activation::GeluTanh,
            ..small
        },
        Decoder { residual: 1056, n_heads: 6, ffn: 2112, block: Q4_1, bias: true, windows: true, ..small },
        Decoder {
            residual: 1024,
            head_dim: 128,
            n_heads: 8,
            n_kv_heads: 1,
            ffn: 1024,
            block: Q6_K,
            head: Q6_K,
            post_norms: true,
            cap,
            ..small
        },
        Decoder { residual: 2304, head_dim: 128, n_heads: 8, ffn: 2560, n_layers: 1, n_vocab: 1500, ..small },
        Decoder {
            residual: 1024,
            head_dim: 128,
            n_heads: 16,
            n_kv_heads: 8,
            ffn: 3072,
            n_layers: 2,
            n_vocab: 2051,
            head_norms: true,
            ..small
        },
    ]
}

/// Decoders with experts.
fn mixtures() -> Vec<Decoder> {
    use BlockType::*;
    let with = |experts: Experts| Decoder { experts: Some(experts), ..Decoder::SMALL };
    vec![
        with(Experts { n: 4, n_used: 1, bias: true, normalise: false, factor: 1.5, ..Experts::SMALL }),
        Decoder {
            residual: 544,
            head_dim: 128,
            n_heads: 8,
            n_kv_heads: 1,
            post_norms: true,
            n_vocab: 1500,
            ..with(Experts { n: 128, n_used: 8, ffn: 32, bias: true, ..Experts::SMALL })
        },
        Decoder {
            residual: 512,
            head_dim: 128,
            n_heads: 4,
            block: Q8_0,
            activation: Activation::GeluTanh,
            bias: true,
            ..with(Experts {
                n: 20,
                n_used: 4,
                ffn: 160,
                block: Q8_0,
                bias: true,
                sigmoid: true,
                first_dense: true,
                ..Experts::SMALL
            })
        },
        Decoder {
            residual: 768,
            n_heads: 8,
            ..with(Experts {
                n: 6,
                n_used: 6,
                ffn: 768,
                block: Q4_K,
                router: F16,
                scales: true,
                ..Experts::SMALL
            })
        },
        Decoder {
            residual: 1280,
            head_dim: 128,
            n_heads: 6,
            n_layers: 2,
            windows: true,
            ..with(Experts { n: 140, n_used: 9, ffn: 32, block: Q4_1, bias: true, ..Experts::SMALL })
        },
        Decoder {
            residual: 2304,
            n_heads: 6,
            n_layers: 2,
            ..with(Experts { n: 5, n_used: 2, ffn: 256, block: Q6_K, bias: true, ..Experts::SMALL })
        },
    ]
}

/// Decoders with heads of 128 columns and a residual of 1,024, whose rows 128 blocks share equally.
fn wide_decoders() -> Vec<Decoder> {
    let wide = Decoder { residual: 1024, head_dim: 128, n_heads: 16, n_kv_heads: 8, ..Decoder::SMALL };
    vec![
        Decoder { ffn: 3072, n_layers: 1, block: BlockType::Q8_0, bias: true, post_norms: true, ..wide },
        Decoder {
            n_layers: 2,
            windows: true,
            experts: Some(Experts { n: 10, n_used: 8, ffn: 256, ..Experts::SMALL }),
            ..wide
        },
    ]
}

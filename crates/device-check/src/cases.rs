//! The cases: each Op alone at odd shapes, and blocks of Ops for fusion.

mod choices;
mod encoder_states;
mod experts;
mod norms;
mod recurrent;
mod ropes;

use super::BEST_AND_LOGITS;
use std::sync::LazyLock;
use weights::{BlockType, ScaleType};

pub use norms::{Norms, layers_with_norms};

use super::plans::mini_transformer_with;
use super::{AttentionOptions, PlanBuilder, Sequences, block_types, limits};
use device::{
    Activation, Device, KvLayer, KvType, Limits, OpKind, OwnedStep, Plan, Pooling, RopeStyle, ValueId, Want,
};

/// Plans of one program, and steps to run through them.
#[derive(Clone, Debug)]
pub struct Case {
    /// Name of the tested Op, and its shape.
    pub name: String,
    /// The tested Op; [`OpKind::Fused`] for a block of Ops.
    pub kind: OpKind,
    /// Block type of the matrices.
    pub block: BlockType,
    /// Plans whose logits and kept values are compared.
    pub plans: Vec<Plan>,
    /// Limits of compilation.
    pub limits: Limits,
    /// Steps, run in order.
    pub steps: Vec<OwnedStep>,
    /// Bound for f32 arithmetic in any order of summation, relative to the size of the logits (see
    /// [`super::compare()`]).
    pub tolerance: f32,
}

/// Tolerance after keys and values are stored. They are rounded after they may differ in their last
/// bits, so a difference of one rounding step is allowed.
fn stored(tolerance: f32, kv_type: KvType) -> f32 {
    match kv_type {
        KvType::F32 => tolerance,
        KvType::F16 => tolerance.max(2e-3), // a rounding step is 2^-11 of the number
        KvType::I16 => tolerance.max(2e-3), // 2^-11 of a value's largest number; weights add 2^-13
        // A rounding step is 1/127 of the largest number, and a weight is rounded up or down by
        // 1/255 of the largest.
        KvType::I8 => tolerance.max(3e-2),
        // a rounding step is 1/127 of the largest of 32, about 0.02
        KvType::Q8_0 => tolerance.max(3e-2),
        KvType::Fp8 => tolerance.max(7e-2), // a rounding step is up to 1/8 of a number
    }
}

/// Number of tokens that steps draw from: the distinct rows of a table.
const N_TOKENS: u32 = 64;

/// Sums of up to a thousand products of size `1/n`. Each rounds by 6e-8 of it, and orders differ;
/// measured below 2e-6.
const SUM: f32 = 2e-5;

/// A few roundings, and exponentials accurate to a few units in the last place.
const ELEMENT: f32 = 2e-6;

/// Numbers of rows around the sizes at which devices change kernels.
const ROWS: [usize; 6] = [1, 2, 3, 5, 17, 33];

/// All cases, the same on each call. They are built once, because quantising their weights takes
/// time.
pub fn check_op_cases() -> Vec<Case> {
    static CASES: LazyLock<Vec<Case>> = LazyLock::new(all_cases);
    CASES.clone()
}

fn all_cases() -> Vec<Case> {
    let groups = [
        embed(),
        norm(),
        linear(),
        ropes::rope(),
        element_wise(),
        select(),
        attention(),
        key_biases(),
        experts::experts(),
        blocks(),
        encoder(),
        encoder_states::inputs(),
        encoder_states::encoder_states(),
        norms::layers(),
        choices::routers(),
        choices::parts(),
        choices::windows(),
        recurrent::short_convolutions(),
        recurrent::recurrences(),
    ];
    groups.into_iter().flatten().collect()
}

impl Case {
    /// Returns true if a device supports the case: its KV type, and all its Ops. A device refuses
    /// an unsupported case when its memory is planned.
    pub fn runs_on(&self, device: &dyn Device) -> bool {
        let cached = self.plans.iter().any(|plan| !plan.kv.layers.is_empty());
        let planned = device.memory_plan(&self.plans, &self.limits);
        (!cached || device.kv_types().contains(&self.limits.kv_type))
            && !matches!(planned, Err(device::Error::Unsupported { .. }))
    }

    /// A case without attention: steps of one sequence, with each number of rows.
    fn rows(name: String, kind: OpKind, block: BlockType, tolerance: f32, plan: Plan) -> Case {
        let limits = limits(&plan.kv);
        let mut sequences =
            Sequences::new(name.len() as u64, &plan.kv, &limits, N_TOKENS).with_adapters(&plan);
        let steps = ROWS.iter().map(|n| sequences.step(&[(0, *n)])).collect();
        Case { name, kind, block, plans: vec![plan], limits, steps, tolerance }
    }

    /// A case with attention: sequences of different lengths together, chunks that end within
    /// pages, single tokens.
    fn cached(
        name: String,
        kind: OpKind,
        block: BlockType,
        tolerance: f32,
        plan: Plan,
        kv_type: KvType,
    ) -> Case {
        let tolerance = stored(tolerance, kv_type);
        let limits = Limits { kv_type, ..limits(&plan.kv) };
        let mut sequences =
            Sequences::new(name.len() as u64, &plan.kv, &limits, N_TOKENS).with_adapters(&plan);
        let spans: [&[(usize, usize)]; 7] = [
            &[(0, 5)],
            &[(0, 12), (1, 3)],
            &[(0, 1), (2, 20), (1, 1)],
            &[(1, 33), (0, 17)],
            &[(0, 1)],
            &[(2, 47)],
            &[(0, 1), (1, 1), (2, 1)],
        ];
        let steps = spans.iter().map(|spans| sequences.step(spans)).collect();
        let name = if plan.kv.layers.is_empty() { name } else { format!("{name} kv {kv_type:?}") };
        Case { name, kind, block, plans: vec![plan], limits, steps, tolerance }
    }
}

/// Ops of encoders: norms of whole rows, learned positions, attention to all rows of a sequence,
/// pooling.
fn encoder() -> Vec<Case> {
    let mut cases = vec![];
    for (cols, bias) in [(1, true), (5, false), (64, true), (577, true), (384, false)] {
        let mut b = PlanBuilder::new(cols as u64, N_TOKENS as usize);
        // The input is far from zero, like rows between two branches: the mean must be subtracted
        // before squaring.
        let x = b.embed_from(cols, BlockType::F32, 3.0);
        let y = b.layer_norm(x, bias);
        let name = format!("layer_norm {cols}{}", if bias { " with bias" } else { "" });
        cases.push(Case::rows(name, OpKind::LayerNorm, BlockType::F32, SUM, b.finish(y)));
    }
    for block in [BlockType::F32, BlockType::F16, BlockType::Q8_0, BlockType::Q6_K, BlockType::I8_ROWS] {
        for cols in widths(block) {
            let mut b = PlanBuilder::new(cols as u64, N_TOKENS as usize);
            let (x, y) = (b.embed(cols), b.embed_positions(cols, block));
            let y = b.add(x, y);
            let name = format!("embed_positions {block} {cols}");
            cases.push(Case::cached(name, OpKind::EmbedPositions, block, ELEMENT, b.finish(y), KvType::F32));
        }
    }
    for (n_heads, head_dim) in [(1, 1), (2, 16), (12, 32), (3, 64), (2, 80), (5, 12), (1, 256), (2, 17)] {
        let mut b = PlanBuilder::new(head_dim as u64, N_TOKENS as usize);
        let cols = n_heads * head_dim;
        let (q, k, v) = (b.embed_from(cols, BlockType::F32, 2.0), b.embed(cols), b.embed(cols));
        let y = b.self_attention(q, k, v, n_heads);
        let name = format!("self_attention {n_heads}x{head_dim}");
        cases.push(Case::cached(name, OpKind::SelfAttention, BlockType::F32, SUM, b.finish(y), KvType::F32));
    }
    for kind in [Pooling::Mean, Pooling::First, Pooling::Last] {
        for cols in [1, 33, 100] {
            let mut b = PlanBuilder::new(cols as u64, N_TOKENS as usize);
            let x = b.embed(cols);
            let y = b.pool(x, kind);
            let name = format!("pool {kind} {cols}");
            let mut case = Case::cached(name, OpKind::Pool, BlockType::F32, SUM, b.finish(y), KvType::F32);
            // Outputs like an engine's: the last row of each sequence; in every second step only
            // the last sequence's.
            for (index, step) in case.steps.iter_mut().enumerate() {
                let last = step.spans.iter().map(|s| s.first_row + s.n_rows - 1).skip(index % 2);
                step.outputs = last.collect();
                step.wants.truncate(step.outputs.len());
            }
            cases.push(case);
        }
    }
    cases
}

/// Column counts of whole blocks: a small one, and one with several blocks and a remainder for wide
/// kernels.
fn widths(block: BlockType) -> [usize; 2] {
    match block.block_len() {
        // Kernels multiply whole groups of 32 in integers, other rows in floats.
        1 if block.has_planes() => [17, 288],
        1 => [17, 100],
        32 => [32, 288],
        n => [n, 3 * n],
    }
}

fn embed() -> Vec<Case> {
    let case = |block: BlockType, cols: usize| {
        let mut b = PlanBuilder::new(cols as u64, N_TOKENS as usize);
        let x = b.embed_from(cols, block, if cols.is_multiple_of(2) { 1.0 } else { 1.5 });
        Case::rows(format!("embed {block} {cols}"), OpKind::Embed, block, ELEMENT, b.finish(x))
    };
    let blocks = block_types().into_iter().flat_map(|block| widths(block).map(|cols| case(block, cols)));
    blocks.chain([case(BlockType::F32, 1)]).collect()
}

fn norm() -> Vec<Case> {
    let mut cases = vec![];
    for (n_groups, group) in [(1, 1), (1, 5), (1, 64), (1, 577), (4, 7), (3, 64), (2, 256)] {
        for weighted in [true, false] {
            let mut b = PlanBuilder::new(group as u64, N_TOKENS as usize);
            let x = b.embed(n_groups * group);
            let y = if weighted { b.rms_norm(x, group) } else { b.rms_norm_plain(x, group) };
            let name =
                format!("rms_norm {n_groups}x{group}{}", if weighted { "" } else { " without weight" });
            cases.push(Case::rows(name, OpKind::RmsNorm, BlockType::F32, SUM, b.finish(y)));
        }
        if n_groups > 1 {
            let mut b = PlanBuilder::new(group as u64, N_TOKENS as usize);
            let x = b.embed(n_groups * group);
            let y = b.rms_norm_of_groups(x, group);
            let name = format!("rms_norm {n_groups}x{group} with weights of groups");
            cases.push(Case::rows(name, OpKind::RmsNorm, BlockType::F32, SUM, b.finish(y)));
        }
    }
    cases
}

fn linear() -> Vec<Case> {
    let mut cases = vec![];
    for block in block_types() {
        let [narrow, wide] = widths(block);
        let shapes =
            [(7, narrow), (33, wide), (100, narrow), (1, narrow), (16, narrow), (33, narrow), (1, wide)];
        // Most block types without a quantiser differ only in numbers.
        for (n_out, n_in) in shapes.into_iter().take(if block.has_quantizer() { 7 } else { 2 }) {
            let mut b = PlanBuilder::new((n_out * n_in) as u64, N_TOKENS as usize);
            let x = b.embed(n_in);
            let y = b.linear(x, n_out, block, n_out % 2 == 0);
            cases.push(Case::rows(
                format!("linear {block} {n_out}x{n_in}"),
                OpKind::Linear,
                block,
                SUM,
                b.finish(y),
            ));
        }
    }
    cases
}

fn element_wise() -> Vec<Case> {
    const ALL: [Activation; 8] = [
        Activation::Silu,
        Activation::GeluTanh,
        Activation::GeluErf,
        Activation::Relu,
        Activation::Sigmoid,
        Activation::Identity,
        Activation::ReluSquared,
        Activation::Softplus,
    ];
    let mut cases = vec![];
    for cols in [1, 7, 64, 100] {
        let mut case = |name: String, kind: OpKind, build: &dyn Fn(&mut PlanBuilder) -> ValueId| {
            let mut b = PlanBuilder::new(cols as u64, N_TOKENS as usize);
            let y = build(&mut b);
            let plan = b.finish(y);
            cases.push(Case::rows(format!("{name} {cols}"), kind, BlockType::F32, ELEMENT, plan));
        };
        for kind in ALL {
            case(format!("activate {kind}"), OpKind::Activate, &|b| {
                let x = b.embed_from(cols, BlockType::F32, 4.0);
                b.activate(x, kind)
            });
            case(format!("gate {kind}"), OpKind::Gate, &|b| {
                let (x, y) = (b.embed_from(cols, BlockType::F32, 4.0), b.embed(cols));
                b.gate(x, y, kind)
            });
        }
        case("add".to_owned(), OpKind::Add, &|b| {
            let (x, y) = (b.embed(cols), b.embed(cols));
            b.add(x, y)
        });
        case("add to itself".to_owned(), OpKind::Add, &|b| {
            let x = b.embed(cols);
            b.add(x, x)
        });
        case("scale".to_owned(), OpKind::Scale, &|b| {
            let x = b.embed(cols);
            b.scale(x, -0.3)
        });
        case("softcap".to_owned(), OpKind::Softcap, &|b| {
            let x = b.embed_from(cols, BlockType::F32, 4.0);
            b.softcap(x, 3.0)
        });
        case("clamp".to_owned(), OpKind::Clamp, &|b| {
            let x = b.embed_from(cols, BlockType::F32, 4.0);
            b.clamp(x, -1.5, 0.7)
        });
    }
    cases
}

/// Steps with some, none and all rows selected, with and without argmax, and with equal logits.
fn select() -> Vec<Case> {
    let mut cases = vec![];
    for cols in [1, 33, 1025] {
        let mut b = PlanBuilder::new(cols as u64, N_TOKENS as usize);
        let x = b.embed(cols);
        let mut case =
            Case::rows(format!("select_rows {cols}"), OpKind::SelectRows, BlockType::F32, 0.0, b.finish(x));
        for (index, step) in case.steps.iter_mut().enumerate() {
            step.outputs.retain(|row| index != 2 && *row as usize % (index + 1) == index / 2);
            let want = if index % 2 == 0 { Want::LOGITS } else { BEST_AND_LOGITS };
            step.wants = vec![want; step.outputs.len()];
        }
        cases.push(case);
        let mut b = PlanBuilder::new(cols as u64, N_TOKENS as usize);
        let x = b.embed(cols);
        let zeros = b.activate(x, Activation::Relu);
        let zeros = b.scale(zeros, 0.0);
        let name = format!("argmax of equals {cols}");
        cases.push(Case::rows(name, OpKind::Argmax, BlockType::F32, 0.0, b.finish(zeros)));
    }
    cases
}

fn attention() -> Vec<Case> {
    // (KV heads, query heads per KV head, head_dim, window, softcap, sinks)
    let shapes = [
        (2, 1, 16, None, None, false),
        (1, 3, 64, None, None, false),
        (2, 4, 32, None, Some(20.0), false),
        (1, 8, 80, None, None, true),
        (1, 1, 256, None, None, false),
        (2, 3, 128, None, None, false),
        (1, 4, 96, Some(7), None, true),
        (3, 1, 64, Some(16), None, false),
        (2, 3, 32, Some(33), Some(5.0), true),
        (1, 8, 128, Some(1), None, false),
        (1, 4, 256, Some(20), None, false),
        (5, 1, 12, None, None, false),
    ];
    let mut cases = vec![];
    for (n_kv_heads, ratio, head_dim, window, softcap, sinks) in shapes {
        let mut b = PlanBuilder::new(head_dim as u64, N_TOKENS as usize);
        let layer = b.kv_layer(KvLayer {
            n_kv_heads,
            head_dim,
            window,
            encoder_states: None,
            values_are_keys: false,
        });
        let q = b.embed_from(n_kv_heads * ratio * head_dim, BlockType::F32, 2.0);
        let (k, v) = (b.embed(n_kv_heads * head_dim), b.embed(n_kv_heads * head_dim));
        b.kv_write(k, v, layer);
        let y = b.attention(
            q,
            layer,
            n_kv_heads * ratio,
            AttentionOptions { softcap, window, chunked: false, both_ways: false, sinks },
        );
        let plan = b.finish(y);
        let name = format!(
            "attention {n_kv_heads}x{ratio}x{head_dim} window {window:?} softcap {softcap:?} sinks {sinks}"
        );
        for kv_type in kv_types(&plan) {
            cases.push(Case::cached(
                name.clone(),
                OpKind::Attention,
                BlockType::F32,
                SUM,
                plan.clone(),
                kv_type,
            ));
        }
    }
    // An attention with a narrower window than the layer keeps, and a second layer that reads the
    // first one's pages.
    let mut b = PlanBuilder::new(77, N_TOKENS as usize);
    let kv =
        KvLayer { n_kv_heads: 2, head_dim: 32, window: None, encoder_states: None, values_are_keys: false };
    let (first, second) = (b.kv_layer(kv), b.kv_layer(KvLayer { window: Some(40), ..kv }));
    let (q, k, v) = (b.embed(128), b.embed(64), b.embed(64));
    b.kv_write(k, v, second);
    b.kv_write(v, k, first);
    let narrow = AttentionOptions { window: Some(9), ..AttentionOptions::default() };
    let a = b.attention(q, first, 4, AttentionOptions::default());
    let c = b.attention(q, second, 4, narrow);
    let d = b.attention(a, first, 4, narrow);
    let y = b.add(c, d);
    let plan = b.finish(y);
    for kv_type in kv_types(&plan) {
        let name = "attention of shared layers".to_owned();
        cases.push(Case::cached(name, OpKind::Attention, BlockType::F32, SUM, plan.clone(), kv_type));
    }
    cases
}

/// Keys whose biases are far larger than the differences between them ([`device::key_bias`]), with
/// heads that RoPE rotates wholly, in part and not at all. Queries are small, so that attention
/// still depends on the differences.
fn key_biases() -> Vec<Case> {
    use RopeStyle::{Half, Interleaved};
    let plain = AttentionOptions::default();
    let all = AttentionOptions {
        softcap: Some(20.0),
        window: Some(33),
        chunked: false,
        both_ways: false,
        sinks: true,
    };
    // (KV heads, query heads per KV head, head_dim, rotated columns, style, options)
    let shapes = [
        (2, 2, 32, 32, Half, plain),
        (1, 3, 64, 48, Interleaved, all),
        (2, 1, 16, 0, Half, AttentionOptions { sinks: true, ..plain }),
        (3, 2, 96, 64, Half, AttentionOptions { window: Some(20), ..plain }),
        (1, 8, 128, 128, Half, plain),
        (1, 2, 256, 256, Interleaved, plain),
    ];
    let mut cases = vec![];
    for (n_kv_heads, ratio, head_dim, n_dims, style, options) in shapes {
        let mut b = PlanBuilder::new(head_dim as u64, N_TOKENS as usize);
        let layer = b.kv_layer(KvLayer {
            n_kv_heads,
            head_dim,
            window: options.window,
            encoder_states: None,
            values_are_keys: false,
        });
        let mut q = b.embed_from(n_kv_heads * ratio * head_dim, BlockType::F32, 0.25);
        let x = b.embed(48);
        let mut k = b.linear_with_bias(x, n_kv_heads * head_dim, 30.0);
        if n_dims > 0 {
            q = b.rope_scaled(q, head_dim, n_dims, style, 1.1);
            k = b.rope_scaled(k, head_dim, n_dims, style, 1.1);
        }
        let v = b.embed(n_kv_heads * head_dim);
        b.kv_write(k, v, layer);
        let y = b.attention(q, layer, n_kv_heads * ratio, options);
        let plan = b.finish(y);
        for kv_type in kv_types(&plan).into_iter().filter(|kind| kind.is_quantized()) {
            let name = format!("key biases {n_kv_heads}x{ratio}x{head_dim} turning {n_dims} {options:?}");
            let (kind, tolerance) = (OpKind::Attention, 5.0 * SUM);
            cases.push(Case::cached(name, kind, BlockType::F32, tolerance, plan.clone(), kv_type));
        }
    }
    cases
}

/// The KV types that the head sizes allow.
fn kv_types(plan: &Plan) -> Vec<KvType> {
    let whole = plan.kv.layers.iter().all(|layer| layer.head_dim.is_multiple_of(32));
    let all = [KvType::F32, KvType::F16, KvType::I16, KvType::I8, KvType::Q8_0, KvType::Fp8];
    all.into_iter().filter(|kind| whole || *kind != KvType::Q8_0).collect()
}

/// Blocks of Ops that rules fuse, with inner values that other Ops read too.
fn blocks() -> Vec<Case> {
    use BlockType::*;
    let mut cases = vec![];
    let affine = weights::Affine::new(4, 64, ScaleType::BF16, false).map(BlockType::Affine);
    for block in [F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q8_0, Q4_K, Q6_K, I8_ROWS].into_iter().chain(affine) {
        let mut block_case = |name: &str, build: &dyn Fn(&mut PlanBuilder, ValueId) -> ValueId| {
            let mut b = PlanBuilder::new(u64::from(block.gguf_id().unwrap_or(0)), N_TOKENS as usize);
            let x = b.embed(block.block_len().max(64));
            b.layer(Some(0));
            let y = build(&mut b, x);
            // Norms and products of products: later Ops amplify each rounding.
            cases.push(Case::rows(format!("{name} {block}"), OpKind::Fused, block, 5.0 * SUM, b.finish(y)));
        };
        for n_linears in 1..=3 {
            block_case(&format!("norm and {n_linears} linears"), &|b, x| {
                let norm = b.rms_norm(x, b.cols(x));
                let outs: Vec<_> = (0..n_linears).map(|n| b.linear(norm, 37, block, n == 1)).collect();
                outs.into_iter().reduce(|a, c| b.add(a, c)).unwrap_or(norm)
            });
        }
        block_case("norm that others read", &|b, x| {
            let norm = b.rms_norm(x, b.cols(x));
            let y = b.linear(norm, b.cols(x), block, true);
            b.add(norm, y)
        });
        for (swapped, kind) in [(false, Activation::Silu), (true, Activation::GeluTanh)] {
            for normed in [false, true] {
                let name = format!("{}gate and up {kind}", if normed { "norm, " } else { "" });
                block_case(&name, &|b, x| {
                    let x = if normed { b.rms_norm(x, b.cols(x)) } else { x };
                    let (p, q) = (b.linear(x, 35, block, false), b.linear(x, 35, block, true));
                    if swapped { b.gate(q, p, kind) } else { b.gate(p, q, kind) }
                });
            }
        }
        block_case("linear and residual", &|b, x| {
            let y = b.linear(x, b.cols(x), block, true);
            b.add(x, y)
        });
        block_case("residual that others read", &|b, x| {
            let y = b.linear(x, b.cols(x), block, false);
            let z = b.add(y, x);
            b.gate(z, y, Activation::Relu)
        });
        block_case("norm and residual", &|b, x| {
            let y = b.linear(x, b.cols(x), block, false);
            let y = b.rms_norm(y, b.cols(x));
            b.add(x, y)
        });
        let plan = mini_transformer_with(u64::from(block.gguf_id().unwrap_or(0)), block, 32);
        for kv_type in kv_types(&plan) {
            // Two layers, whose softmax and norms amplify differences.
            let name = format!("two layers {block}");
            cases.push(Case::cached(name, OpKind::Fused, block, 10.0 * SUM, plan.clone(), kv_type));
        }
    }
    // All combinations of norms and Ropes around a KvWrite.
    for bits in 0..16u32 {
        let has = |bit: u32| bits & (1 << bit) != 0;
        let mut b = PlanBuilder::new(u64::from(bits), N_TOKENS as usize);
        let window = (bits % 3 == 0).then_some(18);
        let layer = b.kv_layer(KvLayer {
            n_kv_heads: 2,
            head_dim: 32,
            window,
            encoder_states: None,
            values_are_keys: false,
        });
        let (mut q, mut k, v) = (b.embed(6 * 32), b.embed(64), b.embed(64));
        if has(0) {
            q = b.rms_norm(q, 32);
        }
        if has(1) {
            k = b.rms_norm(k, 32);
        }
        let style = if has(0) { RopeStyle::Half } else { RopeStyle::Interleaved };
        if has(2) {
            q = b.rope(q, 32, 32, style);
        }
        if has(3) {
            k = b.rope(k, 32, 24, style);
        }
        b.kv_write(k, v, layer);
        let y = b.attention(q, layer, 6, AttentionOptions { window, ..AttentionOptions::default() });
        let plan = b.finish(y);
        let name = format!(
            "kv write after{}{}{}{}",
            if has(0) { " q norm" } else { "" },
            if has(1) { " k norm" } else { "" },
            if has(2) { " q rope" } else { "" },
            if has(3) { " k rope" } else { "" }
        );
        for kv_type in kv_types(&plan) {
            cases.push(Case::cached(name.clone(), OpKind::Fused, F32, 2.0 * SUM, plan.clone(), kv_type));
        }
    }
    cases
}

//! Plans whose speed is measured: models of published shapes with fewer layers, products, a
//! recurrent layer. Their matrices repeat a few random rows, so that they are built at once.

use device::{Activation, KvLayer, Plan, RopeStyle, ValueId, Weight};
use device_check::{AttentionOptions, PlanBuilder, RecurrentShape};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use weights::{Access, BlockType, Bytes, Map, Planes};

/// Rows of an embedding table whose output is no vocabulary.
const N_TOKENS: usize = 64;

/// Experts that replace the dense network of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertShape {
    /// Number of experts of a layer.
    pub n: usize,
    /// Number of experts that a token uses.
    pub n_used: usize,
}

/// Shape of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Kind and number of weights of the published model, and the layers that are left.
    pub name: &'static str,
    /// Columns of the residual stream.
    pub hidden: usize,
    /// Query heads.
    pub n_heads: usize,
    /// KV heads.
    pub n_kv_heads: usize,
    /// Columns of a head.
    pub head_dim: usize,
    /// Columns of the network, or of each expert.
    pub ffn: usize,
    /// True if heads of q and k are normalised.
    pub has_head_norms: bool,
    /// ExpertShape, if any.
    pub experts: Option<ExpertShape>,
    /// Number of layers.
    pub n_layers: usize,
    /// Rows of the head, fewer in the ratio of the layers.
    pub n_vocab: usize,
}

/// 0.6 billion weights: heads of 128 columns, two to a KV head.
pub const DENSE_0_6B: Shape = Shape {
    name: "dense 0.6B",
    hidden: 1024,
    n_heads: 16,
    n_kv_heads: 8,
    head_dim: 128,
    ffn: 3072,
    has_head_norms: true,
    experts: None,
    n_layers: 28,
    n_vocab: 151_936,
};

/// 1 billion weights, 4 of 16 layers: heads of 64 columns, four to a KV head.
pub const DENSE_1B: Shape = Shape {
    name: "dense 1B, 4 of 16 layers",
    hidden: 2048,
    n_heads: 32,
    n_kv_heads: 8,
    head_dim: 64,
    ffn: 8192,
    has_head_norms: false,
    experts: None,
    n_layers: 4,
    n_vocab: 32_064,
};

/// The shapes over which a profile is searched: two, three and eight heads of 128 columns to a KV
/// head, the last with experts.
pub const SEARCHED: [Shape; 3] = [
    Shape { name: "dense 0.6B, 8 of 28 layers", n_layers: 8, n_vocab: 43_392, ..DENSE_0_6B },
    Shape {
        name: "dense 3B, 2 of 28 layers",
        hidden: 3072,
        n_heads: 24,
        n_kv_heads: 8,
        head_dim: 128,
        ffn: 8192,
        has_head_norms: false,
        experts: None,
        n_layers: 2,
        n_vocab: 9_152,
    },
    Shape {
        name: "mixture 30B-A3B, 1 of 48 layers",
        hidden: 2048,
        n_heads: 32,
        n_kv_heads: 4,
        head_dim: 128,
        ffn: 768,
        has_head_norms: true,
        experts: Some(ExpertShape { n: 128, n_used: 8 }),
        n_layers: 1,
        n_vocab: 3_136,
    },
];

/// Small shapes for the emulator, in the order of [`SEARCHED`].
pub const EMULATED: [Shape; 3] = {
    let small = Shape {
        name: "a small model",
        hidden: 256,
        n_heads: 2,
        n_kv_heads: 1,
        head_dim: 128,
        ffn: 256,
        has_head_norms: true,
        experts: None,
        n_layers: 1,
        n_vocab: 256,
    };
    let experts = Some(ExpertShape { n: 4, n_used: 2 });
    let three = Shape { name: "a small model, 3 heads", n_heads: 3, has_head_norms: false, ..small };
    [small, three, Shape { name: "a small mixture", n_heads: 8, experts, ..small }]
};

/// A small shape with heads of 64 columns for the emulator.
pub const EMULATED_64: Shape = Shape { head_dim: 64, n_heads: 4, ..EMULATED[0] };

/// A model of a shape: Q4_0, with a head of Q6_K.
pub fn model(shape: &Shape) -> Plan {
    let Shape { hidden, n_heads, n_kv_heads, head_dim, .. } = *shape;
    let block = BlockType::Q4_0;
    let mut b = PlanBuilder::repeating(1, shape.n_vocab);
    let mut x = b.embed_from(hidden, block, 1.0);
    for index in 0..shape.n_layers {
        b.layer(Some(index as u32));
        let layer =
            KvLayer { n_kv_heads, head_dim, window: None, encoder_states: None, values_are_keys: false };
        let layer = b.kv_layer(layer);
        let norm = b.rms_norm(x, hidden);
        let heads = [n_heads, n_kv_heads, n_kv_heads];
        let [mut q, mut k, v] = heads.map(|n| b.linear(norm, n * head_dim, block, false));
        if shape.has_head_norms {
            [q, k] = [q, k].map(|x| b.rms_norm(x, head_dim));
        }
        let [q, k] = [q, k].map(|x| b.rope(x, head_dim, head_dim, RopeStyle::Half));
        b.kv_write(k, v, layer);
        let y = b.attention(q, layer, n_heads, AttentionOptions::default());
        let y = b.linear(y, hidden, block, false);
        x = b.add(x, y);
        let norm = b.rms_norm(x, hidden);
        let y = network(&mut b, norm, shape, block);
        x = b.add(x, y);
    }
    b.layer(None);
    let x = b.select_rows(x);
    let x = b.rms_norm(x, hidden);
    let logits = b.linear(x, shape.n_vocab, BlockType::Q6_K, false);
    b.finish(logits)
}

/// The network of a layer, or its experts.
fn network(b: &mut PlanBuilder, norm: ValueId, shape: &Shape, block: BlockType) -> ValueId {
    let Shape { hidden, ffn, .. } = *shape;
    let Some(ExpertShape { n, n_used }) = shape.experts else {
        let [gate, up] = [0, 1].map(|_| b.linear(norm, ffn, block, false));
        let y = b.gate(gate, up, Activation::Silu);
        return b.linear(y, hidden, block, false);
    };
    let router = b.linear(norm, n, BlockType::F32, false);
    let (ids, weights) = b.route(router, n_used, true, 1.0, false);
    let [gate, up] = [0, 1].map(|_| b.expert_linear((norm, false), ids, (n, ffn), block));
    let y = b.gate(gate, up, Activation::Silu);
    let y = b.expert_linear((y, true), ids, (n, hidden), block);
    b.expert_sum(y, weights)
}

/// Alignment of weights in a file.
const ALIGN: usize = 64;

/// Number of files that this process has written. It makes their names unique.
static WRITTEN: AtomicUsize = AtomicUsize::new(0);

/// The plan with its weights in a mapped file, so that each program uses them where they are, as it
/// does with a model's file. The file has no name once it is mapped. The plan stays as it is if no
/// file can be written.
pub fn mapped(mut plan: Plan) -> Plan {
    let name = format!("ingle-weights-{}-{}", std::process::id(), WRITTEN.fetch_add(1, Ordering::Relaxed));
    let path = std::env::temp_dir().join(name);
    let map = write_weights(&plan, &path).ok().and_then(|()| Map::open(&path, Access::Map).ok());
    // A file that could not be created is not there.
    let _ = std::fs::remove_file(&path);
    let Some(map) = map else { return plan };
    let mut at = 0;
    let mut place = |bytes: &mut Bytes| {
        let end = at + bytes.len();
        if let Some(view) = Bytes::new(map.clone(), at..end) {
            *bytes = view;
        }
        at = end.next_multiple_of(ALIGN);
    };
    for weight in &mut plan.weights {
        place(&mut weight.data);
        planes_of(&mut weight.planes).for_each(&mut place);
        for part in &mut weight.parts {
            place(&mut part.data);
            planes_of(&mut part.planes).for_each(&mut place);
        }
    }
    plan
}

fn planes_of(planes: &mut Planes) -> impl Iterator<Item = &mut Bytes> {
    planes.scales.iter_mut().chain(&mut planes.biases)
}

/// Writes the views of all weights, each at a multiple of [`ALIGN`], in the order of
/// [`Weight::views`].
fn write_weights(plan: &Plan, path: &Path) -> std::io::Result<()> {
    let mut file = BufWriter::new(File::create(path)?);
    for view in plan.weights.iter().flat_map(Weight::views) {
        file.write_all(view)?;
        file.write_all(&[0; ALIGN][..view.len().next_multiple_of(ALIGN) - view.len()])?;
    }
    file.flush()
}

/// A product that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProductShape {
    /// Type of the matrix.
    pub block: BlockType,
    /// Rows of the matrix.
    pub n_out: usize,
    /// Columns of the matrix.
    pub n_in: usize,
    /// True if its input is normalised first.
    pub has_norm: bool,
}

impl ProductShape {
    /// Bytes of the matrix.
    pub fn n_bytes(&self) -> usize {
        let ProductShape { block, n_out, n_in, .. } = *self;
        n_out * (block.row_bytes(n_in) + block.row_scale_bytes(n_in) + block.row_bias_bytes(n_in))
    }
}

/// `n` products of one shape by different matrices. Each has an input of its own, so that they are
/// not fused.
pub fn products(product: &ProductShape, n: usize) -> Plan {
    let ProductShape { block, n_out, n_in, has_norm } = *product;
    let mut b = PlanBuilder::repeating(1, N_TOKENS);
    let x = b.embed(n_in);
    let mut last = x;
    for index in 0..n.max(1) {
        let y = b.scale(x, 1.0 + index as f32 / 1024.0);
        let y = if has_norm { b.rms_norm(y, n_in) } else { y };
        if index > 0 {
            b.keep(last);
        }
        last = b.linear(y, n_out, block, false);
    }
    // Its columns are no tokens.
    b.finish_hidden(last)
}

/// A recurrent layer, computed by the gated delta rule.
pub fn scan(shape: RecurrentShape) -> Plan {
    let mut b = PlanBuilder::new(7, N_TOKENS);
    let x = b.embed(64);
    let x = b.gated_delta(x, shape, false, false);
    let x = b.select_rows(x);
    let logits = b.linear(x, 64, BlockType::F32, false);
    b.finish(logits)
}

#[cfg(test)]
mod tests {
    use super::*;
    use device_check::block_types;

    /// Products of every type are timed, matrices of types with planes too.
    #[test]
    fn products_of_every_type_can_be_made() {
        for block in block_types() {
            let product = ProductShape { block, n_out: 200, n_in: 512, has_norm: true };
            let plan = products(&product, 3);
            plan.check().unwrap();
            let matrices =
                plan.weights.iter().filter(|weight| weight.block == block && weight.n_rows() == 200);
            let bytes: Vec<usize> = matrices.map(|m| m.views().map(|view| view.len()).sum()).collect();
            assert_eq!(bytes, [product.n_bytes(); 3], "{block}");
        }
    }

    /// Nothing is copied to a program, and the weights are those of the model.
    #[test]
    fn mapped_weights_are_used_where_they_are() {
        use crate::gpu::null::NullGpu;
        use crate::weights::WeightPlan;
        let gpu = NullGpu::new("Apple M4 Pro");
        let planes =
            products(&ProductShape { block: BlockType::I8_ROWS, n_out: 70, n_in: 33, has_norm: true }, 2);
        for plan in EMULATED.iter().map(model).chain([planes]) {
            let file = mapped(plan.clone());
            let views = |plan: &Plan| -> Vec<Vec<u8>> {
                plan.weights.iter().flat_map(Weight::views).map(|view| view.to_vec()).collect()
            };
            assert!(views(&plan) == views(&file));
            let copied = |plan: &Plan| WeightPlan::new(std::slice::from_ref(plan), &gpu).copied_bytes();
            assert!(copied(&plan) > 0 && copied(&file) == 0);
        }
    }

    #[test]
    fn the_models_are_valid() {
        for shape in EMULATED.iter().chain([&EMULATED_64]) {
            model(shape).check().unwrap();
        }
        // Its layers repeat.
        let large = Shape { n_layers: 1, n_vocab: 1024, ..SEARCHED[2] };
        model(&large).check().unwrap();
    }
}

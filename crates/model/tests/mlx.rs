//! MLX's quantised folders have the logits of their weights decoded to f32. The cases are every
//! width and group size, embeddings and tied heads, routers of another width, and experts stacked
//! under MLX's names.
//!
//! The tests write the fixtures in MLX's format: matrices whose rows are whole groups become
//! integers with BF16 scales and offsets, and all others stay unchanged.
#![allow(clippy::unwrap_used)]

use std::path::Path;

use crate::common::{Runner, json, open};
use device::{Device, Numerics};
use device_cpu::{CpuDevice, Isa, Options};
use formats::convert::{self, Plan, Target};
use model::ModelSpec;
use serde_json::json;
use weights::codec::affine;
use weights::{Access, Affine, BlockType, Bytes, Checkpoint, Planes, ScaleType, Tensor};

/// The type of a matrix, if its rows are whole groups. Routers have 8 bits, as in mlx-lm.
fn type_of(name: &str, n_cols: usize, bits: usize, group: usize) -> Option<Affine> {
    let bits = if is_router(name) { 8 } else { bits };
    Affine::new(bits, group, ScaleType::BF16, false).filter(|_| n_cols.is_multiple_of(group))
}

fn is_router(name: &str) -> bool {
    name.ends_with("mlp.gate.weight") || name.ends_with("router.proj.weight")
}

/// Quantises the matrices that MLX would, in memory.
fn quantised(checkpoint: &Checkpoint, bits: usize, group: usize) -> Checkpoint {
    let mut checkpoint = checkpoint.clone();
    for tensor in checkpoint.tensors.iter_mut().filter(|t| t.shape.len() > 1) {
        let Some(to) = type_of(&tensor.name, tensor.n_cols(), bits, group) else { continue };
        let values = tensor.to_f32();
        let block = BlockType::Affine(to);
        let (n_rows, n_cols) = (tensor.n_rows(), tensor.n_cols());
        let [mut data, mut scales, mut biases] =
            [block.row_bytes(n_cols), block.row_scale_bytes(n_cols), block.row_bias_bytes(n_cols)]
                .map(|row| vec![0; n_rows * row]);
        affine::quantize(to, &values, &mut data, &mut scales, &mut biases);
        tensor.block = block;
        tensor.data = Bytes::from_slice(&data);
        tensor.planes =
            Planes { scales: Some(Bytes::from_slice(&scales)), biases: Some(Bytes::from_slice(&biases)) };
    }
    checkpoint
}

/// The checkpoint with its values decoded to f32.
fn decoded(checkpoint: &Checkpoint) -> Checkpoint {
    let mut checkpoint = checkpoint.clone();
    for tensor in &mut checkpoint.tensors {
        let bytes: Vec<u8> = tensor.to_f32().iter().flat_map(|v| v.to_le_bytes()).collect();
        tensor.block = BlockType::F32;
        tensor.data = Bytes::from_slice(&bytes);
        tensor.planes = Planes::default();
    }
    checkpoint
}

/// Tensors under MLX's names: experts are stacked, with gate and up apart.
fn renamed(tensors: &[Tensor]) -> Vec<Tensor> {
    let mut out: Vec<Tensor> = Vec::new();
    for tensor in tensors {
        if let Some((before, after)) = tensor.name.split_once(".mlp.experts.") {
            // Each expert, in order, becomes a part of the stack.
            let (expert, matrix) = after.split_once('.').unwrap();
            let name = format!("{before}.mlp.switch_mlp.{matrix}");
            if expert != "0" {
                continue;
            }
            let of = |e: usize| {
                let name = format!("{before}.mlp.experts.{e}.{matrix}");
                tensors.iter().find(|t| t.name == name)
            };
            let parts: Vec<&Tensor> = (0..).map_while(of).collect();
            let joined = |bytes: &dyn Fn(&Tensor) -> Option<Bytes>| -> Option<Bytes> {
                let all: Option<Vec<Bytes>> = parts.iter().map(|t| bytes(t)).collect();
                Some(Bytes::from_slice(&all?.iter().flat_map(|b| b.to_vec()).collect::<Vec<u8>>()))
            };
            out.push(Tensor {
                name,
                shape: [&[parts.len()], &tensor.shape[..]].concat(),
                block: tensor.block,
                data: joined(&|t| Some(t.data.clone())).unwrap(),
                planes: Planes {
                    scales: joined(&|t| t.planes.scales.clone()),
                    biases: joined(&|t| t.planes.biases.clone()),
                },
            });
        } else if let Some(layer) = tensor.name.strip_suffix(".experts.gate_up_proj") {
            let [n, both, n_cols] = tensor.shape[..] else { panic!("{:?}", tensor.shape) };
            for (half, matrix) in ["gate", "up"].into_iter().enumerate() {
                let parts = (0..n).map(|e| {
                    let first = e * both + half * both / 2;
                    tensor.rows(first..first + both / 2).unwrap()
                });
                let parts: Vec<(Bytes, Planes)> = parts.collect();
                let join = |bytes: &dyn Fn(&(Bytes, Planes)) -> Vec<u8>| {
                    Bytes::from_slice(&parts.iter().flat_map(bytes).collect::<Vec<u8>>())
                };
                let has = tensor.planes.scales.is_some();
                out.push(Tensor {
                    name: format!("{layer}.experts.switch_glu.{matrix}_proj.weight"),
                    shape: vec![n, both / 2, n_cols],
                    block: tensor.block,
                    data: join(&|p| p.0.to_vec()),
                    planes: Planes {
                        scales: has.then(|| join(&|p| p.1.as_slices().scales.to_vec())),
                        biases: has.then(|| join(&|p| p.1.as_slices().biases.to_vec())),
                    },
                });
            }
        } else if let Some(layer) = tensor.name.strip_suffix(".experts.down_proj") {
            let name = format!("{layer}.experts.switch_glu.down_proj.weight");
            out.push(Tensor { name, ..tensor.clone() });
        } else {
            out.push(tensor.clone());
        }
    }
    out
}

/// Writes a folder like MLX. With `all_experts`, every row runs through all experts.
fn write(dir: &Path, fixture: &str, checkpoint: &Checkpoint, bits: usize, group: usize, all_experts: bool) {
    let mut config = json(&format!("{fixture}/config.json"));
    for key in ["num_experts_per_tok", "top_k_experts"] {
        if all_experts && config.get(key).is_some() {
            let n = ["num_experts", "num_local_experts"].into_iter().find_map(|n| config.get(n).cloned());
            config[key] = n.unwrap();
        }
    }
    let mut quantization = json!({"group_size": group, "bits": bits, "mode": "affine"});
    let mut header = serde_json::Map::new();
    let mut data: Vec<u8> = Vec::new();
    let mut put = |name: String, dtype: &str, shape: &[usize], bytes: &[u8]| {
        let offsets = [data.len(), data.len() + bytes.len()];
        data.extend_from_slice(bytes);
        header.insert(name, json!({"dtype": dtype, "shape": shape, "data_offsets": offsets}));
    };
    for tensor in renamed(&checkpoint.tensors) {
        let Tensor { name, mut shape, block, data, planes } = tensor;
        let BlockType::Affine(affine) = block else {
            put(name, block.name(), &shape, &data);
            continue;
        };
        let module = name.strip_suffix(".weight").unwrap().to_owned();
        if affine.bits() != bits {
            quantization[&module] = json!({"group_size": group, "bits": affine.bits()});
        }
        let n_cols = shape.pop().unwrap();
        let with = |last: usize| [&shape[..], &[last]].concat();
        put(name, "U32", &with(n_cols * affine.bits() / 32), &data);
        put(format!("{module}.scales"), "BF16", &with(n_cols / group), &planes.scales.unwrap());
        put(format!("{module}.biases"), "BF16", &with(n_cols / group), &planes.biases.unwrap());
    }
    config["quantization"] = quantization;
    let header = serde_json::to_vec(&header).unwrap();
    let file = [&(header.len() as u64).to_le_bytes()[..], &header, &data].concat();
    std::fs::write(dir.join("model.safetensors"), file).unwrap();
    std::fs::write(dir.join("config.json"), config.to_string()).unwrap();
}

/// Logits of a prompt in chunks of 7 and two, so that both of the device's tables run, and then
/// token by token.
fn logits(device: &dyn Device, checkpoint: &Checkpoint) -> Vec<f32> {
    let spec = ModelSpec::from_checkpoint(checkpoint).unwrap();
    assert!(spec.unused_tensors.is_empty(), "{:?}", spec.unused_tensors);
    let plan = spec.plan(checkpoint).unwrap();
    let mut runner = Runner::on(device, &plan, Numerics::Fast);
    let tokens: Vec<u32> = (0..14).map(|i| (i * 37 + 5) % 160).collect();
    let chunks = [&tokens[..7], &tokens[7..9], &tokens[9..10], &tokens[10..11], &tokens[11..]];
    chunks.into_iter().flat_map(|chunk| runner.step(chunk).0).flatten().collect()
}

/// Root mean square of the difference, relative to that of `b`.
fn difference(a: &[f32], b: &[f32]) -> f32 {
    let square = |values: &mut dyn Iterator<Item = f32>| values.map(|v| v * v).sum::<f32>();
    (square(&mut a.iter().zip(b).map(|(a, b)| a - b)) / square(&mut b.iter().copied())).sqrt()
}

/// Bound for activations rounded to 1/127 of the largest of 32. They are off by some 0.7 % of a
/// product's magnitude in each of some twenty matrices. The device's own tests allow this for a
/// block of Ops. Measured: 0.02 to 0.10.
const ROUNDED: f32 = 0.15;

/// Checks every group size of a fixture. A rounded activation may choose another expert, so rows
/// run through all experts in comparisons on the CPU.
fn check(fixture: &str, groups: &[usize]) {
    let original = open(fixture);
    let reference = device_reference::Reference::new(2);
    for (index, (bits, group)) in
        Affine::BITS.iter().flat_map(|bits| groups.iter().map(move |group| (*bits, *group))).enumerate()
    {
        let quantised = quantised(&original, bits, group);
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), fixture, &quantised, bits, group, true);
        let mlx = formats::open(dir.path(), Access::Map).unwrap();
        assert!(mlx.format.starts_with("MLX"), "{}", mlx.format);
        let affine = mlx.tensors.iter().filter(|t| matches!(t.block, BlockType::Affine(_)));
        let (n, planes_mapped) = affine.fold((0, true), |(n, mapped), t| {
            (n + 1, mapped && t.planes.scales.as_ref().is_some_and(Bytes::is_mapped))
        });
        assert!(n >= 4 && planes_mapped, "{fixture}, {bits} bits in {group}s: {n} quantised tensors");
        let what = format!("{fixture}, {bits} bits in groups of {group}");
        let plain = Checkpoint { tensors: decoded(&quantised).tensors, ..mlx.clone() };
        let wanted = logits(&reference, &plain);
        let found = logits(&reference, &mlx);
        let worst = wanted.iter().zip(&found).fold(0f32, |m, (a, b)| m.max((a - b).abs()));
        // Both multiply the same values in the same order.
        assert!(worst < 1e-3, "{what}: {worst}");
        // The instruction sets alternate.
        let isas = Isa::available();
        let isa = isas[index % isas.len()];
        let device = CpuDevice::new(Options { isa: Some(isa), threads: Some(2) }).unwrap();
        let off = difference(&logits(&device, &mlx), &wanted);
        println!("{what}: interpreter {worst:.1e}, {isa} {off:.1e} of the logits' size");
        assert!(off < ROUNDED, "{what} on {isa}: off by {off} of the logits' size");
    }
}

#[test]
fn a_dense_model_with_a_quantised_embedding_and_a_tied_head() {
    check("llama", &[32, 64]);
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), "llama", &quantised(&open("llama"), 4, 64), 4, 64, false);
    let mlx = formats::open(dir.path(), Access::Map).unwrap();
    let plan = ModelSpec::from_checkpoint(&mlx).unwrap().plan(&mlx).unwrap();
    let table = plan.weights.iter().find(|w| w.name == "model.embed_tokens.weight").unwrap();
    assert_eq!(table.block.to_string(), "AFFINE4_G64_BF16");
    assert_eq!(table.n_bytes_of_row(), 32 + 2 + 2);
    plan.check().unwrap();
}

#[test]
fn experts_stacked_under_the_names_of_mlx() {
    check("qwen3_moe", &[32, 64, 128]);
    check("gemma4_moe", &[64]);
    check("qwen2_moe", &[32]);
}

/// The `.base` file that keeps every type, opened again.
fn as_base(checkpoint: &Checkpoint, output: &Path) -> Checkpoint {
    let target = Target::parse("keep").unwrap();
    let options = convert::Options { target, profile: None, requantize: false, force: false };
    let plan = convert::Plan::new(checkpoint, &options).unwrap();
    let report = convert::run(checkpoint, &plan, "mlx", &[], output, &options, &mut |_| {}).unwrap();
    assert_eq!(report.n_copied, checkpoint.tensors.len());
    formats::open(output, Access::Map).unwrap()
}

/// The interpreter, with the fixtures' number of experts, multiplies the same values in the same
/// order.
#[test]
fn the_same_experts_are_chosen() {
    let reference = device_reference::Reference::new(2);
    for (fixture, group) in [("qwen3_moe", 64), ("gemma4_moe", 32), ("qwen2_moe", 32)] {
        let quantised = quantised(&open(fixture), 4, group);
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), fixture, &quantised, 4, group, false);
        let mlx = formats::open(dir.path(), Access::Map).unwrap();
        let wanted = logits(&reference, &decoded(&quantised));
        let off = difference(&logits(&reference, &mlx), &wanted);
        assert!(off < 1e-6, "{fixture}: {off}");
        // A `.base` file has the same bits, and so the same logits to the bit.
        let base = as_base(&mlx, &dir.path().join("model.base"));
        assert!(logits(&reference, &base) == logits(&reference, &mlx), "{fixture}");
    }
}

/// Converted to GGUF with the decoded values, a folder gives the same results.
#[test]
fn folders_become_gguf_files() {
    let reference = device_reference::Reference::new(2);
    for fixture in ["qwen3", "qwen3_moe", "gemma4_moe"] {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), fixture, &quantised(&open(fixture), 4, 32), 4, 32, false);
        let mlx = formats::open(dir.path(), Access::Map).unwrap();
        let spec = ModelSpec::from_checkpoint(&mlx).unwrap();
        let export = model::to_gguf(&mlx, &spec, fixture, None).unwrap();
        let options = |to| convert::Options {
            target: Target::parse(to).unwrap(),
            profile: None,
            requantize: false,
            force: false,
        };
        let error = Plan::new(&export, &options("gguf")).unwrap_err().to_string();
        assert!(error.contains("AFFINE4_G32_BF16") && error.contains("--to"), "{error}");
        let path = dir.path().join("model.gguf");
        let to = options("gguf:f32");
        let plan = Plan::new(&export, &to).unwrap();
        convert::run(&export, &plan, "", &[], &path, &to, &mut |_| {}).unwrap();
        let gguf = formats::open(&path, Access::Map).unwrap();
        let off = difference(&logits(&reference, &gguf), &logits(&reference, &mlx));
        assert!(off < 1e-4, "{fixture}: {off}");
    }
}

/// MLX transposes the taps of convolutions, and then adds the 1 that these families leave out of
/// their norms.
#[test]
fn norms_that_have_their_one_get_no_second() {
    for name in ["qwen3_next", "qwen3_5"] {
        let mut checkpoint = crate::common::open(name);
        for tensor in &mut checkpoint.tensors {
            if tensor.name.ends_with("conv1d.weight") {
                tensor.shape.swap(1, 2);
            }
            let shifted = ["layernorm.weight", "model.norm.weight", ".q_norm.weight", ".k_norm.weight"];
            if shifted.iter().any(|end| tensor.name.ends_with(end)) {
                let values: Vec<f32> = tensor.to_f32().into_iter().map(|v| v + 1.0).collect();
                let weight = device::Weight::vector("", &values);
                (tensor.block, tensor.data) = (weight.block, weight.data);
            }
        }
        let plan = ModelSpec::from_checkpoint(&checkpoint).unwrap().plan(&checkpoint).unwrap();
        crate::common::check(name, &plan, 40);
    }
}

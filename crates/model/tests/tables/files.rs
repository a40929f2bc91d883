//! A checkpoint as a file of each format.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use formats::convert::{self, Options, Target};
use serde_json::{Map, Value as Json, json};
use weights::codec::affine;
use weights::{Affine, Array, BlockType, Bytes, Checkpoint, Metadata, Planes, ScaleType, Tensor, Value};

/// The metadata as config.json.
fn config(metadata: &Metadata) -> Map<String, Json> {
    let json = |value: &Value| match value {
        Value::Int(n) => json!(*n as i64),
        Value::Float(v) => json!(v),
        Value::Bool(b) => json!(b),
        Value::Str(s) => json!(s),
        Value::Array(Array::Float(list)) => json!(list),
        other => panic!("{other:?} in a tiny config"),
    };
    metadata.iter().map(|(key, value)| (key.to_owned(), json(value))).collect()
}

/// A folder in Hugging Face's layout.
fn folder(
    folder: &Path,
    config: Map<String, Json>,
    parts: &[(String, &str, Vec<usize>, Vec<u8>)],
) -> PathBuf {
    let mut header = Map::new();
    let mut data = Vec::new();
    for (name, dtype, shape, bytes) in parts {
        let offsets = [data.len(), data.len() + bytes.len()];
        header.insert(name.clone(), json!({ "dtype": dtype, "shape": shape, "data_offsets": offsets }));
        data.extend(bytes);
    }
    let header = Json::Object(header).to_string();
    let file = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &data].concat();
    std::fs::write(folder.join("model.safetensors"), file).unwrap();
    std::fs::write(folder.join("config.json"), Json::Object(config).to_string()).unwrap();
    folder.to_owned()
}

pub fn safetensors(checkpoint: &Checkpoint, at: &Path) -> PathBuf {
    let part = |t: &Tensor| (t.name.clone(), t.block.name(), t.shape.clone(), t.data.to_vec());
    let parts: Vec<_> = checkpoint.tensors.iter().map(part).collect();
    folder(at, config(&checkpoint.metadata), &parts)
}

/// The quantisation that the tests use.
fn scheme() -> Affine {
    Affine::new(4, 32, ScaleType::BF16, false).unwrap()
}

/// A tensor's values in 4 bits.
fn quantise(tensor: &Tensor) -> Tensor {
    let block = BlockType::Affine(scheme());
    let (n_rows, n_cols) = (tensor.n_rows(), tensor.n_cols());
    let mut parts = [block.row_bytes(n_cols), block.row_scale_bytes(n_cols), block.row_bias_bytes(n_cols)]
        .map(|n| vec![0; n * n_rows]);
    let [data, scales, biases] = &mut parts;
    affine::quantize(scheme(), &tensor.to_f32(), data, scales, biases);
    let [data, scales, biases] = parts.map(|part| Bytes::from_slice(&part));
    Tensor {
        name: tensor.name.clone(),
        shape: tensor.shape.clone(),
        block,
        data,
        planes: Planes { scales: Some(scales), biases: Some(biases) },
    }
}

/// True if converters quantise the tensor: matrices are.
fn is_matrix(tensor: &Tensor) -> bool {
    tensor.shape.len() > 1 && tensor.n_rows() > 1 && tensor.n_cols().is_multiple_of(scheme().group())
}

/// The tensor in 4 bits, if it is a matrix.
pub fn quantised(tensor: &Tensor) -> Tensor {
    if is_matrix(tensor) { quantise(tensor) } else { tensor.clone() }
}

/// Experts as mlx-lm stores them, `(n, n_out, n_in)` for each projection. The source is `(n, n_in,
/// n_out)`, and may have both halves of the network in one tensor, concatenated or alternating.
/// Biases are split the same way.
fn turned(tensor: &Tensor, before: &str, projection: &str) -> Vec<Tensor> {
    let alternate = before.ends_with("mlp.experts");
    let (both, suffix) = match projection {
        "gate_up_proj" => (true, "weight"),
        "gate_up_proj_bias" => (true, "bias"),
        "down_proj" => (false, "weight"),
        "down_proj_bias" => (false, "bias"),
        other => panic!("{other}"),
    };
    let (n, n_in) = match tensor.shape[..] {
        [n, n_in, _] => (n, n_in),
        [n, _] => (n, 1),
        _ => panic!("{:?}", tensor.shape),
    };
    let n_cols = tensor.n_cols();
    let names: &[&str] = if both { &["gate_proj", "up_proj"] } else { &["down_proj"] };
    let (n_out, values) = (n_cols / names.len(), tensor.to_f32());
    let part = |(index, name): (usize, &&str)| {
        let column = |c: usize| if alternate { c * names.len() + index } else { index * n_out + c };
        let at = |e: usize, c: usize, r: usize| values[(e * n_in + r) * n_cols + column(c)];
        let of = |e: usize| (0..n_out).flat_map(move |c| (0..n_in).map(move |r| (e, c, r)));
        let turned: Vec<u8> = (0..n)
            .flat_map(of)
            .flat_map(|(e, c, r)| ((at(e, c, r).to_bits() >> 16) as u16).to_le_bytes())
            .collect();
        let shape = if tensor.shape.len() == 3 { vec![n, n_out, n_in] } else { vec![n, n_out] };
        let name = format!("{before}.{name}.{suffix}");
        Tensor {
            name,
            shape,
            block: BlockType::BF16,
            data: Bytes::from_slice(&turned),
            planes: Planes::default(),
        }
    };
    names.iter().enumerate().map(part).collect()
}

/// mlx-lm stacks the experts of each projection: `mlp.switch_mlp.up_proj` for
/// `mlp.experts.{e}.up_proj`, and `experts.switch_glu.gate_proj` and `.up_proj` for the halves of
/// `experts.gate_up_proj`.
fn stack_experts(tensors: &[Tensor]) -> Vec<Tensor> {
    // Models with alternating halves have another name for the router.
    let alternate = tensors.iter().any(|t| t.name.contains(".mlp.router."));
    let mut rest = Vec::new();
    let mut stacks: BTreeMap<String, Vec<&Tensor>> = BTreeMap::new();
    for tensor in tensors {
        let one_expert = ["mlp", "block_sparse_moe", "feed_forward", "mixer"].iter().find_map(|network| {
            let (before, after) = tensor.name.split_once(&format!(".{network}.experts."))?;
            let (expert, matrix) = after.split_once('.')?;
            expert.parse::<usize>().ok()?;
            Some((format!("{before}.{network}.switch_mlp"), *network, matrix))
        });
        if let Some((before, network, matrix)) = one_expert {
            let projection = match (network, matrix) {
                (_, "w1.weight") => "gate_proj.weight",
                (_, "w2.weight") => "down_proj.weight",
                (_, "w3.weight") => "up_proj.weight",
                ("mixer", "up_proj.weight") => "fc1.weight",
                ("mixer", "down_proj.weight") => "fc2.weight",
                (_, other) => other,
            };
            stacks.entry(format!("{before}.{projection}")).or_default().push(tensor);
        } else if let Some((before, projection)) = ["feed_forward", "mlp"].iter().find_map(|network| {
            let (before, after) = tensor.name.split_once(&format!(".{network}.experts."))?;
            let stack = if *network == "mlp" && !alternate { "switch_mlp" } else { "experts" };
            Some((format!("{before}.{network}.{stack}"), after))
        }) {
            rest.extend(turned(tensor, &before, projection));
        } else if let Some((before, projection)) = tensor.name.split_once(".experts.") {
            let named = |name: &str| format!("{before}.experts.switch_glu.{name}.weight");
            let [n, n_rows, n_cols] = tensor.shape[..] else { panic!("{:?}", tensor.shape) };
            if projection == "down_proj" {
                rest.push(Tensor { name: named(projection), ..tensor.clone() });
                continue;
            }
            let matrix = n_rows * tensor.row_bytes();
            for (half, name) in ["gate_proj", "up_proj"].into_iter().enumerate() {
                let of = |all: &[u8]| all[half * matrix / 2..][..matrix / 2].to_vec();
                let data: Vec<u8> = tensor.data.chunks(matrix).flat_map(of).collect();
                rest.push(Tensor {
                    name: named(name),
                    shape: vec![n, n_rows / 2, n_cols],
                    data: Bytes::from_slice(&data),
                    ..tensor.clone()
                });
            }
        } else {
            rest.push(tensor.clone());
        }
    }
    for (name, experts) in stacks {
        let data: Vec<u8> = experts.iter().flat_map(|t| t.data.to_vec()).collect();
        let shape = [&[experts.len()], &experts[0].shape[..]].concat();
        rest.push(Tensor { name, shape, data: Bytes::from_slice(&data), ..experts[0].clone() });
    }
    rest
}

pub fn mlx(checkpoint: &Checkpoint, at: &Path) -> PathBuf {
    let mut config = config(&checkpoint.metadata);
    config.insert(
        "quantization".to_owned(),
        json!({ "group_size": scheme().group(), "bits": scheme().bits() }),
    );
    let mut parts = Vec::new();
    for tensor in stack_experts(&checkpoint.tensors) {
        let module = tensor.name.strip_suffix(".weight").filter(|_| is_matrix(&tensor));
        let Some(module) = module else {
            parts.push((
                tensor.name.clone(),
                tensor.block.name(),
                tensor.shape.clone(),
                tensor.data.to_vec(),
            ));
            continue;
        };
        let Tensor { data, planes, .. } = quantise(&tensor);
        let with_last = |last: usize| {
            let mut shape = tensor.shape.clone();
            *shape.last_mut().unwrap() = last;
            shape
        };
        let n_groups = tensor.n_cols() / scheme().group();
        let n_words = tensor.n_cols() * scheme().bits() / 32;
        parts.push((tensor.name.clone(), "U32", with_last(n_words), data.to_vec()));
        for (suffix, plane) in [("scales", planes.scales), ("biases", planes.biases)] {
            parts.push((format!("{module}.{suffix}"), "BF16", with_last(n_groups), plane.unwrap().to_vec()));
        }
    }
    folder(at, config, &parts)
}

pub fn gguf(checkpoint: &Checkpoint, at: &Path) -> PathBuf {
    let mut writer = formats::gguf::Writer::new();
    checkpoint.metadata.iter().for_each(|(key, value)| writer.value(key, value).unwrap());
    checkpoint.tensors.iter().for_each(|t| writer.tensor(&t.name, &t.shape, t.block).unwrap());
    let mut body = writer.begin(Vec::new()).unwrap();
    checkpoint.tensors.iter().for_each(|t| body.tensor_data(&t.data).unwrap());
    let path = at.join("model.gguf");
    std::fs::write(&path, body.finish().unwrap()).unwrap();
    path
}

/// The converter's output with types kept.
pub fn converted(checkpoint: &Checkpoint, at: &Path) -> PathBuf {
    let path = at.join("model.base");
    let options =
        Options { target: Target::parse("keep").unwrap(), profile: None, requantize: false, force: false };
    let plan = convert::Plan::new(checkpoint, &options).unwrap();
    convert::run(checkpoint, &plan, "tiny", &[], &path, &options, &mut |_| {}).unwrap();
    path
}

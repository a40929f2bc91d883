//! The speech fixture: transformers' results, a runner of its three plans, and the fixture in other
//! programs' formats.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::path::Path;

use device::{Device, KvType, Limits, Numerics, Program, Span, Step};
use device_lower::fusion::fuse;
use device_testing::{BEST_AND_LOGITS, committed};
use model::{ModelSpec, SpeechPlans};
use weights::{Access, BlockType, Bytes, Checkpoint, Tensor};

use crate::common::{TOLERANCE, json};

pub const NAME: &str = "whisper";

/// Layers and heads of the fixture's decoder.
pub const N_LAYERS: usize = 2;
pub const N_HEADS: usize = 4;

/// transformers' results. Cross-attention and the greedy continuation come from
/// make_cross_attention.py.
pub struct Expected {
    /// `(frames, bands)`: the spectrogram.
    pub input: Vec<f32>,
    pub tokens: Vec<u32>,
    pub encoder_positions: Vec<u32>,
    /// `(encoder_positions, hidden)`: the encoder's states.
    pub encoder_hidden: Vec<Vec<f32>>,
    /// `(tokens, n_vocab)`: the decoder's logits.
    pub logits: Vec<Vec<f32>>,
    /// `(layers, heads, tokens, encoder positions)`: the probabilities of cross-attention.
    pub probabilities: Vec<Vec<Vec<Vec<f32>>>>,
    pub greedy: Vec<u32>,
}

fn row(value: &serde_json::Value) -> Vec<f32> {
    value.as_array().unwrap().iter().map(|v| v.as_f64().unwrap() as f32).collect()
}

fn each<T>(value: &serde_json::Value, make: impl Fn(&serde_json::Value) -> T) -> Vec<T> {
    value.as_array().unwrap().iter().map(make).collect()
}

fn ids(value: &serde_json::Value) -> Vec<u32> {
    each(value, |v| v.as_u64().unwrap() as u32)
}

pub fn expected() -> Expected {
    let answers = json("whisper/expected.json");
    let cross = json("whisper/cross_attention.json");
    let mel = each(&answers["mel"], row);
    Expected {
        input: (0..mel[0].len()).flat_map(|frame| mel.iter().map(move |band| band[frame])).collect(),
        tokens: ids(&answers["decoder_input_ids"]),
        encoder_positions: ids(&answers["encoder_positions"]),
        encoder_hidden: each(&answers["encoder_hidden"], row),
        logits: each(&answers["logits"], row),
        probabilities: each(&cross["probabilities"], |layer| each(layer, |head| each(head, row))),
        greedy: ids(&cross["greedy"]),
    }
}

/// The largest difference between two lists of rows.
pub fn worst(found: &[Vec<f32>], expected: &[Vec<f32>]) -> f32 {
    assert_eq!(found.len(), expected.len());
    let mut worst = 0.0f32;
    for (found, expected) in found.iter().zip(expected) {
        assert_eq!(found.len(), expected.len());
        for (a, b) in found.iter().zip(expected) {
            assert!(a.is_finite(), "{a}");
            worst = worst.max((a - b).abs());
        }
    }
    worst
}

/// The three plans as one program, for one sequence with all its pages.
pub struct Speech {
    program: Box<dyn Program>,
    /// Columns of each plan's result.
    cols: Vec<usize>,
    kept_cols: Vec<usize>,
    n_positions: usize,
    position: u32,
}

const PAGES: usize = 4;
const PAGE_LEN: usize = 16;

impl Speech {
    pub fn new(device: &dyn Device, plans: &SpeechPlans, numerics: Numerics) -> Speech {
        Speech::try_new(device, plans, numerics).unwrap()
    }

    /// A runner on a device, or `None` if it does not run the plans.
    pub fn try_new(device: &dyn Device, plans: &SpeechPlans, numerics: Numerics) -> device::Result<Speech> {
        let plans = plans.clone().into_vec();
        let limits = Limits {
            max_rows: PAGES * PAGE_LEN,
            max_outputs: PAGES * PAGE_LEN,
            max_spans: 1,
            n_ctx: PAGES * PAGE_LEN,
            page_len: PAGE_LEN,
            n_pages: vec![PAGES; plans[0].kv.groups.len()],
            n_states: 0,
            background_rows: 0,
            kv_type: KvType::F32,
            numerics,
        };
        let n_positions = plans[0].kv.groups.last().unwrap().encoder_states.unwrap();
        let cols = plans.iter().map(|p| p.value(p.output).cols).collect();
        let align = &plans[SpeechPlans::ALIGN];
        let kept_cols = align.kept.iter().map(|id| align.value(*id).cols).collect();
        let fused: Vec<_> = plans.iter().map(|plan| fuse(plan, device.fusion())).collect();
        let program = device.compile(&fused, &limits).and_then(committed)?;
        Ok(Speech { program, cols, kept_cols, n_positions, position: 0 })
    }

    fn run(
        &mut self,
        plan: usize,
        tokens: &[u32],
        input: &[f32],
        first: u32,
        outputs: &[u32],
    ) -> Vec<Vec<f32>> {
        let table: Vec<u32> = (0..2).flat_map(|_| 0..PAGES as u32).collect();
        let span = Span { slot: 0, first_row: 0, n_rows: tokens.len() as u32, first_position: first };
        let wants = vec![BEST_AND_LOGITS; outputs.len()];
        let step = Step {
            plan,
            tokens,
            input,
            spans: &[span],
            page_tables: &table,
            pages_per_table: PAGES,
            outputs,
            wants: &wants,
            ..Step::default()
        };
        self.program.run(&step).unwrap();
        let cols = self.cols[plan];
        self.program.logits()[..outputs.len() * cols].chunks(cols).map(<[f32]>::to_vec).collect()
    }

    /// Encodes a window. Returns the states of some positions.
    pub fn encode(&mut self, input: &[f32], positions: &[u32]) -> Vec<Vec<f32>> {
        let tokens = vec![0; self.n_positions];
        self.run(SpeechPlans::ENCODER, &tokens, input, 0, positions)
    }

    /// Decodes the next tokens. Returns their logits, and the best token of the last.
    pub fn decode(&mut self, tokens: &[u32]) -> (Vec<Vec<f32>>, u32) {
        let outputs: Vec<u32> = (0..tokens.len() as u32).collect();
        let logits = self.run(SpeechPlans::DECODER, tokens, &[], self.position, &outputs);
        self.position += tokens.len() as u32;
        (logits, self.program.chosen()[tokens.len() - 1].token.unwrap())
    }

    /// Logits of tokens from the first position on, and the kept alignment scores, row by row.
    pub fn align(&mut self, tokens: &[u32]) -> (Vec<Vec<f32>>, Vec<Vec<Vec<f32>>>) {
        let outputs: Vec<u32> = (0..tokens.len() as u32).collect();
        let logits = self.run(SpeechPlans::ALIGN, tokens, &[], 0, &outputs);
        let rows = |(i, cols): (usize, &usize)| {
            let kept = &self.program.kept(i)[..tokens.len() * cols];
            kept.chunks(*cols).map(<[f32]>::to_vec).collect()
        };
        (logits, self.kept_cols.iter().enumerate().map(rows).collect())
    }

    /// Clears the sequence; the encoder states stay.
    pub fn rewind(&mut self) {
        self.position = 0;
    }
}

/// A tensor to write, with its shape outermost first.
struct Out {
    name: String,
    shape: Vec<usize>,
    values: Vec<f32>,
}

/// The fixture's tensors, by their names after `model.`.
fn parts(checkpoint: &Checkpoint) -> BTreeMap<String, Out> {
    let part = |t: &Tensor| {
        let name = t.name.strip_prefix("model.").unwrap().to_owned();
        (name.clone(), Out { name, shape: t.shape.clone(), values: t.to_f32() })
    };
    checkpoint.tensors.iter().map(part).collect()
}

/// Writes the fixture like CTranslate2's converter: projections of one input are stacked, and keys
/// without a bias get zeros.
pub fn as_ctranslate2(
    checkpoint: &Checkpoint,
    folder: &Path,
    float16: bool,
    vocabulary: &[String],
) -> Checkpoint {
    let mut parts = parts(checkpoint);
    let mut out = Vec::new();
    let mut stack = |names: &[String], to: &str| {
        for suffix in ["weight", "bias"] {
            let mut stacked = Out { name: format!("{to}/{suffix}"), shape: vec![], values: vec![] };
            for name in names {
                let rows = 64;
                match parts.remove(&format!("{name}.{suffix}")) {
                    Some(part) => stacked.values.extend(part.values),
                    None => stacked.values.extend(vec![0.0; rows]),
                }
            }
            let n_rows = 64 * names.len();
            stacked.shape = if suffix == "weight" { vec![n_rows, 64] } else { vec![n_rows] };
            out.push(stacked);
        }
    };
    for layer in 0..2 {
        for side in ["encoder", "decoder"] {
            let of = |attention: &str, part: &str| format!("{side}.layers.{layer}.{attention}.{part}_proj");
            let qkv = ["q", "k", "v"].map(|p| of("self_attn", p));
            stack(&qkv, &format!("{side}/layer_{layer}/self_attention/linear_0"));
            if side == "decoder" {
                let kv = ["k", "v"].map(|p| of("encoder_attn", p));
                stack(&kv, &format!("{side}/layer_{layer}/attention/linear_1"));
            }
        }
    }
    let pairs = [
        (".layers.", "/layer_"),
        (".self_attn_layer_norm", "/self_attention/layer_norm"),
        (".encoder_attn_layer_norm", "/attention/layer_norm"),
        (".final_layer_norm", "/ffn/layer_norm"),
        (".self_attn.out_proj", "/self_attention/linear_1"),
        (".encoder_attn.q_proj", "/attention/linear_0"),
        (".encoder_attn.out_proj", "/attention/linear_2"),
        (".fc1", "/ffn/linear_0"),
        (".fc2", "/ffn/linear_1"),
        (".embed_tokens", "/embeddings"),
        (".embed_positions.weight", "/position_encodings/encodings"),
        (".", "/"),
    ];
    for (name, mut part) in parts {
        part.name = pairs.iter().fold(name, |n, (from, to)| n.replace(from, to));
        if part.name.contains("layer_norm") {
            part.name = part.name.replace("weight", "gamma").replace("bias", "beta");
        }
        out.push(part);
    }

    let string = |bytes: &mut Vec<u8>, text: &str| {
        bytes.extend((text.len() as u16 + 1).to_le_bytes());
        bytes.extend(text.as_bytes());
        bytes.push(0);
    };
    let mut bytes = 6u32.to_le_bytes().to_vec();
    string(&mut bytes, "WhisperSpec");
    bytes.extend(3u32.to_le_bytes());
    let settings: [(&str, u8, i16); 6] = [
        ("decoder/num_heads", 2, 4),
        ("encoder/num_heads", 2, 4),
        ("decoder/pre_norm", 1, 1),
        ("decoder/activation", 1, 3),
        ("decoder/alibi", 1, 0),
        ("decoder/scale_embeddings", 1, 0),
    ];
    bytes.extend((out.len() as u32 + settings.len() as u32).to_le_bytes());
    for (name, dtype, value) in settings {
        string(&mut bytes, name);
        bytes.extend([0, dtype]);
        let size = if dtype == 1 { 1 } else { 2 };
        bytes.extend((size as u32).to_le_bytes());
        bytes.extend(&value.to_le_bytes()[..size]);
    }
    for tensor in &out {
        string(&mut bytes, &tensor.name);
        bytes.push(tensor.shape.len() as u8);
        tensor.shape.iter().for_each(|dim| bytes.extend((*dim as u32).to_le_bytes()));
        let data = encode(if float16 { BlockType::F16 } else { BlockType::F32 }, &tensor.values);
        bytes.push(if float16 { 4 } else { 0 });
        bytes.extend((data.len() as u32).to_le_bytes());
        bytes.extend(data);
    }
    bytes.extend(1u32.to_le_bytes());
    string(&mut bytes, "decoder/projection/weight");
    string(&mut bytes, "decoder/embeddings/weight");
    std::fs::write(folder.join("model.bin"), bytes).unwrap();
    let config =
        r#"{"alignment_heads": [[1, 3], [0, 2]], "suppress_ids": [7, 2], "suppress_ids_begin": [5]}"#;
    std::fs::write(folder.join("config.json"), config).unwrap();
    std::fs::write(folder.join("vocabulary.txt"), vocabulary.join("\n")).unwrap();
    formats::open(folder, Access::Read).unwrap()
}

/// Writes the fixture like whisper.cpp's converter: matrices in `block`, convolutions in F16, the
/// rest in F32. Dimensions are innermost first, and biases of convolutions are columns.
pub fn as_whisper_cpp(checkpoint: &Checkpoint, folder: &Path, block: BlockType) -> Checkpoint {
    let pairs = [
        (".layers.", ".blocks."),
        ("self_attn_layer_norm", "attn_ln"),
        ("encoder_attn_layer_norm", "cross_attn_ln"),
        ("final_layer_norm", "mlp_ln"),
        ("self_attn.", "attn."),
        ("encoder_attn.", "cross_attn."),
        ("q_proj", "query"),
        ("k_proj", "key"),
        ("v_proj", "value"),
        ("out_proj", "out"),
        ("fc1", "mlp.0"),
        ("fc2", "mlp.2"),
        ("embed_tokens", "token_embedding"),
        ("embed_positions.weight", "positional_embedding"),
        ("encoder.layer_norm", "encoder.ln_post"),
        ("decoder.layer_norm", "decoder.ln"),
    ];
    let ints = |values: &[i32]| values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>();
    let id = |block: BlockType| match block {
        BlockType::F32 => 0,
        BlockType::F16 => 1,
        _ => 8,
    };
    let mut bytes = 0x6767_6d6cu32.to_le_bytes().to_vec();
    bytes.extend(ints(&[160, 50, 64, 4, 2, 64, 64, 4, 2, 80, 2000 + id(block)]));
    bytes.extend(ints(&[80, 1]));
    bytes.extend([0; 80 * 4]);
    bytes.extend(ints(&[0]));
    for (name, part) in parts(checkpoint) {
        let name = pairs.iter().fold(name, |n, (from, to)| n.replace(from, to));
        let mut shape = part.shape;
        let block = match shape.len() {
            3 => BlockType::F16,
            2 if !name.contains("positional") => block,
            _ => BlockType::F32,
        };
        if name.contains("conv") && shape.len() == 1 {
            shape.push(1);
        }
        let dims: Vec<i32> = shape.iter().rev().map(|dim| *dim as i32).collect();
        bytes.extend(ints(&[dims.len() as i32, name.len() as i32, id(block)]));
        bytes.extend(ints(&dims));
        bytes.extend(name.as_bytes());
        bytes.extend(encode(block, &part.values));
    }
    let path = folder.join("ggml-model.bin");
    std::fs::write(&path, bytes).unwrap();
    formats::open(&path, Access::Read).unwrap()
}

/// The checkpoint with every tensor `by` bytes after a multiple of 8, because whisper.cpp aligns
/// nothing.
pub fn shifted(mut checkpoint: Checkpoint, by: usize) -> Checkpoint {
    for tensor in &mut checkpoint.tensors {
        let padded = Bytes::from_slice(&[&vec![0; by][..], &tensor.data].concat());
        tensor.data = padded.slice(by..padded.len()).unwrap();
        assert_eq!(tensor.data.as_ptr() as usize % 8, by);
    }
    checkpoint
}

/// Values in F32, F16, or Q8_0: blocks of 32 after a scale in F16.
fn encode(block: BlockType, values: &[f32]) -> Vec<u8> {
    let f16 = |value: f32| half::f16::from_f32(value);
    match block {
        BlockType::F32 => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
        BlockType::F16 => values.iter().flat_map(|v| f16(*v).to_le_bytes()).collect(),
        _ => {
            let quantise = |block: &[f32]| {
                let scale = f16(block.iter().fold(0.0f32, |m, v| m.max(v.abs())) / 127.0);
                let quants =
                    block.iter().map(|v| (v / scale.to_f32()).round().clamp(-127.0, 127.0) as i8 as u8);
                scale.to_le_bytes().into_iter().chain(quants).collect::<Vec<u8>>()
            };
            values.chunks(32).flat_map(quantise).collect()
        }
    }
}

/// Compares a device with the fixture: states, logits and greedy continuation, with the tokens
/// whole, one by one and in chunks of `chunks`. Compares cross-attention scores with the
/// interpreter, where they are checked as probabilities.
pub fn agrees_with_fixture(
    device: &dyn Device,
    name: &str,
    numerics: Numerics,
    checkpoint: &Checkpoint,
    chunks: &[usize],
) {
    let expected = expected();
    let spec = ModelSpec::from_checkpoint(checkpoint).unwrap();
    let plans = spec.speech_plans(checkpoint, &[(0, 1), (1, 0), (1, 2)]).unwrap();
    let mut run = Speech::new(device, &plans, numerics);
    let states = run.encode(&expected.input, &expected.encoder_positions);
    let difference = worst(&states, &expected.encoder_hidden);
    assert!(difference < TOLERANCE, "{name}: states differ by {difference}");
    for chunk in [expected.tokens.len(), 1].iter().chain(chunks) {
        run.rewind();
        let (mut logits, mut best) = (Vec::new(), 0);
        for tokens in expected.tokens.chunks(*chunk) {
            let (rows, last) = run.decode(tokens);
            logits.extend(rows);
            best = last;
        }
        let difference = worst(&logits, &expected.logits);
        assert!(difference < TOLERANCE, "{name}, chunks of {chunk}: logits differ by {difference}");
        let mut greedy = Vec::new();
        while greedy.len() < expected.greedy.len() {
            greedy.push(best);
            best = run.decode(&[best]).1;
        }
        assert_eq!(greedy, expected.greedy, "{name}, chunks of {chunk}");
    }
    let (_, kept) = run.align(&expected.tokens);
    let mut reference = Speech::new(&device_reference::Reference::new(2), &plans, Numerics::Deterministic);
    reference.encode(&expected.input, &[]);
    for (found, expected) in kept.iter().zip(reference.align(&expected.tokens).1) {
        let difference = worst(found, &expected);
        assert!(difference < TOLERANCE, "{name}: scores differ by {difference}");
    }
}

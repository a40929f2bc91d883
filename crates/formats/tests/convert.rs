//! Conversions through files on disk: exact copies, refusals, and rules.
#![allow(clippy::unwrap_used)] // A test that cannot go on fails.

use std::path::{Path, PathBuf};

use formats::base;
use formats::convert::{self, Action, Error, Options, Plan, Profile, Report, Target};
use formats::gguf::{self, MetaValue};
use weights::codec::{affine, dequantize_rows};
use weights::{Access, Affine, BlockType, Bytes, Checkpoint, Naming, PlaneSlices, Planes, ScaleType, Tensor};

fn options(to: &str) -> Options {
    Options { target: Target::parse(to).unwrap(), profile: None, requantize: false, force: false }
}

fn with_profile(to: &str, profile: &str) -> Options {
    let target = Target::parse(to).unwrap();
    Options { profile: Some(Profile::parse(profile, Path::new("p"), target.format).unwrap()), ..options(to) }
}

fn run(checkpoint: &Checkpoint, output: &Path, options: &Options) -> Result<Report, Error> {
    let plan = Plan::new(checkpoint, options)?;
    let mut bytes = 0;
    let report = convert::run(checkpoint, &plan, "source", &[], output, options, &mut |n| bytes += n)?;
    assert_eq!(bytes, plan.n_bytes(checkpoint), "what progress hears is what the plan promises");
    Ok(report)
}

fn open(path: &Path) -> Checkpoint {
    formats::open(path, Access::Map).unwrap()
}

/// Values of about the magnitude of weights, equal in each run.
fn values(n: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..n)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((state >> 40) as f32 / (1 << 24) as f32 - 0.5) / 8.0
        })
        .collect()
}

fn tensor(name: &str, shape: &[usize]) -> Tensor {
    let bytes: Vec<u8> =
        values(shape.iter().product(), name.len() as u64).iter().flat_map(|v| v.to_le_bytes()).collect();
    Tensor {
        name: name.to_owned(),
        shape: shape.to_vec(),
        block: BlockType::F32,
        data: Bytes::from_slice(&bytes),
        planes: Planes::default(),
    }
}

fn quantised(name: &str, shape: &[usize], block: BlockType) -> Tensor {
    let float = tensor(name, shape);
    let mut bytes = vec![0; float.n_rows() * block.row_bytes(float.n_cols())];
    weights::codec::quantize_row(block, &float.to_f32(), &mut bytes);
    Tensor { block, data: Bytes::from_slice(&bytes), ..float }
}

fn checkpoint(naming: Naming, tensors: Vec<Tensor>) -> Checkpoint {
    let (metadata, left_out) = Default::default();
    Checkpoint { naming, metadata, tensors, left_out, format: "made".into(), file_bytes: 0 }
}

/// The planned type of each tensor, in the order of writing.
fn planned(checkpoint: &Checkpoint, options: &Options) -> Vec<(String, String, Action)> {
    let plan = Plan::new(checkpoint, options).unwrap();
    let line =
        |p: &convert::Planned| (checkpoint.tensors[p.tensor].name.clone(), p.block.to_string(), p.action);
    plan.tensors.iter().map(line).collect()
}

fn types(checkpoint: &Checkpoint, options: &Options) -> Vec<String> {
    planned(checkpoint, options).into_iter().map(|(name, block, _)| format!("{name} {block}")).collect()
}

fn mlx() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/formats/mlx")
}

/// The fixture without scales that `.base` cannot store.
fn storable_mlx() -> Checkpoint {
    let mlx = open(&mlx());
    let storable = |t: &Tensor| !matches!(t.block, BlockType::Affine(a) if a.scale() == ScaleType::F32);
    Checkpoint { tensors: mlx.tensors.iter().filter(|t| storable(t)).cloned().collect(), ..mlx }
}

#[test]
fn gguf_to_base_and_back_keeps_every_bit() {
    use BlockType::*;
    let dir = tempfile::tempdir().unwrap();
    let (source, middle, back) =
        (dir.path().join("a.gguf"), dir.path().join("a.base"), dir.path().join("b.gguf"));
    let mut writer = gguf::Writer::new();
    let mut keys = [
        ("general.architecture", MetaValue::Str("llama".into())),
        ("general.file_type", MetaValue::U32(2)),
        ("llama.rope.freq_base", MetaValue::F32(10000.0)),
        ("llama.attention.layer_norm_rms_epsilon", MetaValue::F32(1e-5)),
        ("llama.feed_forward_length", MetaValue::I32s(vec![1, -2, 3])),
        ("llama.flags", MetaValue::Bools(vec![true, false])),
        ("tokenizer.ggml.add_bos_token", MetaValue::Bool(false)),
        ("tokenizer.ggml.scores", MetaValue::F32s(vec![0.0, -1.5, 0.1])),
        ("tokenizer.ggml.tokens", MetaValue::Strs(vec![b"a".into(), "\u{e9}\"\n".into(), b"".into()])),
        ("tokenizer.huggingface.json", MetaValue::Str("{\"b\": 1, \"a\": 2}".into())),
    ];
    // Keys and tensors are in the order of writing, so that even the files are equal.
    keys.sort_by_key(|(key, _)| *key);
    keys.iter().for_each(|(key, value)| writer.metadata(key, value.clone()).unwrap());
    let tensors: Vec<Tensor> = [F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0]
        .into_iter()
        .enumerate()
        .map(|(i, block)| quantised(&format!("blk.{i}.w"), &[3, 5, 64], block))
        .collect();
    tensors.iter().for_each(|t| writer.tensor(&t.name, &t.shape, t.block).unwrap());
    let mut body = writer.begin(Vec::new()).unwrap();
    tensors.iter().for_each(|t| body.tensor_data(&t.data).unwrap());
    std::fs::write(&source, body.finish().unwrap()).unwrap();

    let report = run(&open(&source), &middle, &options("keep")).unwrap();
    assert_eq!((report.n_copied, report.n_repacked, report.n_encoded), (3, 5, 0));
    let base = open(&middle);
    assert_eq!(base.naming, Naming::Gguf);
    assert!(base.tensor("blk.4.w").unwrap().block.to_string().starts_with("AFFINE4_G32_F16"));
    assert!(base::read(&middle, Access::Map).unwrap().verify_checksums().unwrap() == 8);
    for (a, b) in tensors.iter().zip(&base.tensors) {
        assert_eq!(a.to_f32(), b.to_f32(), "{}", a.name);
    }
    let report = run(&base, &back, &options("gguf")).unwrap();
    assert_eq!((report.n_copied, report.n_repacked, report.n_encoded), (3, 5, 0));
    assert!(std::fs::read(&source).unwrap() == std::fs::read(&back).unwrap());
    // Converting a .base file to .base gives an equal file.
    let again = dir.path().join("again.base");
    run(&base, &again, &options("keep")).unwrap();
    let without_source = |path: &Path| {
        let file = base::read(path, Access::Map).unwrap();
        let mut header: serde_json::Value = serde_json::from_slice(file.header()).unwrap();
        header["source"] = serde_json::Value::Null;
        header["pad"] = serde_json::Value::Null;
        header
    };
    assert_eq!(without_source(&middle), without_source(&again));
}

#[test]
fn mlx_to_base_keeps_integers_scales_and_offsets() {
    let dir = tempfile::tempdir().unwrap();
    let output = dir.path().join("mlx.base");
    let mlx = storable_mlx();
    let report = run(&mlx, &output, &options("keep")).unwrap();
    assert_eq!(report.n_copied, mlx.tensors.len());
    let base = open(&output);
    assert_eq!((base.naming, base.metadata.usize("hidden_size")), (Naming::HuggingFace, Some(64)));
    for tensor in &mlx.tensors {
        let other = base.tensor(&tensor.name).unwrap();
        assert_eq!((&other.shape, other.block), (&tensor.shape, tensor.block));
        assert_eq!(other.data[..], tensor.data[..], "{}", tensor.name);
        let (a, b) = (other.planes.as_slices(), tensor.planes.as_slices());
        assert_eq!((a.scales, a.biases), (b.scales, b.biases), "{}", tensor.name);
        // Scales and offsets have the alignment that devices need.
        assert!(a.scales.is_empty() || (a.scales.as_ptr() as usize).is_multiple_of(64));
    }
}

#[test]
fn norms_and_vectors_stay_and_the_outer_matrices_are_finer() {
    let gguf = checkpoint(
        Naming::Gguf,
        vec![
            tensor("output.weight", &[4, 256]),
            tensor("output_norm.weight", &[256]),
            tensor("blk.1.ffn_up.weight", &[4, 640]),
            tensor("blk.0.attn_q.weight", &[4, 256]),
            tensor("blk.0.attn_q.bias", &[256]),
            tensor("blk.0.ffn_gate_inp.weight", &[4, 256]),
            tensor("blk.0.odd.weight", &[4, 48]),
            tensor("token_embd.weight", &[4, 256]),
        ],
    );
    let lines = |types: [&str; 8]| {
        let names = [
            "token_embd.weight",
            "blk.0.attn_q.weight",
            "blk.0.attn_q.bias",
            "blk.0.ffn_gate_inp.weight",
            "blk.0.odd.weight",
            "blk.1.ffn_up.weight",
            "output.weight",
            "output_norm.weight",
        ];
        names.iter().zip(types).map(|(name, block)| format!("{name} {block}")).collect::<Vec<_>>()
    };
    let (four, five) = ("AFFINE4_G64_BF16", "AFFINE5_G64_BF16");
    for (to, expected) in [
        ("q4", [five, four, "F32", "F32", "F32", four, five, "F32"]),
        // Rows of 640 are five groups of 128.
        (
            "q6",
            [
                "AFFINE8_G128_BF16",
                "AFFINE6_G64_BF16",
                "F32",
                "F32",
                "F32",
                "AFFINE6_G64_BF16",
                "AFFINE8_G128_BF16",
                "F32",
            ],
        ),
        (
            "q2-g128-f16",
            [
                "AFFINE3_G128_F16",
                "AFFINE2_G128_F16",
                "F32",
                "F32",
                "F32",
                "AFFINE2_G128_F16",
                "AFFINE3_G128_F16",
                "F32",
            ],
        ),
        ("bf16", ["BF16", "BF16", "F32", "F32", "BF16", "BF16", "BF16", "F32"]),
        ("f32", ["F32"; 8]),
        ("keep", ["F32"; 8]),
        // 640 is not a multiple of 256.
        ("gguf:q4_k", ["Q5_K", "Q4_K", "F32", "F32", "F32", "Q5_0", "Q5_K", "F32"]),
        ("gguf:q8_0", ["Q8_0", "Q8_0", "F32", "F32", "F32", "Q8_0", "Q8_0", "F32"]),
    ] {
        assert_eq!(types(&gguf, &options(to)), lines(expected), "{to}");
    }
    // Rows of 576, as in small models, are nine groups of 64 and not whole groups of 128.
    let narrow = checkpoint(Naming::HuggingFace, vec![tensor("model.layers.0.q_proj.weight", &[2, 576])]);
    assert_eq!(types(&narrow, &options("q8")), ["model.layers.0.q_proj.weight AFFINE8_G64_BF16"]);
    let halves = checkpoint(Naming::HuggingFace, vec![tensor("model.layers.0.q_proj.weight", &[2, 96])]);
    assert_eq!(types(&halves, &options("q4-e8m0")), ["model.layers.0.q_proj.weight AFFINE4_G32_E8M0_SYM"]);
}

#[test]
fn the_first_rule_that_matches_decides() {
    let model = checkpoint(
        Naming::HuggingFace,
        vec![
            tensor("model.embed_tokens.weight", &[4, 128]),
            tensor("model.layers.0.input_layernorm.weight", &[128]),
            tensor("model.layers.0.mlp.down_proj.weight", &[4, 128]),
            tensor("model.layers.1.mlp.down_proj.weight", &[4, 128]),
            tensor("model.layers.1.mlp.up_proj.weight", &[4, 128]),
        ],
    );
    let rules = "# rules\n*norm* = f16\n*.1.*down* = keep\n*.down_proj.weight = q8-g64-f16\n*embed* = bf16\nnothing* = q4\n";
    let options = with_profile("q4", rules);
    assert_eq!(
        types(&model, &options),
        [
            "model.embed_tokens.weight BF16",
            "model.layers.0.input_layernorm.weight F16",
            "model.layers.0.mlp.down_proj.weight AFFINE8_G64_F16",
            "model.layers.1.mlp.down_proj.weight F32",
            "model.layers.1.mlp.up_proj.weight AFFINE4_G64_BF16",
        ]
    );
    assert_eq!(Plan::new(&model, &options).unwrap().unmatched, ["line 6, \"nothing*\""]);
    let error = Plan::new(&model, &with_profile("q4", "*layernorm* = q4")).unwrap_err().to_string();
    assert!(
        error.contains("input_layernorm") && error.contains("[128]") && error.contains("keep"),
        "{error}"
    );
    // A requested group size is kept; a default one is made smaller.
    let narrow = checkpoint(Naming::Gguf, vec![tensor("blk.0.w", &[2, 96])]);
    let error = Plan::new(&narrow, &with_profile("keep", "* = q4-g64")).unwrap_err().to_string();
    assert!(error.contains("AFFINE4_G64_BF16") && error.contains("blocks of 64"), "{error}");
    assert_eq!(types(&narrow, &with_profile("keep", "* = q4")), ["blk.0.w AFFINE4_G32_BF16"]);
}

/// Blocks of published gpt-oss checkpoints, whose scales are a separate tensor.
#[test]
fn scales_that_are_elsewhere_are_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let affine = weights::Affine::new(4, 32, weights::ScaleType::F16, false).unwrap();
    let alone = Tensor { block: BlockType::Affine(affine), ..quantised("w", &[4, 64], BlockType::Q4_0) };
    let data = weights::Bytes::from_slice(&alone.data[..4 * alone.row_bytes()]);
    let model = checkpoint(Naming::Gguf, vec![Tensor { data, ..alone }]);
    let error = run(&model, &dir.path().join("out"), &options("f32")).unwrap_err();
    // Each row has two groups, with a scale and an offset of two bytes each.
    assert!(matches!(error, Error::Planes { found: 0, expected: 32, .. }), "{error}");
}

#[test]
fn quantised_sources_are_encoded_again_only_when_asked() {
    let dir = tempfile::tempdir().unwrap();
    let output = dir.path().join("out");
    let model = checkpoint(Naming::Gguf, vec![quantised("blk.0.w", &[4, 256], BlockType::Q4_0)]);
    let error = run(&model, &output, &options("q4")).unwrap_err().to_string();
    for part in ["blk.0.w", "Q4_0", "AFFINE4_G64_BF16", "--requantize", "keep moves it"] {
        assert!(error.contains(part), "{error}");
    }
    let error = run(&model, &output, &options("gguf:q8_0")).unwrap_err();
    assert!(matches!(error, Error::Lossy { to: BlockType::Q8_0, .. }));
    let action = |to: &str| planned(&model, &options(to)).remove(0);
    assert_eq!(action("q4-g32-f16-sym").2, Action::Repack);
    assert_eq!(action("gguf:q4_0").2, Action::Copy);
    assert_eq!(action("f32"), ("blk.0.w".into(), "F32".into(), Action::Encode), "nothing is lost");
    assert!(run(&model, &output, &options("f16")).is_err());

    let requantize = Options { requantize: true, ..options("q8-g32") };
    run(&model, &output, &requantize).unwrap();
    let worst = model.tensors[0]
        .to_f32()
        .iter()
        .zip(open(&output).tensors[0].to_f32())
        .fold(0.0, |w: f32, (a, b)| w.max((a - b).abs()));
    // The bound is half a step of 255 over a range of 1/8, and as much for the rounding of scale
    // and offset to bf16.
    assert!(worst < 0.125 / 255.0, "{worst}");

    let k_quant = checkpoint(Naming::Gguf, vec![quantised("blk.0.w", &[4, 256], BlockType::Q4_K)]);
    let error = run(&k_quant, &dir.path().join("k"), &options("keep")).unwrap_err().to_string();
    assert!(error.contains("Q4_K") && error.contains(".base") && error.contains("--to"), "{error}");
    assert_eq!(action_of(&open(&mlx()), "gguf"), None);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "failures leave nothing");
}

/// The number of tensors in the plan; `None` if the plan is refused.
fn action_of(checkpoint: &Checkpoint, to: &str) -> Option<usize> {
    Plan::new(checkpoint, &options(to)).ok().map(|plan| plan.tensors.len())
}

#[test]
fn what_a_type_cannot_hold_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let output = dir.path().join("out.base");
    let with = |value: f32| {
        let mut values = values(2 * 64, 3);
        values[70] = value;
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        checkpoint(
            Naming::HuggingFace,
            vec![
                tensor("layers.0.first.weight", &[2, 64]),
                Tensor { data: Bytes::from_slice(&bytes), ..tensor("layers.1.w.weight", &[2, 64]) },
            ],
        )
    };
    for (value, to, fits) in [
        (65504.0, "f16", true),
        (65519.0, "f16", true),
        (65520.0, "f16", false),
        (-1e6, "f16", false),
        (1e-9, "f16", true),
        (3.3e38, "bf16", true),
        (3.4e38, "bf16", false),
        (f32::NAN, "bf16", false),
        (f32::NAN, "f32", true),
        (f32::INFINITY, "q4", false),
        (f32::NAN, "q8", false),
        (f32::NEG_INFINITY, "keep", true),
    ] {
        let made = run(&with(value), &output, &Options { force: true, ..options(to) });
        assert_eq!(made.is_ok(), fits, "{value} as {to}");
        if let Err(error) = made {
            let error = error.to_string();
            assert!(error.contains("layers.1.w.weight") && error.contains(&value.to_string()), "{error}");
        } else {
            assert!(
                open(&output)
                    .tensors
                    .iter()
                    .all(|t| to == "keep" || to == "f32" || t.to_f32().iter().all(|v| v.is_finite()))
            );
        }
        assert!(std::fs::read_dir(dir.path()).unwrap().all(|f| f.unwrap().file_name() == "out.base"));
    }
}

#[test]
fn an_output_is_replaced_only_when_asked_and_only_when_the_new_one_is_whole() {
    let dir = tempfile::tempdir().unwrap();
    let output = dir.path().join("out.base");
    std::fs::write(&output, "precious").unwrap();
    let model = checkpoint(Naming::Gguf, vec![quantised("blk.0.w", &[4, 256], BlockType::F16)]);
    assert!(matches!(run(&model, &output, &options("keep")), Err(Error::Exists { .. })));
    assert!(matches!(
        run(&model, dir.path(), &Options { force: true, ..options("keep") }),
        Err(Error::Exists { .. })
    ));
    let broken = checkpoint(Naming::Gguf, vec![model.tensors[0].clone(), model.tensors[0].clone()]);
    let force = Options { force: true, ..options("keep") };
    assert!(run(&broken, &output, &force).unwrap_err().to_string().contains("twice"));
    assert_eq!(std::fs::read(&output).unwrap(), b"precious");
    run(&model, &output, &force).unwrap();
    assert_eq!(open(&output).tensors.len(), 1);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    let error = run(&model, &dir.path().join("no/folder/x.base"), &options("keep")).unwrap_err().to_string();
    assert!(error.contains("no/folder/x.base"), "{error}");
    let names = checkpoint(Naming::HuggingFace, model.tensors);
    assert!(matches!(run(&names, &dir.path().join("x.gguf"), &options("gguf")), Err(Error::Naming(_))));
}

/// One tensor may be most of a model, so progress is reported while it is made or copied.
#[test]
fn progress_is_heard_of_within_a_tensor() {
    let dir = tempfile::tempdir().unwrap();
    // Large enough for several pieces on any number of threads of a test machine.
    let n_rows = 64 * (24 + 8 * rayon::current_num_threads());
    let model = checkpoint(Naming::HuggingFace, vec![tensor("layers.0.w.weight", &[n_rows, 1024])]);
    for to in ["keep", "q4"] {
        let options = options(to);
        let plan = Plan::new(&model, &options).unwrap();
        let (mut told, mut largest) = (0, 0);
        let mut progress = |n: u64| (told, largest) = (told + n, largest.max(n));
        convert::run(&model, &plan, "source", &[], &dir.path().join(to), &options, &mut progress).unwrap();
        assert_eq!(told, plan.n_bytes(&model), "{to}");
        assert!(
            largest <= told.div_ceil(2).max(4 << 20) && largest < told,
            "{to}: {largest} of {told} at once"
        );
    }
}

/// Rows are encoded in parallel chunks. The bytes equal those of a single call.
#[test]
fn chunks_change_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let model = checkpoint(Naming::HuggingFace, vec![tensor("layers.0.w.weight", &[3, 301, 192])]);
    let x = model.tensors[0].to_f32();
    for (to, affine) in [
        ("q5", Affine::new(5, 64, ScaleType::BF16, false).unwrap()),
        ("q3-sym-f16", Affine::new(3, 32, ScaleType::F16, true).unwrap()),
    ] {
        let output = dir.path().join(to);
        run(&model, &output, &options(to)).unwrap();
        let block = BlockType::Affine(affine);
        let n = 3 * 301;
        let mut parts = [block.row_bytes(192), block.row_scale_bytes(192), block.row_bias_bytes(192)]
            .map(|row| vec![0; n * row]);
        let [data, scales, biases] = &mut parts;
        affine::quantize(affine, &x, data, scales, biases);
        let found = open(&output);
        let planes = found.tensors[0].planes.as_slices();
        assert!(
            found.tensors[0].data[..] == data[..] && planes.scales == scales && planes.biases == biases,
            "{to}"
        );
        let mut decoded = vec![0.0; x.len()];
        dequantize_rows(block, 192, data, PlaneSlices { scales, biases }, &mut decoded);
        assert_eq!(found.tensors[0].to_f32(), decoded);
    }
}

#[test]
fn small_files_go_along_and_come_back() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("folder");
    std::fs::create_dir(&folder).unwrap();
    for (name, text) in [
        ("tokenizer.json", "{\"z\": 1.50, \"a\": \"\u{e9}\"}"),
        ("chat_template.jinja", "{{ a }}\n"),
        ("README.md", "not of the model"),
    ] {
        std::fs::write(folder.join(name), text).unwrap();
    }
    let model = checkpoint(Naming::HuggingFace, vec![tensor("layers.0.w.weight", &[2, 64])]);
    let files = convert::files_of(&folder, &model).unwrap();
    assert_eq!(
        files.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(),
        ["tokenizer.json", "chat_template.jinja"]
    );
    let (first, second) = (dir.path().join("1.base"), dir.path().join("2.base"));
    let plan = Plan::new(&model, &options("keep")).unwrap();
    convert::run(&model, &plan, "folder", &files, &first, &options("keep"), &mut |_| {}).unwrap();
    let opened = open(&first);
    assert_eq!(opened.metadata.str("files.tokenizer.json"), Some("{\"z\": 1.50, \"a\": \"\u{e9}\"}"));
    let again = convert::files_of(&first, &opened).unwrap();
    convert::run(&opened, &plan, "1.base", &again, &second, &options("keep"), &mut |_| {}).unwrap();
    let sorted = |mut files: Vec<(String, String)>| {
        files.sort();
        files
    };
    assert_eq!(sorted(convert::files_of(&second, &open(&second)).unwrap()), sorted(files));
    std::fs::write(folder.join("tokenizer_config.json"), [0xff]).unwrap();
    let error = convert::files_of(&folder, &model).unwrap_err().to_string();
    assert!(error.contains("tokenizer_config.json"), "{error}");
}

#[test]
fn verified_opening_refuses_what_is_unsigned_damaged_or_another_format() {
    use base::SecretKey;
    let dir = tempfile::tempdir().unwrap();
    let (file, signed) = (dir.path().join("a.base"), dir.path().join("s.base"));
    let model = checkpoint(Naming::Gguf, vec![tensor("blk.0.w", &[2, 64])]);
    run(&model, &file, &options("keep")).unwrap();
    let key = SecretKey::from_bytes(&[5; 32]);
    base::sign_file(&file, &signed, &key, "me").unwrap();
    let other = SecretKey::from_bytes(&[6; 32]);
    let verified = |path: &Path, key: Option<&SecretKey>, checksums| {
        let verify = formats::Verify { key: key.map(SecretKey::public), checksums };
        formats::open_verified(path, Access::Read, &verify).map_err(|e| e.to_string())
    };
    assert!(verified(&signed, Some(&key), true).is_ok() && verified(&file, None, true).is_ok());
    assert!(verified(&file, Some(&key), false).unwrap_err().contains("signature: found none"));
    assert!(verified(&signed, Some(&other), false).unwrap_err().contains("not by the key"));
    assert!(verified(&mlx(), Some(&key), false).unwrap_err().contains("supported: .base"));
    assert!(verified(&mlx(), None, true).unwrap_err().contains("supported: .base"));
    let mut bytes = std::fs::read(&file).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    std::fs::write(&file, bytes).unwrap();
    assert!(verified(&file, None, false).is_ok());
    assert!(verified(&file, None, true).unwrap_err().contains("blk.0.w"));
}

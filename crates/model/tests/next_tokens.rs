//! The layer for multi-token prediction gives the logits of its formula over the main model's
//! states, on the interpreter and the CPU. Without it nothing changes.
#![allow(clippy::unwrap_used)]

use crate::common::{TOLERANCE, expected, json, open};
use device::{Device, KvType, Limits, Numerics, Plan, Program, STATE_NONE, Span, StateUse, Step, Want};
use device_lower::fusion::fuse;
use device_testing::committed;
use model::{ModelSpec, to_gguf};
use weights::{Checkpoint, Naming, Source, Value};

const FIXTURES: [&str; 4] = ["deepseek_v3_mtp", "glm4_moe_mtp", "qwen3_next_mtp", "qwen3_5_mtp"];
const PAGES: usize = 4;

/// The main model's plan, and the plan of the layer.
fn plans(checkpoint: &Checkpoint) -> [Plan; 2] {
    let spec = ModelSpec::from_checkpoint(checkpoint).unwrap();
    assert!(spec.unused_tensors.is_empty(), "{:?}", spec.unused_tensors);
    let spec = spec.predicting().unwrap();
    let n_ctx = spec.n_ctx_train;
    [spec.plan(checkpoint).unwrap(), spec.next_plan(checkpoint, n_ctx).unwrap()]
}

fn program(device: &dyn Device, plans: &[Plan], numerics: Numerics) -> Box<dyn Program> {
    let limits = Limits {
        max_rows: 64,
        max_outputs: 64,
        max_spans: 1,
        n_ctx: 64,
        page_len: 16,
        n_pages: vec![PAGES],
        // One state is read and one is written.
        n_states: if plans[0].kv.states.is_empty() { 0 } else { 2 },
        background_rows: 0,
        kv_type: KvType::F32,
        numerics,
    };
    let fused: Vec<Plan> = plans.iter().map(|plan| fuse(plan, device.fusion())).collect();
    device.compile(&fused, &limits).and_then(committed).unwrap()
}

/// Runs rows from a position on. Returns all logits, and the kept values.
fn run(
    program: &mut dyn Program,
    plan: usize,
    first: usize,
    tokens: &[u32],
    input: &[f32],
    states: &[StateUse],
) -> (Vec<f32>, Vec<f32>) {
    let rows: Vec<u32> = (0..tokens.len() as u32).collect();
    let span = Span { slot: 0, first_row: 0, n_rows: tokens.len() as u32, first_position: first as u32 };
    let step = Step {
        plan,
        tokens,
        input,
        spans: &[span],
        states,
        page_tables: &[2, 0, 3, 1],
        pages_per_table: PAGES,
        outputs: &rows,
        wants: &vec![Want::LOGITS; rows.len()],
        ..Step::default()
    };
    program.run(&step).unwrap();
    (program.logits().to_vec(), program.kept(0).to_vec())
}

/// The largest difference of the logits of the main model and of the layer, in chunks of `chunk`
/// rows.
fn differences(name: &str, program: &mut dyn Program, chunk: usize) -> [f32; 2] {
    let is_recurrent = ModelSpec::from_checkpoint(&open(name)).unwrap().family.recurrent.is_some();
    let (said, next) = (expected(name), &json(&format!("{name}/expected.json"))["next"]);
    let tokens = said.input_ids.clone();
    let (mut logits, mut of_next) = (Vec::new(), Vec::new());
    for first in (0..tokens.len()).step_by(chunk) {
        let end = tokens.len().min(first + chunk);
        let to = (first / chunk % 2) as u32;
        let state = StateUse { from: if first == 0 { STATE_NONE } else { 1 - to }, to };
        let of_model = if is_recurrent { &[state][..] } else { &[] };
        let (rows, states) = run(program, 0, first, &tokens[first..end], &[], of_model);
        logits.extend(rows);
        // Nothing follows the last token.
        let n = end.min(tokens.len() - 1) - first;
        if n > 0 {
            let cols = states.len() / (end - first);
            of_next.extend(
                run(program, 1, first, &tokens[first + 1..first + 1 + n], &states[..n * cols], &[]).0,
            );
        }
    }
    let numbers = |v: &serde_json::Value| -> Vec<f64> {
        v.as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect()
    };
    let n_vocab = logits.len() / tokens.len();
    let worst = |found: &[f32], position: usize, wanted: &[f64]| {
        let row = &found[position * n_vocab..(position + 1) * n_vocab];
        row.iter().zip(wanted).map(|(a, b)| (f64::from(*a) - b).abs() as f32).fold(0.0, f32::max)
    };
    let mut found = [0.0f32; 2];
    for (position, row) in said.positions.iter().zip(&said.logits) {
        let row: Vec<f64> = row.iter().map(|v| f64::from(*v)).collect();
        found[0] = found[0].max(worst(&logits, *position, &row));
    }
    for (position, row) in numbers(&next["positions"]).iter().zip(next["logits"].as_array().unwrap()) {
        found[1] = found[1].max(worst(&of_next, *position as usize, &numbers(row)));
    }
    found
}

#[test]
fn the_layer_agrees_with_its_formula_on_the_interpreter_and_the_cpu() {
    let cpu = device_cpu::CpuDevice::new(device_cpu::Options { threads: Some(2), isa: None }).unwrap();
    let devices: [(&dyn Device, Numerics); 3] = [
        (&device_reference::Reference::new(1), Numerics::Deterministic),
        (&cpu, Numerics::Deterministic),
        (&cpu, Numerics::Fast),
    ];
    for name in FIXTURES {
        let plans = plans(&open(name));
        for (device, numerics) in devices {
            let mut program = program(device, &plans, numerics);
            for chunk in [64, 7, 1] {
                let found = differences(name, program.as_mut(), chunk);
                println!("{name} on {}, chunks of {chunk}: {found:?}", device.name());
                assert!(found.iter().all(|d| *d < TOLERANCE), "{name} on {}: {found:?}", device.name());
            }
        }
    }
}

/// A converted file has the layer, with the name and number that readers of GGUF expect.
#[test]
fn a_converted_file_keeps_the_layer() {
    for name in FIXTURES {
        let published = open(name);
        let spec = ModelSpec::from_checkpoint(&published).unwrap();
        let export = to_gguf(&published, &spec, "x", None).unwrap();
        assert!(export.unused_tensors.is_empty() && export.notes.is_empty(), "{name}: {:?}", export.notes);
        let tensors: Vec<_> = (0..export.declarations().len()).map(|i| export.tensor(i).unwrap()).collect();
        let architecture = export.metadata.str("general.architecture").unwrap();
        let number = |key: &str| match export.metadata.get(&format!("{architecture}.{key}")) {
            Some(Value::Int(n)) => Some(*n as usize),
            _ => None,
        };
        let n = spec.n_layers();
        assert_eq!(number("nextn_predict_layers"), Some(1), "{name}");
        assert_eq!(number("block_count"), Some(n + 1), "{name}");
        for part in ["nextn.eh_proj", "nextn.enorm", "nextn.hnorm", "nextn.shared_head_norm", "attn_output"] {
            let part = format!("blk.{n}.{part}.weight");
            assert!(tensors.iter().any(|t| t.name == part), "{name}: {part}");
        }
        // The layers before it have no such tensors.
        assert_eq!(tensors.iter().filter(|t| t.name.contains("nextn")).count(), 4, "{name}");
        let metadata = export.metadata.clone();
        let gguf = Checkpoint { naming: Naming::Gguf, metadata, tensors, ..published };
        let spec = ModelSpec::from_checkpoint(&gguf).unwrap();
        assert_eq!((spec.n_layers(), spec.next_layer.is_some()), (n, true), "{name}");
        let device = device_reference::Reference::new(1);
        let mut program = program(&device, &plans(&gguf), Numerics::Deterministic);
        let found = differences(name, program.as_mut(), 64);
        assert!(found.iter().all(|d| *d < TOLERANCE), "{name}: {found:?}");
    }
}

/// An incomplete layer is left out of the file, with a note.
#[test]
fn half_a_layer_is_not_converted() {
    let mut half = open("qwen3_5_mtp");
    half.tensors.retain(|t| t.name != "mtp.layers.0.self_attn.k_norm.weight");
    let spec = ModelSpec::from_checkpoint(&half).unwrap();
    let export = to_gguf(&half, &spec, "x", None).unwrap();
    assert!(export.declarations().iter().all(|d| !d.name.contains("nextn") && !d.name.starts_with("blk.3.")));
    assert!(matches!(export.metadata.get("qwen35.block_count"), Some(Value::Int(3))));
    assert!(
        export.notes.iter().any(|note| note.contains("mtp.layers.0.self_attn.k_norm")),
        "{:?}",
        export.notes
    );
}

/// The layer is absent unless requested, and refused if the file lacks it.
#[test]
fn without_the_layer_nothing_of_it_is_in_the_plan() {
    let checkpoint = open(FIXTURES[0]);
    let spec = ModelSpec::from_checkpoint(&checkpoint).unwrap();
    let plan = spec.plan(&checkpoint).unwrap();
    assert!(plan.kept.is_empty() && plan.kv.layers.len() == spec.n_layers());
    assert!(plan.weights.iter().all(|w| !w.name.contains("layers.2.")));
    let error = spec.next_plan(&checkpoint, 64).unwrap_err().to_string();
    assert!(error.contains("DeepSeek V3") && error.contains("nextn"), "{error}");
    let predicting = spec.predicting().unwrap();
    assert_eq!(predicting.plan(&checkpoint).unwrap().kv.layers.len(), spec.n_layers() + 1);
    assert!(ModelSpec::from_checkpoint(&open("deepseek_v2")).unwrap().predicting().is_none());

    let mut broken = checkpoint.clone();
    broken.tensors.retain(|t| t.name != "model.layers.2.hnorm.weight");
    let spec = ModelSpec::from_checkpoint(&broken).unwrap().predicting().unwrap();
    let error = spec.next_plan(&broken, 64).unwrap_err().to_string();
    assert!(error.contains("model.layers.2.hnorm.weight"), "{error}");
    let mut broken = open("qwen3_next_mtp");
    broken.tensors.retain(|t| t.name != "mtp.norm.weight");
    let spec = ModelSpec::from_checkpoint(&broken).unwrap().predicting().unwrap();
    let error = spec.next_plan(&broken, 64).unwrap_err().to_string();
    assert!(error.contains("mtp.norm.weight"), "{error}");
}

//! Every fixture as a `.base` file: the same model, weights and results.
#![allow(clippy::unwrap_used)] // A test that cannot go on fails.

use std::path::Path;

use crate::common::{Runner, TOLERANCE, all, check, check_with, json, open};
use device::{Numerics, Plan, Weight};
use device_cpu::CpuDevice;
use formats::convert::{self, Options, Target};
use model::ModelSpec;
use weights::{Access, BlockType, Checkpoint, Planes, codec};

/// Formats with 4-bit blocks and separate scales are not converted yet.
const NOT_STORED: [&str; 1] = ["gpt_oss_mxfp4"];

/// The checkpoint as a file of the type `to`, opened again.
fn converted(checkpoint: &Checkpoint, to: &str, output: &Path) -> Checkpoint {
    let target = Target::parse(to).unwrap();
    let options = Options { target, profile: None, requantize: false, force: true };
    let plan = convert::Plan::new(checkpoint, &options).unwrap();
    convert::run(checkpoint, &plan, "fixture", &[], output, &options, &mut |_| {}).unwrap();
    formats::open(output, Access::Map).unwrap()
}

/// All of a spec except the unused tensors, whose order conversion changes.
fn description(spec: &ModelSpec) -> String {
    let mut spec = spec.clone();
    spec.unused_tensors.sort();
    format!("{spec:?}")
}

/// The values of a weight; of a stack, one matrix after another.
fn values(weight: &Weight) -> Vec<f32> {
    let n_cols = weight.n_cols();
    let decode = |data: &[u8], planes: &Planes| {
        let mut values = vec![0.0; data.len() / weight.block.row_bytes(n_cols) * n_cols];
        codec::dequantize_rows(weight.block, n_cols, data, planes.as_slices(), &mut values);
        values
    };
    let parts = weight.parts.iter().flat_map(|part| decode(&part.data, &part.planes));
    let whole = if weight.parts.is_empty() { decode(&weight.data, &weight.planes) } else { Vec::new() };
    whole.into_iter().chain(parts).collect()
}

#[test]
fn a_base_file_is_the_model_that_its_folder_is() {
    let dir = tempfile::tempdir().unwrap();
    let cpu = CpuDevice::new(device_cpu::Options { isa: None, threads: Some(2) }).unwrap();
    for name in all().filter(|name| !NOT_STORED.contains(name)).chain(["bert"]) {
        let folder = open(name);
        let spec = ModelSpec::from_checkpoint(&folder).unwrap();
        let plan = spec.plan(&folder).unwrap();
        for to in ["keep", "f32"] {
            let base = converted(&folder, to, &dir.path().join("model.base"));
            let found = ModelSpec::from_checkpoint(&base).unwrap();
            assert_eq!(description(&found), description(&spec), "{name} as {to}");
            let found = found.plan(&base).unwrap();
            assert_eq!(found.nodes.len(), plan.nodes.len(), "{name} as {to}");
            assert_eq!(found.weights.len(), plan.weights.len(), "{name} as {to}");
            for (a, b) in found.weights.iter().zip(&plan.weights) {
                assert_eq!((&a.name, &a.shape), (&b.name, &b.shape), "{name} as {to}");
                if to == "keep" {
                    assert!(a.block == b.block && a.data[..] == b.data[..], "{name}: {}", a.name);
                } else {
                    assert_eq!(a.block, BlockType::F32, "{name}: {}", a.name);
                }
                assert!(values(a) == values(b), "{name} as {to}: {}", a.name);
            }
            if name == "bert" {
                hidden_states_agree(&found);
                continue;
            }
            check(name, &found, 16);
            check_with(Runner::on(&cpu, &found, Numerics::Fast), name, &[16]);
        }
    }
}

/// Compares hidden states with those of transformers, on the interpreter.
fn hidden_states_agree(plan: &Plan) {
    let json = json("bert/expected.json");
    let ids = json["input_ids"].as_array().unwrap().iter().map(|v| v.as_u64().unwrap() as u32);
    let (found, _) = Runner::new(plan).step(&ids.collect::<Vec<u32>>());
    let expected = json["last_hidden_state"].as_array().unwrap();
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(expected) {
        for (found, expected) in found.iter().zip(expected.as_array().unwrap()) {
            assert!((found - expected.as_f64().unwrap() as f32).abs() < TOLERANCE);
        }
    }
}

/// Root mean square of the difference, relative to that of `b`.
fn difference(a: &[f32], b: &[f32]) -> f64 {
    assert_eq!(a.len(), b.len());
    let square = |values: &mut dyn Iterator<Item = f64>| values.map(|v| v * v).sum::<f64>();
    let off = square(&mut a.iter().zip(b).map(|(a, b)| f64::from(a - b)));
    (off / square(&mut b.iter().map(|b| f64::from(*b)))).sqrt()
}

/// Largest relative error of a group with a number of bits. It is the error that docs/codecs.md
/// measures for normal values in the widest groups without offsets, plus a tenth for the small
/// matrices of these fixtures.
fn most_off(bits: usize) -> f64 {
    let measured = match bits {
        2 => 0.362,
        3 => 0.180,
        4 => 0.0945,
        5 => 0.048,
        6 => 0.0245,
        _ => 0.0065,
    };
    1.1 * measured
}

/// Every matrix's error is within the bound for its bits. The logits have no further error: they
/// equal those of a file with the decoded values.
#[test]
fn quantised_conversions_lose_what_their_bits_say() {
    let dir = tempfile::tempdir().unwrap();
    // Matrices that are transposed at load are copies, whatever their type.
    for name in all().filter(|name| !NOT_STORED.contains(name) && *name != "gpt2").chain(["bert"]) {
        let folder = open(name);
        let plan = ModelSpec::from_checkpoint(&folder).unwrap().plan(&folder).unwrap();
        for to in ["q8-g32", "q6", "q5-sym", "q4", "q4-sym", "q3", "q2"] {
            let quantised = converted(&folder, to, &dir.path().join("quantised.base"));
            let found = ModelSpec::from_checkpoint(&quantised).unwrap().plan(&quantised).unwrap();
            let mut n_matrices = 0;
            for (a, b) in found.weights.iter().zip(&plan.weights) {
                let BlockType::Affine(affine) = a.block else { continue };
                n_matrices += 1;
                let off = difference(&values(a), &values(b));
                assert!(
                    off < most_off(affine.bits()),
                    "{name} as {to}: {} of {affine} is off by {off}",
                    a.name
                );
            }
            assert!(n_matrices > 4, "{name} as {to}: {n_matrices}");
            let decoded = converted(&quantised, "f32", &dir.path().join("decoded.base"));
            let decoded = ModelSpec::from_checkpoint(&decoded).unwrap().plan(&decoded).unwrap();
            let tokens: Vec<u32> = (0..14).map(|i| (i * 37 + 5) % 160).collect();
            let answer = |plan: &Plan| Runner::new(plan).step(&tokens).0.concat();
            let worst =
                answer(&found).iter().zip(answer(&decoded)).fold(0.0, |m: f32, (a, b)| m.max((a - b).abs()));
            assert!(worst < TOLERANCE, "{name} as {to}: {worst}");
        }
    }
}

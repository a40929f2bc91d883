//! Every fixture as a `.base` file: the same model, the same weights, the same answers.
#![allow(clippy::unwrap_used)] // A test that cannot go on fails.

mod common;

use std::path::Path;

use common::{DENSE, MIXED, check, open};
use device::Weight;
use formats::convert::{self, Options, Target};
use formats::{Access, BlockType, Checkpoint, codec};
use model::ModelSpec;

/// The checkpoint as a file of the type `to`, opened again.
fn converted(checkpoint: &Checkpoint, to: &str, output: &Path) -> Checkpoint {
    let target = Target::parse(to).unwrap();
    let options = Options { target, profile: None, requantize: false, force: true };
    let plan = convert::Plan::new(checkpoint, &options).unwrap();
    convert::run(checkpoint, &plan, "fixture", &[], output, &options, &mut |_| {}).unwrap();
    formats::open(output, Access::Map).unwrap()
}

/// What a spec says, all of it. Unused tensors are listed in the order of the file, which conversion changes.
fn description(spec: &ModelSpec) -> String {
    let mut spec = spec.clone();
    spec.unused_tensors.sort();
    format!("{spec:?}")
}

/// The values of a weight, those of its experts one after the other.
fn values(weight: &Weight) -> Vec<f32> {
    let parts = weight.parts.iter().map(|part| &part.data[..]);
    let bytes: Vec<u8> = weight.data.iter().copied().chain(parts.flatten().copied()).collect();
    let mut values = vec![0.0; bytes.len() / weight.block.block_bytes()];
    codec::dequantize_row(weight.block, &bytes, &mut values);
    values
}

#[test]
fn a_base_file_is_the_model_that_its_folder_is() {
    let dir = tempfile::tempdir().unwrap();
    for name in DENSE.into_iter().chain(MIXED).chain(["bert"]) {
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
            if name != "bert" {
                check(name, &found, 16);
            }
        }
    }
}

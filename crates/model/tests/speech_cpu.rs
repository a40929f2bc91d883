//! An encoder and its decoder on the CPU device give transformers' states, logits and
//! cross-attention.
//!
//! The fixture has BF16 weights, which the device multiplies in f32, so the interpreter's bound
//! applies.
#![allow(clippy::unwrap_used)]

use crate::common::open;
use crate::common::speech::{NAME, agrees_with_fixture, as_whisper_cpp, shifted};
use device::Numerics;
use device_cpu::{CpuDevice, Isa, Options};
use weights::{BlockType, Checkpoint};

fn agrees(isa: Isa, threads: usize, numerics: Numerics, checkpoint: &Checkpoint) {
    let device = CpuDevice::new(Options { isa: Some(isa), threads: Some(threads) }).unwrap();
    agrees_with_fixture(&device, &isa.to_string(), numerics, checkpoint, &[5]);
}

#[test]
fn the_fixture_agrees_on_every_instruction_set() {
    for isa in Isa::available() {
        agrees(isa, 2, Numerics::Fast, &open(NAME));
    }
}

#[test]
fn tensors_that_lie_anywhere_agree_on_every_instruction_set() {
    for (isa, block) in
        Isa::available().into_iter().flat_map(|isa| [(isa, BlockType::F32), (isa, BlockType::F16)])
    {
        let folder = tempfile::tempdir().unwrap();
        let checkpoint = as_whisper_cpp(&open(NAME), folder.path(), block);
        agrees(isa, 1, Numerics::Fast, &shifted(checkpoint, 1));
    }
}

#[test]
fn the_fixture_agrees_with_deterministic_numerics() {
    agrees(Isa::detect(), 3, Numerics::Deterministic, &open(NAME));
}

//! An encoder and its decoder on the CPU device give the states, logits and cross-attention of transformers.
//!
//! The fixture's weights are BF16, which the device multiplies in f32, so the interpreter's bound holds for it too.
#![allow(clippy::unwrap_used)]

mod common;
#[path = "common/speech.rs"]
mod speech;

use common::{TOLERANCE, open};
use device::Numerics;
use device_cpu::{CpuDevice, Isa, Options};
use formats::{BlockType, Checkpoint};
use model::ModelSpec;
use speech::{NAME, Speech, as_whisper_cpp, expected, shifted, worst};

fn agrees(isa: Isa, threads: usize, numerics: Numerics, checkpoint: &Checkpoint) {
    let device = CpuDevice::new(Options { isa: Some(isa), threads: Some(threads) }).unwrap();
    let expected = expected();
    let spec = ModelSpec::from_checkpoint(checkpoint).unwrap();
    let plans = spec.speech_plans(checkpoint, &[(0, 1), (1, 0), (1, 2)]).unwrap();
    let mut run = Speech::new(&device, &plans, numerics);
    let states = run.encode(&expected.input, &expected.encoder_positions);
    let difference = worst(&states, &expected.encoder_hidden);
    assert!(difference < TOLERANCE, "{isa}: states differ by {difference}");
    for chunk in [expected.tokens.len(), 5, 1] {
        run.rewind();
        let (mut logits, mut best) = (Vec::new(), 0);
        for tokens in expected.tokens.chunks(chunk) {
            let (rows, last) = run.decode(tokens);
            logits.extend(rows);
            best = last;
        }
        let difference = worst(&logits, &expected.logits);
        assert!(difference < TOLERANCE, "{isa}, chunks of {chunk}: logits differ by {difference}");
        let mut greedy = Vec::new();
        while greedy.len() < expected.greedy.len() {
            greedy.push(best);
            best = run.decode(&[best]).1;
        }
        assert_eq!(greedy, expected.greedy, "{isa}, chunks of {chunk}");
    }
    // On the interpreter the scores are compared as probabilities; here with the interpreter's.
    let (_, kept) = run.align(&expected.tokens);
    let mut reference = Speech::new(&device::interpreter::Reference::new(2), &plans, Numerics::Deterministic);
    reference.encode(&expected.input, &[]);
    for (found, expected) in kept.iter().zip(reference.align(&expected.tokens).1) {
        let difference = worst(found, &expected);
        assert!(difference < TOLERANCE, "{isa}: scores differ by {difference}");
    }
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

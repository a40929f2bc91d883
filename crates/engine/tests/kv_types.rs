//! Tests of the error of each KV type against exact keys and values. Keys have no biases, or biases
//! hundreds of times larger than their differences.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use crate::common::{all_logits, emulated_metal, expected, greedy, model, options};
use device::{Device, KvType, Numerics};
use device_cpu::{CpuDevice, Isa, Options};
use device_reference::Reference;
use ingle_engine::*;

/// Two layers, heads of 32 columns, and a prompt of 300 tokens.
const BIASED: &str = "qwen2_key_biases";
/// Heads of 32 columns without biases.
const PLAIN: &str = WITHOUT_BIASES[0];
const WITHOUT_BIASES: [&str; 4] = ["gemma2", "qwen3", "gemma3", "mistral"];

fn cpu(isa: Isa) -> Arc<dyn Device> {
    Arc::new(CpuDevice::new(Options { threads: Some(2), isa: Some(isa) }).unwrap())
}

/// Root mean square error of logits. Rows are computed in chunks of 70 and one by one, and the
/// larger error counts.
fn error(device: &Arc<dyn Device>, name: &str, kv_type: KvType) -> f64 {
    let want = expected(name);
    let of = |prefill| {
        let options = LoadOptions { kv_type: Some(kv_type), n_outputs: Some(8), ..options(320, 70, 1) };
        let mut engine = Engine::new(model(name), device, &options).unwrap();
        let logits = all_logits(&mut engine, &want.input, prefill);
        let rows = want.positions.iter().zip(&want.logits);
        let errors = rows.flat_map(|(position, want)| want.iter().zip(&logits[*position]));
        let squares: Vec<f64> = errors.map(|(want, got)| (f64::from(*got) - want).powi(2)).collect();
        (squares.iter().sum::<f64>() / squares.len() as f64).sqrt()
    };
    let error = of(Prefill::Batched).max(of(Prefill::PerToken));
    println!("{name}, {} {kv_type:?}: {error:.5}", device.name());
    error
}

/// Biases of keys are removed before storing, so biased keys are no worse than others. Before that,
/// I16 was off by 0.004, I8 and Q8_0 by 0.5, FP8 by 1.5. The bounds are twice the measured errors.
#[test]
fn integers_hold_keys_with_large_biases() {
    let reference: Arc<dyn Device> = Arc::new(Reference::new(2));
    for (kv_type, bound) in [
        (KvType::F32, 1e-4),
        (KvType::I16, 1.3e-3),
        (KvType::I8, 0.021),
        (KvType::Q8_0, 0.021),
        (KvType::Fp8, 0.1),
    ] {
        assert!(error(&reference, BIASED, kv_type) < bound, "{kv_type:?}");
    }
    for isa in Isa::available() {
        for (kv_type, bound) in [(KvType::F32, 1e-4), (KvType::I16, 1.4e-3), (KvType::I8, 0.036)] {
            assert!(error(&cpu(isa), BIASED, kv_type) < bound, "{isa} {kv_type:?}");
        }
    }
    if let Some(metal) = emulated_metal() {
        assert!(error(&metal, BIASED, KvType::Q8_0) < 0.021);
    }
}

/// Queries, attention weights and sums of the CPU add little to the error of storing keys and
/// values in 16 bits. The interpreter, which multiplies the stored numbers in f32, is about as far
/// off, with biases and without. Roundings add up differently in each model, so the mean of five
/// counts: 1.09 is measured for I16.
#[test]
fn sixteen_bits_are_as_close_as_in_the_interpreter() {
    let reference: Arc<dyn Device> = Arc::new(Reference::new(2));
    let names = || WITHOUT_BIASES.into_iter().chain([BIASED]);
    for kv_type in [KvType::I16, KvType::F16] {
        let stored: Vec<f64> = names().map(|name| error(&reference, name, kv_type)).collect();
        for isa in Isa::available() {
            let logs =
                names().zip(&stored).map(|(name, stored)| (error(&cpu(isa), name, kv_type) / stored).ln());
            let mean = (logs.sum::<f64>() / stored.len() as f64).exp();
            println!("{isa} {kv_type:?}: {mean:.2}");
            assert!(mean < 1.2, "{isa} {kv_type:?}: {mean}");
        }
    }
}

/// I8 on the CPU, whose queries and weights have 8 bits too, compared with Q8_0 and both in f32.
/// Roundings add up differently by a third from model to model, so the mean of four counts: 1.22 is
/// measured.
#[test]
fn bytes_are_about_as_close_as_blocks_of_bytes() {
    let reference: Arc<dyn Device> = Arc::new(Reference::new(2));
    let blocks = WITHOUT_BIASES.map(|name| error(&reference, name, KvType::Q8_0));
    for isa in Isa::available() {
        let ratios: Vec<f64> = WITHOUT_BIASES
            .iter()
            .zip(blocks)
            .map(|(name, blocks)| error(&cpu(isa), name, KvType::I8) / blocks)
            .collect();
        let mean = (ratios.iter().map(|ratio| ratio.ln()).sum::<f64>() / ratios.len() as f64).exp();
        println!("{isa}: {mean:.2} of {ratios:.2?}");
        assert!(mean < 1.5, "{isa}: {mean} of {ratios:?}");
    }
    assert!(error(&cpu(Isa::detect()), BIASED, KvType::I8) < 1.5 * blocks[0]);
}

/// The best tokens are those of exact keys and values, with margins of at least 0.12.
#[test]
fn answers_with_biased_keys_are_the_exact_ones() {
    let want = expected(BIASED);
    for kv_type in [KvType::I16, KvType::I8] {
        let options = LoadOptions { kv_type: Some(kv_type), ..options(320, 64, 1) };
        let mut engine = Engine::new(model(BIASED), &cpu(Isa::detect()), &options).unwrap();
        let request = || Request { ignore_end: true, ..greedy(&want.input, want.greedy.len()) };
        assert_eq!(engine.complete(request()).unwrap().tokens, want.greedy, "{kv_type:?}");
        // The second answer reads the prefix cache.
        assert_eq!(engine.complete(request()).unwrap().tokens, want.greedy, "{kv_type:?}");
    }
}

/// Neither the cut of a prompt nor the length of pages changes a bit, on any instruction set.
#[test]
fn biased_keys_do_not_depend_on_chunks_or_pages() {
    let input = &expected(BIASED).input[..270];
    for isa in Isa::available() {
        for kv_type in [KvType::I16, KvType::I8] {
            let mut want = None;
            for (chunk, page_len) in [(270, 128), (7, 16), (64, 1024), (1, 256), (129, 32)] {
                let (kv_type, page_len) = (Some(kv_type), Some(page_len));
                let numerics = Numerics::Deterministic;
                let options =
                    LoadOptions { kv_type, page_len, numerics, n_outputs: Some(1), ..options(300, chunk, 1) };
                let mut engine = Engine::new(model(BIASED), &cpu(isa), &options).unwrap();
                let mut got = vec![];
                let mut visit = |_, logits: &[f32]| {
                    got.push(logits.to_vec());
                    Ok(())
                };
                engine.evaluate(input, 1, Prefill::Batched, &mut visit).unwrap();
                assert_eq!(*want.get_or_insert_with(|| got.clone()), got, "{isa} {options:?}");
            }
        }
    }
}

/// docs/codecs.md has the figures measured here, within a tenth. The rows for Metal are checked in
/// runs of more cases.
#[test]
fn the_page_on_kv_types_is_up_to_date() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/codecs.md");
    let text = std::fs::read_to_string(file).unwrap();
    let (_, part) = text.split_once("# KV types").unwrap();
    let mut n_checked = 0;
    for line in part.lines().filter(|line| line.starts_with("| ")).skip(1) {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let device: Arc<dyn Device> = match cells[2] {
            "cpu" => cpu(Isa::detect()),
            "reference" => Arc::new(Reference::new(2)),
            "metal" => match emulated_metal().filter(|_| device_testing::cases(1) > 1) {
                Some(metal) => metal,
                None => continue,
            },
            _ => continue,
        };
        let kinds = device.kv_types().iter().copied();
        let kv_type = kinds.into_iter().find(|kind| kv_type_name(*kind) == cells[1]).unwrap();
        for (cell, name) in [(cells[4], BIASED), (cells[6], PLAIN)] {
            let (said, found) = (cell.parse::<f64>().unwrap(), error(&device, name, kv_type));
            assert!((said - found).abs() < 0.1 * said + 5e-5, "{line}: {name} is {found:.5}");
        }
        n_checked += 1;
    }
    assert!(n_checked >= 5, "{n_checked}");
}

//! Files as the specification and its published converter define them.
use serde_json::{Value as Json, json};
use weights::{Affine, BlockType, Naming, ScaleType};

use super::{assemble, check_promises, check_refusal, parse, published, small};

/// A tensor `[2, 64]` of 4 bits: 64 bytes of integers, two f16 scales, two f16 offsets. Integers
/// alternate between 0 and 1, lowest nibble first; the scales are 1 and 2, the offsets -1 and 0.
fn payload() -> Vec<u8> {
    [&[0x10; 64][..], &[0, 0x3c, 0, 0x40], &[0, 0xbc, 0, 0]].concat()
}

fn values() -> Vec<f32> {
    let row = |scale: f32, bias: f32| (0..64).map(move |i| (i % 2) as f32 * scale + bias);
    row(1.0, -1.0).chain(row(2.0, 0.0)).collect()
}

#[test]
fn the_published_converters_files_are_read() {
    let entry = |extra: Json| {
        let mut entry = json!({
            "name": "layers.0.attn.qkv_proj.weight", "dtype": "base_q4", "shape": [2, 64], "offset": 0, "length": 72,
            "scale_offset": 64, "scale_length": 4, "bias_offset": 68, "bias_length": 4, "group_size": 64,
        });
        entry.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        entry
    };
    let checksum = xxhash_rust::xxh64::xxh64(&payload(), 0);
    for extra in [
        json!({"scale_dtype": "f16", "residency": "warm", "compute_region": "accelerator", "checksum_xxh64": checksum}),
        // Version 1.0 had implicit f16 scales and another name.
        json!({"dtype": "base4", "group_size": 64}),
        json!({"layout": "metal_lane_strided"}),
        json!({"layout": "metal_lane_strided_q4", "flags": "0x00000002", "future_field": [1]}),
        json!({"scale_dtype": null, "layout": null, "checksum_xxh64": null}),
    ] {
        let header = published(json!([entry(extra.clone())])).to_string();
        let base = parse(&assemble(header.as_bytes(), &payload())).unwrap();
        let checkpoint = base.checkpoint();
        check_promises(checkpoint);
        assert_eq!(checkpoint.naming, Naming::Base);
        assert_eq!(checkpoint.tensors[0].to_f32(), values(), "{extra}");
        assert_eq!(checkpoint.metadata.usize("hidden_size"), Some(64));
        assert_eq!(checkpoint.metadata.array("tokenizer.ggml.tokens").unwrap().len(), 2);
        assert_eq!(base.verify_checksums().unwrap(), usize::from(extra["checksum_xxh64"].is_u64()));
    }
}

/// FORMAT.md taken literally: `length` covers the integers, and all offsets count from the start of
/// the weights.
#[test]
fn scales_in_regions_of_their_own_are_read() {
    let entries = json!([
        {"name": "a", "dtype": "base_q4", "shape": [2, 64], "offset": 0, "length": 64, "scale_offset": 128,
         "scale_length": 4, "bias_offset": 136, "bias_length": 4, "group_size": 64},
        {"name": "b", "dtype": "base_q4", "shape": [2, 64], "offset": 64, "length": 64, "scale_offset": 132,
         "scale_length": 4, "bias_offset": 140, "bias_length": 4, "group_size": 64},
    ]);
    let (packed, scales, biases) = (&payload()[..64], &payload()[64..68], &payload()[68..]);
    let weights = [packed, packed, scales, scales, biases, biases].concat();
    let base = parse(&assemble(published(entries).to_string().as_bytes(), &weights)).unwrap();
    check_promises(base.checkpoint());
    assert!(base.checkpoint().tensors.iter().all(|t| t.to_f32() == values()));
    // A scale beyond the end is an error even though the integers are within the file.
    let cut = &weights[..weights.len() - 1];
    let entries = json!([{"name": "a", "dtype": "base_q4", "shape": [2, 64], "offset": 0, "length": 64,
        "scale_offset": 128, "scale_length": 4, "bias_offset": 140, "bias_length": 4, "group_size": 64}]);
    check_refusal(&assemble(published(entries).to_string().as_bytes(), cut), &["\"a\"", "within"]);
}

#[test]
fn defaults_are_the_specifications() {
    for (dtype, bits, group) in [
        ("base_q2", 2, 32),
        ("base_q3", 3, 32),
        ("base_q4", 4, 64),
        ("base_q5", 5, 64),
        ("base_q6", 6, 64),
        ("base_q8", 8, 128),
        ("base8", 8, 128),
    ] {
        let n = 128 * bits / 8;
        let n_scales = 128 / group;
        let entry = json!([{"name": "w", "dtype": dtype, "shape": [128], "offset": 0, "length": n + n_scales,
            "scale_offset": n, "scale_length": n_scales, "scale_dtype": "e8m0", "symmetric": true}]);
        let weights = [vec![0; n], vec![128; n_scales]].concat();
        let base = parse(&assemble(published(entry).to_string().as_bytes(), &weights)).unwrap();
        let tensor = &base.checkpoint().tensors[0];
        let affine = Affine::new(bits, group, ScaleType::E8M0, true).unwrap();
        assert_eq!(tensor.block, BlockType::Affine(affine));
        // The expected value is the least integer times two.
        assert_eq!(tensor.to_f32(), vec![-f32::from(1u8 << (bits - 1)) * 2.0; 128], "{dtype}");
    }
}

#[test]
fn slots_are_listed_and_passed_over() {
    let mut file = small();
    file.resize(file.len().next_multiple_of(8), 0);
    let slot = |kind: u16, flags: u16, payload: &[u8]| {
        let hash = xxhash_rust::xxh64::xxh64(payload, 0);
        let header =
            [&kind.to_le_bytes()[..], &flags.to_le_bytes(), &(payload.len() as u64).to_le_bytes()].concat();
        let padding = vec![0; payload.len().next_multiple_of(8) - payload.len()];
        [&header[..], &hash.to_le_bytes(), payload, &padding].concat()
    };
    let with = |slots: &[Vec<u8>]| [&file[..], &(slots.len() as u32).to_le_bytes(), &slots.concat()].concat();
    let bytes = with(&[slot(5, 0, &[7; 11]), slot(0x9999, 0, &[8; 8])]);
    let base = parse(&bytes).unwrap();
    let listed: Vec<_> = base.slots().iter().map(|slot| (slot.kind, slot.payload.len())).collect();
    assert_eq!(listed, [(5, 11), (0x9999, 8)]);
    assert_eq!(base.verify_checksums().unwrap(), 5);
    let mut damaged = bytes.clone();
    *damaged.last_mut().unwrap() ^= 1;
    let message = parse(&damaged).unwrap().verify_checksums().unwrap_err().to_string();
    assert!(message.contains("slot 1"), "{message}");
    check_refusal(&with(&[slot(2, 1, &[1])]), &["slot 0", "kind 2"]);
    check_refusal(&[&file[..], &9u32.to_le_bytes()].concat(), &["number of slots"]);
    check_refusal(&bytes[..bytes.len() - 1], &["slot 1"]);
}

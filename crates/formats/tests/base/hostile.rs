//! Malformed and damaged files.

use formats::base;
use serde_json::{Value as Json, json};

use super::{assemble, check_promises, check_refusal, header_of, parse, refusal, small};

#[test]
fn headers_that_lie_get_errors_with_the_name() {
    let file = small();
    check_refusal(b"BAS", &["magic"]);
    check_refusal(b"GGUF1234", &["magic", "GGUF"]);
    check_refusal(&[&b"BASE"[..], &2u32.to_le_bytes()].concat(), &["version", "2"]);
    check_refusal(&[&b"BASE\x01\0\0\0"[..], &u64::MAX.to_le_bytes()].concat(), &["header length"]);
    let long = base::MAX_HEADER_BYTES + 1;
    check_refusal(
        &[&b"BASE\x01\0\0\0"[..], &long.to_le_bytes()].concat(),
        &["header length", "at most 100000000"],
    );
    for header in ["", "{", "[]", "{}", "\u{0}", r#"{"schema":1}"#] {
        check_refusal(&assemble(header.as_bytes(), &[]), &["header"]);
    }
    check_refusal(&assemble(b"{\"schema\":1,\"arch\":\"\xff\",\"tensors\":[]}", &[]), &["header", "UTF-8"]);
    check_refusal(&assemble(br#"{"schema":2,"tensors":[]}"#, &[]), &["schema", "2"]);
    check_refusal(&assemble(&[b'['; 100_000], &[]), &["header"]);

    let (header, weights) = header_of(&file);
    let with = |edit: &dyn Fn(&mut Json)| {
        let mut header = header.clone();
        edit(&mut header);
        assemble(header.to_string().as_bytes(), &file[weights..])
    };
    let with_entry = |i: usize, key: &str, value: Json| with(&|h| h["tensors"][i][key] = value.clone());
    assert!(parse(&with(&|_| ())).is_ok());
    for (i, key, value, parts) in [
        (0, "dtype", json!("mxfp4"), ["\"a\"", "mxfp4"]),
        (0, "dtype", json!("base_q7"), ["\"a\"", "base_q7"]),
        (0, "scale_dtype", json!("e4m3"), ["\"a\"", "e4m3"]),
        (0, "group_size", json!(48), ["\"a\"", "48"]),
        (0, "group_size", json!(128), ["\"a\"", "groups of 128"]),
        (0, "group_size", json!(64), ["\"a\"", "scales of 8 bytes"]),
        (0, "layout", json!("tile_8x8_mlx"), ["\"a\"", "tile_8x8_mlx"]),
        (0, "layout", json!("metal_lane_strided_q8"), ["\"a\"", "_q8"]),
        (0, "flags", json!("0x00000001"), ["\"a\"", "transposed"]),
        (0, "flags", json!("0x10"), ["\"a\"", "LoRA"]),
        (0, "flags", json!("x"), ["\"a\"", "flags"]),
        (2, "flags", json!("0x08"), ["\"c\"", "state-transition"]),
        (0, "awq_scale_length", json!(64), ["\"a\"", "AWQ"]),
        (0, "shape", json!([2, 65]), ["\"a\"", "65"]),
        (0, "shape", json!([0, 64]), ["\"a\"", "dimension of 0"]),
        (0, "shape", json!([u64::MAX, 64]), ["\"a\"", "addressable"]),
        (0, "shape", json!([3, 64]), ["\"a\"", "scales"]),
        (0, "shape", json!([2000, 64]), ["\"a\"", "64000 or more"]),
        (0, "offset", json!(u64::MAX), ["\"a\"", "offset"]),
        (0, "offset", json!(1u64 << 40), ["\"a\"", "within"]),
        (0, "length", json!(1u64 << 40), ["\"a\"", "past the end"]),
        (0, "length", json!(65), ["\"a\"", "scales at"]),
        (0, "scale_offset", json!(63), ["\"a\"", "scales at 63"]),
        (0, "scale_offset", json!(u64::MAX), ["\"a\"", "scales at"]),
        (0, "bias_length", json!(9), ["\"a\"", "biases of 9"]),
        (0, "bias_offset", json!(null), ["\"a\"", "no biases"]),
        (0, "symmetric", json!(true), ["\"a\"", "symmetric"]),
        (1, "symmetric", json!(false), ["\"b\"", "no biases"]),
        (2, "length", json!(11), ["\"c\"", "11 bytes"]),
        (1, "name", json!("a"), ["\"a\"", "second time"]),
        (1, "offset", json!(64), ["\"b\"", "after tensor \"a\""]),
    ] {
        let bytes = with_entry(i, key, value.clone());
        let message = refusal(&bytes);
        for part in parts {
            assert!(message.contains(part), "{key} {value}: {part:?} is not in: {message}");
        }
    }
    // An alias has the same bytes under another name.
    let alias = with(&|h| {
        let mut alias = h["tensors"][0].clone();
        alias["name"] = json!("tied");
        h["tensors"].as_array_mut().unwrap().push(alias);
    });
    let alias = parse(&alias).unwrap();
    assert_eq!(alias.checkpoint().tensors[3].data[..], alias.checkpoint().tensors[0].data[..]);
    check_refusal(&with(&|h| h["ingle"]["naming"] = json!("x")), &["ingle.naming", "\"x\""]);
    check_refusal(&with(&|h| h["ingle"]["files"] = json!({"f": 1})), &["ingle.files.f"]);
    check_refusal(&with(&|h| h["config"] = json!(3)), &["object"]);
}

#[test]
fn damaged_bytes_never_panic_and_are_found() {
    let original = small();
    let (_, weights) = header_of(&original);
    let mut n_accepted = 0;
    let header = (0..2200).chain([weights - 1]);
    for at in header.filter(|&at| at < weights) {
        for value in [0, b'"', b'0', b'9', b'}', b',', 0xff] {
            let mut bytes = original.clone();
            bytes[at] = value;
            if let Ok(base) = parse(&bytes) {
                n_accepted += 1;
                check_promises(base.checkpoint());
                base.checkpoint().tensors.iter().for_each(|t| _ = t.to_f32());
                _ = base.verify_checksums();
            }
        }
    }
    assert!(n_accepted > 100, "{n_accepted}: edits of names must pass");
    for n in (0..weights).step_by(997).chain(weights..original.len()) {
        assert!(parse(&original[..n]).is_err(), "{n} bytes");
    }
    // A checksum covers every byte of every tensor.
    for tensor in &parse(&original).unwrap().checkpoint().tensors {
        let entries = header_of(&original).0["tensors"].clone();
        let entry =
            entries.as_array().unwrap().iter().find(|e| e["name"] == tensor.name.as_str()).unwrap().clone();
        let (offset, length) = (entry["offset"].as_u64().unwrap(), entry["length"].as_u64().unwrap());
        for at in [0, length / 2, length - 1] {
            let mut bytes = original.clone();
            bytes[weights + (offset + at) as usize] ^= 0x40;
            let message = parse(&bytes).unwrap().verify_checksums().unwrap_err().to_string();
            assert!(message.contains(&tensor.name) && message.contains("xxh64"), "{message}");
        }
    }
}

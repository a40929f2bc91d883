//! A safetensors header of any bytes.
#![no_main]

use std::path::Path;

use formats::{Map, safetensors};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let mut tensors = Vec::new();
    if safetensors::parse_file(Map::from_slice(data), Path::new("fuzz.safetensors"), &mut tensors).is_ok() {
        for tensor in &tensors {
            assert_eq!(tensor.data.len(), tensor.n_rows() * tensor.row_bytes());
        }
    }
});

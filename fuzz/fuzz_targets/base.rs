//! A `.base` file of any bytes: what is read keeps its promises, and what is read and written again is read as the same.
#![no_main]

use std::io::Cursor;
use std::path::Path;

use formats::base::{self, SecretKey, Writer};
use formats::{Array, Checkpoint, Map, Value};
use libfuzzer_sys::fuzz_target;

/// Values of a tensor that are decoded, and bytes of all tensors that are written: tensors may share bytes, so that a
/// small file may hold many.
const MAX_VALUES: usize = 1 << 16;
const MAX_WRITTEN: usize = 1 << 20;

fuzz_target!(|data: &[u8]| {
    let Ok(file) = base::parse(Map::from_slice(data), Path::new("fuzz.base")) else { return };
    let checkpoint = file.checkpoint();
    for tensor in &checkpoint.tensors {
        assert_eq!(tensor.data.len(), tensor.n_rows() * tensor.row_bytes());
        assert!(tensor.planes.fit(tensor.block, tensor.n_rows(), tensor.n_cols()), "{}", tensor.name);
        if tensor.n_rows() * tensor.n_cols() <= MAX_VALUES {
            assert_eq!(tensor.to_f32().len(), tensor.n_rows() * tensor.n_cols());
        }
    }
    let _ = file.verify_checksums();
    let _ = file.verify_signature(&SecretKey::from_bytes(&[7; 32]).public());
    if checkpoint.tensors.iter().map(|t| t.n_bytes()).sum::<usize>() > MAX_WRITTEN {
        return;
    }
    // Numbers that came from JSON go back into it.
    let mut writer = Writer::new("fuzz", checkpoint.naming);
    writer.page(6);
    writer.metadata(&checkpoint.metadata).expect("metadata of a .base file");
    for tensor in &checkpoint.tensors {
        writer.tensor(&tensor.name, &tensor.shape, tensor.block).expect("a tensor of a .base file");
    }
    let mut body = writer.begin(Cursor::new(Vec::new())).expect("a header");
    for tensor in &checkpoint.tensors {
        body.tensor_data(&tensor.data, tensor.planes.as_slices()).expect("a tensor's bytes");
    }
    let bytes = body.finish().expect("a whole file").into_inner();
    let again = base::parse(Map::from_slice(&bytes), Path::new("again.base")).expect("what was written");
    assert_eq!(again.verify_checksums().expect("checksums"), checkpoint.tensors.len());
    same(checkpoint, again.checkpoint());
});

fn same(a: &Checkpoint, b: &Checkpoint) {
    assert_eq!(a.naming, b.naming);
    assert_eq!(a.tensors.len(), b.tensors.len());
    for (a, b) in a.tensors.iter().zip(&b.tensors) {
        assert_eq!((&a.name, &a.shape, a.block, &a.data[..]), (&b.name, &b.shape, b.block, &b.data[..]));
        assert_eq!(a.planes.as_slices().scales, b.planes.as_slices().scales);
        assert_eq!(a.planes.as_slices().biases, b.planes.as_slices().biases);
    }
    let given = |key: &str| {
        key.starts_with(base::HEADER_PREFIX) || key.starts_with(base::FILES_PREFIX) || key == base::TOKENIZER_KEY
    };
    for (key, value) in a.metadata.iter().filter(|(key, _)| !given(key)) {
        assert_eq!(shown(value), b.metadata.get(key).map(shown).unwrap_or_default(), "{key:?}");
    }
}

/// A value without where its texts lie.
fn shown(value: &Value) -> String {
    match value {
        Value::Array(list @ Array::Str { .. }) => {
            format!("{:?}", (0..list.len()).map(|i| list.str_bytes(i)).collect::<Vec<_>>())
        }
        other => format!("{other:?}"),
    }
}

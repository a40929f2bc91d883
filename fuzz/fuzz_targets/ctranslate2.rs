//! A model.bin of CTranslate2 of any bytes.
#![no_main]

use std::path::Path;

use formats::{Map, ctranslate2};
use libfuzzer_sys::fuzz_target;

const MAX_VALUES: usize = 1 << 16;

fuzz_target!(|data: &[u8]| {
    let Ok(model) = ctranslate2::parse(Map::from_slice(data), Path::new("model.bin")) else { return };
    for tensor in &model.tensors {
        assert_eq!(tensor.data.len(), tensor.n_rows() * tensor.row_bytes());
        assert!(tensor.planes.fit(tensor.block, tensor.n_rows(), tensor.n_cols()), "{}", tensor.name);
        if tensor.n_rows() * tensor.n_cols() <= MAX_VALUES {
            assert_eq!(tensor.to_f32().len(), tensor.n_rows() * tensor.n_cols());
        }
    }
});

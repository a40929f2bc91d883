//! A GGUF file of any bytes: the reader answers with a checkpoint or an error. What it accepts must keep its promises,
//! and the next readers (model numbers, tokenizer) must stand it too.
#![no_main]

use std::path::Path;

use formats::{Map, gguf};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Ok(checkpoint) = gguf::parse(Map::from_slice(data), Path::new("fuzz.gguf")) else { return };
    for tensor in &checkpoint.tensors {
        assert_eq!(tensor.data.len(), tensor.n_rows() * tensor.row_bytes());
    }
    if let Ok(spec) = model::ModelSpec::from_checkpoint(&checkpoint)
        && let Ok(plan) = spec.plan(&checkpoint)
    {
        let _ = plan.check();
    }
    if let Ok(tokenizer) = text::Tokenizer::from_gguf(&checkpoint.metadata) {
        let _ = tokenizer.encode_with_bos("Hello, wörld! 12345", text::Specials::Parse);
    }
});

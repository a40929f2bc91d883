//! A folder with config.json and model.safetensors of any bytes, as MLX writes them: the config up to the first zero byte,
//! then the file. Its `quantization` object says how the file's tensors are to be joined.
#![no_main]

use std::path::PathBuf;
use std::sync::OnceLock;

use formats::Access;
use libfuzzer_sys::fuzz_target;

const MAX_VALUES: usize = 1 << 16;

/// One folder for all inputs of this process, in memory where the system has such a place.
fn folder() -> &'static PathBuf {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let memory = PathBuf::from("/dev/shm");
        let parent = if memory.is_dir() { memory } else { std::env::temp_dir() };
        tempfile::tempdir_in(parent).expect("a folder").keep()
    })
}

fuzz_target!(|data: &[u8]| {
    let Some(at) = data.iter().position(|b| *b == 0) else { return };
    let folder = folder();
    std::fs::write(folder.join("config.json"), &data[..at]).expect("a file");
    std::fs::write(folder.join("model.safetensors"), &data[at + 1..]).expect("a file");
    let Ok(checkpoint) = formats::open(folder, Access::Read) else { return };
    for tensor in &checkpoint.tensors {
        assert_eq!(tensor.data.len(), tensor.n_rows() * tensor.row_bytes());
        assert!(tensor.planes.fit(tensor.block, tensor.n_rows(), tensor.n_cols()), "{}", tensor.name);
        if tensor.n_rows() * tensor.n_cols() <= MAX_VALUES {
            assert_eq!(tensor.to_f32().len(), tensor.n_rows() * tensor.n_cols());
        }
    }
    if let Ok(spec) = model::ModelSpec::from_checkpoint(&checkpoint)
        && let Ok(plan) = spec.plan(&checkpoint)
    {
        let _ = plan.check();
    }
});

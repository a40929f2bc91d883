//! Models of the tests, loaded once.

use std::path::PathBuf;
use std::sync::OnceLock;

use ingle::device::DeviceKind;
use ingle::{LoadOptions, Model};

/// Options for the CPU, with a context of `n_ctx` tokens and `n_sequences` slots.
pub fn options(n_ctx: usize, n_sequences: usize) -> LoadOptions {
    let mut options = LoadOptions::default();
    options.device.kind = DeviceKind::Cpu;
    (options.n_ctx, options.n_sequences) = (Some(n_ctx), Some(n_sequences));
    options
}

/// A model that chats, with four slots.
pub fn chatty() -> &'static Model {
    static MODEL: OnceLock<Model> = OnceLock::new();
    MODEL.get_or_init(|| Model::load_with("smollm2:135m", &options(512, 4)).unwrap())
}

pub fn fixture(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fixtures").join(path)
}

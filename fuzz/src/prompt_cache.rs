//! Target for prompt caches: files of computed KV pages, which an engine restores.

use std::cell::RefCell;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use device::Device;
use device_reference::Reference;
use engine::{Engine, LoadOptions, Model, PromptCache, Request, SamplingParams, TokenizerSource};
use weights::Access;

use crate::files::{fixture, folder};

fn new_engine() -> Engine {
    let path = fixture("models/llama");
    let checkpoint = formats::open(&path, Access::Map).expect("the fixture");
    let model = Model::from_opened(&path, checkpoint, &TokenizerSource::None).expect("a model");
    let device: Arc<dyn Device> = Arc::new(Reference::new(1));
    let options = LoadOptions { n_ctx: Some(64), n_sequences: 1, ..LoadOptions::default() };
    Engine::new(Arc::new(model), &device, &options).expect("an engine")
}

fn file() -> &'static PathBuf {
    static FILE: OnceLock<PathBuf> = OnceLock::new();
    FILE.get_or_init(|| folder().join("prompt"))
}

/// A prompt cache of any bytes is restored or refused, and the engine's pages stay consistent.
pub(crate) fn run(data: &[u8]) {
    thread_local! {
        static ENGINE: RefCell<Option<Engine>> = const { RefCell::new(None) };
    }
    std::fs::write(file(), data).expect("a file");
    ENGINE.with_borrow_mut(|engine| {
        let engine = engine.get_or_insert_with(new_engine);
        let _ = PromptCache::open(engine, file());
        engine.kv().check().expect("pages in order");
    });
}

/// A valid prompt cache.
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let file = folder().join("seed");
    let mut engine = new_engine();
    let prompt: Vec<u32> = (0..20).map(|i| (i * 37 + 11) % 150).collect();
    let mut cache = PromptCache::open(&mut engine, &file).expect("no file yet");
    let request =
        Request { max_tokens: Some(1), sampling: SamplingParams::greedy(), ..Request::new(prompt.clone()) };
    engine.complete(request).expect("an answer");
    cache.save(&mut engine, &prompt).expect("a prompt cache");
    vec![std::fs::read(file).expect("a prompt cache"), b"INGLE".to_vec()]
}

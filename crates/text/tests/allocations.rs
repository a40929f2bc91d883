//! Streaming allocates nothing, whatever the tokens, since the generation loop must not allocate.
#![allow(unsafe_code, clippy::unwrap_used)]

use ingle_text::{Detokenizer, ShowSpecial, StopStrings, Stops, Tokenizer};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use weights::{Array, Bytes, Metadata, Value};

struct Counting;

thread_local! {
    static COUNT: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: each method passes its arguments to `System` unchanged, so `System`'s guarantees hold.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.with(|count| count.set(count.get() + 1));
        // SAFETY: `layout` is the caller's, who keeps the contract of `GlobalAlloc::alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: `ptr` came from `System.alloc` with `layout`, by the contract of
        // `GlobalAlloc::dealloc`.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn streaming_allocates_nothing() {
    let long = "y".repeat(300);
    let tokens = ["a", "<0xF0>", "<0x9F>", "<0xFF>", "▁stop", "st", "o", &long];
    let (mut bytes, mut spans) = (Vec::new(), Vec::new());
    for token in tokens {
        spans.push((bytes.len() as u32, token.len() as u32));
        bytes.extend_from_slice(token.as_bytes());
    }
    let mut meta = Metadata::default();
    meta.insert("tokenizer.ggml.model".into(), Value::Str("llama".into()));
    meta.insert(
        "tokenizer.ggml.tokens".into(),
        Value::Array(Array::Str { bytes: Bytes::from_slice(&bytes), spans }),
    );
    meta.insert("tokenizer.ggml.scores".into(), Value::Array(Array::Float(vec![0.0; tokens.len()])));
    let types = vec![1, 6, 6, 6, 1, 1, 1, 1];
    meta.insert("tokenizer.ggml.token_type".into(), Value::Array(Array::Int(types)));
    let tokenizer = Tokenizer::from_gguf(&meta).unwrap();
    let mut stream = Detokenizer::new(&tokenizer, ShowSpecial::Nothing);
    let mut stops = StopStrings::new(Stops::new(&["stop here", "never"]).unwrap());

    let before = COUNT.with(Cell::get);
    let mut n_bytes = 0;
    for i in 0..10_000u32 {
        let id = i.wrapping_mul(2_654_435_761) >> 7 & 7; // Roughly every order of tokens.
        n_bytes += stops.push(stream.push(&tokenizer, id)).text.len();
    }
    n_bytes += stops.push(stream.finish()).text.len();
    n_bytes += stops.finish().len();
    assert_eq!(COUNT.with(Cell::get) - before, 0);
    assert!(n_bytes > 100_000);
}

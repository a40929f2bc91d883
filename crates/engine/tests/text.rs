//! Tests of text through the engine: streaming, stop strings, ends, conversations.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use crate::common::*;
use device::Device;
use ingle_engine::*;
use serde_json::json;
use text::{Specials, Stops};

fn engine_with_text() -> Engine {
    let device: Arc<dyn Device> = Arc::new(History::default());
    Engine::new(model_with_text("llama"), &device, &options(256, 32, 1)).unwrap()
}

/// A prompt whose answer does not end in its first `n` tokens.
fn long_answer(model: &Model, n: usize) -> (Vec<u32>, Vec<u32>) {
    (0..150)
        .map(|first| vec![first, 7, 9])
        .map(|prompt| (continuation(model, &prompt, n), prompt))
        .find(|(answer, _)| !answer.contains(&159))
        .map(|(answer, prompt)| (prompt, answer))
        .unwrap()
}

#[test]
fn streamed_pieces_join_to_the_text() {
    let mut engine = engine_with_text();
    let (prompt, answer) = long_answer(engine.model(), 60);
    let got = engine.complete(greedy(&prompt, 60)).unwrap();
    let mut bytes = Vec::new();
    answer.iter().for_each(|id| bytes.extend_from_slice(tokenizer().token_bytes(*id)));
    assert_eq!(got.tokens, answer);
    assert_eq!(got.text, String::from_utf8_lossy(&bytes), "halves of characters and all");
}

#[test]
fn an_end_token_ends_and_is_not_shown() {
    let mut engine = engine_with_text();
    let windows = windows(engine.model());
    let n_vocab = engine.model().n_vocab();
    let prompt = (0..100_000u32)
        .map(|i| vec![i % 100, i / 100 % 100, 5, i / 10_000])
        .find(|p| next_token(&windows, p, n_vocab) == 159)
        .unwrap();
    let got = engine.complete(greedy(&prompt, 20)).unwrap();
    assert_eq!((got.text.as_str(), got.finished.reason), ("", FinishReason::EndToken(159)));
    assert_eq!((got.tokens.len(), got.finished.timings.generated_tokens), (0, 1));
    let got = engine.complete(Request { ignore_end: true, ..greedy(&prompt, 20) }).unwrap();
    assert_eq!((got.tokens.len(), got.tokens[0], got.finished.reason), (20, 159, FinishReason::MaxTokens));
}

#[test]
fn a_stop_string_cuts_the_text_before_it_wherever_tokens_end() {
    let mut engine = engine_with_text();
    let (prompt, _) = long_answer(engine.model(), 60);
    let whole = engine.complete(greedy(&prompt, 60)).unwrap().text;
    let chars: Vec<char> = whole.chars().collect();
    for (from, len) in [(3, 1), (10, 4), (17, 9), (30, 2)] {
        let stop: String = chars[from..from + len].iter().collect();
        let got = engine
            .complete(Request { stop: Stops::new(&["nowhere", &stop]).unwrap(), ..greedy(&prompt, 60) })
            .unwrap();
        assert_eq!(got.text, whole.split(&stop).next().unwrap());
        assert_eq!(got.finished.reason, FinishReason::StopString(stop));
    }
    // Text that could have become a stop string is released at the end.
    let tail: String = chars[chars.len() - 3..].iter().collect();
    let mut held = String::new();
    let request = Request { stop: Stops::new(&[format!("{tail}…")]).unwrap(), ..greedy(&prompt, 60) };
    engine
        .generate(request, |event| {
            if let Event::Done { text, .. } = event {
                held.push_str(text);
            }
        })
        .unwrap();
    assert!(held.ends_with(&tail), "{held:?}");
}

#[test]
fn a_conversation_is_rendered_anew_and_computed_once() {
    let mut engine = engine_with_text();
    let mut chat = Conversation::new(engine.model()).unwrap();
    chat.set_system(Some("Be"));
    chat.push_user("Hello");
    assert_eq!(chat.render(true).unwrap(), "system:Be!user:Hello!A:");
    let mut reused = Vec::new();
    for turn in ["One", "Two", "Three"] {
        chat.push_user(turn);
        let prompt = chat.prompt().unwrap();
        assert_eq!(prompt, tokenizer().encode(&chat.render(true).unwrap(), Specials::Parse).unwrap());
        let got = engine.complete(greedy(&prompt, 5)).unwrap();
        reused.push((got.finished.timings.reused_tokens, prompt.len()));
        chat.push_assistant("fine");
    }
    assert_eq!(reused[0].0, 0);
    // Each later prompt reuses all but its new part: the old one up to its `A:` (the answer itself
    // was replaced by "fine").
    for turn in [1, 2] {
        assert!(reused[turn].0 + 2 >= reused[turn - 1].1 - 2, "{reused:?}");
    }
    chat.clear();
    assert_eq!(chat.messages(), [json!({"role": "system", "content": "Be"})]);
    chat.set_system(None);
    chat.push_user("x");
    assert_eq!((chat.pop(), chat.messages().len()), (Some(json!({"role": "user", "content": "x"})), 0));
    let error = Conversation::new(&model("llama")).unwrap_err();
    assert!(matches!(error, Error::NoTokenizer { .. }), "{error}");
}

/// A tokenizer is built at first use, and an engine uses it.
#[test]
fn a_broken_vocabulary_is_refused_by_every_engine() {
    let mut checkpoint = formats::open(&fixture("llama"), weights::Access::Map).unwrap();
    assert!(checkpoint.metadata.insert("tokenizer.ggml.model".into(), weights::Value::Str("gpt2".into())));
    // The path is no folder, so the vocabulary comes from the metadata.
    let file = std::path::Path::new("llama.gguf");
    let model = Arc::new(Model::from_opened(file, checkpoint, &TokenizerSource::Own).unwrap());
    let device: Arc<dyn Device> = Arc::new(History::default());
    for _ in 0..2 {
        let error = Engine::new(model.clone(), &device, &options(256, 32, 1)).err().unwrap().to_string();
        assert!(error.contains("tokenizer.ggml"), "{error}");
        assert_eq!(model.need_tokenizer().err().unwrap().to_string(), error);
    }
}

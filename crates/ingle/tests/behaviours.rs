//! Behaviours of every surface of the engine.

use std::thread;

use ingle::{
    Chat, Completion, Error, Event, Generation, Grammar, Model, ModelKind, Piece, RequestErrorKind,
    StopReason, ToolChoice, TranscribeOptions,
};
use serde_json::{Value, json};

use crate::models::{chatty, fixture, options};

fn greedy(n: usize) -> Generation {
    Generation::greedy().max_tokens(n)
}

fn kind(error: &Error) -> Option<RequestErrorKind> {
    match error {
        Error::Request { kind, .. } => Some(*kind),
        _ => None,
    }
}

#[test]
fn a_stream_is_the_reply_in_pieces_and_async_code_gets_the_same() {
    let chat = Chat::new().user("Name three colours.").generation(greedy(24));
    let whole = chatty().chat(chat.clone()).unwrap().reply().unwrap();
    assert!(!whole.text.is_empty() && whole.end.usage.completion_tokens > 3, "{whole:?}");
    let text_of = |events: Vec<Event>| {
        let text = |event: &Event| match &event.piece {
            Piece::Text { text, .. } => text.clone(),
            _ => String::new(),
        };
        assert!(matches!(events.last().unwrap().piece, Piece::End(_)), "{events:?}");
        events.iter().map(text).collect::<String>()
    };
    let streamed: Vec<Event> = chatty().chat(chat.clone()).unwrap().map(Result::unwrap).collect();
    assert!(streamed.len() > 3, "{streamed:?}");
    assert_eq!(text_of(streamed), whole.text);
    let events = pollster::block_on(async {
        let mut answer = chatty().chat_async(chat).await.unwrap();
        let mut events = Vec::new();
        while let Some(event) = answer.next_event().await {
            events.push(event.unwrap());
        }
        events
    });
    assert_eq!(text_of(events), whole.text);
}

#[test]
fn a_dropped_answer_is_cancelled_and_its_slot_is_free() {
    let endless = || Completion::text("One two three").generation(Generation::greedy().ignore_end(true));
    let model = Model::load_with("smollm2:135m", &options(2048, 1)).unwrap();
    for _ in 0..3 {
        let mut answer = model.complete(endless()).unwrap();
        answer.next().unwrap().unwrap();
        drop(answer);
    }
    let short = model.complete(Completion::text("One two three").generation(greedy(2))).unwrap();
    assert_eq!(short.reply().unwrap().end.reason, StopReason::MaxTokens);
    assert_eq!(model.activity().unwrap().n_waiting, 0);
}

#[test]
fn requests_of_many_threads_get_the_answers_that_each_gets_alone() {
    let prompts =
        ["The sky is", "Paris is the capital of", "One, two, three,", "Water boils at", "A dog", "Red"];
    let ask = |prompt: &str| {
        let completion = Completion::text(prompt).generation(greedy(12));
        chatty().complete(completion).unwrap().text().unwrap()
    };
    let alone: Vec<String> = prompts.iter().map(|prompt| ask(prompt)).collect();
    let together = thread::scope(|scope| {
        let asked: Vec<_> = prompts.iter().map(|prompt| scope.spawn(move || ask(prompt))).collect();
        asked.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
    });
    assert_eq!(together, alone);
}

#[test]
fn several_answers_to_a_prompt_are_those_of_their_seeds() {
    let of = |generation: Generation| {
        let completion = Completion::text("Once upon a time").generation(generation.max_tokens(8));
        chatty().complete(completion).unwrap().replies().unwrap()
    };
    let both = of(Generation::new().temperature(1.5).seed(7).n(2));
    assert_eq!(both.len(), 2);
    let second = of(Generation::new().temperature(1.5).seed(8));
    assert_eq!((both[0].end.seed, both[1].text.as_str()), (7, second[0].text.as_str()));
}

#[test]
fn a_bad_model_is_a_clear_error() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("broken.gguf");
    std::fs::write(&file, b"GGUF and nothing else").unwrap();
    let error = Model::load(file.as_path()).err().unwrap();
    assert!(matches!(error, Error::Format(_)), "{error:?}");
    assert!(error.to_string().contains("broken.gguf"), "{error}");
    let error = Model::load("no-such-model:1b").err().unwrap();
    assert!(matches!(error, Error::Hub(_)) && error.to_string().contains("no-such-model"), "{error}");
}

#[test]
fn a_prompt_beyond_the_context_is_refused_and_the_model_goes_on() {
    let long = "word ".repeat(2000);
    let error = chatty().complete(long.as_str()).err().unwrap();
    assert_eq!(kind(&error), Some(RequestErrorKind::ContextLength), "{error}");
    let wrong = Completion::text("a").generation(Generation::new().temperature(-1.0));
    let error = chatty().complete(wrong).err().unwrap();
    assert_eq!(kind(&error), Some(RequestErrorKind::Invalid), "{error}");
    let answer = chatty().complete(Completion::text("Two and two is").generation(greedy(1))).unwrap();
    assert_eq!(answer.reply().unwrap().end.usage.completion_tokens, 1);
}

#[test]
fn a_grammar_holds_the_answer() {
    let schema = json!({
        "type": "object", "additionalProperties": false, "required": ["name", "age"],
        "properties": { "name": { "type": "string", "maxLength": 12 }, "age": { "type": "integer", "maximum": 99, "minimum": 0 } },
    });
    let generation = greedy(64).grammar(Grammar::JsonSchema(schema));
    let text =
        chatty().chat(Chat::new().user("Describe a cat.").generation(generation)).unwrap().text().unwrap();
    let object: Value = serde_json::from_str(&text).unwrap();
    assert!(object["name"].is_string() && object["age"].is_u64(), "{text}");
    let generation = greedy(8).grammar(Grammar::Regex("(yes|no)!".to_owned()));
    let text =
        chatty().chat(Chat::new().user("Is water wet?").generation(generation)).unwrap().text().unwrap();
    assert!(["yes!", "no!"].contains(&text.as_str()), "{text}");
    let broken = greedy(8).grammar(Grammar::Regex("(".to_owned()));
    let error = chatty().chat(Chat::new().user("a").generation(broken)).err().unwrap();
    assert_eq!(kind(&error), Some(RequestErrorKind::Invalid), "{error}");
}

#[test]
fn a_required_tool_is_called_with_arguments_of_its_schema() {
    let parameters = json!({
        "type": "object", "required": ["city"], "additionalProperties": false,
        "properties": { "city": { "type": "string", "enum": ["Paris", "Rome"] } },
    });
    let chat = Chat::new()
        .user("What is the weather in Paris?")
        .tool("weather", "The weather of a city", parameters)
        .tool_choice(ToolChoice::Function("weather".to_owned()))
        .generation(greedy(64));
    let reply = chatty().chat(chat.clone()).unwrap().reply().unwrap();
    assert_eq!(reply.end.reason, StopReason::ToolCalls, "{reply:?}");
    let call = &reply.tool_calls[0];
    let arguments: Value = serde_json::from_str(&call.arguments).unwrap();
    assert!(call.name == "weather" && ["Paris", "Rome"].contains(&arguments["city"].as_str().unwrap()));
    // The next turn has the call and its result.
    let next = chat.reply(&reply).tool_result(&call.id, "sunny").tool_choice(ToolChoice::None);
    assert_eq!(next.messages().len(), 3);
    assert!(!chatty().chat(next).unwrap().reply().unwrap().text.is_empty());
}

#[test]
fn log_probabilities_and_tokens_are_reported() {
    let generation = greedy(3).logprobs(2).prompt_logprobs(1);
    let reply =
        chatty().complete(Completion::text("The sky is").generation(generation)).unwrap().reply().unwrap();
    assert_eq!(reply.tokens.len(), 3);
    for token in &reply.tokens {
        let best = token.top.iter().map(|(_, _, logprob)| *logprob).fold(f32::MIN, f32::max);
        assert!(token.top.len() == 2 && token.logprob == Some(best), "{token:?}");
    }
    let tokens = chatty().tokenize("The sky is").unwrap();
    assert_eq!(reply.prompt.len(), tokens.len() - 1);
    assert_eq!(chatty().detokenize(&tokens).unwrap(), "The sky is");
    let (text, rendered) = chatty().render("Hello").unwrap();
    assert!(text.contains("Hello") && text.contains("<|im_start|>"), "{text}");
    let plain = chatty().detokenize(&rendered).unwrap();
    assert!(plain.contains("Hello") && !plain.contains("<|im_start|>"), "{plain}");
    assert!(chatty().detokenize(&[u32::MAX]).is_err());
}

#[test]
fn facts_about_a_model() {
    let info = chatty().info();
    assert_eq!((info.kind, info.device.as_str(), info.n_ctx), (ModelKind::Chat, "cpu", 512));
    assert_eq!((info.n_vocab, info.n_sequences, info.n_dims), (49_152, 4, 0));
    assert!(info.memory.as_ref().unwrap().fits && !info.sees_images);
    assert_eq!(info.family, "llama");
}

#[test]
fn two_models_embed_and_transcribe_beside_each_other() {
    let embedder = Model::load_with("minilm:l6", &options(128, 1)).unwrap();
    assert_eq!((embedder.info().kind, embedder.info().n_dims), (ModelKind::Embedder, 384));
    let found = embedder.embed(&["a cat", "a kitten", "the stock market"]).unwrap();
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
    let [cat, kitten, market] = &found.vectors[..] else { panic!("three vectors") };
    assert!(dot(cat, kitten) > dot(cat, market) + 0.2);
    let error = embedder.complete("a").err().unwrap();
    assert_eq!(kind(&error), Some(RequestErrorKind::Invalid), "{error}");

    let whisper = Model::load_with("whisper:tiny.en", &options(448, 1)).unwrap();
    let speech = std::fs::read(fixture("audio/jfk.wav")).unwrap();
    let transcript = whisper.transcribe(speech, TranscribeOptions::default()).unwrap();
    assert!(transcript.text().contains("ask not what your country can do for you"), "{transcript:?}");
    assert!((transcript.seconds - 11.0).abs() < 0.1 && transcript.language == "en");
}

#[test]
fn a_model_can_be_unloaded_and_comes_back() {
    let model = Model::load_with("smollm2:135m", &options(128, 1)).unwrap();
    let ask = || model.complete(Completion::text("Two and").generation(greedy(3))).unwrap().text().unwrap();
    let before = ask();
    model.unload().unwrap();
    assert_eq!(ask(), before);
}

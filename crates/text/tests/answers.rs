//! Tool calls through real templates and through grammars.
#![allow(clippy::unwrap_used)] // Helpers of tests may unwrap.

use std::sync::Arc;

use ingle_text::{
    AnswerFormat, AnswerPart, CallChoice, CallGuard, Chat, ChatTemplate, Grammar, GrammarCompiler, Specials,
    Tokenizer, ToolPrompt,
};
use serde_json::{Value, json};
use weights::Array;

use crate::tokenizers::{metadata, strings, text};

/// A vocabulary of every byte and these marks.
fn tokenizer(marks: &[&str]) -> Tokenizer {
    let printable = |byte: &u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    let mut n_others = 0;
    let byte = |byte: u8| match printable(&byte) {
        true => char::from(byte).to_string(),
        false => {
            n_others += 1;
            char::from_u32(255 + n_others).unwrap().to_string()
        }
    };
    let mut tokens: Vec<String> = (0..=255).map(byte).collect();
    tokens.push("<eos>".into());
    tokens.extend(marks.iter().map(|mark| (*mark).to_owned()));
    let kinds = (0..tokens.len()).map(|id| if id < 256 { 1 } else { 3 }).collect();
    Tokenizer::from_gguf(&metadata(vec![
        ("model", text("gpt2")),
        ("pre", text("gpt-2")),
        ("tokens", strings(&tokens)),
        ("token_type", weights::Value::Array(Array::Int(kinds))),
        ("merges", strings::<&str>(&[])),
        ("eos_token_id", weights::Value::Int(256)),
    ]))
    .unwrap()
}

/// Checks that a grammar accepts a whole text and then its end; otherwise returns the number of
/// accepted tokens.
fn accepts(tokenizer: &Tokenizer, grammar: &Grammar, text: &str) -> Result<(), usize> {
    let compiler = GrammarCompiler::new(tokenizer, tokenizer.n_tokens()).unwrap();
    let mut matcher = compiler.compile(grammar).unwrap_or_else(|error| panic!("{error}: {grammar:?}"));
    let tokens = tokenizer.encode(text, Specials::Parse).unwrap();
    for (n, token) in tokens.iter().enumerate() {
        let mut words = vec![0; tokenizer.n_tokens().div_ceil(32)];
        matcher.mask(&mut words).unwrap();
        if words[*token as usize / 32] >> (token % 32) & 1 == 0 {
            return Err(n);
        }
        matcher.accept(*token).unwrap();
    }
    let mut words = vec![0; tokenizer.n_tokens().div_ceil(32)];
    matcher.mask(&mut words).unwrap();
    if matcher.is_over() || words[256 / 32] & 1 == 1 { Ok(()) } else { Err(tokens.len()) }
}

/// The guard of answers with these tools.
fn guard(format: &AnswerFormat, tools: &[Value], parallel: bool, tokenizer: &Arc<Tokenizer>) -> CallGuard {
    let compiler = GrammarCompiler::new(tokenizer, tokenizer.n_tokens()).unwrap();
    let held = format.held_calls(tools, tokenizer, |grammar| compiler.compile(grammar));
    format.guard(held, tools, parallel, "", tokenizer).unwrap()
}

/// Checks that a guard accepts a whole text and then its end; otherwise returns the number of
/// accepted tokens.
fn admits(guard: &mut CallGuard, tokenizer: &Tokenizer, text: &str) -> Result<(), usize> {
    let tokens = tokenizer.encode(text, Specials::Parse).unwrap();
    for (n, token) in tokens.iter().chain([&256]).enumerate() {
        let mut words = vec![0; tokenizer.n_tokens().div_ceil(32)];
        if guard.mask(&mut words).unwrap() && words[*token as usize / 32] >> (token % 32) & 1 == 0 {
            return Err(n);
        }
        if *token != 256 {
            guard.accept(*token).unwrap();
        }
    }
    Ok(())
}

fn tools() -> Vec<Value> {
    let weather = json!({
        "type": "object",
        "properties": { "city": { "type": "string" }, "days": { "type": "integer" } },
        "required": ["city"],
    });
    vec![
        json!({ "type": "function", "function": { "name": "get_weather", "description": "Weather", "parameters": weather } }),
        json!({ "type": "function", "function": { "name": "noop", "description": "Nothing", "parameters": { "type": "object", "properties": {} } } }),
    ]
}

/// Format, evidence, marks that are tokens, one call, two calls, a call that violates the schema.
type Case = (&'static str, &'static str, &'static [&'static str], &'static str, &'static str, &'static str);

const CASES: [Case; 12] = [
    (
        "hermes",
        "<tool_call>",
        &[],
        "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\", \"days\": 3}}\n</tool_call>",
        "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"P\"}}\n</tool_call>\n<tool_call>\n{\"name\": \"noop\", \"arguments\": {}}\n</tool_call>",
        "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": 5}}\n</tool_call>",
    ),
    (
        "hermes",
        "<tool_call>",
        &["<tool_call>", "</tool_call>"],
        "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}}\n</tool_call>",
        "<tool_call>\n{\"name\": \"noop\", \"arguments\": {}}\n</tool_call><tool_call>{\"name\": \"noop\", \"arguments\": {}}</tool_call>",
        "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {}}\n</tool_call>",
    ),
    (
        "llama3",
        "tools \"parameters\":",
        &[],
        "{\"name\": \"get_weather\", \"parameters\": {\"city\": \"Paris\"}}",
        "",
        "{\"name\": \"get_weather\", \"parameters\": {\"city\": \"Paris\", \"days\": \"3\"}}",
    ),
    (
        "mistral-v3",
        "[TOOL_CALLS]",
        &["[TOOL_CALLS]"],
        "[TOOL_CALLS][{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}}]",
        "[TOOL_CALLS][{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}}, {\"name\": \"noop\", \"arguments\": {}}]",
        "[TOOL_CALLS][{\"name\": \"nope\", \"arguments\": {}}]",
    ),
    (
        "mistral",
        "[TOOL_CALLS] [ARGS]",
        &["[TOOL_CALLS]", "[ARGS]"],
        "[TOOL_CALLS]get_weather[ARGS]{\"city\": \"Paris\"}",
        "[TOOL_CALLS]get_weather[ARGS]{\"city\": \"Paris\"}[TOOL_CALLS]noop[ARGS]{}",
        "[TOOL_CALLS]get_weather[ARGS]{\"days\": 1}",
    ),
    (
        "deepseek-v3",
        "<｜tool▁call▁begin｜> ```json",
        &["<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"],
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n{\"city\": \"Paris\"}\n```<｜tool▁call▁end｜>",
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>noop\n```json\n{}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>noop\n```json\n{}\n```<｜tool▁call▁end｜>",
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n[]\n```<｜tool▁call▁end｜>",
    ),
    (
        "kimi",
        "<|tool_call_argument_begin|>",
        &["<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"],
        "<|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{\"city\": \"Paris\"}<|tool_call_end|>",
        "<|tool_call_begin|>functions.noop:0<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_call_begin|>functions.noop:1<|tool_call_argument_begin|>{}<|tool_call_end|>",
        "<|tool_call_begin|>functions.nop:0<|tool_call_argument_begin|>{}<|tool_call_end|>",
    ),
    (
        "qwen-coder",
        "<function= <parameter= <tool_call>",
        &[],
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nPa <b>ris\n</parameter>\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>",
        "<tool_call>\n<function=noop>\n</function>\n</tool_call>\n<tool_call>\n<function=noop>\n</function>\n</tool_call>",
        "<tool_call>\n<function=get_weather>\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>",
    ),
    (
        "glm",
        "<arg_key> <tool_call>",
        &["<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"],
        "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>",
        "<tool_call>noop\n</tool_call>\n<tool_call>noop\n</tool_call>",
        "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n<arg_key>days</arg_key>\n<arg_value>x</arg_value>\n</tool_call>",
    ),
    (
        "lfm2",
        "<|tool_call_start|>",
        &["<|tool_call_start|>", "<|tool_call_end|>"],
        "<|tool_call_start|>[get_weather(city=\"Paris\", days=3)]<|tool_call_end|>",
        "<|tool_call_start|>[get_weather(city=\"Paris\"), noop()]<|tool_call_end|>",
        "<|tool_call_start|>[get_weather(days=3)]<|tool_call_end|>",
    ),
    (
        "gemma4",
        "<|tool_call> <tool_call|>",
        &["<|tool_call>", "<tool_call|>", "<|\"|>"],
        "<|tool_call>call:get_weather{city:<|\"|>Paris<|\"|>,days:3}<tool_call|>",
        "<|tool_call>call:noop{}<tool_call|><|tool_call>call:noop{}<tool_call|>",
        "<|tool_call>call:get_weather{days:3}<tool_call|>",
    ),
    (
        "harmony",
        "<|channel|> <|message|>",
        &["<|start|>", "<|end|>", "<|channel|>", "<|message|>", "<|constrain|>"],
        "<|channel|>analysis<|message|>Hm<|end|><|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{\"city\": \"Paris\"}",
        "",
        "<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{\"city\": 3}",
    ),
];

#[test]
fn grammars_accept_the_calls_of_their_format_and_no_others() {
    for (name, evidence, marks, one, two, wrong) in CASES {
        let (format, tokenizer) = (AnswerFormat::detect(evidence), tokenizer(marks));
        assert_eq!(format.name(), name);
        let grammar = |choice, parallel| {
            format.grammar(&tools(), choice, parallel, None, "", &tokenizer).unwrap().grammar
        };
        let many = grammar(CallChoice::Required, true);
        assert_eq!(accepts(&tokenizer, &many, one), Ok(()), "{name}: one call");
        assert!(accepts(&tokenizer, &many, wrong).is_err(), "{name}: a wrong call");
        assert!(accepts(&tokenizer, &many, "Hello").is_err(), "{name}: no call");
        let single = grammar(CallChoice::Required, false);
        assert_eq!(accepts(&tokenizer, &single, one), Ok(()), "{name}: one of one");
        if !two.is_empty() {
            assert_eq!(accepts(&tokenizer, &many, two), Ok(()), "{name}: two calls");
            assert!(accepts(&tokenizer, &single, two).is_err(), "{name}: two of one");
        }
        let noop = grammar(CallChoice::Function("noop"), false);
        assert!(accepts(&tokenizer, &noop, one).is_err(), "{name}: another function");
        let tokenizer = Arc::new(tokenizer);
        let auto = |text: &str| admits(&mut guard(&format, &tools(), true, &tokenizer), &tokenizer, text);
        for text in ["Hello, world. 1 < 2", one] {
            assert_eq!(auto(text), Ok(()), "{name}, auto: {text}");
        }
        assert!(auto(wrong).is_err(), "{name}, auto: a wrong call");
        if !matches!(name, "llama3" | "harmony") {
            let text = format!("I look.\n{one}");
            assert_eq!(auto(&text), Ok(()), "{name}, auto: {text}");
            // Text after a call may begin another call.
            let text = format!("{text}\nAnd {wrong}");
            assert!(auto(&text).is_err(), "{name}, auto: {text}");
        }
        if !two.is_empty() {
            assert_eq!(auto(two), Ok(()), "{name}, auto: two calls");
            let mut guard = guard(&format, &tools(), false, &tokenizer);
            assert!(admits(&mut guard, &tokenizer, two).is_err(), "{name}, auto: two of one");
        }
        assert!(format.grammar(&tools(), CallChoice::Function("x"), true, None, "", &tokenizer).is_err());
    }
}

#[test]
fn content_follows_reasoning() {
    let (format, tokenizer) = (AnswerFormat::detect("<think> <tool_call>"), tokenizer(&[]));
    let schema = Grammar::JsonSchema(json!({ "type": "integer" }));
    let begun = format.after_reasoning(schema.clone(), "…<think>\n", &tokenizer).unwrap().grammar;
    assert_eq!(accepts(&tokenizer, &begun, "Hm. 1 < 2.</think>\n\n12"), Ok(()));
    assert!(accepts(&tokenizer, &begun, "Hm.</think>\n\nx").is_err());
    let not_begun = format.after_reasoning(schema.clone(), "…", &tokenizer).unwrap().grammar;
    assert_eq!(accepts(&tokenizer, &not_begun, "<think>Hm.</think>12"), Ok(()));
    assert_eq!(accepts(&tokenizer, &not_begun, "12"), Ok(()));
    let required =
        format.grammar(&tools(), CallChoice::Required, true, None, "…<think>\n", &tokenizer).unwrap().grammar;
    assert_eq!(
        accepts(
            &tokenizer,
            &required,
            "Hm.</think>\n<tool_call>\n{\"name\": \"noop\", \"arguments\": {}}\n</tool_call>"
        ),
        Ok(())
    );
    let either =
        format.grammar(&tools(), CallChoice::Auto, true, Some(&schema), "…", &tokenizer).unwrap().grammar;
    for text in
        ["12", "<think>Hm.</think>12", "<tool_call>\n{\"name\": \"noop\", \"arguments\": {}}\n</tool_call>"]
    {
        assert_eq!(accepts(&tokenizer, &either, text), Ok(()), "{text}");
    }
    assert!(accepts(&tokenizer, &either, "Hello").is_err());
    let plain = AnswerFormat::detect("");
    assert_eq!(plain.after_reasoning(schema.clone(), "", &tokenizer).unwrap().grammar, schema);
}

/// A call rendered by a real template is parsed from the template's own text.
#[test]
fn calls_go_through_real_templates_and_back() {
    let fixture: Value = serde_json::from_slice(
        &std::fs::read(
            std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
                .join("../../fixtures/chat_templates/chat_templates.json"),
        )
        .unwrap(),
    )
    .unwrap();
    for (name, expected) in [
        ("llama3", "llama3"),
        ("qwen2_5", "hermes"),
        ("qwen3", "hermes"),
        ("mistral", "mistral-v3"),
        ("smollm2", "generic"),
        ("gemma", "generic"),
        ("zephyr", "generic"),
    ] {
        let source = fixture["templates"][name].as_str().unwrap();
        let (template, format) = (ChatTemplate::new(source).unwrap(), AnswerFormat::detect(source));
        assert_eq!(format.name(), expected, "{name}");
        let prompt = ToolPrompt::of(&template, &format);
        let call = json!({ "id": "abcdefghi", "type": "function", "function": {
            "name": "get_weather", "arguments": "{\"city\": \"Paris\", \"days\": 3}",
        }});
        let messages = [
            json!({ "role": "user", "content": "The weather?" }),
            json!({ "role": "assistant", "content": "", "tool_calls": [call] }),
            json!({ "role": "tool", "tool_call_id": "abcdefghi", "content": "Rain" }),
        ];
        let render = |n_messages: usize, add_generation_prompt: bool| {
            let (messages, tools) = prompt.adapt(&messages[..n_messages], &tools());
            let chat = Chat {
                messages: &messages,
                tools: tools.as_ref(),
                add_generation_prompt,
                bos_token: Some("<s>"),
                eos_token: Some("</s>"),
                ..Chat::default()
            };
            template.render(&chat).unwrap_or_else(|error| panic!("{name}: {error}"))
        };
        let begun = render(1, true);
        assert!(
            begun.contains("get_weather") && begun.contains("\"city\""),
            "{name} is told of the tools: {begun}"
        );
        let called = render(2, false);
        let answer =
            called.strip_prefix(&begun).unwrap_or_else(|| panic!("{name}: {begun:?} begins {called:?}"));
        assert!(render(3, true).contains("Rain"), "{name} sees what the call gave");

        assert!(!answer.contains("\\\""), "{name} is given the arguments as it wants them: {answer}");
        let mut parser = format.parser(&begun, &tools());
        let mut parts = Vec::new();
        parser.push(answer, &mut parts);
        parser.finish(&mut parts);
        assert_eq!(
            parts[0],
            AnswerPart::CallBegin { index: 0, name: "get_weather".into() },
            "{name}: {answer:?}"
        );
        let AnswerPart::CallArguments { text, .. } = &parts[1] else { panic!("{name}: {parts:?}") };
        assert_eq!(
            serde_json::from_str::<Value>(text).unwrap(),
            json!({ "city": "Paris", "days": 3 }),
            "{name}"
        );
    }
}

#[test]
fn a_tool_without_parameters_accepts_no_arguments() {
    let (format, tokenizer) = (AnswerFormat::detect("<tool_call>"), tokenizer(&[]));
    let tools = [json!({ "type": "function", "function": { "name": "ping" } })];
    let forced = format.grammar(&tools, CallChoice::Required, true, None, "", &tokenizer).unwrap().grammar;
    let call = |arguments: &str| {
        format!("<tool_call>\n{{\"name\": \"ping\", \"arguments\": {arguments}}}\n</tool_call>")
    };
    assert_eq!(accepts(&tokenizer, &forced, &call("{}")), Ok(()));
    assert!(accepts(&tokenizer, &forced, &call("{\"NAME\": 1}")).is_err());
    let tokenizer = Arc::new(tokenizer);
    let auto = |text: &str| admits(&mut guard(&format, &tools, true, &tokenizer), &tokenizer, text);
    assert_eq!(auto(&call("{}")), Ok(()));
    assert_eq!(auto("<tool_call>{\"name\": \"ping\"}</tool_call>"), Ok(()));
    assert!(auto(&call("{\"NAME\": 1}")).is_err());
}

#[test]
fn a_schema_that_cannot_be_enforced_frees_its_own_tool_alone() {
    let (format, tokenizer) = (AnswerFormat::detect("<tool_call>"), Arc::new(tokenizer(&[])));
    let hard = json!({ "type": "object", "properties": { "x": { "pattern": "(" } } });
    let mut tools = tools();
    tools.push(json!({ "type": "function", "function": { "name": "hard", "parameters": hard } }));
    let auto = |text: &str| admits(&mut guard(&format, &tools, true, &tokenizer), &tokenizer, text);
    assert_eq!(auto("<tool_call>{\"name\": \"hard\", \"arguments\": {\"x\": [1]}}</tool_call>"), Ok(()));
    assert!(
        auto("<tool_call>{\"name\": \"get_weather\", \"arguments\": {\"city\": 1}}</tool_call>").is_err()
    );
}

#[test]
fn draft_tokens_are_rolled_back_within_and_before_calls() {
    let (format, tokenizer) = (AnswerFormat::detect("<tool_call>"), Arc::new(tokenizer(&[])));
    let mut guard = guard(&format, &tools(), true, &tokenizer);
    let encode = |text: &str| tokenizer.encode(text, Specials::Parse).unwrap();
    let accept = |guard: &mut CallGuard, text: &str| {
        encode(text).into_iter().for_each(|token| guard.accept(token).unwrap());
    };
    accept(&mut guard, "Hi <tool");
    // Draft tokens end where the enforced part of a call begins.
    let guess = "_call>{\"name\": \"noop\"";
    assert_eq!(guard.n_valid(&encode(guess)), "_call>{\"name\"".len());
    accept(&mut guard, "_call>{");
    guard.roll_back("call>{".len()).unwrap();
    accept(&mut guard, "call>{\"name\": \"get_weather\", \"arguments\": ");
    assert_eq!(guard.n_valid(&encode("{\"town")), 2);
    accept(&mut guard, "{\"");
    guard.roll_back(1).unwrap();
    accept(&mut guard, "\"city\": \"P\"}}");
    // The call is over, so the rest is free.
    assert_eq!(guard.n_valid(&encode("\n</tool_call> x")), 15);
    let mut words = vec![0; tokenizer.n_tokens().div_ceil(32)];
    assert!(!guard.mask(&mut words).unwrap());
}

#[test]
fn a_vocabulary_with_marks_of_reasoning_is_enough_for_it() {
    let format = AnswerFormat::detect("<tool_call>");
    let read = |format: &AnswerFormat| {
        let mut parser = format.parser("", &tools());
        let mut parts = Vec::new();
        parser.push("<think>Hm</think>Yes", &mut parts);
        parts
    };
    assert_eq!(read(&format), [AnswerPart::Content("<think>Hm</think>Yes".into())]);
    let told = format.with_vocabulary(&tokenizer(&["<think>", "</think>"]));
    let parts = [AnswerPart::Reasoning("Hm".into()), AnswerPart::Content("Yes".into())];
    assert_eq!((read(&told).as_slice(), told.reasons()), (parts.as_slice(), false));
    assert_eq!(read(&format.with_vocabulary(&tokenizer(&["<think>"]))).len(), 1);
}

/// Whichever allowed tokens a model chooses, there is a way to continue.
#[test]
fn no_allowed_choice_is_a_dead_end() {
    let mut state = 1_u64;
    let mut roll = |n: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % n as u64) as usize
    };
    let tool = |name: &str, more: Value| {
        let mut schema = json!({ "type": "object", "required": ["city", "unit"], "properties": {
            "city": { "enum": ["P", "Q"] }, "unit": { "enum": ["C", "F"] }, "day": { "enum": [1, 2] }, "never": false,
        }});
        schema.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({ "type": "function", "function": { "name": name, "parameters": schema } })
    };
    let tools = [tool("f", json!({})), tool("g", json!({ "additionalProperties": false }))];
    for (name, evidence, marks, ..) in CASES {
        let (format, tokenizer) = (AnswerFormat::detect(evidence), Arc::new(tokenizer(marks)));
        let compiler = GrammarCompiler::new(&tokenizer, tokenizer.n_tokens()).unwrap();
        let forced = format.grammar(&tools, CallChoice::Required, true, None, "", &tokenizer).unwrap();
        let forced = compiler.compile(&forced.grammar).unwrap();
        for _ in 0..20 {
            let (mut matcher, mut written) = (forced.clone(), Vec::new());
            for _ in 0..200 {
                let mut words = vec![0_u32; tokenizer.n_tokens().div_ceil(32)];
                matcher.mask(&mut words).unwrap();
                let allowed: Vec<u32> = (0..tokenizer.n_tokens() as u32)
                    .filter(|id| words[*id as usize / 32] >> (id % 32) & 1 == 1)
                    .collect();
                assert!(!allowed.is_empty(), "{name}: {:?}", tokenizer.decode(&written, false));
                let token = allowed[roll(allowed.len())];
                if tokenizer.is_end(token) || matcher.is_over() {
                    break;
                }
                matcher.accept(token).unwrap();
                written.push(token);
            }
        }
    }
}

#[test]
fn only_known_functions_are_called_after_a_mark_that_names_follow() {
    for (evidence, marks, known, unknown) in [
        (
            "[TOOL_CALLS] [ARGS]",
            &["[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"][..],
            "[TOOL_CALLS]noop[CALL_ID]abcdefghi[ARGS]{}",
            "[TOOL_CALLS]nope",
        ),
        (
            "<|tool_call_argument_begin|>",
            &["<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"],
            "<|tool_call_begin|>noop:0<|tool_call_argument_begin|>{}<|tool_call_end|>",
            "<|tool_call_begin|>functions.nope",
        ),
        (
            "<|tools_prefix|>",
            &["<|tools_prefix|>", "<|tools_suffix|>"],
            "<|tools_prefix|>[{\"noop\": {}}]<|tools_suffix|>",
            "<|tools_prefix|>[{\"nope\"",
        ),
    ] {
        let (format, tokenizer) = (AnswerFormat::detect(evidence), Arc::new(tokenizer(marks)));
        let auto = |text: &str| admits(&mut guard(&format, &tools(), true, &tokenizer), &tokenizer, text);
        assert_eq!(auto(known), Ok(()), "{known}");
        assert!(auto(unknown).is_err(), "{unknown}");
        // Text follows a mark in prose.
        let prose = format!("The mark {} is one.", marks[0]);
        assert_eq!(auto(&prose), Ok(()), "{prose}");
    }
}

#[test]
fn a_required_call_of_gpt_oss_has_its_recipient_on_either_side() {
    let marks = ["<|start|>", "<|end|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|call|>"];
    let (format, tokenizer) = (AnswerFormat::detect("<|channel|> <|message|>"), tokenizer(&marks));
    let forced = format.grammar(&tools(), CallChoice::Required, true, None, "", &tokenizer).unwrap().grammar;
    for header in [
        "<|channel|>commentary to=functions.noop <|constrain|>json<|message|>",
        "<|channel|>commentary to=functions.noop<|message|>",
        " to=functions.noop<|channel|>commentary <|constrain|>json<|message|>",
        " to=functions.noop<|channel|>analysis json<|message|>",
    ] {
        assert_eq!(accepts(&tokenizer, &forced, &format!("{header}{{}}")), Ok(()), "{header}");
    }
    assert!(accepts(&tokenizer, &forced, "<|channel|>final<|message|>Hi").is_err());
    // A call that has begun must name a known function.
    let tokenizer = Arc::new(tokenizer);
    let auto = |text: &str| admits(&mut guard(&format, &tools(), true, &tokenizer), &tokenizer, text);
    for header in ["<|channel|>commentary to=functions.", " to=functions."] {
        assert!(auto(&format!("{header}nope")).is_err(), "{header}");
    }
    assert_eq!(auto("<|start|>assistant<|channel|>commentary to=functions.noop<|message|>{}"), Ok(()));
    assert_eq!(auto("<|channel|>final<|message|>It is to=functions.nope"), Ok(()));
}

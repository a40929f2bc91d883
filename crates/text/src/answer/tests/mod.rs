//! Every format, in one piece and in all others.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

mod written;

fn tools() -> Vec<Value> {
    let weather = json!({
        "type": "object",
        "properties": { "city": { "type": "string" }, "days": { "type": "integer" }, "code": { "type": "string" } },
        "required": ["city"],
    });
    vec![
        json!({ "type": "function", "function": { "name": "get_weather", "parameters": weather } }),
        json!({ "type": "function", "function": { "name": "noop", "parameters": {} } }),
    ]
}

/// Reasoning, content, and names with arguments.
type Read = (String, String, Vec<(String, String)>);

fn collect(parts: &[AnswerPart]) -> Read {
    let (mut reasoning, mut content, mut calls) =
        (String::new(), String::new(), Vec::<(String, String)>::new());
    for part in parts {
        match part {
            AnswerPart::Reasoning(text) => reasoning.push_str(text),
            AnswerPart::Content(text) => content.push_str(text),
            AnswerPart::CallBegin { index, name } => {
                assert_eq!(*index, calls.len());
                calls.push((name.clone(), String::new()));
            }
            AnswerPart::CallArguments { index, text } => calls[*index].1.push_str(text),
            AnswerPart::CallEnd { index } => assert!(!calls[*index].1.is_empty()),
        }
    }
    (reasoning, content, calls)
}

fn read(format: &AnswerFormat, prompt: &str, pieces: &[&str], tools: &[Value]) -> Read {
    let mut parser = format.parser(prompt, tools);
    let mut parts = Vec::new();
    for piece in pieces {
        parser.push(piece, &mut parts);
    }
    parser.finish(&mut parts);
    collect(&parts)
}

/// Reads in one piece, by characters, and cut at any place, which must agree.
fn read_all_ways(format: &AnswerFormat, prompt: &str, text: &str, tools: &[Value]) -> Read {
    let whole = read(format, prompt, &[text], tools);
    let characters: Vec<String> = text.chars().map(String::from).collect();
    let characters: Vec<&str> = characters.iter().map(String::as_str).collect();
    assert_eq!(read(format, prompt, &characters, tools), whole, "by characters: {text:?}");
    for (at, _) in text.char_indices() {
        let (a, b) = text.split_at(at);
        assert_eq!(read(format, prompt, &[a, b], tools), whole, "cut at {at}: {text:?}");
    }
    whole
}

/// The format by its name, detected from its evidence.
fn named(name: &str) -> AnswerFormat {
    let format = FORMATS.iter().find(|format| format.name == name).unwrap_or(&GENERIC);
    let template = format!("{} <think>", format.evidence.join(" "));
    let found = AnswerFormat::detect(&template);
    assert_eq!(found.name(), name);
    found
}

/// A format, an answer, its content, and its calls.
type Case<'a> = (&'a str, &'a str, &'a str, &'a [(&'a str, &'a str)]);

/// Arguments of the call in most cases.
const ONE: &str = r#"{"city": "Paris", "days": 3}"#;
const WEATHER: &[(&str, &str)] = &[("get_weather", ONE)];
const NOOP: &[(&str, &str)] = &[("noop", "{}")];
const BOTH: &[(&str, &str)] = &[("get_weather", ONE), ("noop", "{}")];

const CASES: &[Case] = &[
    (
        "hermes",
        "I look.\n<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\", \"days\": 3}}\n</tool_call>\n\
         <tool_call>\n{\"name\": \"noop\", \"arguments\": {}}\n</tool_call>",
        "I look.",
        BOTH,
    ),
    (
        "hermes",
        "<tool_call>{\"arguments\": {\"city\": \"Paris\", \"days\": 3}, \"name\": \"get_weather\"}</tool_call>",
        "",
        WEATHER,
    ),
    (
        "generic",
        "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": \"{\\\"city\\\": \\\"Paris\\\", \\\"days\\\": 3}\"}\n</tool_call>",
        "",
        WEATHER,
    ),
    (
        "llama3",
        "{\"name\": \"get_weather\", \"parameters\": {\"city\": \"Paris\", \"days\": 3}}",
        "",
        WEATHER,
    ),
    (
        "llama3",
        "<|python_tag|>{\"type\": \"function\", \"name\": \"get_weather\", \"parameters\": {\"city\": \"Paris\", \"days\": 3}}; {\"name\": \"noop\", \"parameters\": {}}",
        "",
        BOTH,
    ),
    (
        "llama3",
        "{\"name\": \"unknown\", \"parameters\": {}}",
        "{\"name\": \"unknown\", \"parameters\": {}}",
        &[],
    ),
    ("llama3", "{\"a\": 1}", "{\"a\": 1}", &[]),
    ("llama3", "It is {\"name\": \"noop\"}", "It is {\"name\": \"noop\"}", &[]),
    (
        "mistral-v3",
        "[TOOL_CALLS][{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\", \"days\": 3}}, {\"name\": \"noop\", \"arguments\": {}}]",
        "",
        BOTH,
    ),
    (
        "mistral",
        "[TOOL_CALLS]get_weather[CALL_ID]abcdefghi[ARGS]{\"city\": \"Paris\", \"days\": 3}[TOOL_CALLS]noop[ARGS]{}",
        "",
        BOTH,
    ),
    (
        "deepseek-v3",
        "Yes.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n{\"city\": \"Paris\", \"days\": 3}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>noop\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        "Yes.",
        BOTH,
    ),
    (
        "deepseek-v3.1",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{\"city\": \"Paris\", \"days\": 3}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        "",
        WEATHER,
    ),
    (
        "kimi",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{\"city\": \"Paris\", \"days\": 3}<|tool_call_end|><|tool_call_begin|>functions.noop:1<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>",
        "",
        BOTH,
    ),
    (
        "glm",
        "\n<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>\n<tool_call>noop\n</tool_call>",
        "",
        BOTH,
    ),
    (
        "qwen-coder",
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=noop>\n</function>\n</tool_call>",
        "",
        BOTH,
    ),
    (
        "qwen-coder",
        "<tool_call>\n<function=get_weather>\n<parameter=code>\n  if a < b:\n    12\n</parameter>\n</function>\n</tool_call>",
        "",
        &[("get_weather", r#"{"code": "  if a < b:\n    12"}"#)],
    ),
    (
        "seed",
        "<seed:tool_call>\n<function=get_weather>\n<parameter=city>Paris</parameter>\n<parameter=days>3</parameter>\n</function>\n</seed:tool_call>",
        "",
        WEATHER,
    ),
    (
        "minimax",
        "<minimax:tool_call>\n<invoke name=\"get_weather\">\n<parameter name=\"city\">Paris</parameter>\n<parameter name=\"days\">3</parameter>\n</invoke>\n<invoke name=\"noop\">\n</invoke>\n</minimax:tool_call>",
        "",
        BOTH,
    ),
    (
        "function-gemma",
        "<start_function_call>call:get_weather{city:<escape>Paris<escape>,days:3}<end_function_call>",
        "",
        WEATHER,
    ),
    (
        "gemma4",
        "<|tool_call>call:get_weather{city:<|\"|>Paris<|\"|>,days:3}<tool_call|><|tool_call>call:noop{}<tool_call|>",
        "",
        BOTH,
    ),
    (
        "lfm2",
        "<|tool_call_start|>[get_weather(city=\"Paris\", days=3), noop()]<|tool_call_end|>Wait.",
        "Wait.",
        BOTH,
    ),
    ("llama4", "[get_weather(city='Paris', days=3), noop()]", "", BOTH),
    ("olmo3", "<function_calls>\nget_weather(city='Paris', days=3)\nnoop()\n</function_calls>", "", BOTH),
    (
        "granite3",
        "<|tool_call|>[{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\", \"days\": 3}}]",
        "",
        WEATHER,
    ),
    (
        "phi4",
        "<|tool_call|>[{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\", \"days\": 3}}]<|/tool_call|>",
        "",
        WEATHER,
    ),
    (
        "nemotron",
        "<TOOLCALL>[{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\", \"days\": 3}}]</TOOLCALL>",
        "",
        WEATHER,
    ),
    (
        "command",
        "<|START_ACTION|>[\n{\"tool_call_id\": \"0\", \"tool_name\": \"get_weather\", \"parameters\": {\"city\": \"Paris\", \"days\": 3}}\n]<|END_ACTION|>",
        "",
        WEATHER,
    ),
    (
        "deepseek-v3.2",
        "Ok.\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"get_weather\">\n<｜DSML｜parameter name=\"city\" string=\"true\">Paris</｜DSML｜parameter>\n<｜DSML｜parameter name=\"days\" string=\"false\">3</｜DSML｜parameter>\n</｜DSML｜invoke>\n<｜DSML｜invoke name=\"noop\">\n</｜DSML｜invoke>\n</｜DSML｜function_calls>",
        "Ok.",
        BOTH,
    ),
    (
        "step3",
        "<｜tool_calls_begin｜><｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name=\"get_weather\"><steptml:parameter name=\"city\">Paris</steptml:parameter><steptml:parameter name=\"days\">3</steptml:parameter></steptml:invoke><｜tool_call_end｜><｜tool_sep｜><｜tool_call_begin｜><steptml:invoke name=\"noop\"></steptml:invoke><｜tool_call_end｜><｜tool_calls_end｜>",
        "",
        BOTH,
    ),
    (
        "hunyuan-v3",
        "<tool_calls>\n<tool_call>get_weather<tool_sep>\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>\n<tool_call>noop<tool_sep>\n</tool_call>\n</tool_calls>",
        "",
        BOTH,
    ),
    (
        "minicpm5",
        "Ok. <function name=\"get_weather\"><param name=\"city\">Paris</param><param name=\"days\">3</param></function>",
        "Ok.",
        WEATHER,
    ),
    (
        "apertus",
        "<|tools_prefix|>[{\"get_weather\": {\"city\": \"Paris\", \"days\": 3}}, {\"noop\": {}}]<|tools_suffix|>",
        "",
        BOTH,
    ),
    (
        "internlm2",
        "<|action_start|><|plugin|>\n{\"name\": \"get_weather\", \"parameters\": {\"city\": \"Paris\", \"days\": 3}}<|action_end|>",
        "",
        WEATHER,
    ),
    (
        "functools",
        "functools[{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\", \"days\": 3}}, {\"name\": \"noop\", \"arguments\": {}}]",
        "",
        BOTH,
    ),
    ("functools", "import functools", "import functools", &[]),
    (
        "tool-calls",
        "<tool_calls>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\", \"days\": 3}}\n{\"name\": \"noop\", \"arguments\": {}}\n</tool_calls>",
        "",
        BOTH,
    ),
    (
        "functionary",
        "<function=get_weather>{\"city\": \"Paris\", \"days\": 3}</function><function=noop>{}</function>",
        "",
        BOTH,
    ),
    ("functionary", "The <function=noop> is one.", "The <function=noop> is one.", &[]),
    (
        "xlam",
        "[{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\", \"days\": 3}}, {\"name\": \"noop\", \"arguments\": {}}]",
        "",
        BOTH,
    ),
    (
        "gigachat",
        "Ok<|message_sep|>\n\nfunction call<|role_sep|>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\", \"days\": 3}}",
        "Ok",
        WEATHER,
    ),
    // Calls that models of a family write in other formats than its own.
    ("llama3", "[get_weather(city='Paris', days=3), noop()]", "", BOTH),
    ("llama3", "<function=get_weather>{\"city\": \"Paris\", \"days\": 3}</function>", "", WEATHER),
    (
        "llama4",
        "{\"name\": \"get_weather\", \"parameters\": {\"city\": \"Paris\", \"days\": 3}}",
        "",
        WEATHER,
    ),
    (
        "qwen-coder",
        "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\", \"days\": 3}}\n</tool_call>",
        "",
        WEATHER,
    ),
    // Marks after values are missing.
    (
        "qwen-coder",
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>",
        "",
        WEATHER,
    ),
    (
        "qwen-coder",
        "<tool_call>\n<function=get_weather>\n<parameter=code>\na\n<parameter=x>\n</function>\nb\n</function>\n</tool_call>",
        "",
        &[("get_weather", "{\"code\": \"a\\n<parameter=x>\\n</function>\\nb\"}")],
    ),
    // A name between its marks is a call only after a further mark.
    (
        "qwen-coder",
        "The <function=noop> and <tool_call> are marks.",
        "The <function=noop> and <tool_call> are marks.",
        &[],
    ),
    ("qwen-coder", "<function=noop>\n</function>", "", NOOP),
];

#[test]
fn calls_are_read_in_every_format() {
    for &(name, text, content, calls) in CASES {
        let calls: Vec<(String, String)> =
            calls.iter().map(|(name, arguments)| ((*name).into(), (*arguments).into())).collect();
        let expected = (String::new(), content.to_owned(), calls);
        assert_eq!(read_all_ways(&named(name), "", text, &tools()), expected, "{name}");
        let (reasoning, content, calls) = read_all_ways(&named(name), "", text, &[]);
        assert!(reasoning.is_empty() && calls.is_empty(), "{name} without tools");
        let has_sections = matches!(name, "lfm2" | "step3" | "hunyuan-v3");
        assert!(has_sections || content.len() + 80 > text.len(), "{name} without tools: {content}");
    }
}

#[test]
fn harmony_has_channels() {
    let text = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary<|message|>I look.<|end|>\
                <|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{\"city\": \"Paris\"}\
                <|call|>";
    let calls = vec![("get_weather".to_owned(), "{\"city\": \"Paris\"}".to_owned())];
    let format = named("harmony");
    assert!(format.reasons());
    assert_eq!(
        read_all_ways(&format, "<|start|>assistant", text, &tools()),
        ("Hm.".into(), "I look.".into(), calls)
    );
    // The mark at the end of the answer is its end token, which the parser does not see.
    let text = "<|channel|>final<|message|>Yes.";
    assert_eq!(read_all_ways(&format, "", text, &tools()), (String::new(), "Yes.".into(), vec![]));
}

#[test]
fn reasoning_is_separated_from_content() {
    let format = AnswerFormat::detect("… <think> … <tool_call>");
    assert_eq!((format.name(), format.reasoning_marks()), ("hermes", Some(("<think>", "</think>"))));
    let both = |reasoning: &str, content: &str| (reasoning.to_owned(), content.to_owned(), vec![]);
    let all = |prompt: &str, text: &str| read_all_ways(&format, prompt, text, &tools());
    assert_eq!(all("", "<think>\nHm, a < b.\n</think>\n\nYes. "), both("Hm, a < b.", "Yes. "));
    assert_eq!(all("…<think>\n", "Hm.</think>Yes"), both("Hm.", "Yes"));
    assert_eq!(all("…<think>\n\n</think>\n\n", " Yes"), both("", " Yes"));
    // Reasoning that does not end, does not begin, or is only mentioned.
    assert_eq!(all("…<think>", "\nHm"), both("Hm", ""));
    assert_eq!(all("", "Yes <think> is a mark"), both("", "Yes <think> is a mark"));
    assert_eq!(all("", "<think></think>Yes</think>"), both("", "Yes</think>"));
    let (reasoning, content, calls) =
        all("<think>", "A <tool_call>\n</think><tool_call>{\"name\": \"noop\"}</tool_call>");
    assert_eq!((reasoning.as_str(), content.as_str(), calls.len()), ("A <tool_call>", "", 1));
}

#[test]
fn text_that_is_not_a_call_stays_text() {
    let format = named("hermes");
    for text in [
        "<tool_call>",
        "<tool_call>\nnoop",
        "<tool_call>{\"name\": 5}</tool_call>",
        "<tool_call>{\"nam\": \"noop\"}</tool_call> and more",
        "<tool_call></tool_call>",
        "a <tool_cal",
        "a </tool_call> b",
    ] {
        let (reasoning, content, calls) = read_all_ways(&format, "", text, &tools());
        let squeezed = |text: &str| text.replace([' ', '\n'], "");
        assert_eq!(
            (reasoning.as_str(), squeezed(&content), calls.len()),
            ("", squeezed(text), 0),
            "{text:?}"
        );
    }
    // A truncated call has the arguments that arrived.
    let (_, content, calls) =
        read_all_ways(&format, "", "<tool_call>{\"name\": \"noop\", \"arguments\": {\"a\": [1", &tools());
    assert_eq!((content.as_str(), calls), ("", vec![("noop".to_owned(), "{\"a\": [1".to_owned())]));
}

#[test]
fn the_start_of_a_further_call_is_not_text() {
    for (name, call) in [
        ("hermes", "<tool_call>\n{\"name\": \"noop\", \"arguments\": {}}\n</tool_call>\n"),
        ("qwen-coder", "<tool_call>\n<function=noop>\n</function>\n</tool_call>\n"),
        ("gemma4", "<|tool_call>call:noop{}<tool_call|>"),
    ] {
        // One character may be anything.
        for n in 2..call.len() {
            let (_, content, calls) =
                read_all_ways(&named(name), "", &format!("{call}{}", &call[..n]), &tools());
            assert_eq!(content, "", "{name}, {:?}", &call[..n]);
            assert!((1..=2).contains(&calls.len()), "{name}, {:?}", &call[..n]);
        }
    }
    let text = "<tool_call>{\"name\": \"noop\", \"arguments\": {}}</tool_call> so 1 <";
    assert_eq!(read_all_ways(&named("hermes"), "", text, &tools()).1, "so 1 <");
}

#[test]
fn arguments_come_as_they_are_written() {
    let format = named("hermes");
    let mut parser = format.parser("", &tools());
    let mut parts = Vec::new();
    parser.push("<tool_call>{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Pa", &mut parts);
    assert_eq!(
        parts,
        [
            AnswerPart::CallBegin { index: 0, name: "get_weather".into() },
            AnswerPart::CallArguments { index: 0, text: "{\"city\": \"Pa".into() },
        ]
    );
}

proptest! {
    #[test]
    fn any_text_is_read(
        name in prop::sample::select(FORMATS.iter().map(|format| format.name).collect::<Vec<_>>()),
        words in prop::collection::vec(
            prop::sample::select(vec![
                "<tool_call>", "</tool_call>", "{\"name\": \"noop\"", ", \"arguments\": {", "}", "[", "]", "(", ")", "noop", "a=",
                "'x'", "\"y\"", "\\", "<think>", "</think>", "<|channel|>", "<|message|>", "<|end|>", "to=functions.noop", "é",
                "<function=", "<parameter=", ">", "</parameter>", "</function>", "<|tool_call>call:", "<|\"|>", ":", "3", " ", "\n",
                "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "[TOOL_CALLS]", "[ARGS]", "<arg_key>", "</arg_key>", "<arg_value>",
            ]),
            0..24,
        ),
        cut in any::<prop::sample::Index>(),
    ) {
        let format = named(name);
        let text: String = words.concat();
        let pieces: Vec<&str> = words.clone();
        let whole = read(&format, "", &[&text], &tools());
        prop_assert_eq!(&read(&format, "", &pieces, &tools()), &whole);
        let boundaries: Vec<usize> = text.char_indices().map(|(at, _)| at).collect();
        if !boundaries.is_empty() {
            let (a, b) = text.split_at(boundaries[cut.index(boundaries.len())]);
            prop_assert_eq!(&read(&format, "", &[a, b], &tools()), &whole);
        }
    }
}

#[test]
fn a_long_call_is_not_read_from_its_beginning_at_every_piece() {
    let text = "x".repeat(200_000);
    let answer = format!(
        "<tool_call>{{\"name\": \"get_weather\", \"arguments\": {{\"city\": \"{text}\"}}}}</tool_call>"
    );
    let format = named("hermes");
    let mut parser = format.parser("", &tools());
    let (mut parts, mut n_pieces) = (Vec::new(), 0);
    for piece in answer.as_bytes().chunks(4) {
        parser.push(std::str::from_utf8(piece).unwrap(), &mut parts);
        n_pieces += 1;
    }
    parser.finish(&mut parts);
    // Each reading emits a part.
    assert!(parts.len() < n_pieces / 30, "{} parts of {n_pieces} pieces", parts.len());
    assert_eq!(collect(&parts).2, [("get_weather".to_owned(), format!("{{\"city\": \"{text}\"}}"))]);
}

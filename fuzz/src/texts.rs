//! Targets for tokenizers, chat templates, grammars, and answers of models.

use std::sync::OnceLock;

use serde_json::{Value, json};
use text::{AnswerFormat, AnswerPart, Grammar, GrammarCompiler, Tokenizer, Trigger, Triggers};

use crate::files::fixture;

/// A tokenizer.json of any bytes. The text after its last zero byte is encoded and decoded.
pub(crate) fn tokenizer(data: &[u8]) {
    let (json, text) = match data.iter().rposition(|b| *b == 0) {
        Some(at) => (&data[..at], &data[at + 1..]),
        None => (data, &b"Hello <s> w\xc3\xb6rld"[..]),
    };
    let Ok(tokenizer) = Tokenizer::from_json(json, None) else { return };
    let text = String::from_utf8_lossy(text);
    let Ok(tokens) = tokenizer.encode_with_bos(&text, text::Specials::Parse) else { return };
    let whole = tokenizer.decode(&tokens, true);
    let mut stream = text::Detokenizer::new(&tokenizer, text::ShowSpecial::Nothing);
    let mut pieces = String::new();
    for token in tokens {
        pieces.push_str(stream.push(&tokenizer, token));
    }
    pieces.push_str(stream.finish());
    // A stream continues a text, so it keeps the space before its first word.
    assert!(pieces == whole || pieces.strip_prefix(' ') == Some(&whole), "{pieces:?} {whole:?}");
}

/// A chat template of any text, rendered with a small conversation. After a first line `!loop`, the
/// rest is the body of a loop, which libFuzzer would not find by itself.
pub(crate) fn template(data: &[u8]) {
    let Ok(source) = std::str::from_utf8(data) else { return };
    let looped;
    let source = match source.strip_prefix("!loop\n") {
        Some(body) => {
            looped = format!(
                "{{% set ns = namespace(x='ab', y=[1, 'a']) %}}{{% for i in range(50) %}}{body}{{% endfor %}}{{{{ ns.x }}}}"
            );
            &looped
        }
        None => source,
    };
    let Ok(template) = text::ChatTemplate::new(source) else { return };
    let messages = [
        json!({ "role": "user", "content": "Hi <there> \"you\"" }),
        json!({ "role": "assistant", "content": "", "tool_calls": [{ "name": "f", "arguments": { "x": 1.5 } }] }),
    ];
    let chat = text::Chat {
        messages: &messages,
        add_generation_prompt: true,
        bos_token: Some("<s>"),
        eos_token: Some("</s>"),
        ..text::Chat::default()
    };
    let _ = template.render(&chat);
}

/// A grammar, of the kind that the first byte selects, applied to a few tokens.
pub(crate) fn grammar(data: &[u8]) {
    static COMPILER: OnceLock<GrammarCompiler> = OnceLock::new();
    let compiler = COMPILER.get_or_init(|| {
        let tokenizer = Tokenizer::from_json(&small_tokenizer(), None).expect("a tokenizer");
        GrammarCompiler::new(&tokenizer, 257).expect("a compiler")
    });
    let Some((kind, text)) = data.split_first() else { return };
    let Ok(text) = std::str::from_utf8(text) else { return };
    let grammar = match kind {
        b's' => match serde_json::from_str::<Value>(text) {
            Ok(schema) => Grammar::JsonSchema(schema),
            Err(_) => return,
        },
        b'r' => Grammar::Regex(text.to_owned()),
        b'g' => Grammar::Gbnf(text.to_owned()),
        b'l' => Grammar::Lark(text.to_owned()),
        b'c' => Grammar::Choice(text.split('\n').map(str::to_owned).collect()),
        b't' => {
            let triggers: Vec<Trigger> =
                text.split('\n').map(|line| Trigger::Pattern(line.to_owned())).collect();
            if let Ok(triggers) = Triggers::new(&triggers) {
                let found = triggers.find("a text with {\"name\": 1} in it", 4);
                assert!(found.is_none_or(|at| at <= 30));
            }
            return;
        }
        _ => return,
    };
    let Ok(mut matcher) = compiler.compile(&grammar) else { return };
    let mut words = [0u32; 9];
    for _ in 0..24 {
        if matcher.is_over() || matcher.mask(&mut words).is_err() {
            break;
        }
        // The lowest token that the mask allows.
        let first = (0..257u32).find(|id| words[*id as usize / 32] >> (id % 32) & 1 == 1);
        let Some(token) = first else { break };
        if let Err(error) = matcher.accept(token) {
            // The parser accepts every token that the mask allows, unless its number of items then
            // exceeds a limit.
            assert!(error.to_string().contains("; max is "), "{error}");
            break;
        }
    }
}

/// A tokenizer.json with a token for each byte, and an end-of-text token.
fn small_tokenizer() -> Vec<u8> {
    // GPT-2's alphabet, which maps bytes to printable characters.
    let printable = |b: u8| matches!(b, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    let mut next = 256;
    let mut vocab = serde_json::Map::new();
    for b in 0..=255u8 {
        let c = match printable(b) {
            true => char::from(b),
            false => {
                next += 1;
                char::from_u32(next - 1).unwrap_or(' ')
            }
        };
        vocab.insert(c.to_string(), json!(b));
    }
    vocab.insert("</s>".into(), json!(256));
    json!({
        "version": "1.0",
        "added_tokens": [{ "id": 256, "content": "</s>", "special": true, "single_word": false, "lstrip": false,
                           "rstrip": false, "normalized": false }],
        "pre_tokenizer": { "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true },
        "decoder": { "type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true },
        "model": { "type": "BPE", "vocab": vocab, "merges": [] }
    })
    .to_string()
    .into_bytes()
}

/// Answer formats, recognised from small chat templates.
pub(crate) fn formats() -> &'static [AnswerFormat] {
    static FORMATS: OnceLock<Vec<AnswerFormat>> = OnceLock::new();
    FORMATS.get_or_init(|| {
        // The marks by which each kind of template is recognised.
        let evidence = [
            "",
            "<tool_call>",
            "<tool_call> <think>",
            "<tool_call> <function= <parameter=",
            "[TOOL_CALLS] [AVAILABLE_TOOLS]",
            "[TOOL_CALLS] [ARGS]",
            "<|python_tag|>",
            "<|channel|> <|message|> <|call|>",
            "<tool_call> <arg_key> <arg_value>",
            "<|tool_calls_section_begin|> <|tool_call_begin|>",
            "<|tool▁calls▁begin|> <|tool▁call▁begin|> <|tool▁sep|>",
            "functools",
            "<|START_ACTION|> <|START_THINKING|>",
            "<|tool_call_start|> <|tool_call_end|>",
            "<start_function_call>",
        ];
        let path = fixture("chat_templates/chat_templates.json");
        let json: Value = serde_json::from_slice(&std::fs::read(path).expect("the fixture")).expect("JSON");
        let templates = json["templates"].as_object().into_iter().flatten();
        let published = templates.filter_map(|(_, source)| source.as_str().map(AnswerFormat::detect));
        evidence.iter().map(|text| AnswerFormat::detect(text)).chain(published).collect()
    })
}

/// Tools of the requests in the target `answer`.
fn tools() -> [Value; 2] {
    let number = json!({ "type": "object", "properties": { "x": { "type": "number" } } });
    let texts = json!({ "type": "object", "properties": { "path": { "type": "string" }, "n": { "type": "integer" } } });
    [
        json!({ "type": "function", "function": { "name": "f", "description": "", "parameters": number } }),
        json!({ "type": "function", "function": { "name": "read_file", "description": "", "parameters": texts } }),
    ]
}

/// An answer of any text. The first byte selects its format and the second one the size of pieces:
/// parsing the whole text and parsing its pieces give the same parts.
pub(crate) fn answer(data: &[u8]) {
    let [format, cuts, text @ ..] = data else { return };
    let Ok(text) = std::str::from_utf8(text) else { return };
    let formats = formats();
    let format = formats[usize::from(*format) % formats.len()];
    let tools = tools();
    let read = |pieces: &[&str]| {
        let mut parser = format.parser("", &tools);
        let mut parts = Vec::new();
        for piece in pieces {
            parser.push(piece, &mut parts);
        }
        parser.finish(&mut parts);
        merged(parts)
    };
    let whole = read(&[text]);
    let chars: Vec<usize> = text.char_indices().map(|(at, _)| at).chain([text.len()]).collect();
    let step = 1 + usize::from(*cuts) % 7;
    let ends: Vec<usize> = chars.iter().copied().step_by(step).chain([text.len()]).collect();
    let pieces: Vec<&str> = ends.windows(2).map(|pair| &text[pair[0]..pair[1]]).collect();
    assert_eq!(read(&pieces), whole, "{} in pieces of {step}", format.name());
}

/// Joins neighbouring text parts.
fn merged(parts: Vec<AnswerPart>) -> Vec<AnswerPart> {
    use AnswerPart::{CallArguments, Content, Reasoning};

    let mut out: Vec<AnswerPart> = Vec::new();
    for part in parts {
        match (out.last_mut(), part) {
            (Some(Content(before)), Content(text)) | (Some(Reasoning(before)), Reasoning(text)) => {
                before.push_str(&text);
            }
            (Some(CallArguments { index: a, text: before }), CallArguments { index, text })
                if *a == index =>
            {
                before.push_str(&text);
            }
            (_, part) => out.push(part),
        }
    }
    out
}

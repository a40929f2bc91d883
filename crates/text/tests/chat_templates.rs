//! Chat templates come out as transformers renders them, to the byte. The fixture was made by
//! `fixtures/chat_templates/make_chat_templates.py`.
#![allow(clippy::unwrap_used)] // Helpers of tests may, as tests may.

use std::path::Path;
use std::sync::OnceLock;
use std::time::{Duration, SystemTime};

use ingle_text::{Chat, ChatTemplate, Error};
use proptest::prelude::*;
use proptest::sample::Index;
use serde_json::{Map, Value};

fn fixture() -> Value {
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/chat_templates/chat_templates.json");
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// 2024-07-26 12:34 UTC: the same day in every time zone from -12 to +11.
fn now() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_721_997_240)
}

/// Whether an answer is the one expected, and if not, both.
fn compare(got: Result<String, Error>, expected: &Value) -> Result<(), String> {
    let (text, refused) = (expected["text"].as_str(), expected["refused"].as_str());
    match (&got, text, refused) {
        (Ok(got), Some(text), _) if got == text => Ok(()),
        (Err(Error::TemplateRefused(got)), _, Some(refused)) if got == refused => Ok(()),
        // What Python calls the mistake is its own business; that it is one is ours too.
        (Err(Error::Template(_)), None, None) => Ok(()),
        // The one mistake that is known to be forgiven here.
        (Ok(_), None, None) if expected["failed"] == "'NoneType' object is not iterable" => Ok(()),
        _ => Err(format!(
            "got      {got:?}\nexpected {:?} {:?}",
            text.or(refused),
            expected["failed"].as_str()
        )),
    }
}

#[test]
fn conversations_render_as_transformers_renders_them() {
    let fixture = fixture();
    let mut wrong = Vec::new();
    let cases = fixture["cases"].as_array().unwrap();
    for case in cases {
        let name = case["template"].as_str().unwrap();
        let template = ChatTemplate::new(fixture["templates"][name].as_str().unwrap()).unwrap();
        let conversation = case["conversation"].as_str().unwrap();
        let chat = Chat {
            messages: fixture["conversations"][conversation].as_array().unwrap(),
            tools: case["tools"].as_bool().unwrap().then_some(&fixture["tools"]),
            documents: case["documents"].as_bool().unwrap().then_some(&fixture["documents"]),
            add_generation_prompt: case["add_generation_prompt"].as_bool().unwrap(),
            bos_token: fixture["bos_token"].as_str(),
            eos_token: fixture["eos_token"].as_str(),
            extra: case["extra"].as_object(),
            now: Some(now()),
        };
        if let Err(difference) = compare(template.render(&chat), case) {
            wrong.push(format!("{name} {conversation} tools={}\n{difference}", case["tools"]));
        }
    }
    assert!(wrong.is_empty(), "{} of {} differ\n{}", wrong.len(), cases.len(), wrong.join("\n"));
}

#[test]
fn expressions_print_as_in_jinja2() {
    let fixture = fixture();
    let mut wrong = Vec::new();
    for probe in fixture["probes"].as_array().unwrap() {
        let source = probe["source"].as_str().unwrap();
        let chat = Chat {
            messages: fixture["conversations"]["one"].as_array().unwrap(),
            add_generation_prompt: true,
            bos_token: Some("<s>"),
            eos_token: Some("</s>"),
            now: Some(now()),
            ..Chat::default()
        };
        let got = ChatTemplate::new(source).and_then(|template| template.render(&chat));
        if let Err(difference) = compare(got, probe) {
            wrong.push(format!("{source}\n{difference}"));
        }
    }
    assert!(wrong.is_empty(), "{} differ\n{}", wrong.len(), wrong.join("\n"));
}

fn render(source: &str, messages: &[Value], extra: Option<&Map<String, Value>>) -> Result<String, Error> {
    ChatTemplate::new(source)?.render(&Chat { messages, extra, ..Chat::default() })
}

#[test]
fn hostile_templates_are_errors() {
    for source in [
        "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{{ 'x' * 100000000 }}",
        "{{ 'x' * 1000000000000 }}",
        "{% include 'chat' %}",
        "{% include '/etc/passwd' %}",
        "{% extends 'chat' %}",
        "{{ messages.__class__ }}{{ ''.join.x.y }}",
        "{% if %}",
        "{{ [1",
        "{% set x = [] %}{{ x.append(1) }}",
        "{{ 1 / 0 }}",
        "{{ range(100000000) }}",
        "{{ {} | tojson(indent=1000000000) }}",
        "{{ strftime_now('%!') }}",
    ] {
        let got = render(source, &[], None);
        assert!(got.is_err(), "{source}: {got:?}");
    }
    let nested = format!("{}1{}", "[".repeat(5000), "]".repeat(5000));
    assert!(render(&format!("{{{{ {nested} }}}}"), &[], None).is_err());
    assert!(ChatTemplate::new(&"x".repeat(2 << 20)).is_err());
    // A list within a list within a list …, made while rendering.
    let deep = "{% set ns = namespace(x=[]) %}{% for i in range(300) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x | tojson }}";
    assert!(render(deep, &[], None).is_err());
}

#[test]
fn a_template_is_compiled_once_and_shared_between_threads() {
    let template = ChatTemplate::new("{% for m in messages %}{{ m.content }}{{ n }};{% endfor %}").unwrap();
    std::thread::scope(|scope| {
        for n in 0..4 {
            let template = &template;
            scope.spawn(move || {
                let messages = vec![serde_json::json!({"role": "user", "content": "x"}); 500];
                let extra = Map::from_iter([("n".to_string(), Value::from(n))]);
                let text = template
                    .render(&Chat { messages: &messages, extra: Some(&extra), ..Chat::default() })
                    .unwrap();
                assert_eq!(text, format!("x{n};").repeat(500));
            });
        }
    });
}

proptest! {
    /// Pieces of real templates in any order: most are no templates, many are odd ones.
    #[test]
    fn no_template_makes_it_panic(cuts in prop::collection::vec((any::<Index>(), any::<Index>(), 1usize..60), 1..12)) {
        static SOURCES: OnceLock<Vec<Vec<char>>> = OnceLock::new();
        let sources = SOURCES.get_or_init(|| {
            let fixture = fixture();
            let templates = fixture["templates"].as_object().unwrap().values();
            let probes = fixture["probes"].as_array().unwrap().iter().map(|probe| &probe["source"]);
            templates.chain(probes).map(|source| source.as_str().unwrap().chars().collect()).collect()
        });
        let mut source = String::new();
        for (which, at, len) in &cuts {
            let chars = which.get(sources.as_slice());
            source.extend(chars.iter().skip(at.index(chars.len())).take(*len));
        }
        let messages = [serde_json::json!({"role": "user", "content": "é", "tool_calls": [{"x": 1.5}]})];
        let _ = render(&source, &messages, None);
    }
}

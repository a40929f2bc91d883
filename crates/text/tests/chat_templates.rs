//! Chat templates are rendered byte for byte as by transformers. The fixture was made by
//! `fixtures/chat_templates/make_chat_templates.py`.
#![allow(clippy::unwrap_used)] // Helpers of tests may unwrap.

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

/// Compares a result with the expected one; an error shows both.
fn compare(got: Result<String, Error>, expected: &Value) -> Result<(), String> {
    let (text, refused) = (expected["text"].as_str(), expected["refused"].as_str());
    match (&got, text, refused) {
        (Ok(got), Some(text), _) if got == text => Ok(()),
        (Err(Error::TemplateRefused(got)), _, Some(refused)) if got == refused => Ok(()),
        // Only the fact that Python fails is compared, not its message.
        (Err(Error::Template(_)), None, None) => Ok(()),
        // The one known error of Jinja2 that is accepted here.
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
    // A list within a list and so on, made while rendering.
    let deep = "{% set ns = namespace(x=[]) %}{% for i in range(300) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x | tojson }}";
    assert!(render(deep, &[], None).is_err());
}

/// Sources that exhaust memory, stack or time unless limits stop them. The fuzz target `template`
/// starts from them too.
fn bombs() -> Vec<(String, String)> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/template/bombs.txt");
    let text = std::fs::read_to_string(path).unwrap();
    text.split("\n=== ")
        .skip(1)
        .map(|bomb| {
            let (name, source) = bomb.split_once('\n').unwrap();
            (name.to_owned(), repeated(source.trim_end()))
        })
        .collect()
}

/// Expands `«3×ab»` to ababab.
fn repeated(source: &str) -> String {
    let mut out = String::new();
    for piece in source.split('»') {
        let (plain, times) = piece.split_once('«').unwrap_or((piece, "0×"));
        let (n, text) = times.split_once('×').unwrap();
        out.push_str(plain);
        out.push_str(&text.repeat(n.parse().unwrap()));
    }
    out
}

/// Peak memory of this process in bytes, if the system reports it.
fn peak_memory() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? << 10)
}

/// Each runs in a process of its own, which measures its peak memory and shows crashes.
#[test]
fn no_operation_of_a_template_is_unbounded() {
    const NAME: &str = "INGLE_TEST_BOMB";
    if let Ok(wanted) = std::env::var(NAME) {
        let before = peak_memory().unwrap_or(0);
        let (_, source) = bombs().into_iter().find(|(name, _)| *name == wanted).unwrap();
        let messages = [serde_json::json!({"role": "user", "content": "Hi"})];
        let started = std::time::Instant::now();
        let got = render(&source, &messages, None);
        let (took, got) = (started.elapsed(), got.map(|text| text.len()));
        // Most are stopped; some do less work than they seem to.
        assert!(if wanted.ends_with("(ends)") { got.is_ok() } else { got.is_err() }, "BOMB {got:?}");
        assert!(took < Duration::from_secs(60), "BOMB took {took:?}");
        let peak = peak_memory().unwrap_or(0).saturating_sub(before);
        assert!(peak < 256 << 20, "BOMB took {} MiB", peak >> 20);
        return;
    }
    let me = std::env::current_exe().unwrap();
    let test = "chat_templates::no_operation_of_a_template_is_unbounded";
    let run = |name: &str| {
        let out = std::process::Command::new(&me).args(["--exact", test]).env(NAME, name).output().unwrap();
        let text =
            [out.stdout, out.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
        let said = text.lines().find(|line| line.contains("BOMB")).unwrap_or_default().to_owned();
        (!out.status.success()).then(|| format!("{name}: {} {said}", out.status))
    };
    let names: Vec<String> = bombs().into_iter().map(|(name, _)| name).collect();
    assert!(names.len() > 100);
    let next = std::sync::atomic::AtomicUsize::new(0);
    let wrong: Vec<String> = std::thread::scope(|scope| {
        let work = || {
            let mut wrong = Vec::new();
            while let Some(name) = names.get(next.fetch_add(1, std::sync::atomic::Ordering::Relaxed)) {
                wrong.extend(run(name));
            }
            wrong
        };
        let threads: Vec<_> = (0..3).map(|_| scope.spawn(work)).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_limit_says_what_it_is() {
    for (source, expected) in [
        ("{{ 'x' * 100000000 }}", "more than 6710"),
        ("{{ '{:>100000000000}'.format('a') }}", "a width or precision of 100000000000; the limit is 4096"),
        ("{% set ns = namespace(x=1) %}{{ [ns] }}", "a namespace cannot be put into"),
        ("{{ loop.cycle() }}", "undefined"),
        ("{% for x in [1] %}{{ loop.cycle() }}{% endfor %}", "no items for cycling given"),
        ("{% include 'x' %}", "a model has only one"),
    ] {
        let got = render(source, &[], None).unwrap_err().to_string();
        assert!(got.contains(expected), "{source}: {got}");
    }
    let long = format!("{{{{ {}1 }}}}", "1 - ".repeat(600));
    let got = render(&long, &[], None).unwrap_err().to_string();
    assert!(got.contains("line 1: more than 500 nested operators"), "{got}");
}

/// A template that copies its text with every message takes time quadratic in the length; long
/// conversations are accepted.
#[test]
fn a_long_conversation_renders() {
    let messages = vec![serde_json::json!({"role": "user", "content": "x".repeat(400)}); 1000];
    let source = "{% set ns = namespace(out='') %}{% for m in messages %}\
        {% set ns.out = ns.out ~ m.role ~ m['content'] | trim %}{% endfor %}{{ ns.out }}";
    assert_eq!(render(source, &messages, None).unwrap().len(), 404_000);
}

#[test]
fn operators_do_what_pythons_do() {
    for (source, expected) in [
        (
            "{{ [1, 2, 3][-2:] }}{{ [1, 2, 3][5:] }}{{ (1, 2, 3)[::-1] }}{{ 'abc'[5:] }}{{ 'abc'[-9:2] }}",
            "[2, 3][](3, 2, 1)ab",
        ),
        ("{{ 'abcdef'[4:0:-2] }}{{ [1, 2, 3][10::-1] }}{{ 'abc'[:-5] }}", "ec[3, 2, 1]"),
        (
            "{{ (1,) + (2,) }}{{ [1] + [2] }}{{ true + 1 }}{{ 1 + 0.5 }}{{ 2 * 'ab' }}{{ 'a' * -1 }}",
            "(1, 2)[1, 2]21.5abab",
        ),
        (
            "{{ 1 < 2 < 3 }}{{ 3 > 2 > 2 }}{{ 1 in [1] }}{{ 2 not in (1,) }}{{ 'a' in {'a': 1} }}",
            "TrueFalseTrueTrueTrue",
        ),
        (
            "{{ [1, [2, (3,)]] == [1, [2, (3,)]] }}{{ {'a': [1]} == {'a': [1]} }}{{ [1] < [2] }}",
            "TrueTrueTrue",
        ),
        (
            "{% for g, xs in [{'a': 1}, {'a': 2}, {'a': 1}] | groupby('a') %}{{ g }}{{ xs | length }}{% endfor %}",
            "1221",
        ),
        ("{% for g in [{'a': 1}] | groupby('a') %}{{ g.grouper }}{{ g.list }}{% endfor %}", "1[{'a': 1}]"),
        (
            "{{ 'a-b-c'.split('-')[-1] }}{{ 'aXbXc'.replace('X', '', 1) }}{{ [3, 4] | sum }}{{ 'ab' | last }}",
            "cabXc7b",
        ),
        (
            "{% for x in [1, 2, 3] %}{{ loop.cycle('a', 'b') }}{{ loop.changed(x > 1) }}{{ loop.length }}{% endfor %}",
            "aTrue3bTrue3aFalse3",
        ),
        (
            "{% for x in [[1, [2]]] recursive %}{% if x is iterable %}{{ loop(x) }}{% else %}{{ x }}{% endif %}{% endfor %}",
            "12",
        ),
        (
            "{% macro m(xs) %}{{ xs | join('+') }}{% endmacro %}{{ m(*[[1, 2]]) }}{{ m(**{'xs': [3]}) }}",
            "1+23",
        ),
        (
            "{{ '%s is %d' | format('a', 2) }}{{ '{0}-{b}'.format(1, b=2) }}{{ '2024{}'.format(5) }}",
            "a is 21-220245",
        ),
        (
            "{{ [{'a': {'b': 1}}] | map(attribute='a.b') | list }}{{ [{'a': {'b': 1}}] | join(',', attribute='a.b') }}",
            "[1]1",
        ),
    ] {
        assert_eq!(render(source, &[], None).unwrap(), expected, "{source}");
    }
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
    /// Pieces of real templates in random order: most are not valid, and many are unusual.
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

//! Limits of a request's lists, texts, schemas, grammars, images and body, in one table.
//! docs/server.md repeats the table; a test compares them.
//!
//! A body is scanned once before it is used. A value above its limit gets a 400 that names the key,
//! the value found and the limit. Keys that are not in the table have the limits of [`OTHER`], so
//! new keys are always limited. Texts to be tokenised are limited again by the model's context
//! ([`runner::Facts::check_text`]).

use std::fmt;

use engine::{MAX_DRY_BREAKER, MAX_DRY_BREAKERS};
use serde::de::{self, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use text::{MAX_CHOICES, MAX_GRAMMAR, MAX_REGEX, MAX_TRIGGER, MAX_TRIGGERS};

use runner::images::MAX_IMAGES;
use runner::{ErrorKind, RequestError, Result};

/// Largest body, in bytes.
pub(crate) const MAX_BODY: usize = 32 << 20;

/// Maximum number of keys of a body.
pub(crate) const MAX_KEYS: usize = 256;

/// Maximum number of values of a body, at any depth: numbers, texts, lists, objects, booleans and
/// nulls.
pub(crate) const MAX_VALUES: usize = 1 << 20;

/// Maximum number of objects of a body. Each takes half a kilobyte when it is parsed.
pub(crate) const MAX_OBJECTS: usize = 1 << 17;

/// Maximum number of parts of a message's content.
const MAX_PARTS: usize = 4096;

/// Limits of a key's value.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limit {
    /// Paths of the keys; `[]` is any entry of a list. Ollama's API may have the same keys in
    /// `options`.
    pub(crate) keys: &'static [&'static str],
    /// Maximum number of entries of a list, or keys of an object.
    pub(crate) entries: usize,
    /// Maximum number of bytes of a text, or of each text in the list.
    pub(crate) text: usize,
    /// Maximum number of bytes in total: of texts and keys, and 8 for each other value.
    pub(crate) all: usize,
}

/// Limits of keys that are not in the table.
pub(crate) const OTHER: Limit =
    Limit { keys: &["any other key"], entries: 4096, text: 64 << 10, all: 1 << 20 };

const fn limit(keys: &'static [&'static str], entries: usize, text: usize, all: usize) -> Limit {
    Limit { keys, entries, text, all }
}

/// Limits of all other keys.
pub(crate) const LIMITS: &[Limit] = &[
    limit(&["messages"], 16 << 10, MAX_BODY, MAX_BODY),
    limit(&["messages[].content", "system", "input[].content"], MAX_PARTS, MAX_BODY, MAX_BODY),
    limit(&["messages[].tool_calls"], 1024, 1 << 20, 1 << 20),
    limit(&["messages[].images", "images"], MAX_IMAGES, MAX_BODY, MAX_BODY),
    limit(&["prompt", "input", "tokens", "context"], MAX_VALUES, MAX_BODY, MAX_BODY),
    limit(
        &["content", "instructions", "suffix", "query", "input_prefix", "input_suffix"],
        MAX_PARTS,
        MAX_BODY,
        MAX_BODY,
    ),
    limit(&["documents"], 2048, MAX_BODY, MAX_BODY),
    limit(&["input_extra"], 1024, MAX_BODY, MAX_BODY),
    limit(&["tools", "functions"], 1024, MAX_GRAMMAR, MAX_GRAMMAR),
    limit(
        &[
            "json_schema",
            "guided_json",
            "response_format",
            "format",
            "text",
            "output_format",
            "output_config",
            "structured_outputs",
            "structural_tag",
        ],
        1024,
        MAX_GRAMMAR,
        MAX_GRAMMAR,
    ),
    limit(&["grammar", "guided_grammar", "ebnf"], 1, MAX_GRAMMAR, MAX_GRAMMAR),
    limit(&["guided_regex", "regex"], 1, MAX_REGEX, MAX_REGEX),
    limit(&["guided_choice"], MAX_CHOICES, 4 << 10, MAX_GRAMMAR),
    limit(&["grammar_triggers"], MAX_TRIGGERS, MAX_TRIGGER, 64 << 10),
    limit(&["stop", "stop_sequences"], 64, 1 << 10, 64 << 10),
    limit(&["stop_token_ids"], 1024, 16, 16 << 10),
    limit(&["logit_bias"], 16 << 10, 1 << 10, 1 << 20),
    limit(&["dry_sequence_breakers"], MAX_DRY_BREAKERS, MAX_DRY_BREAKER, 4 << 10),
    limit(&["samplers"], 32, 32, 1 << 10),
    limit(
        &["lora", "response_fields", "include", "modalities", "metadata", "preserved_tokens"],
        64,
        4 << 10,
        64 << 10,
    ),
    limit(&["stream_options"], 16, 64, 1 << 10),
    limit(&["chat_template_kwargs"], MAX_KEYS, 1 << 20, 1 << 20),
    limit(&["options"], MAX_KEYS, MAX_GRAMMAR, 2 << 20),
];

/// Checks the limits of a JSON body. Text that is not JSON passes, and its parser refuses it.
///
/// # Errors
/// A key exceeds its limit.
pub(crate) fn check(body: &[u8]) -> Result<()> {
    let mut look = Look { error: None, path: String::new(), n_values: 0, n_objects: 0 };
    let mut json = serde_json::Deserializer::from_slice(body);
    // The parser reports text that is not JSON.
    drop(LimitedValue { look: &mut look, limit: Some(&BODY), of_list: None }.deserialize(&mut json));
    look.error.map_or(Ok(()), Err)
}

/// Limits of the body itself, whose bytes are counted when it is read.
const BODY: Limit = limit(&["body"], MAX_KEYS, MAX_BODY, usize::MAX);

/// The limit of a path in the body.
fn limit_of(path: &str) -> Option<&'static Limit> {
    let path = path.strip_prefix("options.").unwrap_or(path);
    let found = LIMITS.iter().find(|limit| limit.keys.contains(&path));
    // Deeper paths are limited by those that contain them.
    found.or((!path.contains(['.', '['])).then_some(&OTHER))
}

struct Look {
    error: Option<RequestError>,
    /// The path, as in [`Limit::keys`].
    path: String,
    n_values: usize,
    n_objects: usize,
}

impl Look {
    fn refuse<E: de::Error>(&mut self, found: fmt::Arguments<'_>, expected: fmt::Arguments<'_>) -> E {
        let message = match self.path.as_str() {
            "" => format!("the body has {found}, expected at most {expected}"),
            path => format!("`{path}` has {found}, expected at most {expected}"),
        };
        let key = self.path.split("[]").next().unwrap_or_default();
        let param = (!key.is_empty()).then(|| key.to_owned());
        self.error = Some(RequestError { param, ..RequestError::new(ErrorKind::Invalid, message) });
        E::custom("a limit")
    }
}

/// A value at a path. Its result is the value's bytes.
struct LimitedValue<'a> {
    look: &'a mut Look,
    /// Limit of this path; `None` if only those of its containers hold.
    limit: Option<&'static Limit>,
    /// Limit of each text in the list that contains this value.
    of_list: Option<&'static Limit>,
}

impl LimitedValue<'_> {
    fn count<E: de::Error>(&mut self) -> std::result::Result<usize, E> {
        self.look.n_values += 1;
        match self.look.n_values {
            0..=MAX_VALUES => Ok(8),
            _ => {
                self.look.path.clear();
                Err(self
                    .look
                    .refuse(format_args!("more than {MAX_VALUES} values"), format_args!("{MAX_VALUES}")))
            }
        }
    }

    fn text<E: de::Error>(mut self, text: &str) -> std::result::Result<usize, E> {
        self.count()?;
        let n = text.len();
        if let Some(limit) = self.limit.filter(|limit| n > limit.text) {
            return Err(self.look.refuse(format_args!("{n} bytes"), format_args!("{}", limit.text)));
        }
        if let Some(limit) = self.of_list.filter(|limit| n > limit.text) {
            let expected = format_args!("{} in each", limit.text);
            return Err(self.look.refuse(format_args!("an entry of {n} bytes"), expected));
        }
        Ok(n)
    }

    /// Checks an entry and adds its bytes to the sum.
    fn add<E: de::Error>(&mut self, n_entries: usize, bytes: usize) -> std::result::Result<(), E> {
        let Some(limit) = self.limit else { return Ok(()) };
        if n_entries > limit.entries {
            let what = if self.look.path.is_empty() { "keys" } else { "entries" };
            let found = format_args!("more than {} {what}", limit.entries);
            return Err(self.look.refuse(found, format_args!("{}", limit.entries)));
        }
        if bytes > limit.all {
            let found = format_args!("more than {} bytes in all", limit.all);
            return Err(self.look.refuse(found, format_args!("{}", limit.all)));
        }
        Ok(())
    }
}

impl<'de> DeserializeSeed<'de> for LimitedValue<'_> {
    type Value = usize;

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> std::result::Result<usize, D::Error> {
        json.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for LimitedValue<'_> {
    type Value = usize;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E: de::Error>(mut self) -> std::result::Result<usize, E> {
        self.count()
    }

    fn visit_bool<E: de::Error>(mut self, _: bool) -> std::result::Result<usize, E> {
        self.count()
    }

    fn visit_u64<E: de::Error>(mut self, _: u64) -> std::result::Result<usize, E> {
        self.count()
    }

    fn visit_i64<E: de::Error>(mut self, _: i64) -> std::result::Result<usize, E> {
        self.count()
    }

    fn visit_f64<E: de::Error>(mut self, _: f64) -> std::result::Result<usize, E> {
        self.count()
    }

    fn visit_str<E: de::Error>(self, text: &str) -> std::result::Result<usize, E> {
        self.text(text)
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut list: A) -> std::result::Result<usize, A::Error> {
        let mut bytes = self.count()?;
        let len = self.look.path.len();
        let of_list = self.limit.or(self.of_list);
        for n in 1.. {
            self.look.path.push_str("[]");
            let entry = LimitedValue { look: self.look, limit: None, of_list };
            let Some(more) = list.next_element_seed(entry)? else { break };
            self.look.path.truncate(len);
            bytes += more;
            self.add(n, bytes)?;
        }
        self.look.path.truncate(len);
        Ok(bytes)
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut object: A) -> std::result::Result<usize, A::Error> {
        let mut bytes = self.count()?;
        self.look.n_objects += 1;
        if self.look.n_objects > MAX_OBJECTS {
            self.look.path.clear();
            let found = format_args!("more than {MAX_OBJECTS} objects");
            return Err(self.look.refuse(found, format_args!("{MAX_OBJECTS}")));
        }
        let len = self.look.path.len();
        // Texts of objects in a list count as entries: `{"type": 1, "value": "text"}`.
        let of_list = self.of_list;
        for n in 1.. {
            let Some(more) = object.next_key_seed(Key { look: self.look, is_first: len == 0 })? else {
                break;
            };
            bytes += more;
            let limit = limit_of(&self.look.path);
            bytes += object.next_value_seed(LimitedValue { look: self.look, limit, of_list })?;
            self.look.path.truncate(len);
            self.add(n, bytes)?;
        }
        Ok(bytes)
    }
}

/// A key, appended to the path. Its result is the key's bytes.
struct Key<'a> {
    look: &'a mut Look,
    is_first: bool,
}

/// Maximum number of bytes of a key in messages.
const SHOWN_KEY: usize = 64;

impl<'de> DeserializeSeed<'de> for Key<'_> {
    type Value = usize;

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> std::result::Result<usize, D::Error> {
        json.deserialize_str(self)
    }
}

impl Visitor<'_> for Key<'_> {
    type Value = usize;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_str<E: de::Error>(self, key: &str) -> std::result::Result<usize, E> {
        if !self.is_first {
            self.look.path.push('.');
        }
        let shown =
            key.char_indices().map(|(at, c)| at + c.len_utf8()).take_while(|end| *end <= SHOWN_KEY).last();
        self.look.path.push_str(&key[..shown.unwrap_or(0)]);
        Ok(key.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    /// The table in docs/server.md.
    fn table() -> String {
        let bytes = |n: usize| match n {
            MAX_BODY.. => "the body".to_owned(),
            n if n % (1 << 20) == 0 => format!("{} MiB", n >> 20),
            n if n % (1 << 10) == 0 => format!("{} KiB", n >> 10),
            n => format!("{n} B"),
        };
        let mut out = "| keys | entries | bytes of a text | bytes in all |\n|---|---|---|---|\n".to_owned();
        for limit in LIMITS.iter().chain([&OTHER]) {
            let keys: Vec<String> = limit
                .keys
                .iter()
                .map(|key| if key.contains(' ') { (*key).to_owned() } else { format!("`{key}`") })
                .collect();
            let Limit { entries, text, all, .. } = *limit;
            out += &format!("| {} | {entries} | {} | {} |\n", keys.join(", "), bytes(text), bytes(all));
        }
        out
    }

    #[test]
    fn the_documentation_has_the_table() {
        let page = include_str!("../../../docs/server.md");
        let table = table();
        assert!(page.contains(&table), "docs/server.md lacks this table:\n{table}");
        let count = |n: usize| {
            n.to_string()
                .as_bytes()
                .rchunks(3)
                .rev()
                .map(|d| String::from_utf8_lossy(d).into_owned())
                .collect::<Vec<_>>()
                .join(",")
        };
        for words in [
            format!("{} MiB of body", MAX_BODY >> 20),
            format!("{MAX_KEYS} keys"),
            format!("{} values", count(MAX_VALUES)),
            format!("{} objects", count(MAX_OBJECTS)),
            format!("{MAX_IMAGES} images"),
            format!("{} MiB a file", vision::MAX_BYTES >> 20),
            format!("{} pixels", count(vision::MAX_PIXELS as usize)),
            format!("{} hours of speech", runner::MAX_SECONDS_OF_SPEECH / 3600),
            format!("{} levels", text::MAX_SCHEMA_DEPTH),
        ] {
            assert!(page.contains(&words), "docs/server.md does not say: {words}");
        }
    }

    fn refused(body: &Value) -> Option<(Option<String>, String)> {
        check(body.to_string().as_bytes()).err().map(|error| (error.param, error.message))
    }

    #[test]
    fn values_above_a_limit_are_refused_by_key() {
        let long = "x".repeat(2000);
        for (body, key, words) in [
            (json!({ "stop": vec!["x"; 65] }), "stop", "more than 64 entries"),
            (json!({ "stop": [long] }), "stop", "an entry of 2000 bytes, expected at most 1024 in each"),
            (json!({ "stop": long }), "stop", "2000 bytes, expected at most 1024"),
            (json!({ "options": { "stop": vec!["x"; 65] } }), "options.stop", "more than 64 entries"),
            (json!({ "new_key": vec![0; 4097] }), "new_key", "more than 4096 entries"),
            (json!({ "new_key": "x".repeat(70_000) }), "new_key", "70000 bytes, expected at most 65536"),
            (
                json!({ "new_key": { "a": vec![vec!["x"; 100]; 2000], "b": vec![0; 130_000] } }),
                "new_key",
                "in all",
            ),
            (json!({ "messages": [{ "content": vec![0; 5000] }] }), "messages", "more than 4096 entries"),
            (
                json!({ "grammar_triggers": [{ "type": 1, "value": long }] }),
                "grammar_triggers",
                "an entry of 2000 bytes, expected at most 1024 in each",
            ),
            (json!({ "messages": vec![json!({}); 20_000] }), "messages", "more than 16384 entries"),
        ] {
            let (param, message) = refused(&body).unwrap();
            assert_eq!(param.as_deref(), Some(key), "{message}");
            assert!(message.contains(words), "{message}");
        }
        let keys: serde_json::Map<String, Value> = (0..300).map(|n| (format!("k{n}"), json!(0))).collect();
        assert_eq!(refused(&keys.into()).unwrap().1, "the body has more than 256 keys, expected at most 256");
        let objects = json!({ "input": vec![json!({}); MAX_OBJECTS + 1] });
        assert!(refused(&objects).unwrap().1.contains("objects"));
        let values = json!({ "prompt": vec![vec![0; 1024]; 1024] });
        assert!(refused(&values).unwrap().1.contains("values"));
    }

    #[test]
    fn usual_requests_pass() {
        let properties: serde_json::Map<String, Value> = (0..500)
            .map(|n| (format!("stop{n}"), json!({ "type": "string", "enum": vec!["x"; 100] })))
            .collect();
        for body in [
            json!({ "prompt": vec![7; 200_000], "stop": ["a", "b"], "seed": -1, "x": null, "y": 1.5 }),
            json!({ "messages": [{ "role": "user", "content": "x".repeat(5 << 20) }] }),
            // Names in a schema are the client's.
            json!({ "response_format": { "json_schema": { "schema": { "stop": vec!["x"; 500], "properties": properties } } } }),
            json!({ "logit_bias": (0..5000).map(|id| json!([id, 1.5])).collect::<Vec<_>>() }),
            json!([1, 2]),
        ] {
            assert_eq!(refused(&body), None);
        }
        // The parser reports text that is not JSON.
        assert!(check(b"{\"stop\": [").is_ok());
    }
}

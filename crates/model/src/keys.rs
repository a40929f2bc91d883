//! Reads numbers of the metadata. Each number is looked up by the table and checked against its
//! range.
use weights::{Array, Metadata, Naming, Value};

use crate::descriptor::ArchDescriptor;
use crate::error::{Error, Result};
use crate::names::{Key, ROPE_OBJECTS, TEXT_CONFIG, TINY};

/// The metadata of a checkpoint, with a family's key names.
#[derive(Clone)]
pub(crate) struct Keys<'a> {
    metadata: &'a Metadata,
    naming: Naming,
    family: &'static ArchDescriptor,
    /// Prefixes of keys, tried in order.
    prefixes: Vec<String>,
    /// Objects that `{rope}` stands for.
    rope_objects: &'static [&'static str],
    /// Layer that `{l}` stands for; without one, keys with `{l}` are skipped.
    layer: Option<usize>,
    /// True for layers with a window, whose GGUF keys may end in `_swa`.
    window: bool,
}

/// A value and its key.
struct Found<'a> {
    key: String,
    value: &'a Value,
}

impl<'a> Keys<'a> {
    /// Keys of a GGUF file, `{architecture}.…`, or of config.json.
    pub fn new(
        metadata: &'a Metadata,
        naming: Naming,
        family: &'static ArchDescriptor,
        architecture: &str,
    ) -> Keys<'a> {
        let prefixes = match naming {
            Naming::Gguf => vec![format!("{architecture}.")],
            Naming::HuggingFace | Naming::Base => vec![TEXT_CONFIG.to_owned(), String::new()],
            Naming::CTranslate2 | Naming::WhisperCpp => vec![String::new()],
        };
        Keys { metadata, naming, family, prefixes, rope_objects: ROPE_OBJECTS, layer: None, window: false }
    }

    /// Keys of one layer, with a window or without.
    pub fn of_layer(&self, layer: usize, window: bool) -> Keys<'a> {
        Keys { layer: Some(layer), window, ..self.clone() }
    }

    /// Keys with RoPE parameters from other objects of config.json, if any of those objects is
    /// present.
    pub fn with_rope_objects(&self, rope_objects: &'static [&'static str]) -> Option<Keys<'a>> {
        let keys = Keys { rope_objects, ..self.clone() };
        let there = |(key, _): (&str, &Value)| {
            keys.prefixes.iter().any(|p| {
                rope_objects.iter().any(|o| key.strip_prefix(p.as_str()).is_some_and(|k| k.starts_with(o)))
            })
        };
        (self.naming == Naming::HuggingFace && self.metadata.iter().any(there)).then_some(keys)
    }

    /// The convention of the file's names.
    pub fn naming(&self) -> Naming {
        self.naming
    }

    /// Every possible name of a key, in the order in which they are tried.
    fn names(&self, key: Key) -> Vec<String> {
        let row = key.row();
        // GGUF names do not depend on the family.
        let own = self.family.keys.iter().filter(|names| names.key == key && self.naming != Naming::Gguf);
        let own = own.map(|names| names.of(self.naming)).next();
        let templates = match (&own, self.naming) {
            (_, Naming::Gguf) => row.gguf,
            (Some(""), _) | (None, Naming::CTranslate2 | Naming::WhisperCpp) => &[],
            (Some(own), _) => std::slice::from_ref(own),
            (None, Naming::HuggingFace | Naming::Base) => row.hf,
        };
        let mut names = Vec::new();
        for prefix in &self.prefixes {
            for template in templates {
                match template.strip_prefix("{rope}") {
                    Some(rest) => {
                        names.extend(self.rope_objects.iter().map(|o| format!("{prefix}{o}{rest}")))
                    }
                    None if template.contains("{l}") => {
                        let layer = self.layer.map(|l| l.to_string());
                        names.extend(layer.map(|l| format!("{prefix}{}", template.replace("{l}", &l))));
                    }
                    None => {
                        if self.window && self.naming == Naming::Gguf {
                            names.push(format!("{prefix}{template}_swa"));
                        }
                        names.push(format!("{prefix}{template}"));
                    }
                }
            }
        }
        names
    }

    fn find(&self, key: Key) -> Option<Found<'a>> {
        self.names(key)
            .into_iter()
            .find_map(|name| Some(Found { value: self.metadata.get(&name)?, key: name }))
    }

    /// The key's name in the file, or its first possible name.
    pub fn name(&self, key: Key) -> String {
        let first = || self.names(key).into_iter().next().unwrap_or_else(|| format!("({})", key.row().what));
        self.find(key).map_or_else(first, |f| f.key)
    }

    /// An error about this key's value.
    pub fn bad(&self, key: Key, found: impl ToString, expected: impl ToString) -> Error {
        Error::BadKey { key: self.name(key), found: found.to_string(), expected: expected.to_string() }
    }

    /// An error that the key is missing.
    pub fn missing(&self, key: Key) -> Error {
        let (min, max) = key.row().range;
        Error::MissingKey {
            keys: self.names(key).join(", "),
            expected: format!("the {}, {}", key.row().what, bounds(min, max)),
        }
    }

    /// Reads an integer; the family's default if the key is missing, `None` if it is null.
    pub fn count(&self, key: Key) -> Result<Option<usize>> {
        match self.find(key) {
            None => Ok(self.family.default(self.naming, key).map(|v| v as usize)),
            Some(Found { value: Value::Null, .. }) => Ok(None),
            Some(found) => self.whole(key, found.value).map(Some),
        }
    }

    /// True if files of this naming store the number in their metadata.
    pub fn is_said(&self, key: Key) -> bool {
        !self.names(key).is_empty()
    }

    /// Refuses CTranslate2 files whose layers scale queries by another factor than `1 /
    /// sqrt(head_dim)`. No converter of a known family writes one.
    pub fn refuse_scaled_queries(&self) -> Result<()> {
        let scale =
            |(key, _): &(&str, &Value)| self.naming == Naming::CTranslate2 && key.ends_with("/queries_scale");
        match self.metadata.iter().find(scale) {
            None => Ok(()),
            Some((key, value)) => Err(Error::BadKey {
                key: key.to_owned(),
                found: show(value),
                expected: "none: scores are scaled by the square root of a head's columns".to_owned(),
            }),
        }
    }

    /// Checks that the settings in the file have the values that the family supports.
    pub fn check_settings(&self) -> Result<()> {
        for (setting, expected) in self.family.settings {
            let mut keys = self.prefixes.iter().map(|prefix| format!("{prefix}{setting}"));
            let Some((value, key)) = keys.find_map(|key| Some((self.metadata.get(&key)?, key))) else {
                continue;
            };
            let found = match value {
                Value::Null => continue,
                Value::Bool(b) => Some(i128::from(*b)),
                Value::Int(i) => Some(*i),
                Value::Float(_) | Value::Str(_) | Value::Array(_) => None,
            };
            if found != Some(*expected) {
                return Err(Error::BadKey { key, found: show(value), expected: expected.to_string() });
            }
        }
        Ok(())
    }

    /// Reads an integer that must be present.
    pub fn need_count(&self, key: Key) -> Result<usize> {
        self.count(key)?.ok_or_else(|| self.missing(key))
    }

    /// Reads an integer for each layer, from one number or a list.
    pub fn counts(&self, key: Key, n_layers: usize) -> Result<Option<Vec<usize>>> {
        match self.find(key) {
            Some(Found { value: Value::Array(Array::Int(list)), .. }) => {
                self.check_items(key, list.len(), n_layers)?;
                list.iter()
                    .take(n_layers)
                    .map(|v| self.whole(key, &Value::Int((*v).into())))
                    .collect::<Result<_>>()
                    .map(Some)
            }
            _ => Ok(self.count(key)?.map(|v| vec![v; n_layers])),
        }
    }

    /// Checks that a list has one item a layer. Lists in GGUF files may include layers for
    /// multi-token prediction.
    fn check_items(&self, key: Key, n: usize, n_layers: usize) -> Result<()> {
        let is_gguf = self.naming == Naming::Gguf;
        let n_next = if is_gguf { self.count(Key::NextLayers)?.unwrap_or(0) } else { 0 };
        match n == n_layers || n == n_layers + n_next {
            true => Ok(()),
            false => Err(self.bad(key, format!("{n} items"), format!("{n_layers}, one a layer"))),
        }
    }

    fn whole(&self, key: Key, value: &Value) -> Result<usize> {
        let (min, max) = key.row().range;
        let number = match value {
            Value::Int(i) => usize::try_from(*i).ok(),
            // Some converters write counts as f32.
            Value::Float(f) if self.naming == Naming::Gguf && f.fract() == 0.0 && *f >= 0.0 => {
                Some(*f as usize)
            }
            Value::Null | Value::Bool(_) | Value::Float(_) | Value::Str(_) | Value::Array(_) => None,
        };
        number
            .filter(|n| (min..=max).contains(&(*n as f64)))
            .ok_or_else(|| self.bad(key, show(value), format!("a whole number {}", bounds(min, max))))
    }

    /// Reads a number; the family's default if the key is missing, `None` if it is null.
    pub fn real(&self, key: Key) -> Result<Option<f64>> {
        let Some(found) = self.find(key) else { return Ok(self.family.default(self.naming, key)) };
        let (min, max) = key.row().range;
        let number = match found.value {
            Value::Null => return Ok(None),
            Value::Int(i) => *i as f64,
            Value::Float(f) => *f,
            Value::Bool(_) | Value::Str(_) | Value::Array(_) => f64::NAN,
        };
        if (min..=max).contains(&number) {
            return Ok(Some(number));
        }
        Err(self.bad(key, show(found.value), format!("a number {}", bounds(min, max))))
    }

    /// Reads a list of numbers.
    pub fn reals(&self, key: Key) -> Result<Option<Vec<f32>>> {
        let Some(found) = self.find(key) else { return Ok(None) };
        let list = match found.value {
            Value::Null => return Ok(None),
            Value::Array(Array::Float(list)) => list.clone(),
            Value::Array(Array::Int(list)) => list.iter().map(|v| *v as f32).collect(),
            Value::Bool(_) | Value::Int(_) | Value::Float(_) | Value::Str(_) | Value::Array(_) => {
                return Err(self.bad(key, show(found.value), "a list of numbers"));
            }
        };
        let (min, max) = key.row().range;
        match list.iter().find(|v| !(min..=max).contains(&f64::from(**v))) {
            Some(v) => Err(self.bad(key, v, format!("numbers {}", bounds(min, max)))),
            None => Ok(Some(list)),
        }
    }

    /// Reads a boolean; the family's default if the key is missing.
    pub fn flag(&self, key: Key) -> Result<Option<bool>> {
        match self.find(key).map(|f| f.value) {
            None => Ok(self.family.default(self.naming, key).map(|v| v != 0.0)),
            Some(Value::Null) => Ok(None),
            Some(Value::Bool(b)) => Ok(Some(*b)),
            Some(other) => Err(self.bad(key, show(other), "true or false")),
        }
    }

    /// Reads a boolean from every place that has it; `None` if they differ or none has it.
    pub fn agreed_flag(&self, key: Key) -> Result<Option<bool>> {
        let said = |name: &String| {
            let value = self.metadata.get(name).filter(|value| !matches!(value, Value::Null))?;
            let Value::Bool(b) = value else {
                return Some(Err(self.bad(key, show(value), "true or false")));
            };
            Some(Ok(*b))
        };
        let said = self.names(key).iter().filter_map(said).collect::<Result<Vec<bool>>>()?;
        match said[..] {
            [] => self.flag(key),
            [first, ref rest @ ..] => Ok(rest.iter().all(|other| *other == first).then_some(first)),
        }
    }

    /// Reads a string.
    pub fn word(&self, key: Key) -> Result<Option<&'a str>> {
        match self.find(key).map(|f| f.value) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::Str(s)) => Ok(Some(s)),
            Some(other) => Err(self.bad(key, show(other), "a word")),
        }
    }

    /// Reads one of several choices for each layer, from a list of booleans, numbers or strings.
    pub fn choices<T>(
        &self,
        key: Key,
        n_layers: usize,
        expected: &str,
        choose: impl Fn(Choice<'_>) -> Option<T>,
    ) -> Result<Option<Vec<T>>> {
        let Some(Found { value: Value::Array(list), .. }) = self.find(key) else { return Ok(None) };
        self.check_items(key, list.len(), n_layers)?;
        let item = |i: usize| match list {
            Array::Bool(v) => v.get(i).map(|b| Choice::Flag(*b)),
            Array::Int(v) => v.get(i).map(|n| Choice::Flag(*n != 0)),
            Array::Str { .. } => {
                list.str_bytes(i).and_then(|b| std::str::from_utf8(b).ok()).map(Choice::Word)
            }
            Array::Float(_) => None,
        };
        let pick = |i| {
            item(i)
                .and_then(&choose)
                .ok_or_else(|| self.bad(key, format!("item {i} of another kind"), expected))
        };
        (0..n_layers).map(pick).collect::<Result<Vec<T>>>().map(Some)
    }
}

/// One item of a list with a choice for each layer.
pub(crate) enum Choice<'a> {
    /// A boolean, or a number compared with 0.
    Flag(bool),
    /// A string.
    Word(&'a str),
}

fn bounds(min: f64, max: f64) -> String {
    if min == TINY { format!("above 0, at most {max}") } else { format!("from {min} to {max}") }
}

/// A value in the form that errors show.
pub(crate) fn show(value: &Value) -> String {
    match value {
        Value::Int(i) => i.to_string(),
        Value::Float(f) => f.to_string(),
        Value::Bool(b) => b.to_string(),
        Value::Str(s) => format!("{:?}", s.chars().take(60).collect::<String>()),
        Value::Array(a) => format!("a list of {}", a.len()),
        Value::Null => "null".to_owned(),
    }
}

//! How JSON is written: the white space and the marks between its parts.

use serde_json::Value;

use super::rules::{Part, Rules};

/// One blank, or one end of a line with the indentation of the next: as much as real JSON has between two parts. More would let
/// a model go on with white space for ever.
const WHITE_SPACE: &str = "/ |\\r?\\n[ \\t]{0,64}/";

/// What a schema's `x-guidance` says about it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Style {
    is_compact: bool,
    white_space: Option<String>,
    item_separator: Option<String>,
    key_separator: Option<String>,
    /// Whether objects that list properties may have others.
    pub(super) is_open: Option<bool>,
}

impl Style {
    /// Read `x-guidance` at the root of a schema.
    ///
    /// # Errors
    /// An unknown option, a wrong value, or an option that would let through what the schema forbids.
    pub(super) fn of(schema: &Value) -> Result<Style, String> {
        let mut style = Style::default();
        let Some(options) = schema.get("x-guidance").filter(|options| !options.is_null()) else {
            return Ok(style);
        };
        let options =
            options.as_object().ok_or_else(|| format!("x-guidance is {options}, expected an object"))?;
        for (key, value) in options.iter().filter(|(_, value)| !value.is_null()) {
            let wrong = |expected: &str| format!("x-guidance: {key} is {value}, expected {expected}");
            let boolean = || value.as_bool().ok_or_else(|| wrong("true or false"));
            let text = || value.as_str().map(str::to_owned).map(Some).ok_or_else(|| wrong("a text"));
            match key.as_str() {
                "whitespace_flexible" => style.is_compact = !boolean()?,
                "whitespace_pattern" => style.white_space = text()?,
                "item_separator" => style.item_separator = text()?,
                "key_separator" => style.key_separator = text()?,
                "open_objects" => style.is_open = Some(boolean()?),
                "lenient" | "coerce_one_of" if boolean()? => {
                    return Err(format!(
                        "x-guidance sets {key:?}, which would let through what the schema forbids; expected it to be \
                         false or absent"
                    ));
                }
                "lenient" | "coerce_one_of" => {}
                _ => {
                    return Err(format!(
                        "x-guidance: {key:?} is unknown, expected whitespace_flexible, whitespace_pattern, \
                         item_separator, key_separator or open_objects"
                    ));
                }
            }
        }
        Ok(style)
    }

    pub(super) fn parts(&self, rules: &mut Rules) -> Parts {
        let regex = match &self.white_space {
            Some(pattern) => format!("/{}/", pattern.replace('/', "\\/").replace('\n', "\\n")),
            None => WHITE_SPACE.to_owned(),
        };
        let (gap, blank) = match self.is_compact && self.white_space.is_none() {
            true => (Part::Empty, Part::Empty),
            false => (optional(rules.token(regex)), optional(Part::text(" "))),
        };
        let mark = |given: &Option<String>, default: &str| match given {
            // A separator that is given has the white space that it wants.
            Some(text) => Part::text(text.as_str()),
            None => Part::seq([blank.clone(), Part::text(default), gap.clone()]),
        };
        Parts { comma: mark(&self.item_separator, ","), colon: mark(&self.key_separator, ":"), gap }
    }
}

/// What is written between values.
pub(super) struct Parts {
    gap: Part,
    comma: Part,
    colon: Part,
}

impl Parts {
    /// White space after an opening bracket or before a closing one.
    pub(super) fn gap(&self) -> Part {
        self.gap.clone()
    }

    /// Between two items or members.
    pub(super) fn comma(&self) -> Part {
        self.comma.clone()
    }

    /// Between a name and its value.
    pub(super) fn colon(&self) -> Part {
        self.colon.clone()
    }

    /// An array or object with nothing in it.
    pub(super) fn empty(&self, open: &str, close: &str) -> Part {
        Part::seq([Part::text(open), self.gap(), Part::text(close)])
    }

    /// The end of an array or object, after what is in it.
    pub(super) fn close(&self, is_empty: bool, mark: &str) -> Part {
        match is_empty {
            true => Part::text(mark),
            false => Part::seq([self.gap(), Part::text(mark)]),
        }
    }
}

fn optional(part: Part) -> Part {
    Part::repeat(part, 0, Some(1))
}

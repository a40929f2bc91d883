//! The form of JSON: white space and separators between its parts.

use serde_json::Value;

use super::rules::{RulePart, Rules};

/// One blank, or one line end with the indentation of the next line: the most that real JSON has
/// between two parts. With more, a model could write white space forever.
const WHITE_SPACE: &str = "/ |\\r?\\n[ \\t]{0,64}/";

/// Options of a schema's `x-guidance`.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Style {
    is_compact: bool,
    white_space: Option<String>,
    item_separator: Option<String>,
    key_separator: Option<String>,
    /// True if objects that list properties may have others.
    pub(super) is_open: Option<bool>,
}

impl Style {
    /// Reads `x-guidance` at the root of a schema.
    ///
    /// # Errors
    /// An option is unknown, has a wrong value, or would allow what the schema forbids.
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

    pub(super) fn parts(&self, rules: &mut Rules) -> StyleParts {
        let regex = match &self.white_space {
            Some(pattern) => format!("/{}/", pattern.replace('/', "\\/").replace('\n', "\\n")),
            None => WHITE_SPACE.to_owned(),
        };
        let (gap, blank) = match self.is_compact && self.white_space.is_none() {
            true => (RulePart::Empty, RulePart::Empty),
            false => (optional(rules.token(regex)), optional(RulePart::text(" "))),
        };
        let mark = |given: &Option<String>, default: &str| match given {
            // A given separator includes its own white space.
            Some(text) => RulePart::text(text.as_str()),
            None => RulePart::seq([blank.clone(), RulePart::text(default), gap.clone()]),
        };
        StyleParts { comma: mark(&self.item_separator, ","), colon: mark(&self.key_separator, ":"), gap }
    }
}

/// The text between values.
pub(super) struct StyleParts {
    gap: RulePart,
    comma: RulePart,
    colon: RulePart,
}

impl StyleParts {
    /// White space after an opening bracket or before a closing one.
    pub(super) fn gap(&self) -> RulePart {
        self.gap.clone()
    }

    /// Separator of two items or members.
    pub(super) fn comma(&self) -> RulePart {
        self.comma.clone()
    }

    /// Separator of a name and its value.
    pub(super) fn colon(&self) -> RulePart {
        self.colon.clone()
    }

    /// An empty array or object.
    pub(super) fn empty(&self, open: &str, close: &str) -> RulePart {
        RulePart::seq([RulePart::text(open), self.gap(), RulePart::text(close)])
    }

    /// The end of an array or object, after its content.
    pub(super) fn close(&self, is_empty: bool, mark: &str) -> RulePart {
        match is_empty {
            true => RulePart::text(mark),
            false => RulePart::seq([self.gap(), RulePart::text(mark)]),
        }
    }
}

fn optional(part: RulePart) -> RulePart {
    RulePart::repeat(part, 0, Some(1))
}

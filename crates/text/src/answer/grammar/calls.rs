//! Grammars of a call, in every syntax.

use serde_json::Value;

use super::lark::{Lark, LarkMember, WHITE, literal};
use super::schema::{Notation, PlainObject};
use crate::Result;
use crate::answer::formats::{CallFormat, Syntax, Tags};
use crate::answer::harmony;

/// The purpose of a call's grammar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    /// The answer must be a call, in the form of the template.
    Forced,
    /// The model has begun a call, in any form that the parser accepts.
    Held,
}

/// Grammar of a call of one of `tools`, from after the opening mark to the end of the part that the
/// schema describes.
pub(super) fn call(
    format: &CallFormat,
    tools: &[(&str, &Value)],
    purpose: Use,
    lark: &mut Lark<'_>,
) -> Result<String> {
    let calls: Result<Vec<String>> = match &format.syntax {
        Syntax::Json { name, arguments, .. } => return json_call((name, arguments), tools, purpose, lark),
        Syntax::Named { prefix, separator, .. } => {
            return named_calls(format, (prefix, separator), tools, purpose, lark);
        }
        Syntax::Tagged(tags) => {
            tools.iter().map(|(name, schema)| tagged_call(name, schema, tags, format.close, lark)).collect()
        }
        Syntax::Pythonic { .. } => tools
            .iter()
            .map(|(name, schema)| Ok(arguments_call(name, schema, Notation::Python, lark)))
            .collect(),
        Syntax::Braces { quote } => tools
            .iter()
            .map(|(name, schema)| Ok(arguments_call(name, schema, Notation::Quoted(quote), lark)))
            .collect(),
        Syntax::Harmony => tools
            .iter()
            .map(|(name, schema)| {
                Ok(format!("{} ws {}", harmony_header(name, lark), lark.arguments(schema)?))
            })
            .collect(),
    };
    Ok(lark.rule(&calls?.join(" | ")))
}

/// Grammar of calls from the first opening mark to the last closing one; more than one call if
/// `parallel`.
pub(super) fn forced_calls(
    format: &CallFormat,
    tools: &[(&str, &Value)],
    parallel: bool,
    lark: &mut Lark<'_>,
) -> Result<String> {
    let one = call(format, tools, Use::Forced, lark)?;
    let open = match format.is_harmony() {
        true => "",
        false => format.open.last().copied().unwrap_or_default(),
    };
    let (open, close) = (lark.marks(open), lark.marks(format.close));
    let again = |one: &str, separator: &str| match parallel {
        true => format!("{one} ({separator} {one})*"),
        false => one.to_owned(),
    };
    Ok(match &format.syntax {
        Syntax::Json { list: true, .. } | Syntax::Pythonic { list: true } => {
            let items = again(&one, "ws \",\" ws");
            format!("{open} {WHITE} \"[\" {WHITE} {items} {WHITE} \"]\" {WHITE} {close}")
        }
        // Without marks nothing separates a further call from text.
        Syntax::Json { .. } if close.is_empty() => format!("{open} {one}"),
        Syntax::Pythonic { .. } => format!("{open} {WHITE} {} {WHITE} {close}", again(&one, "\"\\n\"")),
        Syntax::Named { after, .. } => {
            let one = lark.rule(&format!("{open} {one} {} {close}", lark.marks(after)));
            again(&one, WHITE)
        }
        // GLM's calls end with the closing mark.
        Syntax::Tagged(tags) if tags.end.is_empty() => {
            let one = lark.rule(&format!("{open} {WHITE} {one}"));
            again(&one, WHITE)
        }
        Syntax::Json { .. } | Syntax::Tagged(_) | Syntax::Braces { .. } => {
            let one = lark.rule(&format!("{open} {WHITE} {one} {WHITE} {close}"));
            again(&one, WHITE)
        }
        Syntax::Harmony => one,
    })
}

/// Grammar of calls with the name before the arguments.
fn named_calls(
    format: &CallFormat,
    (prefix, separator): (&str, &str),
    tools: &[(&str, &Value)],
    purpose: Use,
    lark: &mut Lark<'_>,
) -> Result<String> {
    // Kimi numbers its calls.
    let number = if format.name == "kimi" { "/(:[0-9]{1,6})?/" } else { "" };
    let (before, between) = match (purpose, prefix) {
        (Use::Forced, _) => (lark.marks(prefix), lark.marks(separator)),
        (Use::Held, prefix) => {
            let before = if prefix.is_empty() { String::new() } else { format!("({})?", lark.marks(prefix)) };
            let identifier = format!("({} /[A-Za-z0-9_-]{{0,64}}/)?", lark.marks("[CALL_ID]"));
            (
                before,
                format!(
                    "{identifier} {WHITE} ({} | {})?",
                    lark.marks(separator),
                    lark.marks(separator.trim())
                ),
            )
        }
    };
    let calls: Result<Vec<String>> = tools
        .iter()
        .map(|(name, schema)| {
            let arguments = lark.arguments(schema)?;
            Ok(format!("{before} {} {number} {between} {WHITE} {arguments}", lark.marks(name)))
        })
        .collect();
    Ok(lark.rule(&calls?.join(" | ")))
}

/// Grammar of a call's header in a channel. The recipient may come before or after the channel, and
/// the type of the arguments is optional.
fn harmony_header(name: &str, lark: &mut Lark<'_>) -> String {
    let channel = format!("{} (\"commentary\" | \"analysis\")", lark.marks("<|channel|>"));
    let channel = lark.rule(&channel);
    let recipient = literal(&format!("{}{name}", harmony::RECIPIENT));
    let kind = lark.rule(&format!("(\" \"? {} \"json\" | \" json\")?", lark.marks("<|constrain|>")));
    let message = lark.marks(harmony::MESSAGE);
    lark.rule(&format!("({channel} {recipient} | {recipient} {channel}) {kind} {message}"))
}

fn json_call(
    (name_key, arguments_key): (&str, &str),
    tools: &[(&str, &Value)],
    purpose: Use,
    lark: &mut Lark<'_>,
) -> Result<String> {
    let key = |key: &str| literal(&Value::from(key).to_string());
    if name_key.is_empty() {
        let calls: Result<Vec<String>> = tools
            .iter()
            .map(|(name, schema)| Ok(format!("{} ws \":\" ws {}", key(name), lark.arguments(schema)?)))
            .collect();
        return Ok(lark.rule(&format!("\"{{\" ws ({}) ws \"}}\"", calls?.join(" | "))));
    }
    let string = lark.terminal(r#"/"[^"\\\x00-\x1f]{0,256}"/"#);
    let other = lark.rule(&format!(
        "{} ws \":\" ws {} | {} ws \":\" ws {string}",
        key("type"),
        key("function"),
        r#"/"(id|tool_call_id|call_id)"/"#
    ));
    let arguments_keys = match purpose {
        Use::Forced => key(arguments_key),
        Use::Held => format!("({} | {} | {})", key("arguments"), key("parameters"), key("args")),
    };
    let calls: Result<Vec<String>> = tools
        .iter()
        .map(|(name, schema)| {
            let mut value = lark.arguments(schema)?;
            let may_be_empty = PlainObject::of(schema).is_some_and(|object| object.may_be_empty());
            if purpose == Use::Held {
                // Some models write the arguments as a JSON string, whose content is not enforced.
                let text = lark.terminal(r#"/"[ ]?\{([^"\\\x00-\x1f]|\\(?s:.))*"/"#);
                value =
                    format!("({value} | {text}{})", if may_be_empty { r#" | "null" | "\"\"""# } else { "" });
            }
            let arguments =
                format!("(ws \",\" ws {other})? ws \",\" ws {arguments_keys} ws \":\" ws {value}");
            let arguments = match may_be_empty && purpose == Use::Held {
                true => format!("({arguments})?"),
                false => arguments,
            };
            Ok(format!("{} {arguments}", key(name)))
        })
        .collect();
    let called = lark.rule(&calls?.join(" | "));
    let body = format!(
        "\"{{\" ws ({other} ws \",\" ws)? {} ws \":\" ws {called} (ws \",\" ws {other})? ws \"}}\"",
        key(name_key)
    );
    Ok(lark.rule(&body))
}

fn tagged_call(name: &str, schema: &Value, tags: &Tags, close: &str, lark: &mut Lark<'_>) -> Result<String> {
    let header = lark.marks(&format!("{}{name}{}", tags.name_before, tags.name_after.trim()));
    let end = lark.marks(if tags.end.is_empty() { close } else { tags.end });
    let parameter = |key: &str, lark: &mut Lark<'_>| {
        let mut header = lark.marks(tags.key_before);
        header.push_str(&format!(" {key}"));
        for (n, mark) in tags.key_after.iter().enumerate() {
            let white = if n == 0 { "" } else { WHITE };
            let spellings: Vec<String> = mark.iter().map(|mark| lark.marks(mark)).collect();
            header.push_str(&format!(" {white} ({})", spellings.join(" | ")));
        }
        header
    };
    let mut members = Vec::new();
    let object = PlainObject::of(schema);
    for (key, part, is_required) in object.iter().flat_map(PlainObject::properties) {
        let header = parameter(&literal(key), lark);
        let value = lark.plain_text(part, schema, tags.value_after)?;
        members.push(LarkMember { rule: lark.rule(&format!("{header} {value}")), is_required });
    }
    let is_open = object.as_ref().is_none_or(PlainObject::is_open);
    let extra = is_open.then(|| {
        let key = lark.terminal("/[^<>\"\\n]{1,128}/");
        let header = parameter(&key, lark);
        let value = lark.until(tags.value_after);
        lark.rule(&format!("{header} {value}"))
    });
    let members = lark.members(members, extra.as_deref(), WHITE, &format!("{WHITE} {end}"));
    Ok(format!("{header} {WHITE} {members}"))
}

fn arguments_call(name: &str, schema: &Value, notation: Notation, lark: &mut Lark<'_>) -> String {
    let (open, close, separator) = match notation {
        Notation::Python => ("(", ")", "ws \"=\" ws"),
        Notation::Quoted(_) => ("{", "}", "ws \":\" ws"),
    };
    let mut members = Vec::new();
    let object = PlainObject::of(schema);
    for (key, part, is_required) in object.iter().flat_map(PlainObject::properties) {
        let value = lark.value(notation, part, schema);
        members.push(LarkMember {
            rule: lark.rule(&format!("{} {separator} {value}", literal(key))),
            is_required,
        });
    }
    let is_open = object.as_ref().is_none_or(PlainObject::is_open);
    let extra = is_open.then(|| {
        let key = lark.terminal("/[A-Za-z_][A-Za-z0-9_]{0,63}/");
        let value = lark.value(notation, &Value::Bool(true), schema);
        lark.rule(&format!("{key} {separator} {value}"))
    });
    // Python allows a comma after the last argument.
    let comma = match notation {
        Notation::Python => "(ws \",\")?",
        Notation::Quoted(_) => "",
    };
    let close = format!("{comma} ws {}", literal(close));
    let members = lark.members(members, extra.as_deref(), "ws \",\" ws", &close);
    format!("{} ws {members}", literal(&format!("{name}{open}")))
}

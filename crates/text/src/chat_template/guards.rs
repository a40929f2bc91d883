//! The engine's filters, tests and methods, charged beforehand for the most that they may read and
//! make. Their results become lists or objects of [`values`](super::values), which charge for their
//! items in turn.
//!
//! Functions whose results could be far larger than their arguments are written here instead.

use minijinja::formatting::FormatStyle;
use minijinja::value::{Kwargs, Rest, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, ErrorKind, State, Value, filters, functions, tests};
use minijinja_contrib::pycompat::unknown_method_callback;

use super::budget::{self, Text};
use super::operators::add;
use super::python::{self, invalid};
use super::values::{ITEM_BYTES, List, ListKind, check_storable, own, text_len, weight};

/// The widest field and the most digits that `format` writes.
const MAX_FIELD: usize = 4096;
/// Maximum number of bytes of a format of `strftime_now`.
pub(super) const MAX_TIME_FORMAT: usize = 256;

/// Upper bound of a call's cost.
#[derive(Clone, Copy)]
enum Cost {
    /// Reads its text arguments.
    Read,
    /// Makes a text no longer than its text arguments.
    Text,
    /// Makes a list with no more items than its arguments; a text counts as the list of its
    /// characters.
    List,
    /// Like [`Cost::List`], and compares the items with each other.
    Order,
    /// Compares its arguments.
    Compare,
    /// Reads its first text once for each character of the second.
    Strip,
    /// Makes a list of the pieces of its first text, between occurrences of the second.
    Split,
    /// Makes as many lists as its second argument says, or pads them to that length.
    Batch,
    /// Fills in a format.
    Format(FormatStyle),
}

/// Registers the bounded filters, tests, functions and methods. The environment must have none
/// before.
pub(super) fn add_to(environment: &mut Environment<'static>) {
    for (name, filter, cost) in guarded_filters() {
        environment.add_filter(name, guarded(filter, cost));
    }
    environment.add_filter("replace", |_: &mut State, text: &Value, from: &Value, to: &Value| {
        let (text, from, to) = (as_text(text)?, as_text(from)?, as_text(to)?);
        replace(&text, &from, &to, None)
    });
    environment.add_filter("join", join_filter);
    environment.add_filter("list", list);
    environment.add_filter("last", last);
    environment.add_filter("sum", sum);
    environment.add_filter("pprint", |value: &Value| {
        let mut out = Text::default();
        python::repr(value, &mut out, 0)?;
        out.finish()
    });
    for (name, test, cost) in guarded_tests() {
        environment.add_test(name, guarded(test, cost));
    }
    environment.add_function("range", guarded(Value::from_function(functions::range), Cost::Read));
    environment.add_function("dict", guarded(Value::from_function(functions::dict), Cost::Read));
    environment.add_function("namespace", |state: &mut State, args: Rest<ValueOrKwargs>| {
        let args = args.into_values();
        for pairs in args.iter().filter_map(|arg| arg.as_object()?.try_iter_pairs()) {
            for (_, value) in pairs {
                check_storable(&value)?;
            }
        }
        Value::from_function(functions::namespace).call(state, &args)
    });
    environment.set_unknown_method_callback(method);
}

fn guarded_filters() -> Vec<(&'static str, Value, Cost)> {
    macro_rules! table {
        ($($name:literal $filter:ident $cost:ident,)*) => {
            vec![$(($name, Value::from_function(filters::$filter), Cost::$cost),)*]
        };
    }
    let mut table = table![
        "safe" safe Text, "lower" lower Text, "upper" upper Text, "title" title Text,
        "capitalize" capitalize Text, "reverse" reverse List, "trim" trim Strip, "split" split Split,
        "lines" lines Split, "default" default Read, "d" default Read, "round" round Read, "abs" abs Read,
        "int" int Read, "float" float Read, "attr" attr Read, "first" first Read, "bool" bool Read,
        "items" items List, "dictsort" dictsort Order, "min" min Order, "max" max Order, "sort" sort Order,
        "unique" unique Order, "groupby" groupby Order, "batch" batch Batch, "slice" slice Batch,
        "select" select List, "reject" reject List, "selectattr" selectattr List,
        "rejectattr" rejectattr List, "map" map List, "chain" chain List, "zip" zip List,
    ];
    table.push(("format", Value::from_function(filters::format), Cost::Format(FormatStyle::Printf)));
    table
}

fn guarded_tests() -> Vec<(&'static str, Value, Cost)> {
    macro_rules! table {
        ($($name:literal $test:ident $cost:ident,)*) => {
            vec![$(($name, Value::from_function(tests::$test), Cost::$cost),)*]
        };
    }
    table![
        "undefined" is_undefined Read, "defined" is_defined Read, "none" is_none Read, "safe" is_safe Read,
        "escaped" is_safe Read, "boolean" is_boolean Read, "odd" is_odd Read, "even" is_even Read,
        "divisibleby" is_divisibleby Read, "number" is_number Read, "integer" is_integer Read,
        "int" is_integer Read, "float" is_float Read, "string" is_string Read, "mapping" is_mapping Read,
        "startingwith" is_startingwith Read, "endingwith" is_endingwith Read, "lower" is_lower Read,
        "upper" is_upper Read, "sameas" is_sameas Compare, "eq" is_eq Compare, "equalto" is_eq Compare,
        "==" is_eq Compare, "ne" is_ne Compare, "!=" is_ne Compare, "lt" is_lt Compare,
        "lessthan" is_lt Compare, "<" is_lt Compare, "le" is_le Compare, "<=" is_le Compare,
        "gt" is_gt Compare, "greaterthan" is_gt Compare, ">" is_gt Compare, "ge" is_ge Compare,
        ">=" is_ge Compare, "in" is_in Compare, "true" is_true Read, "false" is_false Read,
        "filter" is_filter Read, "test" is_test Read,
    ]
}

/// A function with its charge.
fn guarded(
    function: Value,
    cost: Cost,
) -> impl Fn(&mut State, Rest<ValueOrKwargs>) -> Result<Value, Error> + Send + Sync + 'static {
    move |state: &mut State, args: Rest<ValueOrKwargs>| {
        let args = args.into_values();
        charge(cost, &args)?;
        function.call(state, &args).and_then(own)
    }
}

fn charge(cost: Cost, args: &[Value]) -> Result<(), Error> {
    let total = |each: fn(&Value) -> u64| args.iter().fold(0, |sum: u64, arg| sum.saturating_add(each(arg)));
    let text = |at: usize| args.get(at).and_then(Value::as_str).unwrap_or_default();
    match cost {
        Cost::Read => budget::work(total(text_len)),
        Cost::Text => budget::create(total(text_len)),
        Cost::List => budget::create(total(list_bytes)),
        Cost::Order => {
            budget::create(total(list_bytes))?;
            let n = args.first().and_then(Value::len).unwrap_or(0);
            let rounds = u64::from(usize::BITS - n.leading_zeros());
            budget::work(args.first().map_or(0, weight).saturating_mul(1 + rounds))
        }
        Cost::Compare => budget::work(total(weight)),
        Cost::Strip => {
            budget::create(text_len(args.first().unwrap_or(&Value::UNDEFINED)))?;
            budget::work((text(0).len() as u64).saturating_mul(1 + text(1).len() as u64))
        }
        Cost::Split => {
            let (text, separator) = (text(0), text(1));
            budget::create(text.len() as u64)?;
            let n = match separator {
                "" => text.split(|c: char| c.is_whitespace()).count(),
                separator => text.matches(separator).count() + 1,
            };
            budget::create(ITEM_BYTES * n as u64)
        }
        Cost::Batch => {
            budget::create(total(list_bytes))?;
            let count = args.get(1).and_then(Value::as_usize).unwrap_or(0);
            budget::create(ITEM_BYTES.saturating_mul(count as u64))
        }
        Cost::Format(style) => {
            let (format, args) = args.split_first().unwrap_or((&Value::UNDEFINED, &[]));
            check_format(style, format.as_str().unwrap_or_default(), args)
        }
    }
}

/// Bytes of a list of the items of `value`.
fn list_bytes(value: &Value) -> u64 {
    match (value.kind(), value.as_object()) {
        (ValueKind::String, _) => 24 * text_len(value),
        (_, Some(object)) => 24 * object.enumerator_len().unwrap_or(0) as u64,
        (_, None) => 0,
    }
}

/// Methods of Python's texts, lists and objects.
fn method(state: &mut State, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    if let (ValueKind::String, Some(text)) = (value.kind(), value.as_str()) {
        let mut whole = vec![value.clone()];
        whole.extend_from_slice(args);
        match (name, args) {
            ("replace", [from, to, count @ ..]) => {
                let (Some(from), Some(to)) = (from.as_str(), to.as_str()) else {
                    return Err(invalid("replace: expected two texts".into()));
                };
                let count = match count {
                    [] => None,
                    [count] => usize::try_from(i64::try_from(count.clone())?).ok(),
                    _ => return Err(Error::from(ErrorKind::TooManyArguments)),
                };
                return replace(text, from, to, count);
            }
            ("join", [items]) => return join(items, text),
            ("format", _) => charge(Cost::Format(FormatStyle::StrFormat), &whole)?,
            ("strip" | "lstrip" | "rstrip", _) => charge(Cost::Strip, &whole)?,
            ("split" | "rsplit" | "splitlines", _) => charge(Cost::Split, &whole)?,
            ("upper" | "lower" | "title" | "capitalize", _) => charge(Cost::Text, &whole)?,
            _ => charge(Cost::Read, &whole)?,
        }
    } else {
        budget::work(args.iter().fold(1, |sum: u64, arg| sum.saturating_add(weight(arg))))?;
    }
    unknown_method_callback(state, value, name, args).and_then(own)
}

/// A text as it is, and any other value as it prints.
fn as_text(value: &Value) -> Result<String, Error> {
    let mut out = Text::default();
    python::str(value, &mut out)?;
    out.finish()
}

/// Replaces the first `count` occurrences of `from` in `text` by `to`, or all.
fn replace(text: &str, from: &str, to: &str, count: Option<usize>) -> Result<Value, Error> {
    budget::work((text.len() + from.len()) as u64)?;
    let count = count.unwrap_or(usize::MAX);
    let n = text.matches(from).take(count).count();
    budget::create((text.len() as u64).saturating_add((n as u64).saturating_mul(to.len() as u64)))?;
    Ok(Value::from(text.replacen(from, to, count)))
}

/// Joins the printed items with `separator`.
fn join(items: &Value, separator: &str) -> Result<Value, Error> {
    use std::fmt::Write;

    let mut out = Text::default();
    for (i, item) in items.try_iter()?.checked().enumerate() {
        if i > 0 {
            out.write_str(separator)?;
        }
        python::str(&item?, &mut out)?;
    }
    out.finish().map(Value::from)
}

fn join_filter(
    items: &Value,
    separator: Option<&Value>,
    attribute: Option<&Value>,
    named: Kwargs,
) -> Result<Value, Error> {
    let separator = separator.cloned().or(named.get("d")?).unwrap_or_default();
    let attribute = attribute.cloned().or(named.get("attribute")?);
    named.assert_all_used()?;
    budget::work(text_len(items))?;
    let separator = as_text(&separator)?;
    match attribute {
        None => join(items, &separator),
        Some(attribute) => {
            let attributes = items.try_iter()?.checked().map(|item| path(item?, &attribute));
            let attributes: Vec<Value> = attributes.collect::<Result<_, _>>()?;
            join(&List::value(attributes, ListKind::List)?, &separator)
        }
    }
}

/// The part `a.b.0` of a value, or undefined if there is none.
fn path(value: Value, attribute: &Value) -> Result<Value, Error> {
    let Some(path) = attribute.as_str() else { return value.get_item(attribute) };
    path.split('.').try_fold(value, |value, part| match part.parse::<u32>() {
        _ if value.is_undefined() => Ok(value),
        Ok(at) => value.get_item(&Value::from(at)),
        Err(_) => value.get_item(&Value::from(part)),
    })
}

fn list(value: &Value) -> Result<Value, Error> {
    budget::create(list_bytes(value))?;
    List::value(value.try_iter()?.checked().collect::<Result<_, _>>()?, ListKind::List)
}

fn last(value: &Value) -> Result<Value, Error> {
    match (value.as_str(), value.downcast_object_ref::<List>()) {
        (Some(text), _) => Ok(text.chars().next_back().map(Value::from).unwrap_or_default()),
        (None, Some(list)) => Ok(list.items().last().cloned().unwrap_or_default()),
        (None, None) => Err(invalid("cannot get last item from value".into())),
    }
}

fn sum(
    values: &Value,
    attribute: Option<&Value>,
    start: Option<&Value>,
    named: Kwargs,
) -> Result<Value, Error> {
    let attribute = attribute.cloned().or(named.get("attribute")?);
    let mut total = start.cloned().or(named.get("start")?).unwrap_or(Value::from(0));
    named.assert_all_used()?;
    for item in values.try_iter()?.checked() {
        let item = match &attribute {
            Some(attribute) => path(item?, attribute)?,
            None => item?,
        };
        total = add(&total, &item)?;
    }
    Ok(total)
}

/// Charges for filling in a format. Each field may be as long as the longest argument, and as wide
/// as the widest.
fn check_format(style: FormatStyle, format: &str, args: &[Value]) -> Result<(), Error> {
    budget::work(format.len() as u64)?;
    let (n_fields, widest, takes_width) = match style {
        FormatStyle::Printf => printf_fields(format),
        FormatStyle::StrFormat => brace_fields(format),
    };
    let too_wide =
        |n: &str| Err(invalid(format!("format: a width or precision of {n}; the limit is {MAX_FIELD}")));
    if widest > MAX_FIELD {
        return too_wide(&widest.to_string());
    }
    let named = args.iter().filter(|arg| arg.is_kwargs()).filter_map(|arg| arg.as_object()?.try_iter_pairs());
    let all = args.iter().cloned().chain(named.flatten().map(|(_, value)| value));
    let mut longest = 0;
    for arg in all {
        if takes_width && arg.is_integer() && arg.as_i64().is_none_or(|n| n > MAX_FIELD as i64) {
            return too_wide(&arg.to_string());
        }
        longest = longest.max(match arg.kind() {
            ValueKind::String => 4 * text_len(&arg),
            // A number has up to 40 digits, or 330 if it is printed without an exponent.
            _ => weight(&arg).saturating_mul(if arg.as_object().is_some() { 48 } else { 512 }),
        });
    }
    let width = if takes_width { MAX_FIELD } else { widest };
    let fields = (n_fields as u64).saturating_mul(longest.saturating_add(width as u64));
    budget::create((format.len() as u64).saturating_add(fields))
}

/// Fields of `%5.2f`: their number, the widest, and true if one gets its width from an argument.
fn printf_fields(format: &str) -> (usize, usize, bool) {
    let (mut n, mut widest, mut takes_width) = (0, 0, false);
    for field in format.split('%').skip(1) {
        n += 1;
        // The name of an argument, `%(name)s`, does not affect its form.
        let spec = match field.strip_prefix('(').and_then(|named| named.split_once(')')) {
            Some((_, spec)) => spec,
            None => field,
        };
        let spec = spec.split(|c: char| c.is_alphabetic()).next().unwrap_or_default();
        widest = widest.max(largest_number(spec));
        takes_width |= spec.contains('*');
    }
    (n, widest, takes_width)
}

/// Like [`printf_fields`], for `{:>5}`.
fn brace_fields(format: &str) -> (usize, usize, bool) {
    let (mut n, mut widest, mut takes_width) = (0, 0, false);
    for field in format.split('{').skip(1) {
        n += 1;
        let spec = field.split('}').next().unwrap_or_default();
        widest = widest.max(largest_number(spec));
        // A nested field.
        takes_width |= !field.contains('}') && !field.is_empty();
    }
    (n, widest, takes_width)
}

fn largest_number(spec: &str) -> usize {
    spec.split(|c: char| !c.is_ascii_digit())
        .filter(|digits| !digits.is_empty())
        .map(|digits| digits.parse().unwrap_or(usize::MAX))
        .max()
        .unwrap_or(0)
}

//! Jinja2's operators as filters, under names that no template can write. Each charges beforehand
//! for what it reads and makes. Lists that the engine would join or slice lazily are made at once,
//! so that they cannot nest.

use minijinja::value::{Rest, ValueKind};
use minijinja::{Environment, Error, State, Value};

use super::budget::{self, Text};
use super::python::{self, invalid};
use super::values::{Dict, ITEM_BYTES, List, ListKind, check_storable, is_loop, own, text_len, weight};

/// Registers the operators in an environment.
pub(super) fn add_to(environment: &mut Environment<'static>) {
    environment.add_filter("@add", add);
    environment.add_filter("@mul", mul);
    environment.add_filter("@concat", concat);
    environment.add_filter("@eq", |a: &Value, b: &Value| compared(a, b, |a, b| a == b));
    environment.add_filter("@ne", |a: &Value, b: &Value| compared(a, b, |a, b| a != b));
    environment.add_filter("@lt", |a: &Value, b: &Value| compared(a, b, |a, b| a < b));
    environment.add_filter("@lte", |a: &Value, b: &Value| compared(a, b, |a, b| a <= b));
    environment.add_filter("@gt", |a: &Value, b: &Value| compared(a, b, |a, b| a > b));
    environment.add_filter("@gte", |a: &Value, b: &Value| compared(a, b, |a, b| a >= b));
    environment.add_filter("@in", |a: &Value, b: &Value| is_in(a, b));
    environment.add_filter("@notin", |a: &Value, b: &Value| is_in(a, b).map(|is_in| !is_in));
    environment.add_filter("@slice", slice);
    environment.add_filter("@get", |value: &Value, key: &Value| {
        budget::work(text_len(value).saturating_add(weight(key)))?;
        value.get_item(key)
    });
    environment.add_filter("@iter", |value: &Value| budget::work(text_len(value)).map(|()| value.clone()));
    environment.add_filter("@weigh", |value: &Value| budget::work(weight(value)).map(|()| value.clone()));
    environment.add_filter("@store", |value: &Value| check_storable(value).map(|()| value.clone()));
    environment.add_filter("@list", |value: &Value| collected(value, ListKind::List));
    environment.add_filter("@tuple", |value: &Value| collected(value, ListKind::Tuple));
    environment.add_filter("@map", |value: &Value| {
        let pairs = value.as_object().and_then(|object| object.try_iter_pairs());
        Dict::value(pairs.into_iter().flatten().collect())
    });
    environment.add_filter("@cycle", cycle);
    environment.add_filter("@changed", changed);
    environment.add_filter("@other", |_: &Value| -> Result<Value, Error> {
        Err(invalid("the template includes another template, and a model has only one".into()))
    });
}

fn collected(value: &Value, kind: ListKind) -> Result<Value, Error> {
    List::value(value.try_iter()?.collect(), kind)
}

fn list(value: &Value) -> Option<&List> {
    value.downcast_object_ref::<List>()
}

fn unsupported(operator: &str, a: &Value, b: &Value) -> Error {
    invalid(format!("tried to use {operator} operator on unsupported types {} and {}", a.kind(), b.kind()))
}

/// `a + b` of numbers, two texts, or two lists.
pub(super) fn add(a: &Value, b: &Value) -> Result<Value, Error> {
    if a.kind() == ValueKind::String && b.kind() == ValueKind::String {
        let (a, b) = (a.as_str().unwrap_or_default(), b.as_str().unwrap_or_default());
        budget::create((a.len() + b.len()) as u64)?;
        return Ok(Value::from([a, b].concat()));
    }
    if let (Some(x), Some(y)) = (list(a), list(b)) {
        let tuples = [x, y].map(|list| list.kind() == ListKind::Tuple);
        if tuples[0] != tuples[1] {
            return Err(unsupported("+", a, b));
        }
        let kind = if tuples[0] { ListKind::Tuple } else { ListKind::List };
        budget::work((x.items().len() + y.items().len()) as u64)?;
        return List::value([x.items(), y.items()].concat(), kind);
    }
    match (integer(a), integer(b)) {
        (Some(x), Some(y)) => match x.checked_add(y) {
            Some(sum) => Ok(number(sum)),
            None => Err(invalid(format!("unable to calculate {x} + {y}"))),
        },
        _ => match (float(a), float(b)) {
            (Some(x), Some(y)) => Ok(Value::from(x + y)),
            _ => Err(unsupported("+", a, b)),
        },
    }
}

/// `a * b` of numbers, or a text or list repeated.
fn mul(a: &Value, b: &Value) -> Result<Value, Error> {
    let times = |value: &Value| integer(value).map(|n| usize::try_from(n.max(0)).unwrap_or(usize::MAX));
    let (what, by) = if a.kind() == ValueKind::String || list(a).is_some() { (a, b) } else { (b, a) };
    if let Some(text) = what.as_str() {
        let n = times(by).ok_or_else(|| unsupported("*", a, b))?;
        budget::create((text.len() as u64).saturating_mul(n as u64))?;
        return Ok(Value::from(text.repeat(n)));
    }
    if let Some(list) = list(what) {
        let n = times(by).ok_or_else(|| unsupported("*", a, b))?;
        budget::create(ITEM_BYTES.saturating_mul(list.items().len() as u64).saturating_mul(n as u64))?;
        let n = if list.items().is_empty() { 0 } else { n };
        let items = std::iter::repeat_n(list.items(), n).flatten().cloned().collect();
        return List::value(
            items,
            if list.kind() == ListKind::Tuple { ListKind::Tuple } else { ListKind::List },
        );
    }
    match (integer(a), integer(b)) {
        (Some(x), Some(y)) => match x.checked_mul(y) {
            Some(product) => Ok(number(product)),
            None => Err(invalid(format!("unable to calculate {x} * {y}"))),
        },
        _ => match (float(a), float(b)) {
            (Some(x), Some(y)) => Ok(Value::from(x * y)),
            _ => Err(unsupported("*", a, b)),
        },
    }
}

/// An integer, or a value that Python counts as one.
fn integer(value: &Value) -> Option<i128> {
    (value.is_integer() || value.kind() == ValueKind::Bool).then(|| i128::try_from(value.clone()).ok())?
}

fn float(value: &Value) -> Option<f64> {
    if !matches!(value.kind(), ValueKind::Number | ValueKind::Bool) {
        return None;
    }
    f64::try_from(value.clone()).ok().or_else(|| integer(value).map(|n| n as f64))
}

fn number(n: i128) -> Value {
    i64::try_from(n).map_or_else(|_| Value::from(n), Value::from)
}

/// `a ~ b`.
fn concat(a: &Value, b: &Value) -> Result<Value, Error> {
    let mut out = Text::default();
    python::str(a, &mut out)?;
    python::str(b, &mut out)?;
    out.finish().map(Value::from)
}

/// Charges for a comparison. It ends at the first difference, so it reads no more than the smaller
/// value.
fn compared(a: &Value, b: &Value, compare: fn(&Value, &Value) -> bool) -> Result<bool, Error> {
    budget::work(weight(a).min(weight(b)))?;
    Ok(compare(a, b))
}

/// `value in container`.
pub(super) fn is_in(value: &Value, container: &Value) -> Result<bool, Error> {
    if container.is_undefined() {
        return Ok(false);
    }
    if let Some(text) = container.as_str() {
        budget::work(text.len() as u64)?;
        return match value.as_str() {
            Some(part) => Ok(text.contains(part)),
            None => {
                let mut part = Text::default();
                python::str(value, &mut part)?;
                Ok(text.contains(&part.finish()?))
            }
        };
    }
    if let Some(list) = list(container) {
        let each = weight(value).saturating_mul(1 + list.items().len() as u64);
        budget::work(each.min(weight(container)))?;
        return Ok(list.items().contains(value));
    }
    let object = container
        .as_object()
        .ok_or_else(|| invalid("cannot perform a containment check on this value".into()))?;
    budget::work(weight(value))?;
    Ok(object.get_value(value).is_some())
}

/// `value[start:stop:step]`, with Python's rules.
fn slice(value: &Value, start: &Value, stop: &Value, step: &Value) -> Result<Value, Error> {
    let part = |part: &Value| match part.is_none() {
        true => Ok(None),
        false => i64::try_from(part.clone()).map(Some),
    };
    let (start, stop, step) = (part(start)?, part(stop)?, part(step)?.unwrap_or(1));
    if step == 0 {
        return Err(invalid("cannot slice by step size of 0".into()));
    }
    if let Some(text) = value.as_str() {
        budget::create(text.len() as u64)?;
        let n = text.chars().count();
        let indices = Indices::new(n, start, stop, step);
        if step == 1 {
            return Ok(Value::from(text.chars().skip(indices.from).take(indices.n).collect::<String>()));
        }
        budget::create(4 * n as u64)?;
        let chars: Vec<char> = text.chars().collect();
        return Ok(Value::from(indices.filter_map(|at| chars.get(at)).collect::<String>()));
    }
    if value.is_undefined() || value.is_none() {
        return List::value(Vec::new(), ListKind::List);
    }
    let Some(list) = list(value) else {
        return Err(invalid(format!("value of type {} cannot be sliced", value.kind())));
    };
    let kind = if list.kind() == ListKind::Tuple { ListKind::Tuple } else { ListKind::List };
    let indices = Indices::new(list.items().len(), start, stop, step);
    budget::work(indices.n as u64)?;
    List::value(indices.filter_map(|at| list.items().get(at)).cloned().collect(), kind)
}

/// Python's `range(*slice(start, stop, step).indices(n))`.
struct Indices {
    from: usize,
    n: usize,
    step: i64,
}

impl Indices {
    fn new(len: usize, start: Option<i64>, stop: Option<i64>, step: i64) -> Indices {
        let len = len as i64;
        let (lowest, highest) = if step > 0 { (0, len) } else { (-1, len - 1) };
        let place = |at: i64| (if at < 0 { at.saturating_add(len) } else { at }).clamp(lowest, highest);
        let start = start.map_or(if step > 0 { lowest } else { highest }, place);
        let stop = stop.map_or(if step > 0 { highest } else { lowest }, place);
        let distance = if step > 0 { stop - start } else { start - stop };
        let n = if distance > 0 { (distance - 1) as u64 / step.unsigned_abs() + 1 } else { 0 };
        Indices { from: usize::try_from(start).unwrap_or(0), n: usize::try_from(n).unwrap_or(0), step }
    }
}

impl Iterator for Indices {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        self.n = self.n.checked_sub(1)?;
        let at = self.from;
        self.from = usize::try_from((at as i64).saturating_add(self.step)).unwrap_or(0);
        Some(at)
    }
}

/// `loop.cycle(…)`: the argument of the current iteration.
fn cycle(state: &mut State, subject: &Value, args: Rest<Value>) -> Result<Value, Error> {
    if !is_loop(subject) {
        return subject.call_method(state, "cycle", &args).and_then(own);
    }
    let at = subject.get_attr("index0")?.as_usize().unwrap_or(0);
    match at.checked_rem(args.len()) {
        Some(at) => Ok(args.get(at).cloned().unwrap_or_default()),
        None => Err(invalid("no items for cycling given".into())),
    }
}

/// `loop.changed(…)`: true if the arguments differ from those of the last call, which the loop
/// stores.
fn changed(state: &mut State, subject: &Value, args: Rest<Value>) -> Result<Value, Error> {
    for arg in args.iter() {
        check_storable(arg)?;
        budget::work(weight(arg))?;
    }
    subject.call_method(state, "changed", &args)
}

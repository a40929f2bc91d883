//! Numbers within bounds, as regular languages of their digits.

use serde_json::{Value, json};

use super::decimal::Decimal;
use super::node::{Bound, Types};
use super::pattern;
use super::rx::Rx;

/// Maximum number of endings of a multiple.
const MAX_ENDINGS: usize = 1_000;

/// Largest step, without its decimal point, that is counted by remainders. Each remainder is a
/// state, so a mask's time grows with the step.
const MAX_COUNTED: i128 = 10_000;

/// Enforcement of a number's restrictions.
pub(super) enum Numbers {
    /// A regular language of its digits.
    Digits(Rx),
    /// llguidance's counting of remainders, which uses floating point numbers.
    Counted(Value),
    /// A regular language of its digits; the rest of `multipleOf` is not enforced.
    NotMultiples(Rx),
}

/// Numbers of these types and within these bounds, which are multiples of all given steps and not
/// equal to a forbidden value.
pub(super) fn numbers(
    types: Types,
    bounds: &[Bound],
    multiples: &[Decimal],
    forbidden: &[Decimal],
) -> Numbers {
    let mut parts = vec![match (types.has(Types::INTEGER), types.has(Types::FRACTION)) {
        (true, false) => pattern::whole("0|-?[1-9][0-9]*"),
        // Few enough digits that a 64-bit float keeps them all; otherwise it could become an
        // integer.
        (false, _) => pattern::whole("-?(0|[1-9][0-9]{0,8})\\.[0-9]{0,5}[1-9]"),
        (true, true) if bounds.is_empty() && multiples.is_empty() && forbidden.is_empty() => {
            pattern::whole("-?(0|[1-9][0-9]*)(\\.[0-9]+)?([eE][+-]?[0-9]{1,2})?")
        }
        (true, true) => pattern::whole("-?(0|[1-9][0-9]*)(\\.[0-9]+)?"),
    }];
    parts.extend(bounds.iter().map(|bound| pattern::whole(&bounded(bound))));
    parts.extend(forbidden.iter().map(|value| pattern::whole(&same(value)).not()));
    let mut counted = Vec::new();
    for step in multiples {
        match multiples_of(step) {
            Some(regex) => parts.push(pattern::whole(&regex)),
            None => counted.push(step),
        }
    }
    match counted[..] {
        [] => Numbers::Digits(Rx::and(parts)),
        [step] if multiples.len() == 1 && forbidden.is_empty() => match leaf(types, bounds, step) {
            Some(schema) => Numbers::Counted(schema),
            None => Numbers::NotMultiples(Rx::and(parts)),
        },
        _ => Numbers::NotMultiples(Rx::and(parts)),
    }
}

/// A schema for llguidance, if all of its numbers are exact as floating point numbers.
fn leaf(types: Types, bounds: &[Bound], step: &Decimal) -> Option<Value> {
    let exact = |value: &Decimal| {
        let text =
            format!("{}{}.{}0", if value.is_negative { "-" } else { "" }, value.whole(), value.fraction);
        (value.whole.len() + value.fraction.len() <= 15).then(|| text.parse::<f64>().ok()).flatten()
    };
    let coefficient = step.scaled(step.fraction.len())?;
    let exact_step = exact(step)?;
    // llguidance counts remainders in 32 bits: ten times the largest, plus a digit in the highest
    // place.
    let is_counted = (1..=MAX_COUNTED).contains(&coefficient)
        && step.fraction.len() <= 8
        && read_as_float(exact_step) == coefficient as f64;
    if !is_counted || !types.has(Types::INTEGER) {
        return None;
    }
    let kind = if types.has(Types::FRACTION) { "number" } else { "integer" };
    let mut schema = json!({
        "type": kind, "multipleOf": exact_step, "x-guidance": { "whitespace_flexible": false },
    });
    for bound in bounds {
        let key = match (bound.is_least, bound.is_exclusive) {
            (true, false) => "minimum",
            (true, true) => "exclusiveMinimum",
            (false, false) => "maximum",
            (false, true) => "exclusiveMaximum",
        };
        let at = exact(&bound.at)?;
        let other = schema[key].as_f64();
        let at = match bound.is_least {
            true => other.map_or(at, |other| at.max(other)),
            false => other.map_or(at, |other| at.min(other)),
        };
        schema[key] = json!(at);
    }
    Some(schema)
}

/// The digits of a step as llguidance reads them; rounding may give it many more than were written.
fn read_as_float(mut step: f64) -> f64 {
    while step.fract() != 0.0 {
        step *= 10.0;
    }
    step
}

/// The number itself in all spellings without an exponent.
fn same(value: &Decimal) -> String {
    let sign = match (value.is_zero(), value.is_negative) {
        (true, _) => "-?",
        (false, true) => "-",
        (false, false) => "",
    };
    format!("{sign}{}{}", value.whole(), fraction_is(&value.fraction))
}

fn bounded(bound: &Bound) -> String {
    let at = &bound.at;
    let is_inclusive = !bound.is_exclusive;
    let any = "(0|[1-9][0-9]*)(\\.[0-9]+)?";
    match (bound.is_least, at.is_negative || (at.is_zero() && is_inclusive)) {
        (true, false) => above(at, is_inclusive),
        // A negative number is at least -2 if its absolute value is at most 2.
        (true, true) => format!("{any}|-({})", below(at, is_inclusive)),
        (false, false) if at.is_zero() => format!("-({})", above(at, is_inclusive)),
        (false, true) if at.is_negative => format!("-({})", above(at, is_inclusive)),
        (false, _) => format!("-({any})|{}", below(at, is_inclusive)),
    }
}

/// Digits without a sign of numbers above this absolute value.
fn above(at: &Decimal, is_inclusive: bool) -> String {
    let mut options = vec![format!("({})(\\.[0-9]+)?", whole_above(at.whole()))];
    options.push(format!("{}\\.({})", at.whole(), fraction_above(&at.fraction)));
    if is_inclusive {
        options.push(format!("{}{}", at.whole(), fraction_is(&at.fraction)));
    }
    options.join("|")
}

/// Digits without a sign of numbers below this absolute value.
fn below(at: &Decimal, is_inclusive: bool) -> String {
    let mut options = Vec::new();
    if let Some(whole) = whole_below(at.whole()) {
        options.push(format!("({whole})(\\.[0-9]+)?"));
    }
    if !at.fraction.is_empty() {
        options.push(format!("{}(\\.({}))?", at.whole(), fraction_below(&at.fraction)));
    }
    if is_inclusive {
        options.push(format!("{}{}", at.whole(), fraction_is(&at.fraction)));
    }
    // Nothing is below 0, so the class is empty.
    if options.is_empty() { "[]".into() } else { options.join("|") }
}

fn whole_above(digits: &str) -> String {
    let n = digits.len();
    let mut options = vec![format!("[1-9][0-9]{{{n},}}")];
    for (at, digit) in digits.bytes().enumerate().filter(|(_, digit)| *digit < b'9') {
        options.push(format!("{}[{}-9][0-9]{{{}}}", &digits[..at], char::from(digit + 1), n - at - 1));
    }
    options.join("|")
}

fn whole_below(digits: &str) -> Option<String> {
    let n = digits.len();
    let mut options = Vec::new();
    if n > 1 {
        options.push(format!("0|[1-9][0-9]{{0,{}}}", n - 2));
    }
    for (at, digit) in digits.bytes().enumerate() {
        let low = if at == 0 && n > 1 { b'1' } else { b'0' };
        if digit > low {
            let (low, high) = (char::from(low), char::from(digit - 1));
            options.push(format!("{}[{low}-{high}][0-9]{{{}}}", &digits[..at], n - at - 1));
        }
    }
    (!options.is_empty()).then(|| options.join("|"))
}

/// Fraction with its point: these digits and trailing zeros.
fn fraction_is(digits: &str) -> String {
    if digits.is_empty() { "(\\.0+)?".into() } else { format!("\\.{digits}0*") }
}

/// Fractions above these digits, without the point.
fn fraction_above(digits: &str) -> String {
    let mut options = vec![format!("{digits}[0-9]*[1-9][0-9]*")];
    for (at, digit) in digits.bytes().enumerate().filter(|(_, digit)| *digit < b'9') {
        options.push(format!("{}[{}-9][0-9]*", &digits[..at], char::from(digit + 1)));
    }
    options.join("|")
}

/// Fractions below these digits, without the point; `digits` are not empty.
fn fraction_below(digits: &str) -> String {
    let mut options = vec!["0+".to_owned()];
    for (at, digit) in digits.bytes().enumerate() {
        if digit > b'0' {
            options.push(format!("{}[0-{}][0-9]*", &digits[..at], char::from(digit - 1)));
        }
        if at > 0 {
            options.push(format!("{}0*", &digits[..at]));
        }
    }
    options.join("|")
}

/// Multiples of a step that their last digits determine.
fn multiples_of(step: &Decimal) -> Option<String> {
    let n_places = step.fraction.len();
    let coefficient = usize::try_from(step.scaled(n_places)?.unsigned_abs()).ok()?;
    if coefficient == 0 {
        return Some("-?0(\\.0+)?".into());
    }
    // The number of last digits that repeat with the coefficient.
    let n_digits = (0..4).find(|n| 10_usize.pow(*n) % coefficient == 0)? as usize;
    let modulus = 10_usize.pow(n_digits as u32);
    if modulus / coefficient > MAX_ENDINGS {
        return None;
    }
    let multiples = (0..modulus).step_by(coefficient);
    if n_places == 0 {
        let long = multiples.clone().map(|ending| match n_digits {
            0 => String::new(),
            n => format!("{ending:0n$}"),
        });
        let long: Vec<String> = long.collect();
        let short: Vec<String> = multiples.map(|value| value.to_string()).collect();
        return Some(format!("-?([0-9]*({})|{})(\\.0+)?", long.join("|"), short.join("|")));
    }
    if n_digits > n_places {
        return None;
    }
    // Digits before the last `n_digits` of the fraction are free.
    let free = n_places - n_digits;
    let endings: Vec<String> = multiples
        .map(|ending| match n_digits {
            0 => String::new(),
            n => format!("{ending:0n$}"),
        })
        .collect();
    let mut options = vec![format!("[0-9]{{{free}}}({})0*", endings.join("|"))];
    // Trailing zeros may be omitted.
    for ending in endings.iter().map(|ending| ending.trim_end_matches('0')) {
        options.push(format!("[0-9]{{{free}}}{ending}"));
    }
    if free > 0 {
        options.push(format!("[0-9]{{1,{free}}}"));
    }
    Some(format!("-?[0-9]+(\\.({}))?", options.join("|")))
}

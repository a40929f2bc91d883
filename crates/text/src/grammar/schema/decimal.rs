//! Decimal numbers by their digits, so that integers above 2^53 stay exact.

use std::cmp::Ordering;

use serde_json::Number;

/// Maximum number of digits of a number written without an exponent.
const MAX_DIGITS: i64 = 400;

/// A number by its digits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Decimal {
    pub(super) is_negative: bool,
    /// Digits before the point, without leading zeros; empty for 0.
    pub(super) whole: String,
    /// Digits after the point, without trailing zeros.
    pub(super) fraction: String,
}

impl Decimal {
    /// Converts a number; `None` if it has too many digits.
    pub(super) fn of(number: &Number) -> Option<Decimal> {
        let text = number.to_string();
        let (is_negative, text) = match text.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, text.as_str()),
        };
        let (mantissa, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
        let exponent: i64 = exponent.trim_start_matches('+').parse().ok()?;
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let point = whole.len() as i64 + exponent;
        if !(-MAX_DIGITS..=MAX_DIGITS).contains(&point) {
            return None;
        }
        let mut digits = format!("{whole}{fraction}");
        let point = match point {
            ..0 => {
                digits.insert_str(0, &"0".repeat(point.unsigned_abs() as usize));
                0
            }
            point => point as usize,
        };
        while digits.len() < point {
            digits.push('0');
        }
        let whole = digits[..point].trim_start_matches('0').to_owned();
        let fraction = digits[point..].trim_end_matches('0').to_owned();
        let is_zero = whole.is_empty() && fraction.is_empty();
        Some(Decimal { is_negative: is_negative && !is_zero, whole, fraction })
    }

    /// The digits before the point, at least one.
    pub(super) fn whole(&self) -> &str {
        if self.whole.is_empty() { "0" } else { &self.whole }
    }

    pub(super) fn is_zero(&self) -> bool {
        self.whole.is_empty() && self.fraction.is_empty()
    }

    pub(super) fn is_integer(&self) -> bool {
        self.fraction.is_empty()
    }

    fn magnitude(&self, other: &Decimal) -> Ordering {
        let whole = self.whole.len().cmp(&other.whole.len()).then_with(|| self.whole.cmp(&other.whole));
        whole.then_with(|| self.fraction.cmp(&other.fraction))
    }

    /// The number times 10^`n_places`; `None` unless that is an integer of at most 36 digits.
    pub(super) fn scaled(&self, n_places: usize) -> Option<i128> {
        let zeros = n_places.checked_sub(self.fraction.len())?;
        let digits = format!("0{}{}{}", self.whole, self.fraction, "0".repeat(zeros));
        if digits.len() > 37 {
            return None;
        }
        let value: i128 = digits.parse().ok()?;
        Some(if self.is_negative { -value } else { value })
    }

    /// Returns true if the number is a multiple of `step`; `None` if the two have too many digits.
    pub(super) fn is_multiple_of(&self, step: &Decimal) -> Option<bool> {
        let n_places = self.fraction.len().max(step.fraction.len());
        let (value, step) = (self.scaled(n_places)?, step.scaled(n_places)?);
        Some(if step == 0 { value == 0 } else { value % step == 0 })
    }
}

impl PartialOrd for Decimal {
    fn partial_cmp(&self, other: &Decimal) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Decimal {
    fn cmp(&self, other: &Decimal) -> Ordering {
        match (self.is_negative, other.is_negative) {
            (false, true) => Ordering::Greater,
            (true, false) => Ordering::Less,
            (false, false) => self.magnitude(other),
            (true, true) => other.magnitude(self),
        }
    }
}

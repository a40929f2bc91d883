//! Numbers that may be negative: users of llama.cpp and Ollama write -1 for "none", "all" and
//! "random".

use std::num::IntErrorKind;

/// A limit; `None`: no limit. The alias hides the `Option` from clap, which would make the flag
/// optional.
pub type Limit = Option<usize>;

/// A seed; `None`: a random one.
pub type RandomSeed = Option<u64>;

/// Parses a limit; a negative number means no limit.
pub fn limit(text: &str) -> Result<Limit, String> {
    Ok(match number(text, "a number of at least 0, or -1 for no limit")? {
        n if n < 0 => None,
        n => Some(usize::try_from(n).unwrap_or(usize::MAX)),
    })
}

/// Parses a limit; 0 and negative numbers mean no limit, and the result is then 0.
pub fn limit_number(text: &str) -> Result<usize, String> {
    let n = number(text, "a number of at least 0, or -1 for all")?;
    Ok(if n < 0 { 0 } else { usize::try_from(n).unwrap_or(usize::MAX) })
}

/// Parses a context length in tokens; 0 and negative numbers mean the model's own.
pub fn context(text: &str) -> Result<Limit, String> {
    limit_number(text).map(|n| Some(n).filter(|n| *n > 0))
}

/// Parses a top-k, like [`limit_number`].
pub fn top_k(text: &str) -> Result<usize, String> {
    limit_number(text)
}

/// Parses a seed; -1 is a random one. Other negative numbers count as their 64 bits, as on the
/// server.
pub fn seed(text: &str) -> Result<RandomSeed, String> {
    let expected = "a seed of 64 bits, or -1 for a random one";
    match number(text, expected)? {
        -1 => Ok(None),
        n => {
            let seed = u64::try_from(n).ok().or(i64::try_from(n).ok().map(|n| n as u64));
            seed.map(Some).ok_or_else(|| format!("{text} is too large, expected {expected}"))
        }
    }
}

/// Parses a number of bytes. K, M, G, T and KiB, MiB, … are powers of 1024; KB, MB, … are powers
/// of 1000.
pub fn parse_bytes(text: &str) -> Option<u64> {
    let (number, unit) =
        text.split_at(text.find(|c: char| c != '.' && !c.is_ascii_digit()).unwrap_or(text.len()));
    let (letter, thousand) = match unit.trim_start().to_ascii_lowercase().as_str() {
        "" | "b" => (None, 1),
        unit => match unit.strip_suffix("ib").or_else(|| unit.strip_suffix('b')) {
            Some(letter) if unit.len() == 2 => (Some(letter.to_owned()), 1000),
            Some(letter) => (Some(letter.to_owned()), 1024),
            None => (Some(unit.to_owned()), 1024),
        },
    };
    let power = match letter.as_deref() {
        None => 0,
        Some(letter) => ["k", "m", "g", "t"].iter().position(|known| *known == letter)? + 1,
    };
    let bytes = u64::checked_pow(thousand, power as u32)?;
    match number.parse::<u64>() {
        Ok(n) => n.checked_mul(bytes),
        Err(_) if power == 0 || !number.contains('.') => None,
        // A fraction of a unit.
        Err(_) => number.parse::<f64>().ok().map(|n| (n * bytes as f64) as u64),
    }
}

fn number(text: &str, expected: &str) -> Result<i128, String> {
    text.parse::<i128>().map_err(|error| match error.kind() {
        IntErrorKind::PosOverflow | IntErrorKind::NegOverflow => {
            format!("{text} is too large, expected {expected}")
        }
        _ => format!("expected {expected}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_in_every_unit() {
        for (text, bytes) in [
            ("0", 0),
            ("123", 123),
            ("7B", 7),
            ("1K", 1024),
            ("1kib", 1024),
            ("512M", 512 << 20),
            ("8GiB", 8 << 30),
            ("8g", 8 << 30),
            ("8GB", 8_000_000_000),
            ("8 gb", 8_000_000_000),
            ("1.5GiB", 3 << 29),
            ("2T", 2 << 40),
        ] {
            assert_eq!(parse_bytes(text), Some(bytes), "{text}");
        }
        for text in
            ["", "G", "x", "5x", "1.5", ".", "-1", "1GiBB", "iB", "1 2K", "99999999999999999999", "99999999T"]
        {
            assert_eq!(parse_bytes(text), None, "{text}");
        }
    }

    #[test]
    fn negative_numbers_mean_what_they_do_elsewhere() {
        assert_eq!((limit("-1"), limit("0"), limit("7")), (Ok(None), Ok(Some(0)), Ok(Some(7))));
        assert_eq!((context("0"), context("-1"), context("64")), (Ok(None), Ok(None), Ok(Some(64))));
        assert_eq!((limit_number("-1"), limit_number("64")), (Ok(0), Ok(64)));
        assert_eq!((seed("-1"), seed("18446744073709551615")), (Ok(None), Ok(Some(u64::MAX))));
        assert_eq!(seed("-2"), Ok(Some(u64::MAX - 1)));
        for (wrong, part) in [(limit("x").unwrap_err(), "-1"), (seed("1.5").unwrap_err(), "seed")] {
            assert!(wrong.contains(part), "{wrong}");
        }
    }
}

//! Target types and their notation.

use std::fmt;

use super::{Error, Result};
use weights::{Affine, BlockType, ScaleType};

/// Format of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// `.base`
    Base,
    /// GGUF
    Gguf,
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Format::Base => ".base",
            Format::Gguf => "GGUF",
        })
    }
}

/// The requested type of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// The tensor's own type.
    Keep,
    /// A given type. For an affine type, `fixed_group` tells whether the group size was requested.
    Type {
        /// The type.
        block: BlockType,
        /// True if other group sizes are not allowed.
        fixed_group: bool,
    },
}

/// A format, and the type of matrices in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// The format.
    pub format: Format,
    /// The type of matrices.
    pub wanted: Wanted,
}

/// The group size that the specification of `.base` has for each width; fewer bits have smaller
/// groups.
pub(super) fn usual_group(bits: usize) -> usize {
    match bits {
        2 | 3 => 32,
        8 => 128,
        _ => 64,
    }
}

impl Target {
    /// Parses the argument of `--to`: a type of `.base`, or `gguf`, or `gguf:` and a type of GGUF.
    ///
    /// # Errors
    /// The type is unknown.
    pub fn parse(text: &str) -> Result<Target> {
        let (format, name) = match text.split_once(':') {
            _ if text == "gguf" => (Format::Gguf, "keep"),
            Some(("gguf", name)) => (Format::Gguf, name),
            _ => (Format::Base, text),
        };
        Ok(Target { format, wanted: Wanted::parse(format, name)? })
    }
}

impl Wanted {
    /// Parses a type's name in a format, or `keep`.
    ///
    /// In `.base` it is `f32`, `f16`, `bf16`, or `q` and the bits (2, 3, 4, 5, 6, 8). Suffixes
    /// follow in any order: `-g32`, `-g64` or `-g128`; the scales' type `-bf16` (the default),
    /// `-f16` or `-e8m0`; and `-sym` for groups without an offset. Types with `-e8m0` have no
    /// offset either, because powers of two have no sign. In GGUF it is a name of
    /// [`BlockType::ALL`].
    ///
    /// # Errors
    /// The type is unknown.
    pub fn parse(format: Format, name: &str) -> Result<Wanted> {
        let name = name.to_ascii_lowercase();
        if name == "keep" {
            return Ok(Wanted::Keep);
        }
        let found = match format {
            Format::Base => base_type(&name),
            Format::Gguf => {
                let block = BlockType::ALL.into_iter().find(|b| b.name().eq_ignore_ascii_case(&name));
                block.map(|block| Wanted::Type { block, fixed_group: true })
            }
        };
        found.ok_or_else(|| Error::Type { found: name, expected: Self::known(format) })
    }

    /// All names that can be requested, for people.
    pub fn known(format: Format) -> String {
        match format {
            Format::Base => {
                "keep, f32, f16, bf16, gguf, gguf:TYPE, or q2, q3, q4, q5, q6, q8, to which may be added \
                             -g32, -g64 or -g128, -bf16, -f16 or -e8m0, and -sym"
                    .to_owned()
            }
            Format::Gguf => {
                let names: Vec<_> = BlockType::ALL.iter().map(|b| b.name().to_ascii_lowercase()).collect();
                format!("keep, {}", names.join(", "))
            }
        }
    }
}

fn base_type(name: &str) -> Option<Wanted> {
    let float = |block| Some(Wanted::Type { block, fixed_group: true });
    match name {
        "f32" => return float(BlockType::F32),
        "f16" => return float(BlockType::F16),
        "bf16" => return float(BlockType::BF16),
        _ => {}
    }
    let mut parts = name.split('-');
    let bits: usize = parts.next()?.strip_prefix('q')?.parse().ok()?;
    let (mut group, mut scale, mut symmetric) = (None, None, false);
    for part in parts {
        let again = match part {
            "g32" | "g64" | "g128" => group.replace(part[1..].parse().ok()?).is_some(),
            "bf16" => scale.replace(ScaleType::BF16).is_some(),
            "f16" => scale.replace(ScaleType::F16).is_some(),
            "e8m0" => scale.replace(ScaleType::E8M0).is_some(),
            "sym" => std::mem::replace(&mut symmetric, true),
            _ => return None,
        };
        if again {
            return None;
        }
    }
    let scale = scale.unwrap_or(ScaleType::BF16);
    let symmetric = symmetric || scale == ScaleType::E8M0;
    let affine = Affine::new(bits, group.unwrap_or(usual_group(bits)), scale, symmetric)?;
    Some(Wanted::Type { block: BlockType::Affine(affine), fixed_group: group.is_some() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Option<String> {
        match Target::parse(text).ok()?.wanted {
            Wanted::Keep => Some("keep".into()),
            Wanted::Type { block, .. } => Some(block.to_string()),
        }
    }

    #[test]
    fn types_are_what_their_names_say() {
        for (text, expected) in [
            ("q2", "AFFINE2_G32_BF16"),
            ("q4", "AFFINE4_G64_BF16"),
            ("Q6", "AFFINE6_G64_BF16"),
            ("q8", "AFFINE8_G128_BF16"),
            ("q4-g32-f16", "AFFINE4_G32_F16"),
            ("q4-f16-g32", "AFFINE4_G32_F16"),
            ("q5-sym", "AFFINE5_G64_BF16_SYM"),
            ("q8-e8m0", "AFFINE8_G128_E8M0_SYM"),
            ("f16", "F16"),
            ("keep", "keep"),
            ("gguf", "keep"),
            ("gguf:q4_k", "Q4_K"),
            ("gguf:Q8_0", "Q8_0"),
        ] {
            assert_eq!(name(text).as_deref(), Some(expected), "{text}");
        }
        for text in [
            "",
            "q",
            "q7",
            "q4-",
            "q4-g16",
            "q4-g32-g32",
            "q4-sym-sym",
            "q4_k",
            "gguf:q4",
            "gguf:",
            "ggml:f16",
        ] {
            let message = Target::parse(text).unwrap_err().to_string();
            assert!(message.contains("expected keep"), "{text}: {message}");
        }
    }
}

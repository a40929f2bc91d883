//! How a picture becomes numbers, as preprocessor_config.json says.

use weights::keys::PREPROCESSOR_PREFIX;
use weights::{Array, Metadata, Value};

use super::{SizingKind, VisionDescriptor};
use crate::error::{Error, Result};

/// How pixels between pixels are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filter {
    /// A triangle.
    Bilinear,
    /// Cubic, with -0.5.
    Bicubic,
    /// Three lobes of a windowed sinc.
    Lanczos,
}

/// The size to which a picture is brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sizing {
    /// `(height, width)`
    Exact(usize, usize),
    /// Sides are multiples of `unit`, and there are `least` to `most` pixels.
    Pixels {
        /// Pixels a side of joined patches.
        unit: usize,
        /// Pixels at least.
        least: usize,
        /// Pixels at most.
        most: usize,
    },
    /// As many joined patches of `unit` pixels a side as fit, in its shape, but no more than `most`.
    Rows {
        /// Pixels a side of joined patches.
        unit: usize,
        /// Joined patches at most.
        most: usize,
    },
    /// The longer side is brought to `longest`, both to multiples of `tile`, and the picture cut into tiles, where it `splits`.
    Tiles {
        /// Pixels.
        longest: usize,
        /// Pixels a side.
        tile: usize,
        /// Whether there are tiles, or the whole picture only.
        splits: bool,
    },
}

/// From bytes of colours to what a tower reads: sized, then `(colour * factor - mean) / std`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Recipe {
    /// To which size.
    pub sizing: Sizing,
    /// How.
    pub filter: Filter,
    /// From 0..=255 to 0..=1.
    pub factor: f32,
    /// By colour.
    pub mean: [f32; 3],
    /// By colour.
    pub std: [f32; 3],
}

impl Recipe {
    /// Of a tower that sees squares of `side` pixels, if it does, and joins squares of `unit` pixels.
    pub(super) fn read(
        metadata: &Metadata,
        tower: &VisionDescriptor,
        side: Option<usize>,
        unit: usize,
    ) -> Result<Recipe> {
        let key = |name: &str| format!("{PREPROCESSOR_PREFIX}{name}");
        let bad = |name: &str, expected: String| Error::BadKey {
            key: key(name),
            found: metadata.get(&key(name)).map(crate::keys::show).unwrap_or_default(),
            expected,
        };
        let count = |name: &str| -> Result<Option<usize>> {
            match metadata.get(&key(name)) {
                None | Some(Value::Null) => Ok(None),
                Some(_) => metadata
                    .usize(&key(name))
                    .filter(|n| (1..=1 << 28).contains(n))
                    .map(Some)
                    .ok_or_else(|| bad(name, "a number from 1 to 2^28".to_owned())),
            }
        };
        let three = |name: &str, usual: [f32; 3]| -> Result<[f32; 3]> {
            let list = match metadata.get(&key(name)) {
                None | Some(Value::Null) => return Ok(usual),
                Some(Value::Array(Array::Float(list))) => list.to_vec(),
                Some(Value::Array(Array::Int(list))) => list.iter().map(|v| *v as f32).collect(),
                Some(_) => return Err(bad(name, "three numbers".to_owned())),
            };
            match list[..] {
                [r, g, b] if list.iter().all(|v| v.is_finite()) => Ok([r, g, b]),
                _ => Err(bad(name, "three numbers".to_owned())),
            }
        };
        // A tower that centres colours itself is told so.
        let normalises = metadata.bool(&key("do_normalize")) != Some(false);
        let must = ["do_resize", "do_rescale"].into_iter().chain((!tower.centres).then_some("do_normalize"));
        for name in must {
            if metadata.bool(&key(name)) == Some(false) {
                return Err(bad(name, "true".to_owned()));
            }
        }
        if metadata.bool(&key("do_pan_and_scan")) == Some(true) {
            return Err(bad("do_pan_and_scan", "false: crops beside the picture are not built".to_owned()));
        }
        let side = side.unwrap_or(unit);
        let sizing = match tower.sizing {
            SizingKind::Square => {
                let (height, width) =
                    (count("size.height")?.unwrap_or(side), count("size.width")?.unwrap_or(side));
                if (height, width) != (side, side) {
                    return Err(bad("size.height", format!("{side}, as the tower sees")));
                }
                Sizing::Exact(side, side)
            }
            SizingKind::Tiles => {
                let tile = count("max_image_size.longest_edge")?.unwrap_or(side);
                if tile != side {
                    return Err(bad("max_image_size.longest_edge", format!("{side}, as the tower sees")));
                }
                Sizing::Tiles {
                    longest: count("size.longest_edge")?.unwrap_or(4 * tile),
                    tile,
                    splits: metadata.bool(&key("do_image_splitting")).unwrap_or(true),
                }
            }
            SizingKind::Pixels => {
                let least = count("min_pixels")?.or(count("size.shortest_edge")?).unwrap_or(56 * 56);
                let most = count("max_pixels")?.or(count("size.longest_edge")?).unwrap_or(28 * 28 * 1280);
                if least > most {
                    return Err(bad("size.shortest_edge", format!("at most the {most} of longest_edge")));
                }
                Sizing::Pixels { unit, least, most }
            }
            SizingKind::Rows => Sizing::Rows { unit, most: count("max_soft_tokens")?.unwrap_or(280) },
        };
        let filter = match (count("resample")?, tower.sizing) {
            (Some(1), _) | (None, SizingKind::Tiles) => Filter::Lanczos,
            (Some(2), _) | (None, SizingKind::Square) => Filter::Bilinear,
            (Some(3), _) | (None, SizingKind::Pixels | SizingKind::Rows) => Filter::Bicubic,
            (Some(_), _) => {
                return Err(bad("resample", "1 (Lanczos), 2 (bilinear) or 3 (bicubic)".to_owned()));
            }
        };
        let (mean, std) = match tower.sizing {
            SizingKind::Pixels if tower.positions == super::PatchPositions::None => {
                ([0.481_454_66, 0.457_827_5, 0.408_210_73], [0.268_629_54, 0.261_302_6, 0.275_777_1])
            }
            _ if tower.centres => ([0.0; 3], [1.0; 3]),
            _ => ([0.5; 3], [0.5; 3]),
        };
        let (mut mean, mut std) = match normalises {
            true => (three("image_mean", mean)?, three("image_std", std)?),
            false => ([0.0; 3], [1.0; 3]),
        };
        if std.contains(&0.0) {
            return Err(bad("image_std", "numbers other than 0".to_owned()));
        }
        if tower.centres {
            // 2 * ((colour - mean) / std - 0.5)
            mean.iter_mut().zip(&std).for_each(|(mean, std)| *mean += 0.5 * std);
            std.iter_mut().for_each(|std| *std *= 0.5);
        }
        Ok(Recipe {
            sizing,
            filter,
            factor: metadata.f64(&key("rescale_factor")).unwrap_or(1.0 / 255.0) as f32,
            mean,
            std,
        })
    }
}

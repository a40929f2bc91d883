//! Preprocessing of images, as in preprocessor_config.json.

use weights::keys::PREPROCESSOR_PREFIX;
use weights::{Array, Metadata, Value};

use super::{PatchPositions, SizingKind, VisionDescriptor};
use crate::error::{Error, Result};
use crate::keys::show;

/// Filters of resizing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filter {
    /// Triangle filter.
    Bilinear,
    /// Cubic filter with a = -0.5.
    Bicubic,
    /// Windowed sinc with three lobes.
    Lanczos,
}

/// The size to which an image is scaled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sizing {
    /// Height and width in pixels.
    Exact(usize, usize),
    /// Sides that are multiples of `unit`, with `least` to `most` pixels in all.
    Pixels {
        /// Pixels a side of joined patches.
        unit: usize,
        /// Least number of pixels.
        least: usize,
        /// Largest number of pixels.
        most: usize,
    },
    /// The largest size with the image's aspect ratio that has at most `most` squares of `unit`
    /// pixels a side.
    Rows {
        /// Pixels a side of joined patches.
        unit: usize,
        /// Largest number of joined patches.
        most: usize,
    },
    /// The longer side is scaled to `longest` and both sides to multiples of `tile`. The image is
    /// then cut into tiles, if it `splits`.
    Tiles {
        /// Pixels of the longer side.
        longest: usize,
        /// Pixels a side of a tile.
        tile: usize,
        /// True if the image is cut into tiles; false if there is only the whole image.
        splits: bool,
    },
}

/// From colour bytes to the tower's input: resized, then `(colour * factor - mean) / std`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Recipe {
    /// The size.
    pub sizing: Sizing,
    /// The filter of resizing.
    pub filter: Filter,
    /// Factor from 0..=255 to 0..=1.
    pub factor: f32,
    /// Mean of each colour.
    pub mean: [f32; 3],
    /// Standard deviation of each colour.
    pub std: [f32; 3],
}

impl Recipe {
    /// Reads the recipe of a tower that joins squares of `unit` pixels a side. `side` is the fixed
    /// size of its images in pixels, if it has one.
    pub(super) fn read(
        metadata: &Metadata,
        tower: &VisionDescriptor,
        side: Option<usize>,
        unit: usize,
    ) -> Result<Recipe> {
        let keys = Preprocessor { metadata };
        // A tower that normalises colours itself needs no normalisation here.
        let normalises = keys.flag("do_normalize") != Some(false);
        let must = ["do_resize", "do_rescale"].into_iter().chain((!tower.centres).then_some("do_normalize"));
        for name in must {
            if keys.flag(name) == Some(false) {
                return Err(keys.bad(name, "true".to_owned()));
            }
        }
        if keys.flag("do_pan_and_scan") == Some(true) {
            let expected = "false: crops beside the picture are not supported";
            return Err(keys.bad("do_pan_and_scan", expected.to_owned()));
        }
        let filter = match (keys.count("resample")?, tower.sizing) {
            (Some(1), _) | (None, SizingKind::Tiles) => Filter::Lanczos,
            (Some(2), _) | (None, SizingKind::Square) => Filter::Bilinear,
            (Some(3), _) | (None, SizingKind::Pixels | SizingKind::Rows) => Filter::Bicubic,
            (Some(_), _) => {
                return Err(keys.bad("resample", "1 (Lanczos), 2 (bilinear) or 3 (bicubic)".to_owned()));
            }
        };
        let (mean, std) = if tower.sizing == SizingKind::Pixels && tower.positions == PatchPositions::None {
            // The defaults are CLIP's.
            ([0.481_454_66, 0.457_827_5, 0.408_210_73], [0.268_629_54, 0.261_302_6, 0.275_777_1])
        } else if tower.centres {
            ([0.0; 3], [1.0; 3])
        } else {
            ([0.5; 3], [0.5; 3])
        };
        let (mut mean, mut std) = match normalises {
            true => (keys.three("image_mean", mean)?, keys.three("image_std", std)?),
            false => ([0.0; 3], [1.0; 3]),
        };
        if std.contains(&0.0) {
            return Err(keys.bad("image_std", "numbers other than 0".to_owned()));
        }
        if tower.centres {
            // 2 * ((colour - mean) / std - 0.5)
            mean.iter_mut().zip(&std).for_each(|(mean, std)| *mean += 0.5 * std);
            std.iter_mut().for_each(|std| *std *= 0.5);
        }
        Ok(Recipe {
            sizing: keys.sizing(tower.sizing, side.unwrap_or(unit), unit)?,
            filter,
            factor: metadata.f64(&keys.key("rescale_factor")).unwrap_or(1.0 / 255.0) as f32,
            mean,
            std,
        })
    }
}

/// The keys of preprocessor_config.json.
struct Preprocessor<'a> {
    metadata: &'a Metadata,
}

impl Preprocessor<'_> {
    fn key(&self, name: &str) -> String {
        format!("{PREPROCESSOR_PREFIX}{name}")
    }

    fn bad(&self, name: &str, expected: String) -> Error {
        let key = self.key(name);
        Error::BadKey { found: self.metadata.get(&key).map(show).unwrap_or_default(), key, expected }
    }

    fn flag(&self, name: &str) -> Option<bool> {
        self.metadata.bool(&self.key(name))
    }

    fn count(&self, name: &str) -> Result<Option<usize>> {
        let key = self.key(name);
        match self.metadata.get(&key) {
            None | Some(Value::Null) => Ok(None),
            Some(_) => {
                let n = self.metadata.usize(&key).filter(|n| (1..=1 << 28).contains(n));
                n.map(Some).ok_or_else(|| self.bad(name, "a number from 1 to 2^28".to_owned()))
            }
        }
    }

    /// A number for each colour.
    fn three(&self, name: &str, usual: [f32; 3]) -> Result<[f32; 3]> {
        let bad = || self.bad(name, "three numbers".to_owned());
        let list: Vec<f32> = match self.metadata.get(&self.key(name)) {
            None | Some(Value::Null) => return Ok(usual),
            Some(Value::Array(Array::Float(list))) => list.to_vec(),
            Some(Value::Array(Array::Int(list))) => list.iter().map(|v| *v as f32).collect(),
            Some(_) => return Err(bad()),
        };
        let three = <[f32; 3]>::try_from(list).map_err(|_| bad())?;
        if three.iter().all(|v| v.is_finite()) { Ok(three) } else { Err(bad()) }
    }

    /// The size for a tower with images of `side` pixels a side, or with joined squares of `unit`
    /// pixels a side.
    fn sizing(&self, kind: SizingKind, side: usize, unit: usize) -> Result<Sizing> {
        match kind {
            SizingKind::Square => {
                let (height, width) = (self.count("size.height")?, self.count("size.width")?);
                if (height.unwrap_or(side), width.unwrap_or(side)) != (side, side) {
                    return Err(self.bad("size.height", format!("{side}, the size of the tower's images")));
                }
                Ok(Sizing::Exact(side, side))
            }
            SizingKind::Tiles => {
                let tile = self.count("max_image_size.longest_edge")?.unwrap_or(side);
                if tile != side {
                    let expected = format!("{side}, the size of the tower's images");
                    return Err(self.bad("max_image_size.longest_edge", expected));
                }
                Ok(Sizing::Tiles {
                    longest: self.count("size.longest_edge")?.unwrap_or(4 * tile),
                    tile,
                    splits: self.flag("do_image_splitting").unwrap_or(true),
                })
            }
            SizingKind::Pixels => {
                let least = self.count("min_pixels")?.or(self.count("size.shortest_edge")?);
                let most = self.count("max_pixels")?.or(self.count("size.longest_edge")?);
                let (least, most) = (least.unwrap_or(56 * 56), most.unwrap_or(28 * 28 * 1280));
                if least > most {
                    return Err(self.bad("size.shortest_edge", format!("at most the {most} of longest_edge")));
                }
                Ok(Sizing::Pixels { unit, least, most })
            }
            SizingKind::Rows => {
                Ok(Sizing::Rows { unit, most: self.count("max_soft_tokens")?.unwrap_or(280) })
            }
        }
    }
}

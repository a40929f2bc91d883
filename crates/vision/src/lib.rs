//! Image preprocessing for vision models: decodes PNG, JPEG and WebP, resizes, and cuts into
//! patches.
//!
//! The steps are those of the model's [`Recipe`](model::Recipe), with the arithmetic of PyTorch's
//! antialiased resizing of bytes, so that a model reads the numbers that it was trained with. Files
//! are untrusted: sizes are checked before memory is allocated.
//!
//! The types of the recipe and of the result live in `model`, which reads the recipe from the
//! checkpoint. The engine accepts images without the decoders of this crate.
#![deny(missing_docs)]

mod colours;
mod resize;

use std::io::Cursor;

pub use colours::Colours;
use image::{DynamicImage, ImageDecoder, ImageFormat, ImageReader, Limits};
use model::{Picture, Recipe, Sizing, Tile, VisionSpec};
use resize::resize;
use sha2::{Digest, Sha256};

/// Largest size of a file, in bytes.
pub const MAX_BYTES: usize = 64 << 20;

/// Maximum number of pixels of a side.
pub const MAX_SIDE: u32 = 1 << 15;
/// Maximum number of pixels of an image. Towers read a million at most, so larger photographs gain
/// nothing.
pub const MAX_PIXELS: u64 = 1 << 25;
/// Maximum number of bytes of a decoded image, computed from its header: 4 bytes a pixel, or 8 with
/// 16-bit colours.
pub const MAX_DECODED: u64 = 1 << 27;

/// Maximum number of patches of an image, all tiles together.
pub const MAX_PATCHES: usize = 1 << 16;

/// `Result` with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// Reasons why an image is refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file has too many bytes.
    #[error("image: {n} bytes, expected at most {MAX_BYTES}")]
    TooManyBytes {
        /// Bytes of the file.
        n: usize,
    },
    /// The format is unknown.
    #[error("image: a file that begins with {start}, expected PNG, JPEG or WebP")]
    UnknownFormat {
        /// First bytes of the file.
        start: String,
    },
    /// The image has too many pixels, or none.
    #[error(
        "image: {width} x {height} pixels, expected at least 1 and at most {MAX_SIDE} a side and {MAX_PIXELS} in all"
    )]
    BadSize {
        /// Width in pixels.
        width: u32,
        /// Height in pixels.
        height: u32,
    },
    /// The decoded image would need too much memory.
    #[error("image: {n} bytes when it is decoded, expected at most {MAX_DECODED}; make the picture smaller")]
    TooLarge {
        /// Bytes of the decoded image.
        n: u64,
    },
    /// The file is damaged.
    #[error("image: {0}")]
    Broken(#[from] image::ImageError),
    /// The sides differ too much.
    #[error("image: {width} x {height} pixels, expected sides that differ by a factor of at most 200")]
    TooNarrow {
        /// Width in pixels.
        width: usize,
        /// Height in pixels.
        height: usize,
    },
    /// The image would become too many patches.
    #[error("image: {n} patches, expected at most {MAX_PATCHES}; make the picture smaller")]
    TooManyPatches {
        /// Number of patches.
        n: usize,
    },
}

/// Decodes a file. Transparency is dropped, and the image is rotated as its metadata says.
///
/// # Errors
/// The file is too large, of an unknown format, or damaged, or the image has too many pixels.
pub fn decode(file: &[u8]) -> Result<Colours> {
    if file.len() > MAX_BYTES {
        return Err(Error::TooManyBytes { n: file.len() });
    }
    let known = [ImageFormat::Png, ImageFormat::Jpeg, ImageFormat::WebP];
    let format = image::guess_format(file).ok().filter(|format| known.contains(format));
    let Some(format) = format else {
        return Err(Error::UnknownFormat { start: file[..file.len().min(12)].escape_ascii().to_string() });
    };
    let mut reader = ImageReader::with_format(Cursor::new(file), format);
    let mut limits = Limits::default();
    (limits.max_image_width, limits.max_image_height) = (Some(MAX_SIDE), Some(MAX_SIDE));
    limits.max_alloc = Some(2 * MAX_DECODED);
    reader.limits(limits);
    let mut decoder = reader.into_decoder()?;
    let (width, height) = decoder.dimensions();
    let n_pixels = u64::from(width) * u64::from(height);
    if n_pixels == 0 || width.max(height) > MAX_SIDE || n_pixels > MAX_PIXELS {
        return Err(Error::BadSize { width, height });
    }
    if decoder.total_bytes() > MAX_DECODED {
        return Err(Error::TooLarge { n: decoder.total_bytes() });
    }
    let orientation = decoder.orientation()?;
    let mut image = DynamicImage::from_decoder(decoder)?;
    image.apply_orientation(orientation);
    let rgb = image.into_rgb8();
    Ok(Colours { height: rgb.height() as usize, width: rgb.width() as usize, bytes: rgb.into_raw() })
}

/// Decodes a file and preprocesses the image for a tower.
///
/// # Errors
/// The errors of [`decode`] and [`prepare`].
pub fn picture(spec: &VisionSpec, file: &[u8]) -> Result<Picture> {
    prepare(spec, decode(file)?)
}

/// Preprocesses an image for a tower.
///
/// # Errors
/// The image's sides differ too much, or it has too many patches.
pub fn prepare(spec: &VisionSpec, colours: Colours) -> Result<Picture> {
    let recipe = &spec.recipe;
    let mut layout = None;
    let mut tiles = Vec::new();
    let mut add = |colours: &Colours| {
        let planes = normalised(recipe, colours);
        tiles.extend(spec.tile(&planes, colours.height, colours.width));
    };
    let patches = |height: usize, width: usize| match (height / spec.patch).checked_mul(width / spec.patch) {
        Some(n) if n <= MAX_PATCHES => Ok(()),
        n => Err(Error::TooManyPatches { n: n.unwrap_or(usize::MAX) }),
    };
    let Colours { height, width, .. } = colours;
    match recipe.sizing {
        Sizing::Exact(height, width) => add(&resize(colours, height, width, recipe.filter)),
        Sizing::Pixels { unit, least, most } => {
            if height.max(width) > 200 * height.min(width) {
                return Err(Error::TooNarrow { width, height });
            }
            let (height, width) = within_pixels(height, width, unit, least, most);
            patches(height, width)?;
            add(&resize(colours, height, width, recipe.filter));
        }
        Sizing::Rows { unit, most } => {
            let (height, width) = within_rows(height, width, unit, most);
            patches(height, width)?;
            add(&resize(colours, height, width, recipe.filter));
        }
        Sizing::Tiles { longest, tile, splits } => {
            let (height, width) = by_longest(height, width, longest);
            patches(height, width)?;
            let colours = resize(colours, height, width, recipe.filter);
            if splits {
                let (height, width) = in_tiles(height, width, tile);
                patches(height, width)?;
                let colours = resize(colours, height, width, recipe.filter);
                if height > tile || width > tile {
                    let (rows, cols) = (height / tile, width / tile);
                    for row in 0..rows {
                        (0..cols).for_each(|col| add(&cut(&colours, row * tile, col * tile, tile)));
                    }
                    layout = Some((rows, cols));
                }
                add(&resize(colours, tile, tile, recipe.filter));
            } else {
                add(&resize(colours, tile, tile, recipe.filter));
            }
        }
    }
    Ok(Picture { hash: hash(&tiles), tiles, layout })
}

/// Hash of an image's patches: equal for equal patches, and in practice only for those.
pub fn hash(tiles: &[Tile]) -> [u64; 2] {
    let mut sha = Sha256::new();
    for tile in tiles {
        sha.update((tile.grid.rows as u64).to_le_bytes());
        sha.update((tile.grid.cols as u64).to_le_bytes());
        let mut bytes = Vec::with_capacity(4 * tile.pixels.len());
        tile.pixels.iter().for_each(|value| bytes.extend_from_slice(&value.to_le_bytes()));
        sha.update(&bytes);
    }
    let digest = sha.finalize();
    let word = |at: usize| digest[at..at + 8].iter().fold(0, |word, byte| word << 8 | u64::from(*byte));
    [word(0), word(8)]
}

/// `(3, height, width)`: the normalised plane of each colour, as the tower reads it.
fn normalised(recipe: &Recipe, colours: &Colours) -> Vec<f32> {
    let n = colours.height * colours.width;
    let mut planes = vec![0.0; 3 * n];
    for (channel, plane) in planes.chunks_exact_mut(n).enumerate() {
        // The factor is moved into mean and deviation, as in the reference.
        let (mean, std) = (recipe.mean[channel] / recipe.factor, recipe.std[channel] / recipe.factor);
        for (value, pixel) in plane.iter_mut().zip(colours.bytes.chunks_exact(3)) {
            *value = (f32::from(pixel[channel]) - mean) / std;
        }
    }
    planes
}

fn cut(colours: &Colours, top: usize, left: usize, side: usize) -> Colours {
    let rows = (top..top + side).map(|y| 3 * (y * colours.width + left));
    let bytes = rows.flat_map(|start| &colours.bytes[start..start + 3 * side]).copied().collect();
    Colours { height: side, width: side, bytes }
}

/// Multiples of `unit` nearest to the image's sides. Beyond `least` and `most` pixels, sides with
/// the image's aspect ratio within these bounds.
fn within_pixels(height: usize, width: usize, unit: usize, least: usize, most: usize) -> (usize, usize) {
    let (h, w, u) = (height as f64, width as f64, unit as f64);
    // Ties round to even.
    let near = |side: f64| (side / u).round_ties_even() * u;
    let pixels = near(h) * near(w);
    let (new_h, new_w) = if pixels > most as f64 {
        let by = (h * w / most as f64).sqrt();
        let down = |side: f64| ((side / by / u).floor() * u).max(u);
        (down(h), down(w))
    } else if pixels < least as f64 {
        let by = (least as f64 / (h * w)).sqrt();
        let up = |side: f64| (side * by / u).ceil() * u;
        (up(h), up(w))
    } else {
        (near(h), near(w))
    };
    ((new_h as usize).max(unit), (new_w as usize).max(unit))
}

/// The largest multiples of `unit` with about the image's aspect ratio, rounded down, that have at
/// most `most` squares of `unit`. A side too short for one square gets one; the other side then
/// gets as many as fit.
fn within_rows(height: usize, width: usize, unit: usize, most: usize) -> (usize, usize) {
    let (h, w, u) = (height as f64, width as f64, unit as f64);
    let factor = (most as f64 * u * u / (h * w)).sqrt();
    let side = |side: f64| (factor * side / u).floor() as usize;
    let (rows, cols) = match (side(h), side(w)) {
        (0, _) => (1, (width / height).clamp(1, most)),
        (_, 0) => ((height / width).clamp(1, most), 1),
        sides => sides,
    };
    (rows * unit, cols * unit)
}

/// Limit on the longer side in pixels, for any recipe.
const LONGEST: usize = 4096;

/// Sides with the longer one scaled to `longest`, and the other rounded up to an even number.
fn by_longest(height: usize, width: usize, longest: usize) -> (usize, usize) {
    let ratio = width as f64 / height as f64;
    let even = |side: usize| side + side % 2;
    let (mut h, mut w) = match width >= height {
        true => (even((longest as f64 / ratio) as usize), longest),
        false => (longest, even((longest as f64 * ratio) as usize)),
    };
    (h, w) = (h.max(1), w.max(1));
    let ratio = w as f64 / h as f64;
    if w >= h && w > LONGEST {
        (h, w) = ((LONGEST as f64 / ratio) as usize, LONGEST);
    } else if h > w && h > LONGEST {
        (h, w) = (LONGEST, (LONGEST as f64 * ratio) as usize);
    }
    (h.max(1), w.max(1))
}

/// Multiples of `tile` that are not shorter, with about the same aspect ratio.
fn in_tiles(height: usize, width: usize, tile: usize) -> (usize, usize) {
    let ratio = width as f64 / height as f64;
    let up = |side: usize| side.div_ceil(tile).max(1) * tile;
    match width >= height {
        true => (up((up(width) as f64 / ratio) as usize), up(width)),
        false => (up(height), up((up(height) as f64 * ratio) as usize)),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn sizes_follow_the_reference() {
        // Python's round takes ties to even.
        assert_eq!(within_pixels(80, 110, 28, 3136, 1_003_520), (84, 112));
        assert_eq!(within_pixels(42, 70, 28, 1, 1 << 20), (56, 56));
        assert_eq!(within_pixels(10, 10, 28, 3136, 1 << 20), (56, 56));
        assert_eq!(within_pixels(2000, 1000, 28, 3136, 100_000), (420, 196));
        assert_eq!(by_longest(80, 110, 64), (46, 64));
        assert_eq!(within_rows(80, 110, 12, 20), (36, 60));
        assert_eq!(within_rows(1080, 1920, 48, 280), (576, 1056));
        assert_eq!(within_rows(10, 4000, 48, 70), (48, 3360));
        assert_eq!(within_rows(4000, 10, 48, 280), (13_440, 48));
        assert_eq!(in_tiles(46, 64, 32), (64, 64));
        assert_eq!(in_tiles(10, 100, 32), (32, 128));
    }

    #[test]
    fn hostile_files_are_refused() {
        let said = |file: &[u8]| decode(file).unwrap_err().to_string();
        assert!(said(b"GIF89a").contains("expected PNG, JPEG or WebP"));
        assert!(said(b"").contains("expected PNG"));
        // The header of this PNG claims 2^31 - 1 pixels a side.
        let mut png = Vec::new();
        let small = image::RgbImage::from_pixel(2, 2, image::Rgb([1, 2, 3]));
        small.write_to(&mut Cursor::new(&mut png), ImageFormat::Png).unwrap();
        assert_eq!(decode(&png).unwrap().bytes, [1, 2, 3].repeat(4));
        let mut huge = png.clone();
        huge[16..24].copy_from_slice(&[0x7f, 0xff, 0xff, 0xff, 0x7f, 0xff, 0xff, 0xff]);
        assert!(!said(&huge).is_empty());
        for end in 0..png.len() - 12 {
            assert!(decode(&png[..end]).is_err(), "{end} bytes");
        }
    }

    #[test]
    fn every_format_is_read() {
        let image = image::RgbImage::from_fn(9, 7, |x, y| image::Rgb([(20 * x) as u8, (30 * y) as u8, 90]));
        for format in [ImageFormat::Png, ImageFormat::Jpeg, ImageFormat::WebP] {
            let mut file = Vec::new();
            image.write_to(&mut Cursor::new(&mut file), format).unwrap();
            let colours = decode(&file).unwrap();
            assert_eq!((colours.height, colours.width), (7, 9));
            if format != ImageFormat::Jpeg {
                assert_eq!(colours.bytes, image.as_raw().clone(), "{format:?}");
            }
        }
    }
}

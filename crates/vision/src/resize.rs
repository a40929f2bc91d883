//! Antialiased resizing of bytes, as in PyTorch: first along rows, then along columns, with 16-bit
//! weights and bytes in between.
//!
//! A pixel is the weighted mean of the pixels under the filter, which is widened when the image
//! shrinks. The weights of a pixel sum to 1 before rounding. They are rounded to the number of bits
//! with which the largest fits into an `i16`. A half is added before the sum is shifted back.

use std::f64::consts::PI;

use model::Filter;

use crate::colours::Colours;

/// Resizes an image to `height` by `width` pixels.
pub(crate) fn resize(colours: Colours, height: usize, width: usize, filter: Filter) -> Colours {
    let mut colours = colours;
    if colours.width != width {
        let weights = Weights::new(colours.width, width, filter);
        let mut bytes = Vec::with_capacity(colours.height * width * 3);
        for row in colours.bytes.chunks_exact(3 * colours.width) {
            for at in 0..width {
                let (first, taps) = weights.of(at);
                for channel in 0..3 {
                    bytes.push(
                        weights
                            .sum(taps.iter().enumerate().map(|(i, w)| (row[3 * (first + i) + channel], *w))),
                    );
                }
            }
        }
        colours = Colours { width, bytes, ..colours };
    }
    if colours.height != height {
        let weights = Weights::new(colours.height, height, filter);
        let row = 3 * width;
        let mut bytes = Vec::with_capacity(height * row);
        for at in 0..height {
            let (first, taps) = weights.of(at);
            for column in 0..row {
                let pixel = |(i, w): (usize, &i16)| (colours.bytes[(first + i) * row + column], *w);
                bytes.push(weights.sum(taps.iter().enumerate().map(pixel)));
            }
        }
        colours = Colours { height, bytes, ..colours };
    }
    colours
}

/// The weights for each pixel along one side.
struct Weights {
    /// For each pixel, the first source pixel, and the range of its weights.
    spans: Vec<(usize, usize, usize)>,
    weights: Vec<i16>,
    /// Fractional bits of the weights.
    bits: u32,
}

impl Weights {
    fn new(from: usize, to: usize, filter: Filter) -> Weights {
        let scale = from as f64 / to as f64;
        let wide = scale.max(1.0);
        let support = reach(filter) * wide;
        let (mut spans, mut all) = (Vec::with_capacity(to), Vec::new());
        for at in 0..to {
            let centre = scale * (at as f64 + 0.5);
            let first = (centre - support + 0.5).max(0.0) as usize;
            let end = ((centre + support + 0.5) as usize).min(from).max(first + 1);
            let first = first.min(from - 1);
            let begin = all.len();
            all.extend((first..end).map(|i| weight(filter, (i as f64 - centre + 0.5) / wide)));
            let sum: f64 = all[begin..].iter().sum();
            if sum != 0.0 {
                all[begin..].iter_mut().for_each(|w| *w /= sum);
            }
            spans.push((first, begin, all.len()));
        }
        let largest = all.iter().copied().fold(0.0, f64::max);
        let mut bits = 0;
        while bits < 22 && (0.5 + largest * f64::from(1u32 << (bits + 1))) < f64::from(1 << 15) {
            bits += 1;
        }
        let rounded = |w: &f64| (w * f64::from(1u32 << bits) + if *w < 0.0 { -0.5 } else { 0.5 }) as i16;
        Weights { spans, weights: all.iter().map(rounded).collect(), bits }
    }

    fn of(&self, at: usize) -> (usize, &[i16]) {
        let (first, begin, end) = self.spans[at];
        (first, &self.weights[begin..end])
    }

    fn sum(&self, pixels: impl Iterator<Item = (u8, i16)>) -> u8 {
        let half = if self.bits > 0 { 1 << (self.bits - 1) } else { 0 };
        let sum = pixels.fold(half, |sum, (pixel, weight)| sum + i32::from(pixel) * i32::from(weight));
        (sum >> self.bits).clamp(0, 255) as u8
    }
}

/// Half the filter's width, in pixels of the smaller image.
fn reach(filter: Filter) -> f64 {
    match filter {
        Filter::Bilinear => 1.0,
        Filter::Bicubic => 2.0,
        Filter::Lanczos => 3.0,
    }
}

fn weight(filter: Filter, x: f64) -> f64 {
    let x = x.abs();
    match filter {
        Filter::Bilinear => (1.0 - x).max(0.0),
        Filter::Bicubic => {
            const A: f64 = -0.5;
            if x < 1.0 {
                ((A + 2.0) * x - (A + 3.0)) * x * x + 1.0
            } else if x < 2.0 {
                (((x - 5.0) * x + 8.0) * x - 4.0) * A
            } else {
                0.0
            }
        }
        Filter::Lanczos => {
            let sinc = |x: f64| if x == 0.0 { 1.0 } else { (PI * x).sin() / (PI * x) };
            if x < 3.0 { sinc(x) * sinc(x / 3.0) } else { 0.0 }
        }
    }
}

//! RoPE frequencies, and the ways in which checkpoints stretch them to longer contexts.
//!
//! Pair `i` of a head's `n_dims` rotated columns has the frequency `theta^(-2i / n_dims)` radians a
//! position (Su et al. 2021, RoFormer). Frequencies are computed in f64 and rounded once. The
//! reference computes them in f32, which differs by a relative 1e-7.

use std::f64::consts::PI;
use std::fmt;

use weights::Naming;

use crate::error::{Error, Result};
use crate::keys::Keys;
use crate::names::Key;

/// RoPE of one or more layers.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeSpec {
    /// Base of the frequencies.
    pub theta: f64,
    /// Columns of a head that rotate; even.
    pub n_dims: usize,
    /// Scaling of the frequencies for longer contexts.
    pub scaling: RopeScaling,
    /// `(n_dims / 2)`: divisors of the frequencies that the file stores.
    pub divisors: Option<Vec<f32>>,
}

/// Scaling of RoPE frequencies for longer contexts.
#[derive(Clone, Debug, PartialEq)]
pub enum RopeScaling {
    /// No scaling.
    None,
    /// Frequencies of whole heads, divided by `factor`; only the first `part` of the pairs rotates.
    Proportional {
        /// Share of the pairs that rotate.
        part: f64,
        /// Divisor of the frequencies; mostly 1.
        factor: f64,
    },
    /// All frequencies divided by `factor` (Chen et al. 2023, position interpolation).
    Linear {
        /// Divisor of the frequencies; at least 1.
        factor: f64,
    },
    /// Frequencies with wavelengths over `original / low` are divided by `factor`, those under
    /// `original / high` are kept, and those between are blended (Llama 3.1's published code).
    ByWavelength {
        /// The divisor of the lowest frequencies.
        factor: f64,
        /// Rotations over the original context below which a frequency is divided.
        low: f64,
        /// Rotations over the original context above which a frequency is kept.
        high: f64,
        /// The original context, in positions.
        original: f64,
    },
    /// Like [`Self::ByWavelength`], with a linear ramp over pairs (YaRN; Peng et al. 2023).
    Yarn {
        /// The divisor of the lowest frequencies.
        factor: f64,
        /// Rotations over the original context above which a frequency is kept.
        beta_fast: f64,
        /// Rotations over the original context below which a frequency is divided.
        beta_slow: f64,
        /// The original context, in positions.
        original: f64,
        /// True if the ramp's ends are rounded to whole pairs.
        truncate: bool,
        /// Factor on cosine and sine.
        attention_factor: f64,
    },
    /// One divisor for each pair, with one list for contexts up to the original and one beyond it
    /// (Ding et al. 2024).
    LongRope {
        /// `(n_dims / 2)`: divisors for contexts up to the original.
        short: Vec<f32>,
        /// `(n_dims / 2)`: divisors for longer contexts.
        long: Vec<f32>,
        /// The original context, in positions.
        original: f64,
        /// Factor on cosine and sine.
        attention_factor: f64,
    },
}

/// Frequency divisors that the checkpoint stores as tensors.
#[derive(Clone, Debug, Default)]
pub(crate) struct RopeTensors {
    pub divisors: Option<Vec<f32>>,
    pub short: Option<Vec<f32>>,
    pub long: Option<Vec<f32>>,
}

impl RopeSpec {
    /// `(n_dims / 2)`: frequencies in radians a position, for a context of `n_ctx` positions.
    pub fn frequencies(&self, n_ctx: usize) -> Vec<f32> {
        let n_dims = self.n_dims as f64;
        let frequency = |i: usize| self.theta.powf(-2.0 * i as f64 / n_dims);
        let scaled = |i: usize| {
            let f = frequency(i);
            match &self.scaling {
                RopeScaling::None => f,
                RopeScaling::Proportional { part, factor } => {
                    let n_pairs = (n_dims * part / 2.0).floor();
                    if (i as f64) < n_pairs { f / factor } else { 0.0 }
                }
                RopeScaling::Linear { factor } => f / factor,
                RopeScaling::ByWavelength { factor, low, high, original } => {
                    let rotations = original * f / (2.0 * PI);
                    let keep = ((rotations - low) / (high - low)).clamp(0.0, 1.0);
                    f * (keep + (1.0 - keep) / factor)
                }
                RopeScaling::Yarn { factor, beta_fast, beta_slow, original, truncate, .. } => {
                    let pair_of = |rotations: f64| {
                        n_dims * (original / (rotations * 2.0 * PI)).ln() / (2.0 * self.theta.ln())
                    };
                    let (mut first, mut last) = (pair_of(*beta_fast), pair_of(*beta_slow));
                    if *truncate {
                        (first, last) = (first.floor(), last.ceil());
                    }
                    let (first, mut last) = (first.max(0.0), last.min(n_dims - 1.0));
                    if first == last {
                        last += 0.001; // As in the reference: no division by zero.
                    }
                    let keep = 1.0 - ((i as f64 - first) / (last - first)).clamp(0.0, 1.0);
                    f * (keep + (1.0 - keep) / factor)
                }
                RopeScaling::LongRope { short, long, original, .. } => {
                    let list = if n_ctx as f64 > *original { long } else { short };
                    f / f64::from(list.get(i).copied().unwrap_or(1.0))
                }
            }
        };
        let divisor = |i: usize| self.divisors.as_ref().and_then(|d| d.get(i)).map_or(1.0, |d| f64::from(*d));
        (0..self.n_dims / 2).map(|i| (scaled(i) / divisor(i)) as f32).collect()
    }

    /// Factor on cosine and sine.
    pub fn scale(&self) -> f32 {
        match self.scaling {
            RopeScaling::Yarn { attention_factor, .. } | RopeScaling::LongRope { attention_factor, .. } => {
                attention_factor as f32
            }
            RopeScaling::None
            | RopeScaling::Proportional { .. }
            | RopeScaling::Linear { .. }
            | RopeScaling::ByWavelength { .. } => 1.0,
        }
    }

    /// Reads the RoPE of layers whose heads have `head_dim` columns.
    pub(crate) fn read(
        keys: &Keys<'_>,
        head_dim: usize,
        n_ctx_train: usize,
        tensors: &RopeTensors,
    ) -> Result<RopeSpec> {
        let mut theta = keys.real(Key::RopeTheta)?.unwrap_or(10_000.0);
        let n_dims = n_dims(keys, head_dim)?;
        if keys.word(Key::RopeKind)? == Some("dynamic")
            && let Some(alpha) = keys.real(Key::RopeAlpha)?.filter(|alpha| *alpha > 0.0 && n_dims > 2)
        {
            theta *= alpha.powf(n_dims as f64 / (n_dims - 2) as f64);
            return Ok(RopeSpec { theta, n_dims, scaling: RopeScaling::None, divisors: None });
        }
        let scaling = scaling(keys, n_dims, n_ctx_train, tensors)?;
        let divisors = check_list(keys, Key::RopeFactor, tensors.divisors.clone(), n_dims)?;
        Ok(RopeSpec { theta, n_dims, scaling, divisors })
    }
}

/// The checkpoints' word for [`RopeScaling::Proportional`].
const PROPORTIONAL: &str = "proportional";

fn n_dims(keys: &Keys<'_>, head_dim: usize) -> Result<usize> {
    // Proportional frequencies are those of the whole head; pairs beyond the part have frequency 0.
    let proportional = keys.word(Key::RopeKind)? == Some(PROPORTIONAL);
    let part = if proportional { None } else { keys.real(Key::RopePart)? };
    let n_dims = match keys.count(Key::RopeDims)? {
        Some(n) => n,
        None => part.map_or(head_dim, |part| (head_dim as f64 * part) as usize),
    };
    if n_dims == 0 || n_dims % 2 != 0 || n_dims > head_dim {
        let key = if part.is_some() { Key::RopePart } else { Key::RopeDims };
        return Err(keys.bad(
            key,
            format!("{n_dims} columns that rotate"),
            format!("an even number up to the head's {head_dim}"),
        ));
    }
    Ok(n_dims)
}

fn scaling(keys: &Keys<'_>, n_dims: usize, n_ctx_train: usize, tensors: &RopeTensors) -> Result<RopeScaling> {
    let need = |key: Key| keys.real(key)?.ok_or_else(|| keys.missing(key));
    let original = keys.real(Key::RopeContext)?.unwrap_or(n_ctx_train as f64);
    let stretch = n_ctx_train as f64 / original;
    // In GGUF files 0 means no scaling. A factor without a kind means linear, and stored divisors
    // need no kind.
    let factor = keys.real(Key::RopeFactor)?.filter(|f| *f != 0.0);
    let kind = match keys.word(Key::RopeKind)? {
        _ if tensors.long.is_some() => "longrope",
        Some(kind) => kind,
        None if factor.is_some() => "linear",
        None => "default",
    };
    match kind {
        // "mrope" marks positions with three axes, whose sections are read with the vision tower.
        "default" | "none" | "mrope" => Ok(RopeScaling::None),
        PROPORTIONAL => Ok(RopeScaling::Proportional {
            part: keys.real(Key::RopePart)?.unwrap_or(1.0),
            factor: factor.unwrap_or(1.0),
        }),
        "linear" => match factor {
            Some(factor) => Ok(RopeScaling::Linear { factor }),
            None if keys.naming() == Naming::Gguf => Ok(RopeScaling::None),
            None => Err(keys.missing(Key::RopeFactor)),
        },
        "llama3" => {
            let (low, high) = (need(Key::RopeLow)?, need(Key::RopeHigh)?);
            if low >= high {
                return Err(keys.bad(
                    Key::RopeLow,
                    low,
                    format!("less than the high frequency factor, {high}"),
                ));
            }
            let factor = factor.ok_or_else(|| keys.missing(Key::RopeFactor))?;
            Ok(RopeScaling::ByWavelength { factor, low, high, original })
        }
        "yarn" => {
            let factor = factor.unwrap_or(stretch);
            let magnitude = |m: f64| if factor <= 1.0 { 1.0 } else { 0.1 * m * factor.ln() + 1.0 };
            let given = keys.real(Key::RopeAttention)?;
            let attention_factor = match (keys.naming(), given) {
                // The factor is applied to attention scores instead, on queries and keys.
                (Naming::Gguf, given) if keys.real(Key::RopeLogMultiplier)?.is_some_and(|m| m != 0.0) => {
                    given.unwrap_or(1.0)
                }
                (Naming::Gguf, given) => magnitude(1.0) * given.unwrap_or(1.0),
                (_, Some(given)) => given,
                (_, None) => {
                    let set = |key: Key| Ok::<_, Error>(keys.real(key)?.filter(|m| *m != 0.0));
                    match (set(Key::RopeMscale)?, set(Key::RopeMscaleAll)?) {
                        (Some(mscale), Some(all)) => magnitude(mscale) / magnitude(all),
                        _ => magnitude(1.0),
                    }
                }
            };
            Ok(RopeScaling::Yarn {
                factor,
                beta_fast: keys.real(Key::RopeBetaFast)?.unwrap_or(32.0),
                beta_slow: keys.real(Key::RopeBetaSlow)?.unwrap_or(1.0),
                original,
                truncate: keys.flag(Key::RopeTruncate)?.unwrap_or(true),
                attention_factor,
            })
        }
        "longrope" | "su" => {
            let list = |key: Key, tensor: &Option<Vec<f32>>| {
                let list = if tensor.is_some() { tensor.clone() } else { keys.reals(key)? };
                check_list(keys, key, list, n_dims)?.ok_or_else(|| keys.missing(key))
            };
            let usual = if stretch <= 1.0 { 1.0 } else { (1.0 + stretch.ln() / original.ln()).sqrt() };
            Ok(RopeScaling::LongRope {
                short: list(Key::RopeShort, &tensors.short)?,
                long: list(Key::RopeLong, &tensors.long)?,
                original,
                attention_factor: keys.real(Key::RopeAttention)?.unwrap_or(usual),
            })
        }
        other => Err(keys.bad(
            Key::RopeKind,
            format!("{other:?}"),
            "default, proportional, linear, llama3, yarn or longrope",
        )),
    }
}

fn check_list(keys: &Keys<'_>, key: Key, list: Option<Vec<f32>>, n_dims: usize) -> Result<Option<Vec<f32>>> {
    match &list {
        Some(l) if l.len() != n_dims / 2 => Err(keys.bad(
            key,
            format!("{} factors", l.len()),
            format!("{}, one for each pair of columns that rotate", n_dims / 2),
        )),
        Some(l) if l.iter().any(|v| !v.is_finite() || *v <= 0.0) => {
            Err(keys.bad(key, "a factor that is not a number above 0", "numbers above 0"))
        }
        _ => Ok(list),
    }
}

impl fmt::Display for RopeSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "base {}, {} columns", self.theta, self.n_dims)?;
        match &self.scaling {
            RopeScaling::None => {}
            RopeScaling::Proportional { part, .. } => write!(f, ", {part} of the pairs")?,
            RopeScaling::Linear { factor } => write!(f, ", linear factor {factor}")?,
            RopeScaling::ByWavelength { factor, original, .. } => {
                write!(f, ", by wavelength factor {factor} from {original} positions")?;
            }
            RopeScaling::Yarn { factor, original, .. } => {
                write!(f, ", YaRN factor {factor} from {original} positions")?
            }
            RopeScaling::LongRope { original, .. } => write!(f, ", LongRoPE from {original} positions")?,
        }
        if self.divisors.is_some() {
            write!(f, ", divisors from the file")?;
        }
        Ok(())
    }
}

//! `--validate-prefill`: prefill in chunks and token by token must give the same logits.

use device::Numerics;

use crate::{Engine, Error, Prefill, Result};

/// Largest difference between two orders of the same arithmetic, relative to the standard deviation
/// of the logits.
///
/// With [`Numerics::Fast`] a device may add in another order for many rows than for one, and may
/// round activations to 8 bits. A value that rounds the other way then changes by up to 1/127 of
/// its block's largest, in every layer anew. Engines that round so differ from the exact logits by
/// an RMS of 0.2 to 0.4, where the logits' own standard deviation is about 5. Two independent
/// roundings differ by 1.4 times that, so up to a tenth. A prompt computed wrongly differs by about
/// the deviation itself. A small mistake may hide below this bound: the exact check is the one with
/// [`Numerics::Deterministic`], whose bound is 0.
pub const FAST_BOUND: f64 = 0.1;

/// Result of the check.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct PrefillCheck {
    /// Number of positions compared: the last ones of the prompt, as many as a step has outputs.
    pub n_positions: usize,
    /// Root mean square of the differences of all their logits.
    pub rms: f64,
    /// Largest difference of two logits.
    pub max: f64,
    /// Standard deviation of the logits, computed token by token.
    pub spread: f64,
    /// Bound of `rms`: [`FAST_BOUND`] times `spread`, or 0 with [`Numerics::Deterministic`].
    pub bound: f64,
}

impl Engine {
    /// Compute a prompt both ways and compare the logits of its last positions. These depend on all
    /// earlier rows through the keys and values that they attend to.
    ///
    /// # Errors
    /// [`Error::PrefillDiffers`] past the bound; and as [`Engine::evaluate`].
    pub fn validate_prefill(&mut self, tokens: &[u32]) -> Result<PrefillCheck> {
        let n_wanted = self.limits.max_outputs.min(tokens.len());
        let mut single = Vec::with_capacity(n_wanted * self.model.n_vocab());
        self.evaluate(tokens, n_wanted, Prefill::PerToken, &mut |_, logits| {
            single.extend_from_slice(logits);
            Ok(())
        })?;
        let (mut sum, mut max, mut at) = (0.0, 0f64, 0);
        self.evaluate(tokens, n_wanted, Prefill::Batched, &mut |_, logits| {
            for (a, b) in logits.iter().zip(&single[at..]) {
                // Equal infinities (masked logits) differ by 0.
                let difference = if a == b { 0.0 } else { (f64::from(*a) - f64::from(*b)).abs() };
                sum += difference * difference;
                max = if difference.is_nan() { f64::INFINITY } else { max.max(difference) };
            }
            at += logits.len();
            Ok(())
        })?;
        let n = single.len().max(1) as f64;
        let finite = || single.iter().filter(|l| l.is_finite()).map(|l| f64::from(*l));
        let mean = finite().sum::<f64>() / n;
        let spread = (finite().map(|l| (l - mean).powi(2)).sum::<f64>() / n).sqrt();
        let bound = match self.limits.numerics {
            Numerics::Fast => FAST_BOUND * spread,
            Numerics::Deterministic => 0.0,
        };
        let check = PrefillCheck { n_positions: n_wanted, rms: (sum / n).sqrt(), max, spread, bound };
        if check.rms > check.bound || check.rms.is_nan() {
            let what = format!("the last {n_wanted} of {} positions", tokens.len());
            return Err(Error::PrefillDiffers { what, rms: check.rms, max, bound });
        }
        Ok(check)
    }
}

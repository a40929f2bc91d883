//! Logits, with a mask of the tokens that may be chosen.

use super::Candidate;

/// Logits that are compared at once, equal to the bits of a mask word.
const CHUNK: usize = 32;

/// Logits and a mask of allowed tokens. Nothing is copied.
#[derive(Clone, Copy, Debug)]
pub struct Allowed<'a> {
    /// `(n_vocab)`
    logits: &'a [f32],
    /// `(n_vocab.div_ceil(32))`: bit `t % 32` of word `t / 32` is set if token `t` is allowed.
    /// `None` allows all.
    mask: Option<&'a [u32]>,
}

impl<'a> Allowed<'a> {
    /// All tokens are allowed.
    pub fn all(logits: &'a [f32]) -> Allowed<'a> {
        Allowed { logits, mask: None }
    }

    /// Tokens whose bit is set are allowed.
    pub fn masked(logits: &'a [f32], mask: &'a [u32]) -> Allowed<'a> {
        Allowed { logits, mask: Some(mask) }
    }

    /// Size of the vocabulary, forbidden tokens included.
    pub fn n_vocab(self) -> usize {
        self.logits.len()
    }

    /// The best allowed token, ties to the lowest id; `None` if every allowed logit is NaN or minus
    /// infinity.
    pub fn best(self) -> Option<u32> {
        let (mut best, mut floor) = (None, f32::NEG_INFINITY);
        self.above(|candidate| {
            (best, floor) = (Some(candidate.id), candidate.logit);
            floor
        });
        best
    }

    /// Calls `take` with each allowed token, in the order of ids, whose logit is above the last
    /// return value of `take`, at first minus infinity. NaN is above nothing.
    ///
    /// The loop skips whole words of forbidden tokens, and groups of 32 tokens whose largest logit
    /// is not above. That comparison compiles to vector instructions, and it is usually the only
    /// one.
    pub fn above(self, mut take: impl FnMut(Candidate) -> f32) {
        let mut floor = f32::NEG_INFINITY;
        for (index, chunk) in self.logits.chunks(CHUNK).enumerate() {
            // Bits beyond the vocabulary are ignored.
            let known = u32::MAX >> (CHUNK - chunk.len());
            let mask = self.mask.map_or(u32::MAX, |words| words.get(index).copied().unwrap_or(0));
            let mut bits = mask & known;
            if bits == 0 || !any_above(chunk, floor) {
                continue;
            }
            while bits != 0 {
                let bit = bits.trailing_zeros() as usize;
                bits &= bits - 1;
                let logit = chunk[bit];
                if logit > floor {
                    floor = take(Candidate { id: (index * CHUNK + bit) as u32, logit });
                }
            }
        }
    }
}

/// Returns true if one of at most [`CHUNK`] logits is above the floor.
#[inline]
fn any_above(logits: &[f32], floor: f32) -> bool {
    // No branch, so that the compiler compares whole vectors.
    logits.iter().fold(false, |any, logit| any | (*logit > floor))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ids and bits of logits made from a seed, with NaN, both infinities and equal logits among
    /// them.
    fn made_up(n: usize, seed: u64) -> (Vec<f32>, Vec<u32>) {
        let mut state = seed;
        let mut random = || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) as u32
        };
        let logits = (0..n).map(|_| match random() % 16 {
            0 => f32::NAN,
            1 => f32::NEG_INFINITY,
            other => other as f32 - (random() % 4) as f32,
        });
        let logits = logits.collect();
        let words = (0..n.div_ceil(32)).map(|_| match random() % 4 {
            0 => 0,
            1 => u32::MAX,
            _ => random() ^ random() << 9,
        });
        (logits, words.collect())
    }

    #[test]
    fn the_best_allowed_token_is_the_best_of_the_allowed_logits() {
        for (n, seed) in [1, 31, 32, 33, 64, 100, 1000].into_iter().zip(1..) {
            let (logits, mask) = made_up(n, seed);
            let is_allowed = |t: usize| mask[t / 32] >> (t % 32) & 1 == 1;
            let best = |allowed: &dyn Fn(usize) -> bool| {
                let mut best: Option<usize> = None;
                for t in (0..n).filter(|t| allowed(*t) && logits[*t] > f32::NEG_INFINITY) {
                    if best.is_none_or(|b| logits[t] > logits[b]) {
                        best = Some(t);
                    }
                }
                best.map(|t| t as u32)
            };
            assert_eq!(Allowed::masked(&logits, &mask).best(), best(&is_allowed), "{n} tokens");
            assert_eq!(Allowed::all(&logits).best(), best(&|_| true), "{n} tokens");
        }
    }

    #[test]
    fn nothing_is_best_where_nothing_is_allowed() {
        let logits = [1.0, f32::NAN, f32::NEG_INFINITY, 2.0];
        assert_eq!(Allowed::masked(&logits, &[0b0110]).best(), None);
        // Bits beyond the four tokens.
        assert_eq!(Allowed::masked(&logits, &[0xfff0]).best(), None);
        assert_eq!(Allowed::masked(&logits, &[0b0001]).best(), Some(0));
        assert_eq!(Allowed::all(&[]).best(), None);
    }
}

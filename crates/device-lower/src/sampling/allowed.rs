//! Logits and which of their tokens may be chosen.

use super::Candidate;

/// Logits that are compared at once, as many as a word of a mask has bits.
const CHUNK: usize = 32;

/// Logits, and the mask of those that count. Nothing is copied.
#[derive(Clone, Copy, Debug)]
pub struct Allowed<'a> {
    /// `(n_vocab)`
    logits: &'a [f32],
    /// `(n_vocab.div_ceil(32))`: bit `t % 32` of word `t / 32` says whether token `t` counts. `None`: all do.
    mask: Option<&'a [u32]>,
}

impl<'a> Allowed<'a> {
    /// All of them.
    pub fn all(logits: &'a [f32]) -> Allowed<'a> {
        Allowed { logits, mask: None }
    }

    /// Those whose bit is set.
    pub fn masked(logits: &'a [f32], mask: &'a [u32]) -> Allowed<'a> {
        Allowed { logits, mask: Some(mask) }
    }

    /// Tokens of the vocabulary, whether they count or not.
    pub fn n_vocab(self) -> usize {
        self.logits.len()
    }

    /// The best token, the lowest id of equals; `None` if every logit that counts is NaN or minus infinity.
    pub fn best(self) -> Option<u32> {
        let (mut best, mut floor) = (None, f32::NEG_INFINITY);
        self.above(|candidate| {
            (best, floor) = (Some(candidate.id), candidate.logit);
            floor
        });
        best
    }

    /// Call `take` with each token that counts, in the order of their ids, whose logit is above what `take` said last; above
    /// minus infinity at first. NaN is above nothing.
    ///
    /// Whole words of forbidden tokens are skipped, and so are 32 tokens the largest of which is not above: that comparison
    /// compiles to vectors, and mostly it is the only one.
    pub fn above(self, mut take: impl FnMut(Candidate) -> f32) {
        let mut floor = f32::NEG_INFINITY;
        for (index, chunk) in self.logits.chunks(CHUNK).enumerate() {
            // Bits beyond the vocabulary mean nothing.
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

/// Whether one of at most [`CHUNK`] logits is above the floor.
#[inline]
fn any_above(logits: &[f32], floor: f32) -> bool {
    // Without a branch, so that the compiler compares whole vectors.
    logits.iter().fold(false, |any, logit| any | (*logit > floor))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ids and bits of logits that are made from a seed, with NaN, both infinities and equals among them.
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
    fn the_best_that_is_allowed_is_the_best_of_a_copy_without_the_others() {
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

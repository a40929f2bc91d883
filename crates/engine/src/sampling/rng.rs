//! Random numbers that are the same on every platform.

/// xoshiro256++ 1.0 (Blackman and Vigna, "Scrambled linear pseudorandom number generators", 2019),
/// its state filled from the seed by SplitMix64, as its authors advise.
#[derive(Clone, Debug)]
pub struct Rng {
    state: [u64; 4],
}

impl Rng {
    /// A generator with this seed.
    pub fn new(mut seed: u64) -> Rng {
        Rng { state: std::array::from_fn(|_| split_mix_64(&mut seed)) }
    }

    /// 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        let s = &mut self.state;
        let result = s[0].wrapping_add(s[3]).rotate_left(23).wrapping_add(s[0]);
        let t = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= t;
        s[3] = s[3].rotate_left(45);
        result
    }

    /// Uniform in `[0, 1)`.
    pub fn uniform(&mut self) -> f64 {
        uniform(self.next_u64())
    }
}

/// Uniform in `[0, 1)`: the upper 53 bits, so that every value is exact.
pub(super) fn uniform(bits: u64) -> f64 {
    (bits >> 11) as f64 / (1u64 << 53) as f64
}

/// Another number from the same bits, uniform in `[0, 1)`.
pub(super) fn another(mut bits: u64) -> f64 {
    uniform(split_mix_64(&mut bits))
}

/// One step of SplitMix64 (Steele, Lea and Flood, 2014).
fn split_mix_64(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A random seed, from the keys that the standard library draws for its hash maps.
pub(super) fn fresh_seed() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    std::collections::hash_map::RandomState::new().build_hasher().finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The values that the authors' C code prints from state 1, 2, 3, 4.
    #[test]
    fn xoshiro_matches_its_reference() {
        let mut rng = Rng { state: [1, 2, 3, 4] };
        let got: Vec<u64> = (0..4).map(|_| rng.next_u64()).collect();
        assert_eq!(got, [41943041, 58720359, 3588806011781223, 3591011842654386]);
    }

    /// The values that the authors' C code prints from seed 1234567.
    #[test]
    fn split_mix_matches_its_reference() {
        let mut seed = 1234567;
        let got: Vec<u64> = (0..3).map(|_| split_mix_64(&mut seed)).collect();
        assert_eq!(got, [6457827717110365317, 3203168211198807973, 9817491932198370423]);
    }

    #[test]
    fn uniform_is_uniform() {
        let mut rng = Rng::new(7);
        let mut bins = [0u32; 10];
        for _ in 0..100_000 {
            bins[(rng.uniform() * 10.0) as usize] += 1;
        }
        // Standard deviation of a bin is about 95; 5 of them.
        assert!(bins.iter().all(|b| b.abs_diff(10_000) < 475), "{bins:?}");
    }
}

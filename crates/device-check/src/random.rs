//! Random numbers and weights, reproducible on every run.

use device::Weight;
use weights::BlockType;

use super::stored;

/// SplitMix64 (Steele, Lea and Flood, 2014).
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// A generator; equal seeds give equal numbers.
    pub fn new(seed: u64) -> Rng {
        Rng(seed.wrapping_mul(0xd134_2543_de82_ef95))
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number from 0 to `n - 1`; `n` is at least 1.
    pub fn below(&mut self, n: usize) -> usize {
        (self.bits() % n as u64) as usize
    }

    /// A number from 0 to 1, excluding 1.
    pub fn uniform(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1u64 << 24) as f32
    }

    /// A normally distributed number of variance 1 (Box and Muller).
    pub fn normal(&mut self) -> f32 {
        let radius = (-2.0 * (1.0 - self.uniform()).ln()).sqrt();
        radius * (std::f32::consts::TAU * self.uniform()).cos()
    }
}

/// Number of cases of a property test: `usual`, multiplied by the environment variable
/// `PROPTEST_CASES` divided by 256, proptest's default. (`ProptestConfig::with_cases` alone ignores
/// the variable.)
pub fn cases(usual: u32) -> u32 {
    let asked = std::env::var("PROPTEST_CASES").ok().and_then(|text| text.parse::<u32>().ok());
    usual * (asked.unwrap_or(256) / 256).max(1)
}

/// Step through a list of cases: 1 in runs with more [`cases`], which check all of them, otherwise
/// `quick`.
pub fn every(quick: usize) -> usize {
    if cases(1) > 1 { 1 } else { quick }
}

/// A matrix `[n_out, n_in]` of variance `1 / n_in`, so that products with inputs of variance 1 have
/// variance 1 too. `n_in` is whole blocks.
pub fn quantized(rng: &mut Rng, name: &str, n_out: usize, n_in: usize, block: BlockType) -> Weight {
    stored(rng, name, n_out, n_in, block, (n_in as f32).sqrt().recip())
}

//! Penalties on recent tokens, as [`Penalties`] defines them.

use device::Penalties;

/// Changes `logits` `(n_vocab)`. `counts` is `(n_vocab)`, all zero before and after.
pub fn apply(
    penalties: &Penalties,
    logits: &mut [f32],
    tokens: impl Iterator<Item = u32> + Clone,
    counts: &mut [u32],
) {
    for token in tokens.clone() {
        counts[token as usize] += 1;
    }
    for token in tokens {
        let count = std::mem::take(&mut counts[token as usize]);
        if count == 0 {
            continue; // counted already
        }
        let logit = &mut logits[token as usize];
        *logit = if *logit > 0.0 { *logit / penalties.repeat } else { *logit * penalties.repeat };
        *logit -= penalties.presence + penalties.frequency * count as f32;
    }
}

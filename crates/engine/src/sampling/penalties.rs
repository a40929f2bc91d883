//! Logit biases and penalties on recent tokens.

use super::Candidate;

/// Stage 1. For a token that occurred `c > 0` times in the last `window` tokens:
///
/// 1. `l += bias` (for every token that has one, recent or not),
/// 2. repeat: `l = l / repeat` if `l > 0`, else `l * repeat` (CTRL, Keskar et al. 2019, arXiv:1909.05858, with the
///    correction for negative logits that Hugging Face transformers uses),
/// 3. presence and frequency: `l -= presence + frequency * c` (as OpenAI's API defines them).
#[derive(Clone, Debug)]
pub struct Penalties {
    /// 1 is off.
    pub repeat: f32,
    /// 0 is off.
    pub presence: f32,
    /// 0 is off.
    pub frequency: f32,
    /// How many tokens back; 0 is all of them.
    pub window: usize,
    /// `(token, bias)`, token ids below the vocabulary's size.
    pub bias: Vec<(u32, f32)>,
}

impl Penalties {
    /// Whether it changes nothing.
    pub fn is_off(&self) -> bool {
        self.bias.is_empty() && !self.looks_back()
    }

    fn looks_back(&self) -> bool {
        self.repeat != 1.0 || self.presence != 0.0 || self.frequency != 0.0
    }

    /// The tokens that it looks back to.
    fn recent<'a>(&self, tokens: &'a [u32]) -> &'a [u32] {
        let window = if self.window == 0 { tokens.len() } else { self.window.min(tokens.len()) };
        &tokens[tokens.len() - window..]
    }

    /// The same but for biases, for a device that chooses by itself; `None`: there are none.
    pub fn ahead<'a>(&self, tokens: &'a [u32]) -> Option<device::Penalties<'a>> {
        self.looks_back().then(|| device::Penalties {
            repeat: self.repeat,
            presence: self.presence,
            frequency: self.frequency,
            window: self.window,
            recent: self.recent(tokens),
        })
    }

    /// Change `logits` `(n_vocab)` in place. `counts` `(n_vocab)` is zero before and after; `changed` receives the
    /// tokens that were touched with the logits they had.
    pub fn apply(
        &self,
        logits: &mut [f32],
        tokens: &[u32],
        counts: &mut [u32],
        changed: &mut Vec<Candidate>,
    ) {
        changed.clear();
        for &(id, bias) in &self.bias {
            let logit = &mut logits[id as usize];
            // A token may have several biases; only its first entry is the model's own logit, and `find` meets it first.
            if changed.len() < changed.capacity() {
                changed.push(Candidate { id, logit: *logit });
            }
            *logit += bias;
        }
        if !self.looks_back() {
            return;
        }
        let recent = self.recent(tokens);
        for &id in recent {
            counts[id as usize] += 1;
        }
        for &id in recent {
            let count = std::mem::take(&mut counts[id as usize]);
            if count == 0 {
                continue; // met earlier in the window
            }
            let logit = &mut logits[id as usize];
            if changed.len() < changed.capacity() {
                changed.push(Candidate { id, logit: *logit });
            }
            *logit = if *logit > 0.0 { *logit / self.repeat } else { *logit * self.repeat };
            *logit -= self.presence + self.frequency * count as f32;
        }
    }
}

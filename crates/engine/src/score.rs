//! Scores of a text: the best tokens at every position, and perplexity.

use std::sync::Arc;

use model::Picture;
use serde::Serialize;

use crate::{Engine, Error, Prefill, Result};
use device_lower::sampling::log_sum_exp;

/// A token at a position.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct TokenScore {
    /// Token id.
    pub id: u32,
    /// Its logit.
    pub logit: f32,
    /// Natural logarithm of its probability; normalised in f64.
    pub logprob: f64,
}

/// The best tokens after a position.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PositionScore {
    /// Position in the given tokens.
    pub position: usize,
    /// Best tokens, the best first; of equal logits the lower id first.
    pub top: Vec<TokenScore>,
    /// The actual next token; `None` after the last.
    pub next: Option<TokenScore>,
}

/// Perplexity of a text, and the numbers that it rests on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Perplexity {
    /// `exp(nll)`
    pub perplexity: f64,
    /// Mean negative log-likelihood of a scored token, natural logarithm.
    pub nll: f64,
    /// Number of scored tokens.
    pub n_tokens: usize,
    /// Number of windows.
    pub n_windows: usize,
    /// Tokens of a full window, including a start token.
    pub window: usize,
}

impl Engine {
    /// The `n_top` best tokens after each position of `tokens`. Load with
    /// [`crate::LoadOptions::n_outputs`] to compute more positions at once.
    ///
    /// # Errors
    /// As [`Engine::evaluate`].
    pub fn score(&mut self, tokens: &[u32], n_top: usize, prefill: Prefill) -> Result<Vec<PositionScore>> {
        self.score_images(tokens, &[], n_top, prefill)
    }

    /// Like [`Self::score`], for tokens with a placeholder for each row of images.
    ///
    /// # Errors
    /// As [`Engine::evaluate_images`].
    pub fn score_images(
        &mut self,
        tokens: &[u32],
        images: &[Arc<Picture>],
        n_top: usize,
        prefill: Prefill,
    ) -> Result<Vec<PositionScore>> {
        let mut scores = Vec::with_capacity(tokens.len());
        let mut order: Vec<u32> = Vec::with_capacity(self.model.n_vocab());
        self.evaluate_images(tokens, images, tokens.len(), prefill, &mut |position, logits| {
            let normalizer = log_sum_exp(logits);
            let score = |id: u32| {
                let logit = logits[id as usize];
                TokenScore { id, logit, logprob: f64::from(logit) - normalizer }
            };
            let by_logit =
                |a: &u32, b: &u32| logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b));
            order.clear();
            order.extend((0..logits.len() as u32).filter(|id| !logits[*id as usize].is_nan()));
            let n_top = n_top.min(order.len());
            if n_top > 0 && n_top < order.len() {
                order.select_nth_unstable_by(n_top - 1, by_logit);
            }
            let best = &mut order[..n_top];
            best.sort_unstable_by(by_logit);
            scores.push(PositionScore {
                position,
                top: best.iter().map(|id| score(*id)).collect(),
                next: tokens.get(position + 1).map(|id| score(*id)),
            });
            Ok(())
        })?;
        Ok(scores)
    }

    /// Perplexity of a text given as tokens (without a start token).
    ///
    /// The text is cut into windows that do not overlap. Each is evaluated from an empty cache,
    /// with the start token `bos` before it if the model wants one. Every token after the first of
    /// a window's input is scored: all of the text with a start token, all but its first token
    /// without. The last window may be shorter. `window` counts tokens including the start token;
    /// `None` uses the context length. (Tools that score only the second half of each window print
    /// lower figures: every token there has a longer past.)
    ///
    /// `progress` receives the result so far after each window, and the total number of windows.
    ///
    /// # Errors
    /// Too few tokens to score, or a window that does not fit in the context; and as
    /// [`Engine::evaluate`].
    pub fn perplexity(
        &mut self,
        tokens: &[u32],
        bos: Option<u32>,
        window: Option<usize>,
        prefill: Prefill,
        progress: &mut dyn FnMut(&Perplexity, usize),
    ) -> Result<Perplexity> {
        let window = window.unwrap_or(self.limits.n_ctx);
        if !(2..=self.limits.n_ctx).contains(&window) {
            return Err(Error::Option {
                name: "window",
                value: window.to_string(),
                expected: format!("a number from 2 to the context length {}", self.limits.n_ctx),
            });
        }
        let least = if bos.is_some() { 1 } else { 2 };
        if tokens.len() < least {
            return Err(Error::TooFewTokens { n_tokens: tokens.len(), least });
        }
        let n_text = window - bos.iter().len();
        let n_windows = tokens.len().div_ceil(n_text);
        let mut sum = 0.0;
        let mut result = Perplexity { window, ..Perplexity::default() };
        let mut input = Vec::with_capacity(window);
        for chunk in tokens.chunks(n_text) {
            input.clear();
            input.extend(bos);
            input.extend_from_slice(chunk);
            self.evaluate(&input, input.len(), prefill, &mut |position, logits| {
                if let Some(&next) = input.get(position + 1) {
                    sum += log_sum_exp(logits) - f64::from(logits[next as usize]);
                    result.n_tokens += 1;
                }
                Ok(())
            })?;
            result.n_windows += 1;
            result.nll = sum / result.n_tokens.max(1) as f64;
            result.perplexity = result.nll.exp();
            progress(&result, n_windows);
        }
        Ok(result)
    }
}

//! Times of answers and progress of prefill in llama-server's form: `timings` and `prompt_progress`
//! of events.

use engine::{Progress, Timings};
use serde::Deserialize;
use serde_json::{Value, json};

/// Keys of a request that add times and progress to its events.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
pub(super) struct TimingKeys {
    #[serde(default)]
    timings_per_token: Option<bool>,
    #[serde(default)]
    return_progress: Option<bool>,
}

impl TimingKeys {
    /// Returns true if progress is reported; only a stream has events for it.
    pub(super) fn progress(self, is_streamed: bool) -> bool {
        is_streamed && self.return_progress == Some(true)
    }

    /// The `timings` of an event before the answer, if wanted: those of the prefill so far.
    pub(super) fn of_prompt(self, progress: &Progress) -> Option<Value> {
        let Progress { n_prompt: _, n_reused, n_done, seconds } = *progress;
        let so_far = Timings {
            prompt_tokens: n_done,
            reused_tokens: n_reused.min(n_done),
            prefill_seconds: seconds,
            ..Timings::default()
        };
        (self.timings_per_token == Some(true)).then(|| timings_json(&so_far))
    }

    /// The `timings` of an event, if wanted and if a token has been generated.
    pub(super) fn of_event(self, timings: &Timings) -> Option<Value> {
        let is_asked = self.timings_per_token == Some(true);
        (is_asked && timings.generated_tokens > 0).then(|| timings_json(timings))
    }
}

/// Times in milliseconds.
pub(super) fn timings_json(t: &Timings) -> Value {
    let n_computed = t.prompt_tokens - t.reused_tokens;
    let (prompt_ms, predicted_ms) = (t.prefill_seconds * 1e3, t.decode_seconds * 1e3);
    let each = |ms: f64, n: usize| if n == 0 { 0.0 } else { ms / n as f64 };
    json!({
        "cache_n": t.reused_tokens,
        "prompt_n": n_computed, "prompt_ms": prompt_ms, "prompt_per_token_ms": each(prompt_ms, n_computed),
        "prompt_per_second": t.prefill_rate(),
        "predicted_n": t.generated_tokens, "predicted_ms": predicted_ms,
        "predicted_per_token_ms": each(predicted_ms, t.generated_tokens.saturating_sub(1)),
        "predicted_per_second": t.decode_rate(),
        "draft_n": t.drafted_tokens, "draft_n_accepted": t.accepted_tokens,
    })
}

/// Prefill progress in tokens, and milliseconds since its first step.
pub(super) fn progress_json(progress: &Progress) -> Value {
    let Progress { n_prompt, n_reused, n_done, seconds } = progress;
    json!({ "total": n_prompt, "cache": n_reused, "processed": n_done, "time_ms": seconds * 1e3 })
}

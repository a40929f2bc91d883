//! Functions that `run` and `complete` share: a request from flags, Ctrl-C, streaming, and the
//! closing line.

use std::io::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};

use engine::{
    CancelFlag, Engine, Event, Finished, Overflow, Request, SamplingChoice, SamplingParams, Timings,
};
use text::Stops;

use crate::args::{OverflowName, PrefillArgs, SamplingArgs};

/// Ctrl-C: cancels the running answer, or ends the program if there is none.
#[derive(Clone, Default)]
pub struct Interrupt(Arc<Mutex<Option<CancelFlag>>>);

impl Interrupt {
    /// Installs the handler of Ctrl-C.
    pub fn install() -> anyhow::Result<Interrupt> {
        let interrupt = Interrupt::default();
        let current = interrupt.0.clone();
        ctrlc::set_handler(move || match current.lock().unwrap_or_else(PoisonError::into_inner).take() {
            Some(flag) => flag.cancel(),
            // 128 + SIGINT, as shells expect.
            None => std::process::exit(130),
        })?;
        Ok(interrupt)
    }

    /// Sets the answer that Ctrl-C cancels from now on.
    pub fn watch(&self, flag: Option<CancelFlag>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = flag;
    }
}

/// The sampling parameters of the flags. Where no flag is given, those that `model` recommends.
pub fn sampling(args: &SamplingArgs, model: SamplingChoice) -> SamplingParams {
    let mut sampling = SamplingParams {
        presence_penalty: args.presence_penalty,
        frequency_penalty: args.frequency_penalty,
        logit_bias: args.logit_bias.clone().into(),
        seed: args.seed,
        ..args.more.params()
    };
    // A flag overrides the model's recommendation.
    SamplingChoice::default().complete(args.choice(), model, &mut sampling);
    sampling
}

/// Checks the limits of sampling parameters before anything is loaded. Token ids are checked later,
/// with the model's vocabulary.
///
/// # Errors
/// The first parameter outside its limits, with its value.
pub fn check(args: &SamplingArgs) -> anyhow::Result<()> {
    let sampling = sampling(args, SamplingChoice::default());
    Ok(SamplingParams { logit_bias: Arc::default(), ..sampling }.check(1)?)
}

/// A request to continue `tokens` with these flags; it may have draft tokens if `speculate` is
/// true.
///
/// # Errors
/// The stop strings are too long.
pub fn request(
    tokens: Vec<u32>,
    sampling: SamplingParams,
    args: &SamplingArgs,
    prefill: &PrefillArgs,
    speculate: bool,
) -> anyhow::Result<Request> {
    Ok(Request {
        sampling,
        speculate,
        max_tokens: args.max_tokens,
        stop: Stops::new(&args.stop)?,
        overflow: match args.overflow {
            OverflowName::Stop => Overflow::Stop,
            OverflowName::Slide => Overflow::Slide { keep: args.keep },
        },
        prefill: crate::load::prefill(prefill),
        ..Request::new(tokens)
    })
}

/// Runs a request; writes each piece of text to `out` as soon as it is final.
///
/// # Errors
/// The engine fails, or `out` cannot be written, which ends the generation.
pub fn stream(
    engine: &mut Engine,
    request: Request,
    interrupt: &Interrupt,
    out: &mut dyn Write,
) -> anyhow::Result<Finished> {
    let cancel = request.cancel.clone();
    let mut failed: Option<io::Error> = None;
    interrupt.watch(Some(cancel.clone()));
    let finished = engine.generate(request, |event: &Event<'_>| {
        let text = event.text();
        if !text.is_empty()
            && failed.is_none()
            && let Err(error) = out.write_all(text.as_bytes()).and_then(|()| out.flush())
        {
            failed = Some(error);
            cancel.cancel();
        }
    });
    interrupt.watch(None);
    match failed {
        Some(error) => Err(error.into()),
        None => Ok(finished?),
    }
}

/// The line under an answer: its length and speed; with `-v` all timings.
pub fn closing(t: &Timings) -> String {
    if crate::tell::is_verbose() { figures(t) } else { brief(t.generated_tokens, t.decode_rate()) }
}

/// `153 tokens, 49.3 tok/s`
pub fn brief(n_tokens: usize, rate: f64) -> String {
    let tokens = crate::output::plural(n_tokens, "token");
    // The rate of a single token is 0.
    if rate > 0.0 { format!("{tokens}, {rate:.1} tok/s") } else { tokens }
}

/// `prompt 31 tokens, 412.0 tok/s; answer 48 tokens, 83.1 tok/s; first token after 78.1 ms`
fn figures(t: &Timings) -> String {
    let mut text = format!("prompt {} tokens", t.prompt_tokens);
    if t.reused_tokens > 0 {
        text += &format!(" ({} reused)", t.reused_tokens);
    }
    text += &format!(
        ", {:.1} tok/s; answer {} tokens, {:.1} tok/s; first token after {}",
        t.prefill_rate(),
        t.generated_tokens,
        t.decode_rate(),
        crate::output::seconds(t.first_token_seconds)
    );
    if t.drafted_tokens > 0 {
        text += &format!("; {} of {} drafted tokens accepted", t.accepted_tokens, t.drafted_tokens);
    }
    text
}

/// The reason why an answer ended, if it is unusual, for people.
pub fn remark(finished: &Finished) -> Option<String> {
    use engine::FinishReason::*;
    match &finished.reason {
        ContextFull => Some(
            "the context is full, so the answer ends here; use a larger --ctx, or --overflow slide".into(),
        ),
        Cancelled => Some("stopped".into()),
        MaxTokens | EndToken(_) | StopString(_) | StopToken(_) | ConstraintMet => None,
        reason @ (ConstraintUnmet | ConstraintFailed(_) | DeadlineExceeded | Failed(_)) => {
            Some(reason.to_string())
        }
    }
}

/// The reason why an answer ended, as one word for JSON.
pub fn stop_word(reason: &engine::FinishReason) -> &'static str {
    use engine::FinishReason::*;
    match reason {
        EndToken(_) | ConstraintMet => "end",
        ConstraintUnmet | ConstraintFailed(_) => "failed",
        StopToken(_) | StopString(_) => "stop",
        MaxTokens => "max_tokens",
        ContextFull => "context_full",
        Cancelled => "cancelled",
        DeadlineExceeded => "deadline_exceeded",
        Failed(_) => "failed",
    }
}

/// The counts, seconds and rates of an answer, for JSON.
pub fn timings_json(t: &Timings) -> serde_json::Value {
    serde_json::json!({
        "prompt_tokens": t.prompt_tokens,
        "reused_tokens": t.reused_tokens,
        "generated_tokens": t.generated_tokens,
        "drafted_tokens": t.drafted_tokens,
        "accepted_tokens": t.accepted_tokens,
        "prefill_seconds": t.prefill_seconds,
        "decode_seconds": t.decode_seconds,
        "first_token_seconds": t.first_token_seconds,
        "prefill_tokens_per_second": t.prefill_rate(),
        "decode_tokens_per_second": t.decode_rate(),
    })
}

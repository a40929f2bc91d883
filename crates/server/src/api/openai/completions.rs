//! `/v1/completions`

use axum::Json;
use axum::body::Bytes;
use axum::extract::{Extension, State};
use axum::response::{IntoResponse, Response};
use futures_util::{Stream, StreamExt};
use serde::Deserialize;
use serde_json::{Value, json};

use super::common::{
    FINGERPRINT, MAX_N, Prompts, Stop, StreamOptions, add_usage, check_max_tokens, check_n, finish_reason,
    usage_json,
};
use crate::api::body::{JsonBody, text_or_null};
use crate::api::sampling::SamplingKeys;
use crate::api::timing::{TimingKeys, progress_json};
use crate::api::{seconds_now, sse};
use crate::error::HttpResult;
use runner::Answer;
use runner::Runner;
use runner::{AnswerEvent, Collected, Delta, EventKind, TokenInfo, Usage};
use runner::{Caller, CompletionRequest, GenerateOptions, Prompt};
use runner::{RequestError, Result};

#[derive(Deserialize)]
pub(super) struct CompletionBody {
    #[serde(default, deserialize_with = "text_or_null")]
    model: String,
    prompt: Prompts,
    suffix: Option<String>,
    #[serde(default)]
    stream: Option<bool>,
    #[serde(default)]
    stream_options: Option<StreamOptions>,
    n: Option<usize>,
    best_of: Option<usize>,
    max_tokens: Option<i64>,
    #[serde(default)]
    stop: Stop,
    logprobs: Option<usize>,
    echo: Option<bool>,
    #[serde(flatten)]
    timing: TimingKeys,
    #[serde(flatten)]
    sampling: SamplingKeys,
}

/// Maximum number of prompts of one request.
const MAX_PROMPTS: usize = 256;

pub(super) async fn create(
    State(runner): State<Runner>,
    Extension(caller): Extension<Caller>,
    JsonBody(body): JsonBody<CompletionBody>,
) -> HttpResult<Response> {
    let wants_stream = body.stream.unwrap_or(false);
    let n = check_n(body.n)?;
    let include_usage = body.stream_options.unwrap_or_default().include_usage;
    let with_logprobs = body.logprobs.is_some();
    let timing = body.timing;
    let echoes = body.echo.unwrap_or(false);
    let mut echoed = Vec::new();
    let mut answers = Vec::new();
    let (shared, prompts) = requests(body)?;
    let n_asked = shared.options.n;
    for prompt in prompts {
        // Prompts are started one after the other, since they share a grammar and lists that may be
        // large.
        let request = CompletionRequest { prompt, ..shared.clone() };
        echoed.push(match &request.prompt {
            _ if !echoes => Echo::default(),
            Prompt::Tokens(tokens) => Echo::of(&runner.text_of(&request.model, tokens).await?),
            Prompt::Text { text, parse_special } => {
                let tokens = runner.tokenize(&request.model, text.clone(), true, *parse_special).await?;
                Echo { text: text.clone(), ..Echo::of(&tokens) }
            }
            // Only `/v1/rerank` makes pairs.
            Prompt::Pair { .. } => Echo::default(),
        });
        answers.push(runner.complete(&caller, request).await?);
    }
    let frame = CompletionFrame {
        id: format!("cmpl-{}", caller.request_id),
        created: seconds_now(),
        model: answers.first().map(|answer| answer.model.clone()).unwrap_or_default(),
        with_logprobs,
        with_usage: wants_stream && include_usage,
        timing,
        last_timings: None,
    };
    if wants_stream {
        return Ok(sse::response(stream(answers, echoed, n_asked, frame)));
    }
    whole(answers, echoed, n, &frame).await
}

/// Converts a body to the shared fields of its requests, and the prompt of each.
fn requests(body: CompletionBody) -> Result<(CompletionRequest, Vec<Prompt>)> {
    let n = check_n(body.n)?;
    let best_of = body.best_of.unwrap_or(n);
    if !(n..=MAX_N).contains(&best_of) {
        let message = format!("`best_of` is {best_of}, expected a number from `n`, {n}, to {MAX_N}");
        return Err(RequestError::invalid("best_of", message));
    }
    if best_of > n && body.stream == Some(true) {
        // The best answer is known only when all have ended.
        let message = format!("`best_of` is {best_of}, expected `n`, {n}, where the answer is streamed");
        return Err(RequestError::invalid("best_of", message));
    }
    let mut options = GenerateOptions {
        n: best_of,
        // OpenAI's default.
        max_tokens: check_max_tokens("max_tokens", Some(body.max_tokens.unwrap_or(16)))?,
        stop: body.stop.texts(),
        // The best answers are chosen by log-probabilities.
        logprobs: body.logprobs.or((best_of > n).then_some(0)),
        prompt_logprobs: body.logprobs.filter(|_| body.echo == Some(true)),
        progress: body.timing.progress(body.stream == Some(true)),
        ..GenerateOptions::default()
    };
    body.sampling.apply(&mut options)?;
    let grammar = body.sampling.grammar(None)?;
    let suffix = body.suffix.filter(|suffix| !suffix.is_empty());
    let prompts = body.prompt.list();
    if !(1..=MAX_PROMPTS).contains(&prompts.len()) {
        let message = format!("`prompt` has {} entries, expected 1 to {MAX_PROMPTS}", prompts.len());
        return Err(RequestError::invalid("prompt", message));
    }
    let shared = CompletionRequest { model: body.model, suffix, grammar, options, ..Default::default() };
    Ok((shared, prompts))
}

/// The prompt, if the answer repeats it.
#[derive(Clone, Default)]
struct Echo {
    text: String,
    /// The first token. It has no probability, since no token precedes it.
    first: Option<TokenInfo>,
}

impl Echo {
    fn of(tokens: &[(u32, Vec<u8>)]) -> Echo {
        let bytes: Vec<u8> = tokens.iter().flat_map(|(_, bytes)| bytes.iter().copied()).collect();
        let first = tokens.first().map(|(id, bytes)| TokenInfo {
            id: *id,
            bytes: bytes.clone(),
            logprob: None,
            top: Vec::new(),
        });
        Echo { text: String::from_utf8_lossy(&bytes).into_owned(), first }
    }
}

/// Fields that all chunks of an answer share.
struct CompletionFrame {
    id: String,
    created: u64,
    model: String,
    with_logprobs: bool,
    /// True if a last chunk reports the usage; all others then have `null` for it.
    with_usage: bool,
    timing: TimingKeys,
    /// The timings of the last event, repeated with the usage.
    last_timings: Option<Value>,
}

impl CompletionFrame {
    fn json(&self, choices: Vec<Value>, usage: Option<Value>) -> Value {
        let mut json = json!({
            "id": self.id, "object": "text_completion", "created": self.created, "model": self.model,
            "system_fingerprint": FINGERPRINT, "choices": choices,
        });
        if let Some(usage) = usage.or(self.with_usage.then_some(Value::Null)) {
            json["usage"] = usage;
        }
        json
    }

    fn choice(
        &self,
        index: usize,
        text: &str,
        tokens: Vec<TokenInfo>,
        reason: Option<&str>,
        offset: usize,
    ) -> Value {
        let logprobs = self.with_logprobs.then(|| logprobs_json(tokens, offset));
        json!({ "index": index, "text": text, "logprobs": logprobs, "finish_reason": reason })
    }
}

/// The older form of log-probabilities: one list for each property. Offsets count characters.
fn logprobs_json(tokens: Vec<TokenInfo>, mut offset: usize) -> Value {
    let (mut texts, mut logprobs, mut offsets, mut tops) = (vec![], vec![], vec![], vec![]);
    for token in tokens {
        let text = String::from_utf8_lossy(&token.bytes).into_owned();
        offsets.push(offset);
        offset += text.chars().count();
        let top = token
            .top
            .iter()
            .map(|(_, bytes, logprob)| (String::from_utf8_lossy(bytes).into_owned(), json!(logprob)));
        tops.push(Value::Object(top.collect()));
        texts.push(text);
        logprobs.push(token.logprob);
    }
    json!({ "tokens": texts, "token_logprobs": logprobs, "text_offset": offsets, "top_logprobs": tops })
}

/// State of one choice of a stream.
#[derive(Default)]
struct SaidChoice {
    /// The prompt, until it has been repeated.
    echo: Option<Echo>,
    /// Characters sent so far.
    offset: usize,
}

impl SaidChoice {
    /// Returns the chunks of one event, with its timings if there are any.
    fn chunks(
        &mut self,
        index: usize,
        mut kind: EventKind,
        timings: Option<&Value>,
        frame: &CompletionFrame,
        usage: &mut Usage,
    ) -> Result<Bytes> {
        if let EventKind::Delta(Delta::Progress(progress)) = &kind {
            let mut chunk = frame.json(vec![frame.choice(index, "", Vec::new(), None, self.offset)], None);
            chunk["prompt_progress"] = progress_json(progress);
            if let Some(timings) = frame.timing.of_prompt(progress) {
                chunk["timings"] = timings;
            }
            return Ok(sse::data(&chunk));
        }
        let mut bytes = Vec::new();
        let mut say = |offset: &mut usize, text: &str, tokens: Vec<TokenInfo>, reason| {
            let begin = *offset;
            // With tokens the offset counts their text, which may arrive before or after the
            // tokens.
            *offset += match frame.with_logprobs {
                true => tokens.iter().map(|t| String::from_utf8_lossy(&t.bytes).chars().count()).sum(),
                false => text.chars().count(),
            };
            let mut chunk = frame.json(vec![frame.choice(index, text, tokens, reason, begin)], None);
            if let Some(timings) = timings {
                chunk["timings"] = timings.clone();
            }
            bytes.extend(sse::data(&chunk));
        };
        if let Some(echo) = self.echo.take() {
            let mut tokens: Vec<TokenInfo> = echo.first.into_iter().collect();
            if let EventKind::Delta(Delta::Prompt(more)) = &mut kind {
                tokens.append(more);
            }
            say(&mut self.offset, &echo.text, tokens, None);
        }
        match kind {
            EventKind::Delta(Delta::Content { text, tokens }) => say(&mut self.offset, &text, tokens, None),
            EventKind::Delta(Delta::Prompt(tokens)) if !tokens.is_empty() => {
                say(&mut self.offset, "", tokens, None);
            }
            EventKind::Delta(
                Delta::Reasoning(_)
                | Delta::CallBegin { .. }
                | Delta::CallArguments { .. }
                | Delta::CallEnd { .. }
                | Delta::Prompt(_)
                | Delta::Progress(_),
            ) => {}
            EventKind::Done(finish) => {
                add_usage(usage, finish.usage);
                let reason = finish_reason(&finish)?;
                say(&mut self.offset, "", Vec::new(), Some(reason));
            }
        }
        Ok(bytes.into())
    }
}

fn stream(
    answers: Vec<Answer>,
    echoed: Vec<Echo>,
    n: usize,
    mut frame: CompletionFrame,
) -> impl Stream<Item = Bytes> + Send {
    let mut usages = vec![Usage::default(); answers.len()];
    let echo = |echo: &Echo| Some(echo.clone()).filter(|echo| !echo.text.is_empty());
    let said = echoed.iter().flat_map(|one| std::iter::repeat_n(one, n));
    let mut said: Vec<SaidChoice> = said.map(|one| SaidChoice { echo: echo(one), offset: 0 }).collect();
    let events = answers.into_iter().enumerate().map(|(prompt, answer)| {
        let next = |mut answer: Answer| async move {
            let event = answer.next().await?;
            Some((event, answer))
        };
        futures_util::stream::unfold(answer, next).map(move |event| (prompt, event)).boxed()
    });
    let events = futures_util::stream::select_all(events);
    // `None` marks the end, which the usage and `[DONE]` follow.
    let events = events.map(Some).chain(futures_util::stream::once(async { None }));
    events.scan(false, move |failed, event| {
        let bytes = match event {
            _ if *failed => return std::future::ready(None),
            Some((prompt, AnswerEvent { choice, kind, timings })) => {
                let index = prompt * n + choice;
                let timings = frame.timing.of_event(&timings);
                let chunks = said[index].chunks(index, kind, timings.as_ref(), &frame, &mut usages[prompt]);
                frame.last_timings = timings;
                chunks.unwrap_or_else(|error| {
                    *failed = true;
                    sse::error(&error)
                })
            }
            None => {
                let mut bytes = Vec::new();
                if frame.with_usage {
                    let mut chunk = frame.json(Vec::new(), Some(usage_json(sum(&usages))));
                    if let Some(timings) = frame.last_timings.take() {
                        chunk["timings"] = timings;
                    }
                    bytes.extend(sse::data(&chunk));
                }
                bytes.extend_from_slice(b"data: [DONE]\n\n");
                bytes.into()
            }
        };
        std::future::ready(Some(bytes))
    })
}

/// Total usage of several prompts.
fn sum(usages: &[Usage]) -> Usage {
    usages.iter().fold(Usage::default(), |sum, usage| Usage {
        prompt_tokens: sum.prompt_tokens + usage.prompt_tokens,
        cached_tokens: sum.cached_tokens + usage.cached_tokens,
        completion_tokens: sum.completion_tokens + usage.completion_tokens,
        reasoning_tokens: sum.reasoning_tokens + usage.reasoning_tokens,
    })
}

async fn whole(
    answers: Vec<Answer>,
    echoed: Vec<Echo>,
    n: usize,
    frame: &CompletionFrame,
) -> HttpResult<Response> {
    let (mut choices, mut usages) = (Vec::new(), Vec::new());
    for (answer, echo) in answers.into_iter().zip(echoed) {
        let mut usage = Usage::default();
        let candidates = answer.collect().await?;
        // Discarded candidates were computed too.
        candidates.iter().filter_map(|one| one.finish.as_ref()).for_each(|f| add_usage(&mut usage, f.usage));
        for collected in best(candidates, n) {
            let Some(finish) = &collected.finish else {
                return Err(RequestError::internal("an answer ended without its last event").into());
            };
            let reason = finish_reason(finish)?;
            let index = choices.len();
            let text = format!("{}{}", echo.text, collected.content);
            let tokens = echo.first.iter().cloned().chain(collected.prompt).chain(collected.tokens).collect();
            choices.push(frame.choice(index, &text, tokens, Some(reason), 0));
        }
        usages.push(usage);
    }
    Ok(Json(frame.json(choices, Some(usage_json(sum(&usages))))).into_response())
}

/// Selects the `n` answers with the highest mean log-probability, best first. If there are no more
/// than `n`, their order stays.
fn best(mut candidates: Vec<Collected>, n: usize) -> Vec<Collected> {
    if candidates.len() > n {
        let likely = |one: &Collected| {
            let logprobs = one.tokens.iter().filter_map(|token| token.logprob);
            f64::from(logprobs.sum::<f32>()) / one.tokens.len().max(1) as f64
        };
        candidates.sort_by(|a, b| likely(b).total_cmp(&likely(a)));
        candidates.truncate(n);
    }
    candidates
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_of_every_kind() {
        let n = |prompt: Value| {
            let body = serde_json::from_value(json!({ "prompt": prompt })).unwrap();
            requests(body).map(|(_, prompts)| prompts.len()).map_err(|error| error.param)
        };
        assert_eq!(n(json!("a")), Ok(1));
        assert_eq!(n(json!(["a", "b"])), Ok(2));
        assert_eq!(n(json!([1, 2, 3])), Ok(1));
        assert_eq!(n(json!([[1], [2], [3]])), Ok(3));
        assert_eq!(n(json!([])), Ok(1));
    }

    #[test]
    fn offsets_count_characters() {
        let token = |text: &str| TokenInfo { id: 0, bytes: text.into(), logprob: Some(-1.0), top: vec![] };
        let json = logprobs_json(vec![token("é"), token("ab"), token("c")], 10);
        assert_eq!(json["text_offset"], json!([10, 11, 13]));
    }

    fn token(text: &str, logprob: f32) -> TokenInfo {
        TokenInfo { id: 0, bytes: text.into(), logprob: Some(logprob), top: vec![] }
    }

    #[test]
    fn the_best_are_those_with_the_likeliest_tokens() {
        let answer = |text: &str, logprobs: &[f32]| Collected {
            content: text.into(),
            tokens: logprobs.iter().map(|logprob| token("x", *logprob)).collect(),
            ..Collected::default()
        };
        let candidates =
            vec![answer("a", &[-3.0]), answer("b", &[-1.0, -1.0, -1.0, -1.0]), answer("c", &[-2.0, -1.0])];
        let names =
            |n| -> String { best(candidates.clone(), n).iter().map(|c| c.content.as_str()).collect() };
        assert_eq!((names(1).as_str(), names(2).as_str(), names(3).as_str()), ("b", "bc", "abc"));
        let requests = |body: Value| requests(serde_json::from_value(body).unwrap());
        let found = requests(json!({ "prompt": "a", "n": 2, "best_of": 3 })).unwrap();
        assert_eq!((found.0.options.n, found.0.options.logprobs), (3, Some(0)));
        for body in [
            json!({ "prompt": "a", "n": 2, "best_of": 1 }),
            json!({ "prompt": "a", "best_of": 2, "stream": true }),
            json!({ "prompt": "a", "best_of": 1000 }),
        ] {
            assert_eq!(requests(body).unwrap_err().param.as_deref(), Some("best_of"));
        }
    }

    #[test]
    fn a_stream_may_begin_with_the_prompt() {
        let frame = |with_logprobs| CompletionFrame {
            id: "i".into(),
            created: 0,
            model: "m".into(),
            with_logprobs,
            with_usage: false,
            timing: TimingKeys::default(),
            last_timings: None,
        };
        let read = |bytes: Bytes| -> Vec<Value> {
            let text = String::from_utf8(bytes.to_vec()).unwrap();
            let events = text.split_terminator("\n\n").map(|event| event.strip_prefix("data: ").unwrap());
            events.map(|event| serde_json::from_str::<Value>(event).unwrap()["choices"][0].take()).collect()
        };
        let echo = Echo { text: "ab".into(), first: Some(TokenInfo { logprob: None, ..token("a", 0.0) }) };
        let mut usage = Usage::default();
        let content = || Delta::Content { text: "c".into(), tokens: vec![token("c", -1.0)] };
        let mut said = SaidChoice { echo: Some(echo.clone()), offset: 0 };
        let prompt = EventKind::Delta(Delta::Prompt(vec![token("b", -2.0)]));
        let first = read(said.chunks(0, prompt, None, &frame(true), &mut usage).unwrap());
        assert_eq!((first.len(), &first[0]["text"]), (1, &json!("ab")));
        assert_eq!(first[0]["logprobs"]["token_logprobs"], json!([null, -2.0]));
        let second =
            read(said.chunks(0, EventKind::Delta(content()), None, &frame(true), &mut usage).unwrap());
        assert_eq!(second[0]["logprobs"]["text_offset"], json!([2]));
        let mut said = SaidChoice { echo: Some(echo), offset: 0 };
        let both =
            read(said.chunks(0, EventKind::Delta(content()), None, &frame(false), &mut usage).unwrap());
        assert_eq!((&both[0]["text"], &both[1]["text"]), (&json!("ab"), &json!("c")));
    }
}

//! `/v1/completions`

use axum::Json;
use axum::body::Bytes;
use axum::extract::{Extension, State};
use axum::response::{IntoResponse, Response};
use futures_util::{Stream, StreamExt};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    FINGERPRINT, Prompts, Stop, StreamOptions, add_usage, check_max_tokens, check_n, finish_reason,
    usage_json,
};
use crate::answer::{Answer, AnswerEvent, Delta, EventKind, TokenInfo, Usage};
use crate::api::body::{JsonBody, text_or_null};
use crate::api::sampling::SamplingKeys;
use crate::api::{seconds_now, sse};
use crate::app::App;
use crate::error::{ApiError, Result};
use crate::request::{Caller, CompletionRequest, GenerateOptions, Prompt};

#[derive(Deserialize)]
pub(super) struct Body {
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
    sampling: SamplingKeys,
}

/// Prompts of one request.
const MAX_PROMPTS: usize = 256;

pub(super) async fn create(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    JsonBody(body): JsonBody<Body>,
) -> Result<Response> {
    let wants_stream = body.stream.unwrap_or(false);
    let include_usage = body.stream_options.unwrap_or_default().include_usage;
    let with_logprobs = body.logprobs.is_some();
    let echoes = body.echo.unwrap_or(false);
    let mut echoed = Vec::new();
    let mut answers = Vec::new();
    let requests = requests(body)?;
    let n = requests.first().map_or(1, |request| request.options.n);
    for request in requests {
        echoed.push(match &request.prompt {
            _ if !echoes => Echo::default(),
            Prompt::Tokens(tokens) => Echo::of(&app.text_of(&request.model, tokens).await?),
            Prompt::Text { text, parse_special } => {
                let tokens = app.tokenize(&request.model, text.clone(), true, *parse_special).await?;
                Echo { text: text.clone(), ..Echo::of(&tokens) }
            }
        });
        answers.push(app.complete(&caller, request).await?);
    }
    let frame = Frame {
        id: format!("cmpl-{}", caller.request_id),
        created: seconds_now(),
        model: answers.first().map(|answer| answer.model.clone()).unwrap_or_default(),
        with_logprobs,
    };
    if wants_stream {
        return Ok(sse::response(stream(answers, n, frame, include_usage)));
    }
    whole(answers, echoed, &frame).await
}

fn requests(body: Body) -> Result<Vec<CompletionRequest>> {
    let n = check_n(body.n)?;
    if body.echo == Some(true) && body.stream == Some(true) {
        return Err(ApiError::not_built("echo"));
    }
    match body.best_of {
        Some(best_of) if best_of < n => {
            let message = format!("`best_of` is {best_of}, expected at least `n`, {n}");
            return Err(ApiError::invalid("best_of", message));
        }
        Some(best_of) if best_of > n => return Err(ApiError::not_built("best_of")),
        Some(_) | None => {}
    }
    let mut options = GenerateOptions {
        n,
        // OpenAI's default.
        max_tokens: check_max_tokens("max_tokens", Some(body.max_tokens.unwrap_or(16)))?,
        stop: body.stop.texts(),
        logprobs: body.logprobs,
        prompt_logprobs: body.logprobs.filter(|_| body.echo == Some(true)),
        ..GenerateOptions::default()
    };
    body.sampling.apply(&mut options)?;
    let grammar = body.sampling.grammar(None)?;
    let suffix = body.suffix.filter(|suffix| !suffix.is_empty());
    let prompts = body.prompt.list();
    if !(1..=MAX_PROMPTS).contains(&prompts.len()) {
        let message = format!("`prompt` has {} entries, expected 1 to {MAX_PROMPTS}", prompts.len());
        return Err(ApiError::invalid("prompt", message));
    }
    let request = |prompt| CompletionRequest {
        model: body.model.clone(),
        prompt,
        suffix: suffix.clone(),
        files: Vec::new(),
        grammar: grammar.clone(),
        options: options.clone(),
    };
    Ok(prompts.into_iter().map(request).collect())
}

/// A prompt that its answer begins with.
#[derive(Default)]
struct Echo {
    text: String,
    /// The first token, which nothing comes before and which so has no probability.
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

/// What all chunks of an answer have in common.
struct Frame {
    id: String,
    created: u64,
    model: String,
    with_logprobs: bool,
}

impl Frame {
    fn json(&self, choices: Vec<Value>, usage: Option<Value>) -> Value {
        let mut json = json!({
            "id": self.id, "object": "text_completion", "created": self.created, "model": self.model,
            "system_fingerprint": FINGERPRINT, "choices": choices,
        });
        if let Some(usage) = usage {
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

/// The older form of log-probabilities: a list for each of their properties. Offsets count characters.
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

fn stream(
    answers: Vec<Answer>,
    n: usize,
    frame: Frame,
    include_usage: bool,
) -> impl Stream<Item = Bytes> + Send {
    let events = answers.into_iter().enumerate().map(|(prompt, answer)| {
        let next = |mut answer: Answer| async move {
            let event = answer.next().await?;
            Some((event, answer))
        };
        futures_util::stream::unfold(answer, next).map(move |event| (prompt, event)).boxed()
    });
    let events = futures_util::stream::select_all(events);
    // `None` is the end, after which come usage and the mark.
    let events = events.map(Some).chain(futures_util::stream::once(async { None }));
    let usages: Vec<Usage> = Vec::new();
    let state = (frame, usages, vec![0_usize; 0]);
    events.scan((state, false), move |((frame, usages, offsets), failed), event| {
        let bytes = match event {
            _ if *failed => return std::future::ready(None),
            Some((prompt, AnswerEvent { choice, kind })) => {
                let index = prompt * n + choice;
                usages.resize(usages.len().max(prompt + 1), Usage::default());
                offsets.resize(offsets.len().max(index + 1), 0);
                match kind {
                    EventKind::Delta(Delta::Content { text, tokens }) => {
                        let choice = frame.choice(index, &text, tokens, None, offsets[index]);
                        offsets[index] += text.chars().count();
                        sse::data(&frame.json(vec![choice], None))
                    }
                    EventKind::Delta(
                        Delta::Reasoning(_)
                        | Delta::CallBegin { .. }
                        | Delta::CallArguments { .. }
                        | Delta::CallEnd { .. }
                        | Delta::Prompt(_),
                    ) => Bytes::new(),
                    EventKind::Done(finish) => {
                        add_usage(&mut usages[prompt], finish.usage);
                        match finish_reason(&finish) {
                            Ok(reason) => {
                                let choice =
                                    frame.choice(index, "", Vec::new(), Some(reason), offsets[index]);
                                sse::data(&frame.json(vec![choice], None))
                            }
                            Err(error) => {
                                *failed = true;
                                sse::error(&error)
                            }
                        }
                    }
                }
            }
            None => {
                let mut bytes = Vec::new();
                if include_usage {
                    bytes.extend(sse::data(&frame.json(Vec::new(), Some(usage_json(sum(usages))))));
                }
                bytes.extend_from_slice(b"data: [DONE]\n\n");
                bytes.into()
            }
        };
        std::future::ready(Some(bytes))
    })
}

/// The usage of several prompts.
fn sum(usages: &[Usage]) -> Usage {
    usages.iter().fold(Usage::default(), |sum, usage| Usage {
        prompt_tokens: sum.prompt_tokens + usage.prompt_tokens,
        cached_tokens: sum.cached_tokens + usage.cached_tokens,
        completion_tokens: sum.completion_tokens + usage.completion_tokens,
        reasoning_tokens: sum.reasoning_tokens + usage.reasoning_tokens,
    })
}

async fn whole(answers: Vec<Answer>, echoed: Vec<Echo>, frame: &Frame) -> Result<Response> {
    let (mut choices, mut usages) = (Vec::new(), Vec::new());
    for (answer, echo) in answers.into_iter().zip(echoed) {
        let mut usage = Usage::default();
        for collected in answer.collect().await? {
            let Some(finish) = &collected.finish else {
                return Err(ApiError::internal("an answer ended without saying so"));
            };
            add_usage(&mut usage, finish.usage);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_of_every_kind() {
        let n = |prompt: Value| {
            let body = serde_json::from_value(json!({ "prompt": prompt })).unwrap();
            requests(body).map(|requests| requests.len()).map_err(|error| error.param)
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
}

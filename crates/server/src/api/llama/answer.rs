//! Answers in llama-server's shape, whole and as a stream.

use axum::Json;
use axum::body::Bytes;
use axum::response::{IntoResponse, Response};
use futures_util::Stream;
use serde_json::{Map, Value, json};

use crate::api::sse;
use crate::api::timing::{TimingKeys, progress_json, timings_json};
use runner::Answer;
use runner::{AnswerEvent, Collected, Delta, EventKind, Finish, StopReason, TokenInfo};
use runner::{ErrorKind, RequestError, Result};

/// Keys of a request that shape its answer.
#[derive(Clone, Debug, Default)]
pub(super) struct CompletionShape {
    /// True if the request wants log-probabilities.
    pub(super) with_probs: bool,
    /// True if the log-probabilities are those after sampling.
    pub(super) as_drawn: bool,
    pub(super) with_tokens: bool,
    pub(super) timing: TimingKeys,
    /// Keys to return, with `/` between levels; empty for all.
    pub(super) fields: Vec<String>,
    /// The prompt as the client sent it.
    pub(super) prompt: Value,
    /// The generation settings, which the answer repeats.
    pub(super) settings: Value,
}

/// Returns the whole answer of a prompt.
pub(super) async fn whole(answer: Answer, index: usize, shape: CompletionShape) -> Result<Value> {
    let (model, n_prompt) = (answer.model.clone(), answer.n_prompt);
    let collected = answer.collect().await?.into_iter().next().unwrap_or_default();
    let Collected { content, tokens, finish, .. } = collected;
    let finish = finish.ok_or_else(|| RequestError::internal("an answer ended without its last event"))?;
    let mut json = last(index, &model, n_prompt, &finish, &shape)?;
    json["has_new_line"] = json!(content.contains('\n'));
    json["content"] = json!(content);
    add_tokens(&mut json, &shape, tokens);
    Ok(select(json, &shape.fields))
}

/// Returns the events of a prompt's answer.
pub(super) fn stream(answer: Answer, shape: CompletionShape) -> Response {
    sse::response(events(answer, shape)).into_response()
}

fn events(answer: Answer, shape: CompletionShape) -> impl Stream<Item = Bytes> + Send {
    let begun = (Some(answer), shape, false, 0_usize);
    futures_util::stream::unfold(begun, |(answer, shape, mut has_new_line, mut n_decoded)| async move {
        let mut answer = answer?;
        let AnswerEvent { kind, timings, .. } = answer.next().await?;
        let more = |text: &str, n_decoded: usize, n_prompt: usize| {
            json!({
                "index": 0, "content": text, "stop": false, "id_slot": -1,
                "tokens_predicted": n_decoded, "tokens_evaluated": n_prompt,
            })
        };
        let (bytes, answer) = match kind {
            EventKind::Delta(Delta::Content { text, tokens }) => {
                has_new_line |= text.contains('\n');
                // Clients that want probabilities expect one token in each event, however slowly
                // they read.
                let parts = if shape.with_probs { one_by_one(&text, tokens) } else { vec![(&*text, tokens)] };
                let mut bytes = Vec::new();
                for (text, tokens) in parts {
                    n_decoded += tokens.len();
                    let mut json = more(text, n_decoded, answer.n_prompt);
                    if let Some(timings) = shape.timing.of_event(&timings) {
                        json["timings"] = timings;
                    }
                    add_tokens(&mut json, &shape, tokens);
                    bytes.extend(sse::data(&select(json, &shape.fields)));
                }
                (bytes.into(), Some(answer))
            }
            EventKind::Delta(Delta::Progress(progress)) => {
                let mut json = more("", n_decoded, answer.n_prompt);
                json["prompt_progress"] = progress_json(&progress);
                if let Some(timings) = shape.timing.of_prompt(&progress) {
                    json["timings"] = timings;
                }
                add_tokens(&mut json, &shape, Vec::new());
                (sse::data(&select(json, &shape.fields)), Some(answer))
            }
            EventKind::Delta(_) => (Bytes::new(), Some(answer)),
            EventKind::Done(finish) => {
                let bytes = match last(0, &answer.model, answer.n_prompt, &finish, &shape) {
                    Ok(mut json) => {
                        json["has_new_line"] = json!(has_new_line);
                        sse::data(&select(json, &shape.fields))
                    }
                    Err(error) => sse::error(&error),
                };
                (bytes, None)
            }
        };
        Some((bytes, (answer, shape, has_new_line, n_decoded)))
    })
}

/// Splits a piece into tokens, each with the text that it spells; the last one gets the rest.
fn one_by_one(text: &str, mut tokens: Vec<TokenInfo>) -> Vec<(&str, Vec<TokenInfo>)> {
    let Some(last) = tokens.pop() else { return vec![(text, Vec::new())] };
    let mut left = text;
    let mut parts = Vec::with_capacity(tokens.len() + 1);
    for token in tokens {
        let rest = std::str::from_utf8(&token.bytes).ok().and_then(|spelt| left.strip_prefix(spelt));
        let (part, rest) = left.split_at(left.len() - rest.unwrap_or(left).len());
        left = rest;
        parts.push((part, vec![token]));
    }
    parts.push((left, vec![last]));
    parts
}

/// The final object of an answer, without its text.
fn last(
    index: usize,
    model: &str,
    n_prompt: usize,
    finish: &Finish,
    shape: &CompletionShape,
) -> Result<Value> {
    let (stop_type, word) = match &finish.reason {
        StopReason::End | StopReason::StopToken(_) | StopReason::ToolCalls | StopReason::Cancelled => {
            ("eos", "")
        }
        StopReason::StopString(word) => ("word", word.as_str()),
        StopReason::MaxTokens | StopReason::ContextFull => ("limit", ""),
        StopReason::Timeout => {
            return Err(RequestError::new(ErrorKind::Timeout, "the request's time is over"));
        }
        StopReason::Ungrammatical(words) => return Err(RequestError::ungrammatical(words)),
        StopReason::Failed(message) => return Err(RequestError::internal(message.clone())),
    };
    Ok(json!({
        "index": index, "content": "", "tokens": [], "id_slot": -1, "stop": true, "model": model,
        "tokens_predicted": finish.usage.completion_tokens, "tokens_evaluated": n_prompt,
        "generation_settings": shape.settings, "prompt": shape.prompt, "has_new_line": false,
        "truncated": finish.reason == StopReason::ContextFull, "stop_type": stop_type, "stopping_word": word,
        "tokens_cached": n_prompt + finish.usage.completion_tokens, "seed": finish.seed,
        "timings": timings_json(&finish.timings),
    }))
}

fn add_tokens(json: &mut Value, shape: &CompletionShape, tokens: Vec<TokenInfo>) {
    if shape.with_tokens {
        json["tokens"] = json!(tokens.iter().map(|token| token.id).collect::<Vec<_>>());
    }
    if shape.with_probs {
        json["completion_probabilities"] =
            tokens.into_iter().map(|token| probability(token, shape.as_drawn)).collect();
    }
}

fn probability(token: TokenInfo, as_drawn: bool) -> Value {
    let one = |id: u32, bytes: &[u8], logprob: Option<f32>| {
        let mut json = json!({ "id": id, "token": String::from_utf8_lossy(bytes), "bytes": bytes });
        match as_drawn {
            true => json["prob"] = json!(logprob.map(f32::exp)),
            false => json["logprob"] = json!(logprob),
        }
        json
    };
    let top: Value = token.top.iter().map(|(id, bytes, logprob)| one(*id, bytes, Some(*logprob))).collect();
    let mut json = one(token.id, &token.bytes, token.logprob);
    json[if as_drawn { "top_probs" } else { "top_logprobs" }] = top;
    json
}

/// Selects keys of an answer. `a/b` is the key `b` within `a`, returned as `a/b`.
fn select(json: Value, fields: &[String]) -> Value {
    if fields.is_empty() {
        return json;
    }
    let found = fields.iter().filter_map(|field| {
        let value = json.pointer(&format!("/{field}"))?.clone();
        Some((field.clone(), value))
    });
    Value::Object(found.collect::<Map<_, _>>())
}

/// One answer as an object, several answers as a list.
pub(super) fn respond(mut answers: Vec<Value>) -> Response {
    match answers.len() {
        1 => Json(answers.remove(0)).into_response(),
        _ => Json(Value::Array(answers)).into_response(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_piece_is_divided_among_its_tokens() {
        let token = |bytes: &[u8]| TokenInfo { id: 0, bytes: bytes.into(), logprob: None, top: Vec::new() };
        let texts = |text: &str, tokens: &[&[u8]]| {
            let parts = one_by_one(text, tokens.iter().map(|bytes| token(bytes)).collect());
            parts.iter().map(|(text, tokens)| (text.to_string(), tokens.len())).collect::<Vec<_>>()
        };
        let part = |text: &str, n| (text.to_owned(), n);
        assert_eq!(texts("ab", &[b"a", b"b"]), [part("a", 1), part("b", 1)]);
        // A character of two tokens, and text that came before or after its token.
        assert_eq!(texts("é!", &[b"\xc3", b"\xa9", b"!"]), [part("", 1), part("", 1), part("é!", 1)]);
        assert_eq!(texts("", &[b"a", b"b"]), [part("", 1), part("", 1)]);
        assert_eq!(texts("ab", &[]), [part("ab", 0)]);
    }

    #[test]
    fn fields_are_selected_by_their_path() {
        let json = json!({ "content": "a", "timings": { "prompt_n": 3 } });
        let fields = ["content", "timings/prompt_n", "none"].map(str::to_owned);
        assert_eq!(select(json.clone(), &fields), json!({ "content": "a", "timings/prompt_n": 3 }));
        assert_eq!(select(json.clone(), &[]), json);
    }
}

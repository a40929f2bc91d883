//! Answers: by polling, by a callback, or as a whole.

use std::ffi::{c_char, c_void};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use ingle::{Answer, Chat, Completion, Reply, StopReason};
use serde_json::{Value, json};

use crate::boundary::{
    Failure, Outcome, array, check_struct, guard, handle, optional_text, place, read_struct, text,
    write_struct,
};
use crate::event::{IngleEvent, Storage};
use crate::model::IngleModel;
use crate::options::{IngleChatOptions, IngleGenerationOptions};
use crate::status::{INGLE_CANCELLED, INGLE_DONE, INGLE_ERROR_BUSY, INGLE_OK, INGLE_PENDING, IngleStatus};
use crate::string::hand_over;
use crate::wait::{Signal, Waited};
use crate::{messages, null};

/// Answers that are being computed.
pub struct IngleAnswer {
    signal: Arc<Signal>,
    /// Held by the thread that reads.
    state: Mutex<State>,
}

struct State {
    /// `None` after it was cancelled or returned as a whole.
    answer: Option<Answer>,
    storage: Storage,
}

/// Receives the events of ingle_answer_read. `event` is valid during the call. A result other than
/// 0 cancels the answer. The function must neither throw nor free the answer.
pub type IngleEventCallback =
    Option<unsafe extern "C" fn(event: *const IngleEvent, user: *mut c_void) -> i32>;

impl IngleAnswer {
    fn of(answer: Answer) -> *mut IngleAnswer {
        let state = Mutex::new(State { answer: Some(answer), storage: Storage::default() });
        Box::into_raw(Box::new(IngleAnswer { signal: Arc::default(), state }))
    }

    /// The state, if no other thread reads.
    fn try_state(&self) -> Option<MutexGuard<'_, State>> {
        match self.state.try_lock() {
            Ok(state) => Some(state),
            Err(TryLockError::Poisoned(state)) => Some(PoisonError::into_inner(state)),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// The state for a thread that reads.
    fn state(&self) -> Outcome<MutexGuard<'_, State>> {
        let message = "another thread, or the caller of this callback, reads the answer".to_owned();
        self.try_state().ok_or(Failure { status: INGLE_ERROR_BUSY, message })
    }

    /// Stops the computation if the answer was cancelled and nobody reads it.
    fn stop_if_cancelled(&self) {
        if self.signal.is_cancelled()
            && let Some(mut state) = self.try_state()
        {
            state.answer = None;
        }
    }

    /// Cancels, from any thread.
    fn cancel(&self) {
        self.signal.cancel();
        self.stop_if_cancelled();
    }

    /// Waits for the next event; a status other than INGLE_OK has none.
    fn next(&self, state: &mut State, deadline: Option<Instant>) -> Outcome<Result<IngleEvent, IngleStatus>> {
        let State { answer, storage } = state;
        let waited = match answer {
            Some(answer) => self.signal.wait(deadline, answer.next_event()),
            None if self.signal.is_cancelled() => Waited::Cancelled,
            None => Waited::Ready(None),
        };
        Ok(match waited {
            Waited::Ready(Some(event)) => Ok(storage.store(event?)),
            Waited::Ready(None) => Err(INGLE_DONE),
            Waited::TimedOut => Err(INGLE_PENDING),
            Waited::Cancelled => {
                *answer = None;
                Err(INGLE_CANCELLED)
            }
        })
    }

    /// Waits for the next event, and writes it.
    ///
    /// # Safety
    /// `event` is null or points to as many bytes as its size says.
    unsafe fn poll(&self, deadline: Option<Instant>, event: *mut IngleEvent) -> Outcome<IngleStatus> {
        // SAFETY: `event` is null or points to a struct with its size. This checks the size before
        // an event is read, which would be lost.
        unsafe { check_struct(event, "event") }?;
        let status = match self.next(&mut *self.state()?, deadline)? {
            Ok(next) => {
                // SAFETY: `event` is as `check_struct` found it.
                unsafe { write_struct(event, &next, "event") }?;
                INGLE_OK
            }
            Err(status) => status,
        };
        self.stop_if_cancelled();
        Ok(status)
    }
}

/// Answers a chat. `messages` is a JSON array in OpenAI's form: objects with "role", "content" (a
/// text, or parts with texts and images as data URLs), "tool_calls" and "tool_call_id". Both
/// options may be null. It returns once the request is queued. Free the answer with
/// ingle_answer_free.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ingle_chat(
    model: *const IngleModel,
    messages: *const c_char,
    chat: *const IngleChatOptions,
    generation: *const IngleGenerationOptions,
    answer: *mut *mut IngleAnswer,
) -> IngleStatus {
    guard(|| {
        // SAFETY: each pointer is null or as the header says.
        let (answer, model, messages, request, generation) = unsafe {
            (
                null(place(answer, "answer")?),
                handle(model, "model")?,
                text(messages, "messages")?,
                read_struct(chat)?,
                read_struct(generation)?.generation()?,
            )
        };
        let chat = Chat::of_messages(messages::messages(messages)?).generation(generation);
        // SAFETY: the pointers of `request` are null or as the header says.
        let chat = unsafe { request.apply(chat) }?;
        *answer = IngleAnswer::of(model.model().chat(chat)?);
        Ok(INGLE_OK)
    })
}

/// Continues a text. The model's start tokens are added, and control tokens in the text are parsed.
/// `suffix` is null, or the text after the gap to fill, for models that were trained for that. The
/// options may be null. Free the answer with ingle_answer_free.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ingle_complete(
    model: *const IngleModel,
    prompt: *const c_char,
    suffix: *const c_char,
    generation: *const IngleGenerationOptions,
    answer: *mut *mut IngleAnswer,
) -> IngleStatus {
    guard(|| {
        // SAFETY: each pointer is null or as the header says.
        let (answer, model, prompt, suffix, generation) = unsafe {
            (
                null(place(answer, "answer")?),
                handle(model, "model")?,
                text(prompt, "prompt")?,
                optional_text(suffix, "suffix")?,
                read_struct(generation)?.generation()?,
            )
        };
        let mut completion = Completion::text(prompt).generation(generation);
        if let Some(suffix) = suffix {
            completion = completion.suffix(suffix);
        }
        *answer = IngleAnswer::of(model.model().complete(completion)?);
        Ok(INGLE_OK)
    })
}

/// Continues tokens, to which nothing is added. The options may be null. Free the answer with
/// ingle_answer_free.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ingle_complete_tokens(
    model: *const IngleModel,
    tokens: *const u32,
    n_tokens: usize,
    generation: *const IngleGenerationOptions,
    answer: *mut *mut IngleAnswer,
) -> IngleStatus {
    guard(|| {
        // SAFETY: each pointer is null or as the header says.
        let (answer, model, tokens, generation) = unsafe {
            (
                null(place(answer, "answer")?),
                handle(model, "model")?,
                array(tokens, n_tokens, "tokens")?,
                read_struct(generation)?.generation()?,
            )
        };
        let completion = Completion::tokens(tokens.to_vec()).generation(generation);
        *answer = IngleAnswer::of(model.model().complete(completion)?);
        Ok(INGLE_OK)
    })
}

/// Waits for the next event. Set `event->struct_size` before. Returns INGLE_OK with an event,
/// INGLE_DONE after the end of every answer, or INGLE_CANCELLED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ingle_answer_next(answer: *mut IngleAnswer, event: *mut IngleEvent) -> IngleStatus {
    // SAFETY: both pointers are null or as the header says.
    guard(|| unsafe { handle(answer, "answer")?.poll(None, event) })
}

/// Like ingle_answer_next, but returns INGLE_PENDING if no event comes within `timeout_ms`
/// milliseconds; 0 does not wait.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ingle_answer_next_timeout(
    answer: *mut IngleAnswer,
    timeout_ms: u64,
    event: *mut IngleEvent,
) -> IngleStatus {
    guard(|| {
        // A deadline beyond the clock's range is none.
        let deadline = Instant::now().checked_add(Duration::from_millis(timeout_ms));
        // SAFETY: both pointers are null or as the header says.
        unsafe { handle(answer, "answer")?.poll(deadline, event) }
    })
}

/// Reads all events, and passes each to `callback` on this thread. Returns INGLE_DONE, or
/// INGLE_CANCELLED if the callback or another thread cancelled the answer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ingle_answer_read(
    answer: *mut IngleAnswer,
    callback: IngleEventCallback,
    user: *mut c_void,
) -> IngleStatus {
    guard(|| {
        // SAFETY: `answer` is null or a live handle.
        let answer = unsafe { handle(answer, "answer") }?;
        let callback = callback.ok_or_else(|| Failure::argument("callback is null"))?;
        let mut state = answer.state()?;
        let status = loop {
            match answer.next(&mut state, None)? {
                Ok(event) => {
                    // SAFETY: `callback` is the caller's function, and `event` points into the
                    // storage of `state`, which stays until the next event.
                    if unsafe { callback(&raw const event, user) } != 0 {
                        answer.signal.cancel();
                    }
                }
                Err(status) => break status,
            }
        };
        Ok(status)
    })
}

/// Waits for the end, and returns what was not read before, as JSON like OpenAI's: "choices" with
/// "index", "message", "finish_reason" and "tokens", and "usage". Free `json` with
/// ingle_string_free. `n_bytes` may be null. No event follows.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ingle_answer_json(
    answer: *mut IngleAnswer,
    json: *mut *mut c_char,
    n_bytes: *mut usize,
) -> IngleStatus {
    guard(|| {
        // SAFETY: each pointer is null or as the header says.
        let (handle, json, n_bytes) =
            unsafe { (handle(answer, "answer")?, place(json, "json")?, place(n_bytes, "n_bytes").ok()) };
        null(json);
        let mut state = handle.state()?;
        let Some(answer) = state.answer.take() else {
            let message = "the answer was already read or cancelled";
            return if handle.signal.is_cancelled() {
                Ok(INGLE_CANCELLED)
            } else {
                Err(Failure::argument(message))
            };
        };
        match handle.signal.wait(None, answer.replies_async()) {
            Waited::Ready(replies) => hand_over(&reply_json(&replies?).to_string(), json, n_bytes),
            Waited::TimedOut | Waited::Cancelled => return Ok(INGLE_CANCELLED),
        }
        Ok(INGLE_OK)
    })
}

fn reply_json(replies: &[Reply]) -> Value {
    let choice = |(index, reply): (usize, &Reply)| {
        let mut choice = json!({
            "index": index,
            "message": reply.to_message(),
            "finish_reason": finish_reason(&reply.end.reason),
            "seed": reply.end.seed,
        });
        match &reply.end.reason {
            StopReason::StopText(words) => choice["stop_text"] = json!(words),
            StopReason::Ungrammatical(words) => choice["error"] = json!(words),
            _ => {}
        }
        if !reply.tokens.is_empty() {
            choice["tokens"] = reply.tokens.iter().map(|token| token.id).collect();
            choice["logprobs"] = reply.tokens.iter().map(|token| token.logprob).collect();
        }
        choice
    };
    let sum = |n: fn(&Reply) -> usize| replies.iter().map(n).sum::<usize>();
    let first = replies.first().map(|reply| reply.end.usage);
    let prompt = first.map_or(0, |usage| usage.prompt_tokens);
    let completion = sum(|reply| reply.end.usage.completion_tokens);
    json!({
        "choices": replies.iter().enumerate().map(choice).collect::<Vec<Value>>(),
        "usage": {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": { "cached_tokens": first.map_or(0, |usage| usage.cached_tokens) },
            "completion_tokens_details": {
                "reasoning_tokens": sum(|reply| reply.end.usage.reasoning_tokens),
            },
        },
    })
}

fn finish_reason(reason: &StopReason) -> &'static str {
    match reason {
        StopReason::End | StopReason::StopText(_) | StopReason::StopToken(_) => "stop",
        StopReason::MaxTokens | StopReason::ContextFull => "length",
        StopReason::ToolCalls => "tool_calls",
        StopReason::Cancelled => "cancelled",
        StopReason::Timeout => "timeout",
        StopReason::Ungrammatical(_) => "ungrammatical",
        _ => "other",
    }
}

/// Cancels an answer, from any thread. A thread that waits for it returns INGLE_CANCELLED, and so
/// do later calls. Null is allowed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ingle_answer_cancel(answer: *mut IngleAnswer) {
    guard(|| {
        // SAFETY: `answer` is null or a live handle.
        if let Some(answer) = unsafe { answer.as_ref() } {
            answer.cancel();
        }
        Ok(INGLE_OK)
    });
}

/// Frees an answer, and cancels it if it has not ended. No other thread may use it any more. Null
/// is allowed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ingle_answer_free(answer: *mut IngleAnswer) {
    guard(|| {
        if !answer.is_null() {
            // SAFETY: `answer` came from `IngleAnswer::of`, and its caller frees it once.
            drop(unsafe { Box::from_raw(answer) });
        }
        Ok(INGLE_OK)
    });
}

//! Conversations that are longer than the context.

use std::sync::Arc;

use serde_json::Value;

use crate::answering::Answer;
use crate::chat::render;
use crate::error::{ErrorKind, Result};
use crate::models::TextModel;
use crate::preparing::Work;
use crate::request::{Caller, ChatRequest};
use crate::runner::Runner;

/// Answers a chat, without its oldest messages if it is too long.
///
/// # Errors
/// As [`Runner::chat`]; the last message alone is too long.
pub async fn answer_truncated(runner: &Runner, caller: &Caller, request: ChatRequest) -> Result<Answer> {
    let request = Arc::new(request);
    let error = match runner.chat(caller, request.clone()).await {
        Err(error) if error.kind == ErrorKind::ContextLength => error,
        answered => return answered,
    };
    let Some((n_left_out, shorter)) = shortened(runner, request).await? else { return Err(error) };
    tracing::info!("{}: dropped {n_left_out} old messages that do not fit in the context", caller.request_id);
    runner.chat(caller, shorter).await
}

/// Runs [`shorten`] on a thread for such work, since it renders the prompt several times.
///
/// # Errors
/// As [`Runner::chat`].
async fn shortened(runner: &Runner, request: Arc<ChatRequest>) -> Result<Option<(usize, ChatRequest)>> {
    let lease = runner.lease(&request.model, request.options.keep_alive).await?;
    let model = lease.text()?.clone();
    runner.preparing().run(move |work| shorten(&model, &request, work)).await
}

/// Drops as few of the oldest messages as necessary. Returns the number of dropped messages and the
/// request without them; `None` if the last message alone is too long.
///
/// # Errors
/// The client has disconnected.
fn shorten(model: &TextModel, request: &ChatRequest, work: &Work) -> Result<Option<(usize, ChatRequest)>> {
    // The last message always stays.
    let n_old =
        request.messages.iter().filter(|message| message["role"] != "system").count().saturating_sub(1);
    let (mut too_few, mut enough) = (0, n_old + 1);
    while too_few + 1 < enough {
        work.goes_on()?;
        let n = too_few.midpoint(enough);
        // A template may refuse the remaining messages, so fewer are tried.
        let fits = match render(model, request, &without_oldest(&request.messages, n), work) {
            Ok(rendered) => rendered.tokens.len() < model.facts.n_ctx,
            Err(_) => false,
        };
        if fits { enough = n } else { too_few = n }
    }
    if enough > n_old {
        return Ok(None);
    }
    let messages = without_oldest(&request.messages, enough);
    Ok(Some((enough, ChatRequest { messages, ..request.clone() })))
}

/// All system messages, and the others without the `n` oldest. The rest begins at the next user
/// message if there is one, since a tool's result means nothing without its call.
fn without_oldest(messages: &[Value], n: usize) -> Vec<Value> {
    let is_system = |message: &Value| message["role"] == "system";
    let others: Vec<usize> = (0..messages.len()).filter(|index| !is_system(&messages[*index])).collect();
    let left = others.get(n..).unwrap_or_default();
    let first = left.iter().find(|index| messages[**index]["role"] == "user").or(left.last());
    let first = first.copied().unwrap_or(messages.len());
    let stays = |(index, message): &(usize, &Value)| *index >= first || is_system(message);
    messages.iter().enumerate().filter(stays).map(|(_, message)| message.clone()).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_oldest_messages_go_and_the_systems_stay() {
        let roles = ["system", "user", "assistant", "tool", "assistant", "user", "assistant"];
        let messages: Vec<Value> = roles.iter().map(|role| json!({ "role": role })).collect();
        let left = |n| -> Vec<usize> {
            let left = without_oldest(&messages, n);
            left.iter()
                .map(|message| roles.iter().position(|role| message["role"] == *role).unwrap())
                .collect()
        };
        assert_eq!(without_oldest(&messages, 0).len(), 7);
        // The next user message is the first of the rest.
        assert_eq!(left(1), [0, 1, 2]);
        assert_eq!(left(4), [0, 1, 2]);
        assert_eq!(left(5), [0, 2]);
        assert_eq!(left(6), [0]);
    }
}

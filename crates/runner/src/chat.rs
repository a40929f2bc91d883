//! Conversion of a chat request for the engine: the prompt, the constraint of the answer, and its
//! reader.

use std::sync::Arc;

use engine::{Asides, Constraint, Conversation, Picture};
use serde_json::{Value, json};
use text::{AnswerFormat, ShowSpecial, Specials};

use crate::effort::Effort;
use crate::error::{ErrorKind, RequestError, Result};
use crate::images;
use crate::lazy::Lazy;
use crate::models::TextModel;
use crate::preparing::Work;
use crate::reading::{Reader, Template};
use crate::request::{ChatRequest, GenerateOptions, ToolChoice};
use crate::thinking::ThinkingLimit;
use crate::tool_calls::ToolCalls;
use crate::warnings;

/// Input of the engine, and the reader of its answer.
pub(crate) struct Prepared {
    pub(crate) tokens: Vec<u32>,
    pub(crate) images: Vec<Arc<Picture>>,
    pub(crate) constraint: Option<Box<dyn Constraint>>,
    pub(crate) reading: Option<(Reader, ShowSpecial)>,
    /// Parts of the answer in which stop strings do not count.
    pub(crate) stop_outside: Option<Asides>,
    pub(crate) options: GenerateOptions,
}

/// Prepares the constraint and the reader of the answer to a chat's prompt.
///
/// # Errors
/// A grammar is not valid, or cannot be enforced.
pub(crate) fn prepare_chat(model: &TextModel, request: &ChatRequest, rendered: Rendered) -> Result<Prepared> {
    let facts = &model.facts;
    let template = model.template()?;
    let Rendered { text: prompt, tokens, images } = rendered;
    let format = match request.raw_reasoning {
        true => template.format.without_reasoning(),
        false => template.format,
    };
    let tools = request.called_tools();
    let is_forced = matches!(request.tool_choice, ToolChoice::Required | ToolChoice::Function(_));
    let content = request.grammar.as_ref();
    let tokenizer = &facts.tokenizer;
    let calls = ToolCalls { model, request, format, prompt: &prompt };
    let constraint: Option<Box<dyn Constraint>> = match (&request.options.triggers, content) {
        // An answer that must be a call has no text in which a lazy grammar could wait.
        (Some(triggers), Some(content)) if !is_forced => {
            let lazy = Lazy::new(facts.triggers(triggers)?, tokenizer.clone(), model.matcher(content)?);
            Some(Box::new(match tools.is_empty() {
                true => lazy,
                false => {
                    let asides = format.without_reasoning().asides(&prompt, tools);
                    lazy.beside_calls(Some(calls.free()?), asides)
                }
            }))
        }
        (_, content) => match (tools.is_empty(), content) {
            (true, None) => None,
            (true, Some(content)) => {
                let wrong = |error: text::Error| RequestError::new(ErrorKind::Invalid, error.to_string());
                let grammar = format.after_reasoning(content.clone(), &prompt, tokenizer).map_err(wrong)?;
                warnings::unenforced(&grammar.unenforced);
                Some(Box::new(model.matcher(&grammar.grammar)?))
            }
            (false, None) if !is_forced => Some(calls.free()?),
            (false, content) => Some(calls.forced(content)?),
        },
    };
    let constraint = match (request.thinking_budget, format.reasoning_marks()) {
        (Some(budget), Some(marks)) => {
            let has_begun = format.begins_thinking(&prompt);
            let limit = ThinkingLimit::new(tokenizer, marks, has_begun, budget, constraint)?;
            Some(Box::new(limit) as Box<dyn Constraint>)
        }
        // Anthropic's clients cannot enable reasoning without a budget.
        (Some(budget), None) if format.reasons() => {
            tracing::warn!(
                "`thinking_budget` of {budget} is ignored: this model's reasoning cannot be limited"
            );
            constraint
        }
        (_, _) => constraint,
    };
    Ok(read_with(template, &format, &prompt, (tokens, images), constraint, request))
}

/// Adds the reader of an answer that `constraint` limits.
fn read_with(
    template: &Template,
    format: &AnswerFormat,
    prompt: &str,
    (tokens, images): (Vec<u32>, Vec<Arc<Picture>>),
    constraint: Option<Box<dyn Constraint>>,
    request: &ChatRequest,
) -> Prepared {
    let reader = Reader::new(format.parser(prompt, request.called_tools()), format);
    let shown = ShowSpecial::Only(template.shown.clone());
    Prepared {
        tokens,
        images,
        constraint,
        reading: Some((reader, shown)),
        stop_outside: Some(format.asides(prompt, request.called_tools())),
        options: request.options.clone(),
    }
}

/// A rendered prompt.
pub(crate) struct Rendered {
    /// The template's output.
    pub(crate) text: String,
    /// Tokens, with one for each row of the images.
    pub(crate) tokens: Vec<u32>,
    pub(crate) images: Vec<Arc<Picture>>,
}

/// Renders messages of a request, or some of them.
///
/// # Errors
/// They are too long, the template or the model refuses them, or the client has disconnected.
pub(crate) fn render(
    model: &TextModel,
    request: &ChatRequest,
    messages: &[Value],
    work: &Work,
) -> Result<Rendered> {
    check_size(model, messages)?;
    let mut messages = messages.to_vec();
    let images = images::take(&mut messages, &model.facts.model, work)?;
    let encode = |text: &str| {
        work.goes_on()?;
        model.facts.check_text("messages", text.len())?;
        Ok::<_, RequestError>(
            model.facts.tokenizer.encode(text, Specials::Parse).map_err(engine::Error::from)?,
        )
    };
    if images.is_empty() {
        let text = write(model, request, &messages)?;
        return Ok(Rendered { tokens: encode(&text)?, text, images });
    }
    let expand = |messages: &[Value]| {
        let text = write(model, request, messages)?;
        let expanded = model.facts.model.expand_images(&text, &images);
        Ok::<_, RequestError>((
            expanded.map_err(|error| RequestError::invalid("messages", RequestError::from(error).message))?,
            text,
        ))
    };
    // Some templates accept texts only.
    let (expanded, text) =
        expand(&messages).or_else(|_| expand(&images::as_texts(&messages, &model.facts.model)))?;
    Ok(Rendered { tokens: encode(&expanded)?, text, images })
}

/// Refuses messages that cannot fit in the context, before a template runs. The limit is twice the
/// context, since a template may drop some text, such as earlier reasoning.
fn check_size(model: &TextModel, messages: &[Value]) -> Result<()> {
    let n_ctx = model.facts.n_ctx;
    if messages.len() > n_ctx {
        let found = messages.len();
        let message = format!(
            "`messages` has {found} entries, expected at most {n_ctx}, the number of tokens in the context"
        );
        let error = RequestError { message, ..RequestError::context_length(found, n_ctx) };
        return Err(error);
    }
    let (n_bytes, most) = (messages.iter().map(bytes_of).sum(), model.facts.max_text.saturating_mul(2));
    match n_bytes > most {
        true => Err(RequestError::text_too_long("messages", n_bytes, n_ctx, most)),
        false => Ok(()),
    }
}

/// Bytes of the texts in a message, without its images.
fn bytes_of(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len(),
        Value::Array(values) => values.iter().map(bytes_of).sum(),
        Value::Object(values) if values.get("type").is_some_and(|kind| kind == "image") => 0,
        Value::Object(values) => values.values().map(bytes_of).sum(),
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
    }
}

/// Renders messages with the template.
fn write(model: &TextModel, request: &ChatRequest, messages: &[Value]) -> Result<String> {
    let template = model.template()?;
    let mut conversation = Conversation::with_template(&model.facts.model, template.template.clone())?;
    let (messages, tools) = template.prompt.adapt(messages, request.called_tools());
    let messages = template.roles.adapt(messages);
    let last = messages.last().and_then(|message| message["content"].as_str()).unwrap_or_default().to_owned();
    conversation.set_messages(messages);
    conversation.set_tools(tools);
    if let Some(effort) = request.effort {
        let source = model.facts.tokenizer.chat_template().unwrap_or_default();
        conversation.set_variable("reasoning_effort", json!(effort.word_for(source)));
    }
    for (name, value) in &request.template_variables {
        conversation.set_variable(name, value.clone());
    }
    if let Some(thinking) = request.thinking.or(request.effort.and_then(Effort::thinks)) {
        // Templates use one of these names of the flag.
        for name in ["enable_thinking", "thinking"] {
            conversation.set_variable(name, json!(thinking));
        }
    }
    let begins_answer = !request.continue_last && !request.without_generation_prompt;
    let mut text = conversation
        .render(begins_answer)
        .map_err(|error| RequestError::invalid("messages", error.to_string()))?;
    if request.continue_last {
        // The template's text after the message is not part of a continued answer.
        let found =
            [last.as_str(), last.trim()].into_iter().find_map(|last| Some(text.rfind(last)? + last.len()));
        match found.filter(|_| !last.trim().is_empty()) {
            Some(end) => text.truncate(end),
            None => {
                let message =
                    "the last message has no text that the template shows, expected text to continue";
                return Err(RequestError::invalid("messages", message));
            }
        }
    }
    Ok(text)
}

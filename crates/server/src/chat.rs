//! A chat request to what the engine is asked: the prompt, what holds the answer, and what reads it.

use std::sync::Arc;

use engine::{Aside, Constraint, Conversation, Picture};
use serde_json::{Value, json};
use text::{AnswerFormat, CallChoice, Grammar, Matcher, ShowSpecial, Specials};

use crate::error::{ApiError, ErrorKind, Result};
use crate::images;
use crate::lazy::Lazy;
use crate::models::TextModel;
use crate::reading::{Reader, Template};
use crate::request::{ChatRequest, GenerateOptions, ToolChoice};
use crate::thinking::ThinkingLimit;

/// What the engine is asked, and how its answer is read.
pub(crate) struct Prepared {
    pub(crate) tokens: Vec<u32>,
    pub(crate) images: Vec<Arc<Picture>>,
    pub(crate) constraint: Option<Box<dyn Constraint>>,
    pub(crate) reading: Option<(Reader, ShowSpecial)>,
    /// Where stop strings do not count.
    pub(crate) stop_outside: Vec<Aside>,
    pub(crate) options: GenerateOptions,
}

/// The prompt of a chat, what holds its answer, and what reads it.
pub(crate) fn prepare_chat(model: &TextModel, request: ChatRequest) -> Result<Prepared> {
    let facts = &model.facts;
    let template = model.template()?;
    let Rendered { text: prompt, tokens, images } = render(model, &request)?;
    let format = match request.raw_reasoning {
        true => template.format.without_reasoning(),
        false => template.format,
    };
    let tools = request.called_tools();
    let wrong = |error: text::Error| ApiError::invalid("tools", error.to_string());
    let is_forced = matches!(request.tool_choice, ToolChoice::Required | ToolChoice::Function(_));
    let choice = match &request.tool_choice {
        ToolChoice::Auto | ToolChoice::None => CallChoice::Auto,
        ToolChoice::Required => CallChoice::Required,
        ToolChoice::Function(name) => CallChoice::Function(name),
    };
    let content = request.grammar.as_ref();
    let tokenizer = &facts.tokenizer;
    let calls = |content: Option<&Grammar>| {
        let parallel = request.may_call_again();
        format.grammar(tools, choice, parallel, content, &prompt, tokenizer).map_err(wrong)
    };
    let whole = |matcher: Matcher| Box::new(matcher) as Box<dyn Constraint>;
    // Calls need not come: where a schema cannot be followed, the model has to know by itself.
    let free_calls = || calls(None).and_then(|grammar| model.matcher(&grammar)).ok();
    let constraint: Option<Box<dyn Constraint>> = match (&request.options.triggers, content) {
        // An answer that must be a call has no text for the grammar to wait in.
        (Some(triggers), Some(content)) if !is_forced => {
            let lazy = Lazy::new(triggers.clone(), tokenizer.clone(), model.matcher(content)?);
            Some(Box::new(match tools.is_empty() {
                true => lazy,
                false => lazy.beside_calls(free_calls(), format.without_reasoning().asides(&prompt, true)),
            }))
        }
        (_, content) => match (tools.is_empty(), content) {
            (true, None) => None,
            (true, Some(content)) => {
                let wrong = |error: text::Error| ApiError::new(ErrorKind::Invalid, error.to_string());
                let grammar = format.after_reasoning(content.clone(), &prompt, tokenizer).map_err(wrong)?;
                Some(whole(model.matcher(&grammar)?))
            }
            (false, None) if !is_forced => free_calls().map(whole),
            (false, content) => Some(whole(model.matcher(&calls(content)?)?)),
        },
    };
    let constraint = match (request.thinking_budget, format.reasoning_marks()) {
        (Some(budget), Some(marks)) => {
            let has_begun = format.begins_thinking(&prompt);
            let limit = ThinkingLimit::new(tokenizer, marks, has_begun, budget, constraint)?;
            Some(Box::new(limit) as Box<dyn Constraint>)
        }
        (Some(_), None) if format.reasons() => {
            let message = "`thinking_budget`: this model's reasoning cannot be limited yet".to_owned();
            return Err(ApiError { message, ..ApiError::not_built("thinking_budget") });
        }
        (_, _) => constraint,
    };
    Ok(read_with(template, &format, &prompt, (tokens, images), constraint, &request))
}

/// A prompt whose answer is held to `constraint`, and what reads that answer.
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
        stop_outside: format.asides(prompt, !request.called_tools().is_empty()),
        options: request.options.clone(),
    }
}

/// A prompt.
pub(crate) struct Rendered {
    /// As the template writes it.
    pub(crate) text: String,
    /// With a token for each row of its images.
    pub(crate) tokens: Vec<u32>,
    pub(crate) images: Vec<Arc<Picture>>,
}

/// Messages to prompt.
pub(crate) fn render(model: &TextModel, request: &ChatRequest) -> Result<Rendered> {
    let mut messages = request.messages.clone();
    let images = images::take(&mut messages, &model.facts.model)?;
    let encode =
        |text: &str| model.facts.tokenizer.encode(text, Specials::Parse).map_err(engine::Error::from);
    if images.is_empty() {
        let text = write(model, request, &messages)?;
        return Ok(Rendered { tokens: encode(&text)?, text, images });
    }
    let expand = |messages: &[Value]| {
        let text = write(model, request, messages)?;
        let expanded = model.facts.model.expand_images(&text, &images);
        Ok::<_, ApiError>((
            expanded.map_err(|error| ApiError::invalid("messages", ApiError::from(error).message))?,
            text,
        ))
    };
    // Some templates know texts only.
    let (expanded, text) =
        expand(&messages).or_else(|_| expand(&images::as_texts(&messages, &model.facts.model)))?;
    Ok(Rendered { tokens: encode(&expanded)?, text, images })
}

/// The text of messages.
fn write(model: &TextModel, request: &ChatRequest, messages: &[Value]) -> Result<String> {
    let template = model.template()?;
    let mut conversation = Conversation::with_template(&model.facts.model, template.template.clone())?;
    let (messages, tools) = template.prompt.adapt(messages, request.called_tools());
    let last = messages.last().and_then(|message| message["content"].as_str()).unwrap_or_default().to_owned();
    conversation.set_messages(messages);
    conversation.set_tools(tools);
    for (name, value) in &request.template_variables {
        conversation.set_variable(name, value.clone());
    }
    if let Some(thinking) = request.thinking {
        // The names that templates give it.
        for name in ["enable_thinking", "thinking"] {
            conversation.set_variable(name, json!(thinking));
        }
    }
    let begins_answer = !request.continue_last && !request.without_generation_prompt;
    let mut text = conversation
        .render(begins_answer)
        .map_err(|error| ApiError::invalid("messages", error.to_string()))?;
    if request.continue_last {
        // What the template writes after the message is not part of an answer that goes on.
        let found =
            [last.as_str(), last.trim()].into_iter().find_map(|last| Some(text.rfind(last)? + last.len()));
        match found.filter(|_| !last.trim().is_empty()) {
            Some(end) => text.truncate(end),
            None => {
                let message =
                    "the last message has no text that the template shows, expected one to go on with";
                return Err(ApiError::invalid("messages", message));
            }
        }
    }
    Ok(text)
}

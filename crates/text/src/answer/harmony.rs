//! The channels of gpt-oss: `<|channel|>final<|message|>…<|end|>`, with a recipient in the header of
//! a call. See <https://cookbook.openai.com/articles/openai-harmony>.

/// Ends a header.
pub(super) const MESSAGE: &str = "<|message|>";

/// Comes before the name of a function in the header of a call.
pub(super) const RECIPIENT: &str = " to=functions.";

/// What ends a message. A model may leave out the first three.
pub(super) const ENDS: [&str; 5] = ["<|end|>", "<|call|>", "<|return|>", "<|start|>", "<|channel|>"];

/// Special tokens other than the two that answers begin with.
pub(super) const MARKS: [&str; 6] =
    ["<|start|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>", "<|constrain|>"];

/// The longest header, in bytes.
const MAX_HEADER: usize = 1024;

/// Whom a message is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Channel {
    Reasoning,
    Content,
    /// The arguments of a call.
    Call,
}

/// How templates write the header of a call.
pub(super) fn call_header(name: &str) -> String {
    format!("<|channel|>commentary{RECIPIENT}{name} <|constrain|>json{MESSAGE}")
}

/// The function that a header names. It stands before or after the channel.
pub(super) fn recipient(header: &str) -> Option<&str> {
    let rest = header.split("to=").nth(1)?;
    let name = rest.split([' ', '<', '\n']).next()?;
    Some(name.strip_prefix("functions.").unwrap_or(name)).filter(|name| !name.is_empty())
}

/// The channel of a header without a recipient.
pub(super) fn channel(header: &str) -> Channel {
    match header.contains("analysis") {
        true => Channel::Reasoning,
        false => Channel::Content,
    }
}

/// The channel in which an answer to `prompt` begins; `None`: it begins with a header.
pub(super) fn channel_of_prompt(prompt: &str) -> Option<Channel> {
    let header = prompt.trim_end().strip_suffix(MESSAGE)?;
    Some(channel(header.rsplit("<|start|>").next().unwrap_or(header)))
}

/// Whether text may be a header, or its beginning.
pub(super) fn may_be_header(text: &str) -> bool {
    const BEGINNINGS: [&str; 6] = ["<|", "assistant", "to=", "analysis", "commentary", "final"];
    let text = text.trim_start();
    let begins = |beginning: &&str| beginning.starts_with(text) || text.starts_with(*beginning);
    text.len() <= MAX_HEADER && BEGINNINGS.iter().any(begins)
}

/// Whether an answer that ended here was within a header, which is no text for people.
pub(super) fn is_header(text: &str) -> bool {
    let text = text.trim_start();
    text.is_empty() || text.starts_with("<|") || text.contains("<|channel|>") || text == "assistant"
}

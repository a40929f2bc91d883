//! The channels of gpt-oss: `<|channel|>final<|message|>…<|end|>`, with a recipient in the header
//! of a call. See <https://cookbook.openai.com/articles/openai-harmony>.

/// End of a header.
pub(super) const MESSAGE: &str = "<|message|>";

/// Text before the function's name in the header of a call.
pub(super) const RECIPIENT: &str = " to=functions.";

/// Marks at the end of a message. Models may omit the first three.
pub(super) const ENDS: [&str; 5] = ["<|end|>", "<|call|>", "<|return|>", "<|start|>", "<|channel|>"];

/// Special tokens other than the two at the start of answers.
pub(super) const MARKS: [&str; 6] =
    ["<|start|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>", "<|constrain|>"];

/// Longest header, in bytes.
const MAX_HEADER: usize = 1024;

/// The recipient of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Channel {
    Reasoning,
    Content,
    /// The arguments of a call.
    Call,
}

/// The header of a call as templates write it.
pub(super) fn call_header(name: &str) -> String {
    format!("<|channel|>commentary{RECIPIENT}{name} <|constrain|>json{MESSAGE}")
}

/// The function that a header names, before or after the channel.
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

/// The channel in which an answer to `prompt` begins; `None` if it begins with a header.
pub(super) fn channel_of_prompt(prompt: &str) -> Option<Channel> {
    let header = prompt.trim_end().strip_suffix(MESSAGE)?;
    Some(channel(header.rsplit("<|start|>").next().unwrap_or(header)))
}

/// Returns true if the text is a header, or the start of one.
pub(super) fn may_be_header(text: &str) -> bool {
    const BEGINNINGS: [&str; 6] = ["<|", "assistant", "to=", "analysis", "commentary", "final"];
    let text = text.trim_start();
    let begins = |beginning: &&str| beginning.starts_with(text) || text.starts_with(*beginning);
    text.len() <= MAX_HEADER && BEGINNINGS.iter().any(begins)
}

/// Returns true if an answer that ended here was within a header, which users should not see.
pub(super) fn is_header(text: &str) -> bool {
    let text = text.trim_start();
    text.is_empty() || text.starts_with("<|") || text.contains("<|channel|>") || text == "assistant"
}

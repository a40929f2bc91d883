//! Keys of vLLM and SGLang that would change the answer or what is reported about it, and that are
//! not built.

use serde::Deserialize;
use serde_json::Value;

use runner::{RequestError, Result};

/// Declares the refused keys, each with its type and the values that change an answer.
macro_rules! unbuilt {
    ($($key:ident: $kind:ty, $changes:expr;)*) => {
        /// The refused keys of a request.
        #[derive(Clone, Debug, Default, Deserialize)]
        pub(super) struct Unbuilt {
            $($key: Option<$kind>,)*
        }

        impl Unbuilt {
            /// # Errors
            /// The name of the first key whose value would change an answer.
            pub(super) fn check(&self) -> Result<()> {
                $(if self.$key.as_ref().is_some_and($changes) {
                    return Err(RequestError::unsupported(stringify!($key)));
                })*
                Ok(())
            }
        }
    };
}

unbuilt! {
    allowed_token_ids: Value, is_something;
    bad_words: Value, is_something;
    chat_template: Value, is_something;
    documents: Value, is_something;
    include_stop_str_in_output: bool, |value| *value;
    prompt_logprobs: Value, is_something;
    return_token_ids: bool, |value| *value;
    return_tokens_as_token_ids: bool, |value| *value;
    skip_special_tokens: bool, |value| !*value;
    truncate_prompt_tokens: Value, is_something;
    use_beam_search: bool, |value| *value;
}

/// False for `null` and an empty list, which clients send for a key that they do not use.
fn is_something(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Array(list) => !list.is_empty(),
        Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Object(_) => true,
    }
}

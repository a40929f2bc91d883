//! The example that runs a model in one page.
#![allow(clippy::unwrap_used)]

use crate::common::{expected, fixture};

#[allow(dead_code)]
#[path = "../examples/forward.rs"]
mod example;

#[test]
fn the_example_chooses_the_expected_tokens() {
    // Windows and full attention, a mixture of experts, recurrent layers.
    for name in ["llama", "gemma3", "qwen3_moe", "qwen3_next"] {
        let want = expected(name);
        let found = example::forward(&fixture(name), &want.input, want.greedy.len()).unwrap();
        assert_eq!(found, want.greedy, "{name}");
    }
}

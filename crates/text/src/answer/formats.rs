//! The formats in which models call tools and think, as data.

/// How calls are written, and what in a template's text tells.
#[derive(Debug)]
pub(super) struct CallFormat {
    /// For people.
    pub(super) name: &'static str,
    /// All of these stand in the template.
    pub(super) evidence: &'static [&'static str],
    /// How calls are written.
    pub(super) syntax: Syntax,
    /// Marks around calls and answers that say nothing.
    pub(super) silent: &'static [&'static str],
}

/// How calls are written.
#[derive(Debug)]
pub(super) enum Syntax {
    /// `OPEN {"name": …, "arguments": {…}} CLOSE`: one object or more, alone or in a `list`. With an empty OPEN, calls may also be
    /// the whole answer.
    Json { open: &'static [&'static str], close: &'static str, arguments: &'static str, list: bool },
    /// `OPEN name SEPARATOR {…} CLOSE`
    Named { open: &'static str, prefix: &'static str, separator: &'static str, close: &'static str },
    /// Names and parameters between marks.
    Tagged(Tags),
    /// `OPEN [name(key=value), …] CLOSE` in Python's literals.
    Pythonic { open: &'static str, close: &'static str, list: bool },
    /// `OPEN name{key:value} CLOSE`, texts between quotes of their own.
    Braces { open: &'static str, quote: &'static str, close: &'static str },
    /// The channels of gpt-oss.
    Harmony,
}

/// The marks of [`Syntax::Tagged`]: `OPEN (NAME_BEFORE name NAME_AFTER (KEY_BEFORE key KEY_AFTER value VALUE_AFTER)* END) CLOSE`.
#[derive(Debug)]
pub(super) struct Tags {
    pub(super) open: &'static str,
    pub(super) name_before: &'static str,
    pub(super) name_after: &'static str,
    pub(super) key_before: &'static str,
    pub(super) key_after: &'static str,
    pub(super) value_after: &'static str,
    /// Ends a call; empty: `close` does.
    pub(super) end: &'static str,
    pub(super) close: &'static str,
}

/// Marks around what a model thinks before it answers.
#[derive(Debug)]
pub(super) struct Reasoning {
    pub(super) open: &'static str,
    pub(super) close: &'static str,
}

/// Searched in this order in a template.
pub(super) const REASONINGS: [Reasoning; 6] = [
    Reasoning { open: "<seed:think>", close: "</seed:think>" },
    Reasoning { open: "[THINK]", close: "[/THINK]" },
    Reasoning { open: "<|START_THINKING|>", close: "<|END_THINKING|>" },
    Reasoning { open: "<|channel>thought", close: "<channel|>" },
    Reasoning { open: "<think>", close: "</think>" },
    Reasoning { open: "<thinking>", close: "</thinking>" },
];

/// What a model is told to write whose template knows no tools.
pub(super) static GENERIC: CallFormat = CallFormat {
    name: "generic",
    evidence: &[],
    syntax: Syntax::Json {
        open: &["<tool_call>"],
        close: "</tool_call>",
        arguments: "arguments",
        list: false,
    },
    silent: &[],
};

/// The first whose evidence stands in a template is taken.
pub(super) static FORMATS: [CallFormat; 21] = [
    CallFormat {
        name: "harmony",
        evidence: &["<|channel|>", "<|message|>"],
        syntax: Syntax::Harmony,
        silent: &[],
    },
    CallFormat {
        name: "kimi",
        evidence: &["<|tool_call_argument_begin|>"],
        syntax: Syntax::Named {
            open: "<|tool_call_begin|>",
            prefix: "functions.",
            separator: "<|tool_call_argument_begin|>",
            close: "<|tool_call_end|>",
        },
        silent: &["<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"],
    },
    CallFormat {
        name: "deepseek-v3",
        evidence: &["<｜tool▁call▁begin｜>", "```json"],
        syntax: Syntax::Named {
            open: "<｜tool▁call▁begin｜>",
            prefix: "function<｜tool▁sep｜>",
            separator: "\n```json\n",
            close: "\n```<｜tool▁call▁end｜>",
        },
        silent: &["<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"],
    },
    CallFormat {
        name: "deepseek-v3.1",
        evidence: &["<｜tool▁call▁begin｜>"],
        syntax: Syntax::Named {
            open: "<｜tool▁call▁begin｜>",
            prefix: "",
            separator: "<｜tool▁sep｜>",
            close: "<｜tool▁call▁end｜>",
        },
        silent: &["<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"],
    },
    CallFormat {
        name: "glm",
        evidence: &["<arg_key>", "<tool_call>"],
        syntax: Syntax::Tagged(Tags {
            open: "<tool_call>",
            name_before: "",
            name_after: "\n",
            key_before: "<arg_key>",
            key_after: "</arg_key>\n<arg_value>",
            value_after: "</arg_value>",
            end: "",
            close: "</tool_call>",
        }),
        silent: &[],
    },
    CallFormat {
        name: "seed",
        evidence: &["<seed:tool_call>"],
        syntax: Syntax::Tagged(Tags {
            open: "<seed:tool_call>",
            name_before: "<function=",
            name_after: ">",
            key_before: "<parameter=",
            key_after: ">",
            value_after: "</parameter>",
            end: "</function>",
            close: "</seed:tool_call>",
        }),
        silent: &[],
    },
    CallFormat {
        name: "qwen-coder",
        evidence: &["<function=", "<parameter=", "<tool_call>"],
        syntax: Syntax::Tagged(Tags {
            open: "<tool_call>",
            name_before: "<function=",
            name_after: ">",
            key_before: "<parameter=",
            key_after: ">",
            value_after: "</parameter>",
            end: "</function>",
            close: "</tool_call>",
        }),
        silent: &[],
    },
    CallFormat {
        name: "minimax",
        evidence: &["<minimax:tool_call>"],
        syntax: Syntax::Tagged(Tags {
            open: "<minimax:tool_call>",
            name_before: "<invoke name=\"",
            name_after: "\">",
            key_before: "<parameter name=\"",
            key_after: "\">",
            value_after: "</parameter>",
            end: "</invoke>",
            close: "</minimax:tool_call>",
        }),
        silent: &[],
    },
    CallFormat {
        name: "function-gemma",
        evidence: &["<start_function_call>"],
        syntax: Syntax::Braces {
            open: "<start_function_call>call:",
            quote: "<escape>",
            close: "<end_function_call>",
        },
        silent: &[],
    },
    CallFormat {
        name: "gemma4",
        evidence: &["<|tool_call>", "<tool_call|>"],
        syntax: Syntax::Braces { open: "<|tool_call>call:", quote: "<|\"|>", close: "<tool_call|>" },
        silent: &[],
    },
    CallFormat {
        name: "lfm2",
        evidence: &["<|tool_call_start|>"],
        syntax: Syntax::Pythonic { open: "<|tool_call_start|>", close: "<|tool_call_end|>", list: true },
        silent: &[],
    },
    CallFormat {
        name: "phi4",
        evidence: &["<|tool_call|>", "<|/tool_call|>"],
        syntax: Syntax::Json {
            open: &["<|tool_call|>"],
            close: "<|/tool_call|>",
            arguments: "arguments",
            list: true,
        },
        silent: &[],
    },
    CallFormat {
        name: "granite3",
        evidence: &["<|tool_call|>"],
        syntax: Syntax::Json { open: &["<|tool_call|>"], close: "", arguments: "arguments", list: true },
        silent: &[],
    },
    CallFormat {
        name: "command",
        evidence: &["<|START_ACTION|>"],
        syntax: Syntax::Json {
            open: &["<|START_ACTION|>"],
            close: "<|END_ACTION|>",
            arguments: "parameters",
            list: true,
        },
        silent: &["<|START_RESPONSE|>", "<|END_RESPONSE|>"],
    },
    CallFormat {
        name: "nemotron",
        evidence: &["<TOOLCALL>"],
        syntax: Syntax::Json {
            open: &["<TOOLCALL>"],
            close: "</TOOLCALL>",
            arguments: "arguments",
            list: true,
        },
        silent: &[],
    },
    CallFormat {
        name: "olmo3",
        evidence: &["<function_calls>"],
        syntax: Syntax::Pythonic { open: "<function_calls>", close: "</function_calls>", list: false },
        silent: &[],
    },
    CallFormat {
        name: "mistral",
        evidence: &["[TOOL_CALLS]", "[ARGS]"],
        syntax: Syntax::Named { open: "[TOOL_CALLS]", prefix: "", separator: "[ARGS]", close: "" },
        silent: &[],
    },
    CallFormat {
        name: "mistral-v3",
        evidence: &["[TOOL_CALLS]"],
        syntax: Syntax::Json { open: &["[TOOL_CALLS]"], close: "", arguments: "arguments", list: true },
        silent: &[],
    },
    CallFormat {
        name: "hermes",
        evidence: &["<tool_call>"],
        syntax: Syntax::Json {
            open: &["<tool_call>"],
            close: "</tool_call>",
            arguments: "arguments",
            list: false,
        },
        silent: &[],
    },
    CallFormat {
        name: "llama3",
        evidence: &["tools", "\"parameters\":"],
        syntax: Syntax::Json {
            open: &["<|python_tag|>", ""],
            close: "",
            arguments: "parameters",
            list: false,
        },
        silent: &[],
    },
    CallFormat {
        name: "llama4",
        evidence: &["tools", "<|header_start|>"],
        syntax: Syntax::Pythonic { open: "", close: "", list: true },
        silent: &["<|python_start|>", "<|python_end|>"],
    },
];

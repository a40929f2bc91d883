//! Formats of tool calls and reasoning, as data. The parser of answers and the grammars of calls
//! are both built from it.

/// The format of calls, and the evidence of it in a template.
#[derive(Debug)]
pub(super) struct CallFormat {
    /// Name for people.
    pub(super) name: &'static str,
    /// Texts that a template of this format contains, all of them.
    pub(super) evidence: &'static [&'static str],
    /// Marks that open a call or a list of calls; forced calls use the last one. With an empty
    /// mark, a call without a mark may be the whole answer.
    pub(super) open: &'static [&'static str],
    /// The mark that closes what `open` opens; empty if there is none. Answers may omit it.
    pub(super) close: &'static str,
    /// Syntax between the two marks.
    pub(super) syntax: Syntax,
    /// Marks around sections of calls and around content, which are part of neither.
    pub(super) silent: &'static [&'static str],
    /// Another format that models of the family write as well, after its own marks.
    pub(super) also: Option<&'static CallFormat>,
}

/// Syntax of a call.
#[derive(Debug)]
pub(super) enum Syntax {
    /// One or more objects `{"name": …, "arguments": {…}}`.
    Json {
        /// The name's key in templates; answers may use other keys. If empty, the name is the key
        /// of the arguments, `{"NAME": {…}}`.
        name: &'static str,
        /// The arguments' key in templates.
        arguments: &'static str,
        /// True if templates write a list.
        list: bool,
    },
    /// A call `PREFIX name SEPARATOR {…} AFTER`.
    Named {
        /// Optional text before the name.
        prefix: &'static str,
        /// Text after the name, perhaps with white space around it.
        separator: &'static str,
        /// Optional text between the arguments and the closing mark.
        after: &'static str,
    },
    /// Names and parameters between marks.
    Tagged(Tags),
    /// A list `[name(key=value), …]` of Python's literals.
    Pythonic {
        /// True if templates write a list; false if each call has a line of its own.
        list: bool,
    },
    /// A call `name{key:value}`, whose strings have their own quote marks.
    Braces {
        /// The quote mark.
        quote: &'static str,
    },
    /// The channels of gpt-oss.
    Harmony,
}

/// The marks of [`Syntax::Tagged`]: `NAME_BEFORE name NAME_AFTER (KEY_BEFORE key KEY_AFTER value
/// VALUE_AFTER)* END`, with optional white space between any two of them.
#[derive(Debug)]
pub(super) struct Tags {
    /// Optional text between the mark that opens calls and `name_before`.
    pub(super) skipped: &'static str,
    /// Mark before the name; empty if the name comes first. Otherwise it opens a call even without
    /// [`CallFormat::open`].
    pub(super) name_before: &'static str,
    pub(super) name_after: &'static str,
    pub(super) key_before: &'static str,
    /// Marks between a key and its value, each in all its spellings.
    pub(super) key_after: &'static [&'static [&'static str]],
    pub(super) value_after: &'static str,
    /// Mark at the end of a call; if empty, [`CallFormat::close`] ends it.
    pub(super) end: &'static str,
}

impl CallFormat {
    /// Returns true for the channels of gpt-oss, which have no marks around calls or reasoning.
    pub(super) fn is_harmony(&self) -> bool {
        matches!(self.syntax, Syntax::Harmony)
    }
}

/// Marks around the reasoning before an answer.
#[derive(Debug)]
pub(super) struct Reasoning {
    pub(super) open: &'static str,
    pub(super) close: &'static str,
}

/// Reasoning formats, in the order of their detection.
pub(super) const REASONINGS: [Reasoning; 6] = [
    Reasoning { open: "<seed:think>", close: "</seed:think>" },
    Reasoning { open: "[THINK]", close: "[/THINK]" },
    Reasoning { open: "<|START_THINKING|>", close: "<|END_THINKING|>" },
    Reasoning { open: "<|channel>thought", close: "<channel|>" },
    Reasoning { open: "<think>", close: "</think>" },
    Reasoning { open: "<thinking>", close: "</thinking>" },
];

/// The format that a model is told to use if its template has no tools.
pub(super) static GENERIC: CallFormat = CallFormat {
    name: "generic",
    evidence: &[],
    open: &["<tool_call>"],
    close: "</tool_call>",
    syntax: Syntax::Json { name: "name", arguments: "arguments", list: false },
    silent: &[],
    also: None,
};

/// The format of Llama 3.1 for users' functions, and of Functionary.
const FUNCTION_TAG: CallFormat = CallFormat {
    name: "function-tag",
    evidence: &["<function=", "</function>"],
    open: &["<function="],
    close: "</function>",
    syntax: Syntax::Named { prefix: "", separator: ">", after: "" },
    silent: &[],
    also: None,
};

/// All formats; the first whose evidence a template contains applies.
pub(super) static FORMATS: [CallFormat; 36] = [
    CallFormat {
        name: "harmony",
        evidence: &["<|channel|>", "<|message|>"],
        open: &["<|channel|>"],
        close: "",
        syntax: Syntax::Harmony,
        silent: &[],
        also: None,
    },
    CallFormat {
        name: "deepseek-v3.2",
        evidence: &["<｜DSML｜function_calls>"],
        open: &["<｜DSML｜function_calls>"],
        close: "</｜DSML｜function_calls>",
        syntax: Syntax::Tagged(Tags {
            skipped: "",
            name_before: "<｜DSML｜invoke name=\"",
            name_after: "\">",
            key_before: "<｜DSML｜parameter name=\"",
            key_after: &[&["\" string=\"true\">", "\" string=\"false\">", "\">"]],
            value_after: "</｜DSML｜parameter>",
            end: "</｜DSML｜invoke>",
        }),
        silent: &[],
        also: None,
    },
    CallFormat {
        name: "deepseek-v4",
        evidence: &["<｜DSML｜tool_calls>"],
        open: &["<｜DSML｜tool_calls>"],
        close: "</｜DSML｜tool_calls>",
        syntax: Syntax::Tagged(Tags {
            skipped: "",
            name_before: "<｜DSML｜invoke name=\"",
            name_after: "\">",
            key_before: "<｜DSML｜parameter name=\"",
            key_after: &[&["\" string=\"true\">", "\" string=\"false\">", "\">"]],
            value_after: "</｜DSML｜parameter>",
            end: "</｜DSML｜invoke>",
        }),
        silent: &[],
        also: None,
    },
    CallFormat {
        name: "step3",
        evidence: &["<steptml:invoke"],
        open: &["<｜tool_call_begin｜>"],
        close: "<｜tool_call_end｜>",
        syntax: Syntax::Tagged(Tags {
            skipped: "function<｜tool_sep｜>",
            name_before: "<steptml:invoke name=\"",
            name_after: "\">",
            key_before: "<steptml:parameter name=\"",
            key_after: &[&["\">"]],
            value_after: "</steptml:parameter>",
            end: "</steptml:invoke>",
        }),
        silent: &["<｜tool_calls_begin｜>", "<｜tool_calls_end｜>", "<｜tool_sep｜>"],
        also: None,
    },
    CallFormat {
        name: "kimi",
        evidence: &["<|tool_call_argument_begin|>"],
        open: &["<|tool_call_begin|>"],
        close: "<|tool_call_end|>",
        syntax: Syntax::Named { prefix: "functions.", separator: "<|tool_call_argument_begin|>", after: "" },
        silent: &["<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"],
        also: None,
    },
    CallFormat {
        name: "deepseek-v3",
        evidence: &["<｜tool▁call▁begin｜>", "```json"],
        open: &["<｜tool▁call▁begin｜>"],
        close: "<｜tool▁call▁end｜>",
        syntax: Syntax::Named {
            prefix: "function<｜tool▁sep｜>", separator: "\n```json\n", after: "\n```"
        },
        silent: &["<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"],
        also: None,
    },
    CallFormat {
        name: "deepseek-v3.1",
        evidence: &["<｜tool▁call▁begin｜>"],
        open: &["<｜tool▁call▁begin｜>"],
        close: "<｜tool▁call▁end｜>",
        syntax: Syntax::Named { prefix: "", separator: "<｜tool▁sep｜>", after: "" },
        silent: &["<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"],
        also: None,
    },
    CallFormat {
        name: "hunyuan-v3",
        evidence: &["<tool_sep>", "<arg_key>"],
        open: &["<tool_call>"],
        close: "</tool_call>",
        syntax: Syntax::Tagged(Tags {
            skipped: "",
            name_before: "",
            name_after: "<tool_sep>",
            key_before: "<arg_key>",
            key_after: &[&["</arg_key>"], &["<arg_value>"]],
            value_after: "</arg_value>",
            end: "",
        }),
        silent: &["<tool_calls>", "</tool_calls>"],
        also: None,
    },
    CallFormat {
        name: "glm",
        evidence: &["<arg_key>", "<tool_call>"],
        open: &["<tool_call>"],
        close: "</tool_call>",
        syntax: Syntax::Tagged(Tags {
            skipped: "",
            name_before: "",
            name_after: "\n",
            key_before: "<arg_key>",
            key_after: &[&["</arg_key>"], &["<arg_value>"]],
            value_after: "</arg_value>",
            end: "",
        }),
        silent: &[],
        also: None,
    },
    CallFormat {
        name: "seed",
        evidence: &["<seed:tool_call>"],
        open: &["<seed:tool_call>"],
        close: "</seed:tool_call>",
        syntax: Syntax::Tagged(Tags {
            skipped: "",
            name_before: "<function=",
            name_after: ">",
            key_before: "<parameter=",
            key_after: &[&[">"]],
            value_after: "</parameter>",
            end: "</function>",
        }),
        silent: &[],
        also: None,
    },
    CallFormat {
        name: "qwen-coder",
        evidence: &["<function=", "<parameter=", "<tool_call>"],
        open: &["<tool_call>"],
        close: "</tool_call>",
        syntax: Syntax::Tagged(Tags {
            skipped: "",
            name_before: "<function=",
            name_after: ">",
            key_before: "<parameter=",
            key_after: &[&[">"]],
            value_after: "</parameter>",
            end: "</function>",
        }),
        silent: &[],
        also: None,
    },
    CallFormat {
        name: "minimax",
        evidence: &["<minimax:tool_call>"],
        open: &["<minimax:tool_call>"],
        close: "</minimax:tool_call>",
        syntax: Syntax::Tagged(Tags {
            skipped: "",
            name_before: "<invoke name=\"",
            name_after: "\">",
            key_before: "<parameter name=\"",
            key_after: &[&["\">"]],
            value_after: "</parameter>",
            end: "</invoke>",
        }),
        silent: &[],
        also: None,
    },
    CallFormat {
        name: "dots",
        evidence: &["<dots_function_call>"],
        open: &["<dots_function_call>"],
        close: "</dots_function_call>",
        syntax: Syntax::Tagged(Tags {
            skipped: "",
            name_before: "<invoke name=\"",
            name_after: "\">",
            key_before: "<parameter name=\"",
            key_after: &[&["\">"]],
            value_after: "</parameter>",
            end: "</invoke>",
        }),
        silent: &[],
        also: None,
    },
    CallFormat {
        name: "minicpm5",
        evidence: &["<function name="],
        open: &[],
        close: "",
        syntax: Syntax::Tagged(Tags {
            skipped: "",
            name_before: "<function name=\"",
            name_after: "\">",
            key_before: "<param name=\"",
            key_after: &[&["\">"]],
            value_after: "</param>",
            end: "</function>",
        }),
        silent: &[],
        also: None,
    },
    CallFormat {
        name: "function-gemma",
        evidence: &["<start_function_call>"],
        open: &["<start_function_call>call:"],
        close: "<end_function_call>",
        syntax: Syntax::Braces { quote: "<escape>" },
        silent: &[],
        also: None,
    },
    CallFormat {
        name: "gemma4",
        evidence: &["<|tool_call>", "<tool_call|>"],
        open: &["<|tool_call>call:"],
        close: "<tool_call|>",
        syntax: Syntax::Braces { quote: "<|\"|>" },
        silent: &[],
        also: None,
    },
    CallFormat {
        name: "lfm2",
        evidence: &["<|tool_call_start|>"],
        open: &["<|tool_call_start|>"],
        close: "<|tool_call_end|>",
        syntax: Syntax::Pythonic { list: true },
        silent: &[],
        also: None,
    },
    CallFormat {
        name: "phi4",
        evidence: &["<|tool_call|>", "<|/tool_call|>"],
        open: &["<|tool_call|>"],
        close: "<|/tool_call|>",
        syntax: Syntax::Json { name: "name", arguments: "arguments", list: true },
        silent: &[],
        also: None,
    },
    CallFormat {
        name: "granite3",
        evidence: &["<|tool_call|>"],
        open: &["<tool_call>", "<|tool_call|>"],
        close: "",
        syntax: Syntax::Json { name: "name", arguments: "arguments", list: true },
        silent: &[],
        also: None,
    },
    CallFormat {
        name: "command",
        evidence: &["<|START_ACTION|>"],
        open: &["<|START_ACTION|>"],
        close: "<|END_ACTION|>",
        syntax: Syntax::Json { name: "tool_name", arguments: "parameters", list: true },
        silent: &["<|START_RESPONSE|>", "<|END_RESPONSE|>"],
        also: None,
    },
    CallFormat {
        name: "nemotron",
        evidence: &["<TOOLCALL>"],
        open: &["<TOOLCALL>"],
        close: "</TOOLCALL>",
        syntax: Syntax::Json { name: "name", arguments: "arguments", list: true },
        silent: &[],
        also: None,
    },
    CallFormat {
        name: "olmo3",
        evidence: &["<function_calls>"],
        open: &["<function_calls>"],
        close: "</function_calls>",
        syntax: Syntax::Pythonic { list: false },
        silent: &[],
        also: None,
    },
    CallFormat {
        name: "apertus",
        evidence: &["<|tools_prefix|>"],
        open: &["<|tools_prefix|>"],
        close: "<|tools_suffix|>",
        syntax: Syntax::Json { name: "", arguments: "", list: true },
        silent: &[],
        also: None,
    },
    CallFormat {
        name: "internlm2",
        evidence: &["<|action_start|>", "<|plugin|>"],
        open: &["<|action_start|><|plugin|>"],
        close: "<|action_end|>",
        syntax: Syntax::Json { name: "name", arguments: "parameters", list: false },
        silent: &[],
        also: None,
    },
    CallFormat {
        name: "longcat",
        evidence: &["<longcat_tool_call>"],
        open: &["<longcat_tool_call>"],
        close: "</longcat_tool_call>",
        syntax: Syntax::Json { name: "name", arguments: "arguments", list: false },
        silent: &[],
        also: None,
    },
    CallFormat {
        name: "functools",
        evidence: &["functools["],
        open: &["functools"],
        close: "",
        syntax: Syntax::Json { name: "name", arguments: "arguments", list: true },
        silent: &[],
        also: None,
    },
    CallFormat {
        name: "granite-20b",
        evidence: &["<function_call>"],
        open: &["<function_call>"],
        close: "",
        syntax: Syntax::Json { name: "name", arguments: "arguments", list: false },
        silent: &[],
        also: None,
    },
    CallFormat {
        name: "gigachat",
        evidence: &["<|role_sep|>"],
        open: &["function call<|role_sep|>"],
        close: "",
        syntax: Syntax::Json { name: "name", arguments: "arguments", list: false },
        silent: &["<|message_sep|>"],
        also: None,
    },
    CallFormat {
        name: "mistral",
        evidence: &["[TOOL_CALLS]", "[ARGS]"],
        open: &["[TOOL_CALLS]"],
        close: "",
        syntax: Syntax::Named { prefix: "", separator: "[ARGS]", after: "" },
        silent: &[],
        also: None,
    },
    CallFormat {
        name: "mistral-v3",
        evidence: &["[TOOL_CALLS]"],
        open: &["[TOOL_CALLS]"],
        close: "",
        syntax: Syntax::Json { name: "name", arguments: "arguments", list: true },
        silent: &[],
        also: None,
    },
    CallFormat {
        name: "tool-calls",
        evidence: &["<tool_calls>"],
        open: &["<tool_calls>"],
        close: "</tool_calls>",
        syntax: Syntax::Json { name: "name", arguments: "arguments", list: true },
        silent: &[],
        also: None,
    },
    CallFormat {
        name: "hermes",
        evidence: &["<tool_call>"],
        open: &["<tool_call>"],
        close: "</tool_call>",
        syntax: Syntax::Json { name: "name", arguments: "arguments", list: false },
        silent: &[],
        also: None,
    },
    CallFormat { name: "functionary", ..FUNCTION_TAG },
    CallFormat {
        name: "xlam",
        evidence: &["tools", "\"tool_call_name\""],
        open: &[""],
        close: "",
        syntax: Syntax::Json { name: "name", arguments: "arguments", list: true },
        silent: &[],
        also: None,
    },
    CallFormat {
        name: "llama3",
        evidence: &["tools", "\"parameters\":"],
        open: &["<|python_tag|>", ""],
        close: "",
        syntax: Syntax::Json { name: "name", arguments: "parameters", list: false },
        silent: &[],
        also: Some(&FUNCTION_TAG),
    },
    CallFormat {
        name: "llama4",
        evidence: &["tools", "<|header_start|>"],
        open: &[""],
        close: "",
        syntax: Syntax::Pythonic { list: true },
        silent: &["<|python_start|>", "<|python_end|>"],
        also: None,
    },
];

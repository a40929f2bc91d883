//! Options as C has them, and as the library has them.

use std::ffi::{c_char, c_void};
use std::time::Duration;

use ingle::device::DeviceKind;
use ingle::{
    AdapterSource, Chat, Effort, Generation, Grammar, KvType, LoadOptions, MemoryCap, Task, ToolChoice,
    TranscribeOptions,
};
use serde_json::Value;

use crate::boundary::{CStruct, Failure, Outcome, array, optional_text, read_structs, text, texts};
use crate::messages;

/// The fetch of a file begins: `text` is its name, `total` its bytes, or 0 if they are unknown.
pub const INGLE_PROGRESS_START: u32 = 1;
/// Bytes of the file were fetched: `done` of `total`.
pub const INGLE_PROGRESS_BYTES: u32 = 2;
/// The file is complete, and its checksum is right.
pub const INGLE_PROGRESS_END: u32 = 3;
/// `text` is a line for the user.
pub const INGLE_PROGRESS_NOTE: u32 = 4;

/// Receives the progress of a download while ingle_load runs, on another thread. `text` is valid
/// during the call.
pub type IngleProgressCallback =
    Option<unsafe extern "C" fn(kind: u32, text: *const c_char, done: u64, total: u64, user: *mut c_void)>;

/// An adapter (LoRA) that is loaded with a model.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct IngleAdapter {
    /// sizeof(ingle_adapter).
    pub struct_size: usize,
    /// Name by which generation options choose the adapter.
    pub name: *const c_char,
    /// PEFT's folder, one of its files, or a GGUF file.
    pub path: *const c_char,
    /// Factor that multiplies the adapter's effect; 0 means 1.
    pub factor: f64,
}

/// Options of ingle_load.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct IngleLoadOptions {
    /// sizeof(ingle_load_options).
    pub struct_size: usize,
    /// "auto" (the default), "cpu", "cuda", "metal", "reference" or "metal-emulated".
    pub device: *const c_char,
    /// Indices of the GPUs in nvidia-smi; null: the first.
    pub gpus: *const u32,
    /// Number of `gpus`.
    pub n_gpus: usize,
    /// Number of threads that compute on the CPU; 0: all processors.
    pub n_threads: u64,
    /// Context length of a sequence in tokens, prompt and answer together; 0: the model's own, or
    /// the longest that fits in memory.
    pub n_ctx: u64,
    /// Number of sequences that run at once; 0: the default. Further ones wait.
    pub n_sequences: u64,
    /// Type of cached keys and values: "f32", "f16", "i16", "i8", "q8_0" or "fp8"; null: the
    /// device's default.
    pub kv_type: *const c_char,
    /// Maximum number of bytes of cached keys and values; 0: the memory that is free.
    pub kv_budget: u64,
    /// Maximum number of bytes of this process, all models together; 0: no limit.
    pub max_memory: u64,
    /// Number of last layers that the GPU runs; 0: those that fit; -1: none.
    pub gpu_layers: i64,
    /// Number of first layers whose experts stay on the CPU; 0: the least that fits.
    pub cpu_moe_layers: u64,
    /// File of the image encoder of a GGUF model; null: the one in the model's folder.
    pub mmproj: *const c_char,
    /// Smaller model with the same vocabulary that drafts tokens; null: none.
    pub draft_model: *const c_char,
    /// Adapters that requests choose by name.
    pub adapters: *const IngleAdapter,
    /// Number of `adapters`.
    pub n_adapters: usize,
    /// 1 to fix the order of all sums, so that neither batches nor chunks change an answer.
    pub deterministic: u32,
    /// 1 to use only models that are on this machine.
    pub offline: u32,
    /// Receives the progress of a download; null: nobody.
    pub progress: IngleProgressCallback,
    /// Passed to `progress`.
    pub progress_user: *mut c_void,
}

/// The grammar is a JSON Schema.
pub const INGLE_GRAMMAR_JSON_SCHEMA: u32 = 1;
/// The grammar is a regular expression that matches the whole answer.
pub const INGLE_GRAMMAR_REGEX: u32 = 2;
/// The grammar is GBNF, the format of llama.cpp.
pub const INGLE_GRAMMAR_GBNF: u32 = 3;
/// The grammar is Lark, in the dialect of llguidance.
pub const INGLE_GRAMMAR_LARK: u32 = 4;
/// The answer is any JSON object; `grammar` is null.
pub const INGLE_GRAMMAR_ANY_JSON: u32 = 5;

/// Bit of `zeros`: `temperature` is 0, so the likeliest token is chosen always.
pub const INGLE_ZERO_TEMPERATURE: u64 = 1;
/// Bit of `zeros`: `top_k` is 0, so all tokens are kept.
pub const INGLE_ZERO_TOP_K: u64 = 2;
/// Bit of `zeros`: `min_p` is 0, so all tokens are kept.
pub const INGLE_ZERO_MIN_P: u64 = 4;
/// Bit of `zeros`: `presence_penalty` is 0, so it is off.
pub const INGLE_ZERO_PRESENCE_PENALTY: u64 = 8;
/// Bit of `zeros`: `frequency_penalty` is 0, so it is off.
pub const INGLE_ZERO_FREQUENCY_PENALTY: u64 = 16;
/// Bit of `zeros`: `penalty_window` is 0, so penalties count all tokens.
pub const INGLE_ZERO_PENALTY_WINDOW: u64 = 32;
/// Bit of `zeros`: `seed` is 0, and not random.
pub const INGLE_ZERO_SEED: u64 = 64;
/// Bit of `zeros`: `logprobs` is 0: each token has its own log-probability and no others.
pub const INGLE_ZERO_LOGPROBS: u64 = 128;

const ALL_ZEROS: u64 = 255;

/// A number that is added to a token's logit.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct IngleLogitBias {
    /// Token id.
    pub token: u32,
    /// The bias; minus infinity forbids the token.
    pub bias: f32,
}

/// Options of an answer. A field that is 0 or null means the default, unless `zeros` has its bit.
/// The default of a sampling parameter is the model's own, as its makers recommend.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct IngleGenerationOptions {
    /// sizeof(ingle_generation_options).
    pub struct_size: usize,
    /// Bits INGLE_ZERO_…, for fields whose 0 is meant.
    pub zeros: u64,
    /// Maximum number of tokens of an answer; 0: no limit but the context.
    pub max_tokens: u64,
    /// Least number of tokens of an answer.
    pub min_tokens: u64,
    /// Divisor of the logits.
    pub temperature: f32,
    /// Keeps the fewest best tokens whose probabilities reach this sum; 1 keeps all.
    pub top_p: f32,
    /// Drops tokens less likely than this fraction of the likeliest.
    pub min_p: f32,
    /// Keeps tokens nearest to the entropy until their probabilities reach this sum; 1 keeps all.
    pub typical_p: f32,
    /// Divides positive logits of recent tokens and multiplies negative ones; 1 is off.
    pub repeat_penalty: f32,
    /// Subtracted from the logits of recent tokens.
    pub presence_penalty: f32,
    /// Subtracted from the logits of recent tokens for each time they occurred.
    pub frequency_penalty: f32,
    /// Keeps tokens whose logit is at most this many standard deviations below the best.
    pub top_n_sigma: f32,
    /// Keeps this number of best tokens.
    pub top_k: u64,
    /// Number of last tokens that penalties count.
    pub penalty_window: u64,
    /// Seed of the random numbers; the default is a random one.
    pub seed: u64,
    /// Texts before which the answer ends.
    pub stop: *const *const c_char,
    /// Number of `stop`.
    pub n_stop: usize,
    /// Tokens at which the answer ends.
    pub stop_tokens: *const u32,
    /// Number of `stop_tokens`.
    pub n_stop_tokens: usize,
    /// Biases of tokens.
    pub logit_bias: *const IngleLogitBias,
    /// Number of `logit_bias`.
    pub n_logit_bias: usize,
    /// The grammar to which the answer is held, in the form of `grammar_kind`.
    pub grammar: *const c_char,
    /// INGLE_GRAMMAR_…; 0: no grammar.
    pub grammar_kind: u32,
    /// Number of answers to the prompt, which is computed once; 0 means 1.
    pub n: u32,
    /// Name of an adapter of the load options; null: the model alone.
    pub adapter: *const c_char,
    /// Time in milliseconds after which the answer ends; 0: none.
    pub timeout_ms: u64,
    /// Requests with higher values go first.
    pub priority: i32,
    /// 1 to continue after the model's end token.
    pub ignore_end: u32,
    /// 1 to report each token beside the text.
    pub with_tokens: u32,
    /// 1 to report the progress of prefill.
    pub with_progress: u32,
    /// Number of likeliest tokens to report beside each token, with log-probabilities.
    pub logprobs: u32,
    /// 1 to compute the whole prompt, even if the cache has its beginning.
    pub no_prompt_cache: u32,
}

/// Options of a chat.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct IngleChatOptions {
    /// sizeof(ingle_chat_options).
    pub struct_size: usize,
    /// JSON array of tools in OpenAI's form; null: none.
    pub tools: *const c_char,
    /// "auto" (the default), "none", "required", or OpenAI's JSON object that names a function.
    pub tool_choice: *const c_char,
    /// Effort of reasoning: "none", "minimal", "low", "medium", "high", "xhigh" or "max"; null: the
    /// model's own.
    pub effort: *const c_char,
    /// JSON object of variables of the chat template; null: none.
    pub template_variables: *const c_char,
    /// Maximum number of tokens of reasoning; 0: no limit.
    pub thinking_budget: u64,
    /// 1 switches reasoning on, 2 off; 0: the model's default.
    pub thinking: u32,
    /// 1 if an answer may have one call of a tool only.
    pub single_tool_call: u32,
    /// 1 if the last message is the start of the answer, which the model continues.
    pub continue_last: u32,
    /// Must be 0.
    pub reserved: u32,
}

/// Options of a transcription.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct IngleTranscribeOptions {
    /// sizeof(ingle_transcribe_options).
    pub struct_size: usize,
    /// Code of the spoken language, such as "en"; null: it is detected.
    pub language: *const c_char,
    /// Text before the speech, for names and spelling; null: none.
    pub prompt: *const c_char,
    /// 1 to translate into English.
    pub translate: u32,
    /// 1 to find the time of each word.
    pub word_times: u32,
}

// SAFETY: the struct is `repr(C)`, begins with its size, and has numbers and pointers only.
unsafe impl CStruct for IngleAdapter {
    const NAME: &'static str = "ingle_adapter";
}

// SAFETY: the struct is `repr(C)`, begins with its size, and has numbers and pointers only; a null
// callback is `None`.
unsafe impl CStruct for IngleLoadOptions {
    const NAME: &'static str = "ingle_load_options";
}

// SAFETY: the struct is `repr(C)`, begins with its size, and has numbers and pointers only.
unsafe impl CStruct for IngleGenerationOptions {
    const NAME: &'static str = "ingle_generation_options";
}

// SAFETY: the struct is `repr(C)`, begins with its size, and has numbers and pointers only.
unsafe impl CStruct for IngleChatOptions {
    const NAME: &'static str = "ingle_chat_options";
}

// SAFETY: the struct is `repr(C)`, begins with its size, and has numbers and pointers only.
unsafe impl CStruct for IngleTranscribeOptions {
    const NAME: &'static str = "ingle_transcribe_options";
}

/// A count of the caller; one beyond the address space is as good as the largest.
fn count(n: u64) -> usize {
    usize::try_from(n).unwrap_or(usize::MAX)
}

/// A count whose 0 means the default.
fn given(n: u64) -> Option<usize> {
    (n != 0).then_some(count(n))
}

impl IngleLoadOptions {
    /// The options for the library.
    ///
    /// # Safety
    /// Each pointer is null or points to what the header says.
    pub(crate) unsafe fn options(&self) -> Outcome<LoadOptions> {
        let mut options = LoadOptions::default();
        // SAFETY: each pointer of `self` is null or points to a text or to as many values as the
        // number beside it says.
        let (device, gpus, kv_type, mmproj, draft, adapters) = unsafe {
            (
                optional_text(self.device, "device")?,
                array(self.gpus, self.n_gpus, "gpus")?,
                optional_text(self.kv_type, "kv_type")?,
                optional_text(self.mmproj, "mmproj")?,
                optional_text(self.draft_model, "draft_model")?,
                read_structs(self.adapters, self.n_adapters, "adapters")?,
            )
        };
        options.device.kind = device_kind(device.unwrap_or("auto"))?;
        options.device.gpus = gpus.iter().map(|&gpu| gpu as usize).collect();
        options.device.threads = given(self.n_threads);
        options.hub.offline = self.offline != 0;
        options.n_ctx = given(self.n_ctx);
        options.n_sequences = given(self.n_sequences);
        options.kv_type = kv_type.map(kv_named).transpose()?;
        options.kv_budget = (self.kv_budget != 0).then_some(self.kv_budget);
        if self.max_memory != 0 {
            options.memory = MemoryCap::Bytes(self.max_memory);
        }
        options.gpu_layers = match self.gpu_layers {
            0 => None,
            -1 => Some(0),
            n => Some(usize::try_from(n).map_err(|_| {
                Failure::argument(format!("gpu_layers is {n}, expected -1, 0 or a number of layers"))
            })?),
        };
        options.cpu_moe_layers = given(self.cpu_moe_layers);
        options.mmproj = mmproj.map(Into::into);
        options.draft_model = draft.map(Into::into);
        if options.draft_model.is_some() {
            options.speculate = ingle::Speculate::Auto;
        }
        options.deterministic = self.deterministic != 0;
        for adapter in adapters {
            // SAFETY: both pointers of `adapter` are null or texts.
            let (name, path) =
                unsafe { (text(adapter.name, "adapter.name")?, text(adapter.path, "adapter.path")?) };
            let factor = if adapter.factor == 0.0 { 1.0 } else { adapter.factor as f32 };
            options.adapters.push(AdapterSource::new(name, path).with_factor(factor));
        }
        Ok(options)
    }
}

fn device_kind(word: &str) -> Outcome<DeviceKind> {
    use DeviceKind::{Auto, Cpu, Cuda, Metal, MetalEmulated, Reference};
    let kinds = [Auto, Cpu, Cuda, Metal, Reference, MetalEmulated];
    let found = kinds.into_iter().find(|kind| kind.name() == word);
    let expected = kinds.map(DeviceKind::name).join(", ");
    found.ok_or_else(|| Failure::argument(format!("device is {word:?}, expected one of {expected}")))
}

fn kv_named(word: &str) -> Outcome<KvType> {
    match word {
        "f32" => Ok(KvType::F32),
        "f16" => Ok(KvType::F16),
        "i16" => Ok(KvType::I16),
        "i8" => Ok(KvType::I8),
        "q8_0" => Ok(KvType::Q8_0),
        "fp8" => Ok(KvType::Fp8),
        _ => Err(Failure::argument(format!("kv_type is {word:?}, expected f32, f16, i16, i8, q8_0 or fp8"))),
    }
}

impl IngleGenerationOptions {
    /// The options for the library.
    ///
    /// # Safety
    /// Each pointer is null or points to what the header says.
    pub(crate) unsafe fn generation(&self) -> Outcome<Generation> {
        let unknown = self.zeros & !ALL_ZEROS;
        if unknown != 0 {
            return Err(Failure::argument(format!("zeros has unknown bits: {unknown:#x}")));
        }
        // SAFETY: each pointer of `self` is null or points to a text or to as many values as the
        // number beside it says.
        let (stop, stop_tokens, biases, grammar, adapter) = unsafe {
            (
                texts(self.stop, self.n_stop, "stop")?,
                array(self.stop_tokens, self.n_stop_tokens, "stop_tokens")?,
                array(self.logit_bias, self.n_logit_bias, "logit_bias")?,
                optional_text(self.grammar, "grammar")?,
                optional_text(self.adapter, "adapter")?,
            )
        };
        let mut made = self.sampling();
        for text in stop {
            made = made.stop(text);
        }
        for &token in stop_tokens {
            made = made.stop_token(token);
        }
        if !biases.is_empty() {
            made = made.logit_bias(biases.iter().map(|bias| (bias.token, bias.bias)).collect());
        }
        if let Some(grammar) = grammar_of(self.grammar_kind, grammar)? {
            made = made.grammar(grammar);
        }
        if let Some(name) = adapter {
            made = made.adapter(name);
        }
        Ok(made)
    }

    /// The options that are numbers.
    fn sampling(&self) -> Generation {
        let is_meant = |bit: u64| self.zeros & bit != 0;
        let mut made = Generation::new()
            .min_tokens(count(self.min_tokens))
            .ignore_end(self.ignore_end != 0)
            .with_tokens(self.with_tokens != 0)
            .with_progress(self.with_progress != 0)
            .cache_prompt(self.no_prompt_cache == 0)
            .priority(self.priority);
        if let Some(n) = given(self.max_tokens) {
            made = made.max_tokens(n);
        }
        if self.n != 0 {
            made = made.n(self.n as usize);
        }
        if self.timeout_ms != 0 {
            made = made.timeout(Duration::from_millis(self.timeout_ms));
        }
        type Number = (f32, u64, fn(Generation, f32) -> Generation);
        let numbers: [Number; 8] = [
            (self.temperature, INGLE_ZERO_TEMPERATURE, Generation::temperature),
            (self.top_p, 0, Generation::top_p),
            (self.min_p, INGLE_ZERO_MIN_P, Generation::min_p),
            (self.typical_p, 0, Generation::typical_p),
            (self.repeat_penalty, 0, Generation::repeat_penalty),
            (self.presence_penalty, INGLE_ZERO_PRESENCE_PENALTY, Generation::presence_penalty),
            (self.frequency_penalty, INGLE_ZERO_FREQUENCY_PENALTY, Generation::frequency_penalty),
            (self.top_n_sigma, 0, Generation::top_n_sigma),
        ];
        for (value, bit, set) in numbers {
            if value != 0.0 || is_meant(bit) {
                made = set(made, value);
            }
        }
        if self.top_k != 0 || is_meant(INGLE_ZERO_TOP_K) {
            made = made.top_k(count(self.top_k));
        }
        if self.penalty_window != 0 || is_meant(INGLE_ZERO_PENALTY_WINDOW) {
            made = made.penalty_window(count(self.penalty_window));
        }
        if self.seed != 0 || is_meant(INGLE_ZERO_SEED) {
            made = made.seed(self.seed);
        }
        if self.logprobs != 0 || is_meant(INGLE_ZERO_LOGPROBS) {
            made = made.logprobs(self.logprobs as usize);
        }
        made
    }
}

fn grammar_of(kind: u32, text: Option<&str>) -> Outcome<Option<Grammar>> {
    match (kind, text) {
        (0, None) => Ok(None),
        (0, Some(_)) => Err(Failure::argument("grammar is set, but grammar_kind is 0")),
        (INGLE_GRAMMAR_ANY_JSON, None) => Ok(Some(Grammar::AnyJson)),
        (INGLE_GRAMMAR_JSON_SCHEMA, Some(text)) => {
            Ok(Some(Grammar::JsonSchema(messages::json(text, "grammar")?)))
        }
        (INGLE_GRAMMAR_REGEX, Some(text)) => Ok(Some(Grammar::Regex(text.to_owned()))),
        (INGLE_GRAMMAR_GBNF, Some(text)) => Ok(Some(Grammar::Gbnf(text.to_owned()))),
        (INGLE_GRAMMAR_LARK, Some(text)) => Ok(Some(Grammar::Lark(text.to_owned()))),
        (1..=4, None) => Err(Failure::argument("grammar_kind is set, but grammar is null")),
        _ => Err(Failure::argument(format!("grammar_kind is {kind}, expected 0 to 5, and no grammar for 5"))),
    }
}

impl IngleChatOptions {
    /// Adds the options to a chat.
    ///
    /// # Safety
    /// Each pointer is null or points to what the header says.
    pub(crate) unsafe fn apply(&self, mut chat: Chat) -> Outcome<Chat> {
        // SAFETY: each pointer of `self` is null or a text.
        let (tools, choice, effort, variables) = unsafe {
            (
                optional_text(self.tools, "tools")?,
                optional_text(self.tool_choice, "tool_choice")?,
                optional_text(self.effort, "effort")?,
                optional_text(self.template_variables, "template_variables")?,
            )
        };
        for tool in tools.map(|text| messages::objects(text, "tools")).transpose()?.unwrap_or_default() {
            chat = chat.tool_json(tool);
        }
        if let Some(word) = choice {
            chat = chat.tool_choice(tool_choice(word)?);
        }
        if let Some(word) = effort {
            let wrong = || Failure::argument(format!("effort is {word:?}, expected none to max"));
            chat = chat.effort(Effort::named(word).ok_or_else(wrong)?);
        }
        if let Some(text) = variables {
            let Value::Object(variables) = messages::json(text, "template_variables")? else {
                return Err(Failure::argument("template_variables is no JSON object"));
            };
            for (name, value) in variables {
                chat = chat.template_variable(name, value);
            }
        }
        if let Some(n) = given(self.thinking_budget) {
            chat = chat.thinking_budget(n);
        }
        chat = match self.thinking {
            0 => chat,
            1 => chat.thinking(true),
            2 => chat.thinking(false),
            n => return Err(Failure::argument(format!("thinking is {n}, expected 0, 1 or 2"))),
        };
        Ok(chat.parallel_tool_calls(self.single_tool_call == 0).continue_last(self.continue_last != 0))
    }
}

fn tool_choice(word: &str) -> Outcome<ToolChoice> {
    match word {
        "auto" => Ok(ToolChoice::Auto),
        "none" => Ok(ToolChoice::None),
        "required" => Ok(ToolChoice::Required),
        _ => {
            let choice = serde_json::from_str::<Value>(word).unwrap_or_default();
            let name = choice["function"]["name"].as_str().map(str::to_owned);
            let expected = "auto, none, required, or an object with the function's name";
            let wrong = || Failure::argument(format!("tool_choice is {word:?}, expected {expected}"));
            name.map(ToolChoice::Function).ok_or_else(wrong)
        }
    }
}

impl IngleTranscribeOptions {
    /// The options for the library.
    ///
    /// # Safety
    /// Each pointer is null or points to a text.
    pub(crate) unsafe fn options(&self) -> Outcome<TranscribeOptions> {
        // SAFETY: each pointer of `self` is null or a text.
        let (language, prompt) =
            unsafe { (optional_text(self.language, "language")?, optional_text(self.prompt, "prompt")?) };
        Ok(TranscribeOptions {
            language: language.map(str::to_owned),
            initial_prompt: prompt.map(str::to_owned),
            task: if self.translate == 0 { Task::Transcribe } else { Task::Translate },
            word_timestamps: self.word_times != 0,
            ..TranscribeOptions::default()
        })
    }
}

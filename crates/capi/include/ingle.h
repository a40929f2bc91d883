/*
 * ingle.h: the C API of Ingle, an inference engine for language models.
 *
 * This file is made by cbindgen from crates/capi; edit it there.
 *
 * Stability
 *   Programs that were compiled against this header run with later libraries of the same
 *   INGLE_ABI_VERSION, which ingle_abi_version() returns. Structs of options and results begin with
 *   struct_size, which the caller sets to sizeof the struct. Later versions add fields at the end
 *   only, and zero is the default of each. A newer program runs with an older library as long as
 *   fields that the library lacks are zero. Later versions may add kinds of events, reasons to stop,
 *   errors and bits: ignore those that you do not know. Before version 1.0 the INGLE_ABI_VERSION may
 *   change with any minor version.
 *
 * Options
 *   Begin with zeros: `ingle_load_options options = {.struct_size = sizeof options};` in C, and
 *   `ingle_load_options options = {}; options.struct_size = sizeof options;` in C++. A null pointer
 *   to options means that all fields are zero.
 *
 * Errors
 *   Functions return a status: INGLE_OK, another positive fact, or a negative error.
 *   ingle_last_error() has the message of this thread's last error. Pointers to results are set to
 *   null when a function fails. A null pointer where none may be is INGLE_ERROR_ARGUMENT. A defect
 *   of the library is INGLE_ERROR_PANIC; it does not unwind into the caller.
 *
 * Threads
 *   Every function may be called from every thread. A model answers requests of many threads at
 *   once. One thread at a time reads an answer; a second one gets INGLE_ERROR_BUSY. Any thread may
 *   call ingle_answer_cancel meanwhile. A handle is freed once, when no call uses it any more.
 *   Callbacks must neither throw nor longjmp.
 *
 * Ownership
 *   Handles are freed by the function of their name: ingle_model_free, ingle_answer_free. Answers
 *   may outlive their model's handle. Texts that are returned through `char **` are freed by
 *   ingle_string_free, and not by free(). Other pointers in results belong to the handle that they
 *   came from. The library copies what it needs: arguments may be freed after the call.
 *
 * Texts
 *   Texts are UTF-8. Those of arguments end with a zero byte. Those of results have a zero byte
 *   after their stated length, and may contain others.
 */

#ifndef INGLE_H
#define INGLE_H

#include <stddef.h>
#include <stdint.h>

/**
 * Version of the binary interface, against which a program was compiled. It grows when programs
 * must be compiled anew.
 */
#define INGLE_ABI_VERSION 1

/**
 * Bit of ingle_capabilities: this build runs models on NVIDIA's GPUs.
 */
#define INGLE_HAS_CUDA 1

/**
 * Bit of ingle_capabilities: this build runs models on the GPU of a Mac.
 */
#define INGLE_HAS_METAL 2

/**
 * The fetch of a file begins: `text` is its name, `total` its bytes, or 0 if they are unknown.
 */
#define INGLE_PROGRESS_START 1

/**
 * Bytes of the file were fetched: `done` of `total`.
 */
#define INGLE_PROGRESS_BYTES 2

/**
 * The file is complete, and its checksum is right.
 */
#define INGLE_PROGRESS_END 3

/**
 * `text` is a line for the user.
 */
#define INGLE_PROGRESS_NOTE 4

/**
 * The grammar is a JSON Schema.
 */
#define INGLE_GRAMMAR_JSON_SCHEMA 1

/**
 * The grammar is a regular expression that matches the whole answer.
 */
#define INGLE_GRAMMAR_REGEX 2

/**
 * The grammar is GBNF, the format of llama.cpp.
 */
#define INGLE_GRAMMAR_GBNF 3

/**
 * The grammar is Lark, in the dialect of llguidance.
 */
#define INGLE_GRAMMAR_LARK 4

/**
 * The answer is any JSON object; `grammar` is null.
 */
#define INGLE_GRAMMAR_ANY_JSON 5

/**
 * Bit of `zeros`: `temperature` is 0, so the likeliest token is chosen always.
 */
#define INGLE_ZERO_TEMPERATURE 1

/**
 * Bit of `zeros`: `top_k` is 0, so all tokens are kept.
 */
#define INGLE_ZERO_TOP_K 2

/**
 * Bit of `zeros`: `min_p` is 0, so all tokens are kept.
 */
#define INGLE_ZERO_MIN_P 4

/**
 * Bit of `zeros`: `presence_penalty` is 0, so it is off.
 */
#define INGLE_ZERO_PRESENCE_PENALTY 8

/**
 * Bit of `zeros`: `frequency_penalty` is 0, so it is off.
 */
#define INGLE_ZERO_FREQUENCY_PENALTY 16

/**
 * Bit of `zeros`: `penalty_window` is 0, so penalties count all tokens.
 */
#define INGLE_ZERO_PENALTY_WINDOW 32

/**
 * Bit of `zeros`: `seed` is 0, and not random.
 */
#define INGLE_ZERO_SEED 64

/**
 * Bit of `zeros`: `logprobs` is 0: each token has its own log-probability and no others.
 */
#define INGLE_ZERO_LOGPROBS 128

/**
 * More text of the answer; tokens if the options want them. `text` may be empty.
 */
#define INGLE_EVENT_TEXT 1

/**
 * More text of the model's reasoning.
 */
#define INGLE_EVENT_REASONING 2

/**
 * A call of a tool begins: `call`, `call_id` and `text`, the function's name.
 */
#define INGLE_EVENT_CALL_BEGIN 3

/**
 * More of a call's arguments, which are the JSON text of an object.
 */
#define INGLE_EVENT_CALL_ARGUMENTS 4

/**
 * The arguments of a call are complete.
 */
#define INGLE_EVENT_CALL_END 5

/**
 * Progress of prefill: `prefilled_tokens` of `prompt_tokens`.
 */
#define INGLE_EVENT_PROGRESS 6

/**
 * The end of an answer, with its reason and its figures.
 */
#define INGLE_EVENT_END 7

/**
 * An event of a later version; ignore it.
 */
#define INGLE_EVENT_OTHER 8

/**
 * The model ended the answer.
 */
#define INGLE_STOP_END 1

/**
 * A text of `stop` was about to appear; it is the event's text.
 */
#define INGLE_STOP_TEXT 2

/**
 * The model chose a token of `stop_tokens`.
 */
#define INGLE_STOP_TOKEN 3

/**
 * The answer has `max_tokens` tokens.
 */
#define INGLE_STOP_MAX_TOKENS 4

/**
 * The context is full.
 */
#define INGLE_STOP_CONTEXT_FULL 5

/**
 * The answer calls tools.
 */
#define INGLE_STOP_TOOL_CALLS 6

/**
 * The answer was cancelled.
 */
#define INGLE_STOP_CANCELLED 7

/**
 * The time of `timeout_ms` passed.
 */
#define INGLE_STOP_TIMEOUT 8

/**
 * The grammar allows no token, or takes too much work; the event's text says which.
 */
#define INGLE_STOP_UNGRAMMATICAL 9

/**
 * A reason of a later version.
 */
#define INGLE_STOP_OTHER 10

/**
 * Capability of a model: ingle_chat, since it has a chat template.
 */
#define INGLE_CAN_CHAT 1

/**
 * Capability of a model: ingle_complete_tokens, and ingle_complete if it has a tokenizer.
 */
#define INGLE_CAN_COMPLETE 2

/**
 * Capability of a model: ingle_embed, or ingle_rerank if it judges pairs of texts.
 */
#define INGLE_CAN_EMBED 4

/**
 * Capability of a model: ingle_transcribe.
 */
#define INGLE_CAN_TRANSCRIBE 8

/**
 * Capability of a model: images in messages.
 */
#define INGLE_CAN_SEE 16

/**
 * Capability of a model: ingle_tokenize and ingle_detokenize.
 */
#define INGLE_CAN_TOKENIZE 32

/**
 * Answers that are being computed.
 */
typedef struct ingle_answer ingle_answer;

/**
 * A loaded model.
 */
typedef struct ingle_model ingle_model;

/**
 * A result of a function: INGLE_OK, another fact that is no error (positive), or an error
 * (negative). ingle_last_error has the words of an error. Later versions may add errors.
 */
typedef int32_t ingle_status;

/**
 * An adapter (LoRA) that is loaded with a model.
 */
typedef struct ingle_adapter {
    /**
     * sizeof(ingle_adapter).
     */
    size_t struct_size;
    /**
     * Name by which generation options choose the adapter.
     */
    const char *name;
    /**
     * PEFT's folder, one of its files, or a GGUF file.
     */
    const char *path;
    /**
     * Factor that multiplies the adapter's effect; 0 means 1.
     */
    double factor;
} ingle_adapter;

/**
 * Receives the progress of a download while ingle_load runs, on another thread. `text` is valid
 * during the call.
 */
typedef void (*ingle_progress_callback)(uint32_t kind,
                                        const char *text,
                                        uint64_t done,
                                        uint64_t total,
                                        void *user);

/**
 * Options of ingle_load.
 */
typedef struct ingle_load_options {
    /**
     * sizeof(ingle_load_options).
     */
    size_t struct_size;
    /**
     * "auto" (the default), "cpu", "cuda", "metal", "reference" or "metal-emulated".
     */
    const char *device;
    /**
     * Indices of the GPUs in nvidia-smi; null: the first.
     */
    const uint32_t *gpus;
    /**
     * Number of `gpus`.
     */
    size_t n_gpus;
    /**
     * Number of threads that compute on the CPU; 0: all processors.
     */
    uint64_t n_threads;
    /**
     * Context length of a sequence in tokens, prompt and answer together; 0: the model's own, or
     * the longest that fits in memory.
     */
    uint64_t n_ctx;
    /**
     * Number of sequences that run at once; 0: the default. Further ones wait.
     */
    uint64_t n_sequences;
    /**
     * Type of cached keys and values: "f32", "f16", "i16", "i8", "q8_0" or "fp8"; null: the
     * device's default.
     */
    const char *kv_type;
    /**
     * Maximum number of bytes of cached keys and values; 0: the memory that is free.
     */
    uint64_t kv_budget;
    /**
     * Maximum number of bytes of this process, all models together; 0: no limit.
     */
    uint64_t max_memory;
    /**
     * Number of last layers that the GPU runs; 0: those that fit; -1: none.
     */
    int64_t gpu_layers;
    /**
     * Number of first layers whose experts stay on the CPU; 0: the least that fits.
     */
    uint64_t cpu_moe_layers;
    /**
     * File of the image encoder of a GGUF model; null: the one in the model's folder.
     */
    const char *mmproj;
    /**
     * Smaller model with the same vocabulary that drafts tokens; null: none.
     */
    const char *draft_model;
    /**
     * Adapters that requests choose by name.
     */
    const struct ingle_adapter *adapters;
    /**
     * Number of `adapters`.
     */
    size_t n_adapters;
    /**
     * 1 to fix the order of all sums, so that neither batches nor chunks change an answer.
     */
    uint32_t deterministic;
    /**
     * 1 to use only models that are on this machine.
     */
    uint32_t offline;
    /**
     * Receives the progress of a download; null: nobody.
     */
    ingle_progress_callback progress;
    /**
     * Passed to `progress`.
     */
    void *progress_user;
} ingle_load_options;

/**
 * Facts about a model. The texts belong to the model.
 */
typedef struct ingle_model_info {
    /**
     * sizeof(ingle_model_info), which the caller sets.
     */
    size_t struct_size;
    /**
     * Bits INGLE_CAN_…
     */
    uint64_t capabilities;
    /**
     * Name of the family, such as "llama".
     */
    const char *family;
    /**
     * Format of the file, in words.
     */
    const char *format;
    /**
     * Name of the device, such as "cpu".
     */
    const char *device;
    /**
     * Facts about loading that a user should know, one a line; empty if there are none.
     */
    const char *notes;
    /**
     * Bytes of the model's files.
     */
    uint64_t file_bytes;
    /**
     * Number of tokens of the vocabulary.
     */
    uint64_t n_vocab;
    /**
     * Context length of a sequence in tokens; for embedders the longest text; 0 for speech.
     */
    uint64_t n_ctx;
    /**
     * Number of sequences that run at once.
     */
    uint64_t n_sequences;
    /**
     * Number of dimensions of an embedding; 0 for other models.
     */
    uint64_t n_dims;
} ingle_model_info;

/**
 * Options of a transcription.
 */
typedef struct ingle_transcribe_options {
    /**
     * sizeof(ingle_transcribe_options).
     */
    size_t struct_size;
    /**
     * Code of the spoken language, such as "en"; null: it is detected.
     */
    const char *language;
    /**
     * Text before the speech, for names and spelling; null: none.
     */
    const char *prompt;
    /**
     * 1 to translate into English.
     */
    uint32_t translate;
    /**
     * 1 to find the time of each word.
     */
    uint32_t word_times;
} ingle_transcribe_options;

/**
 * Options of a chat.
 */
typedef struct ingle_chat_options {
    /**
     * sizeof(ingle_chat_options).
     */
    size_t struct_size;
    /**
     * JSON array of tools in OpenAI's form; null: none.
     */
    const char *tools;
    /**
     * "auto" (the default), "none", "required", or OpenAI's JSON object that names a function.
     */
    const char *tool_choice;
    /**
     * Effort of reasoning: "none", "minimal", "low", "medium", "high", "xhigh" or "max"; null: the
     * model's own.
     */
    const char *effort;
    /**
     * JSON object of variables of the chat template; null: none.
     */
    const char *template_variables;
    /**
     * Maximum number of tokens of reasoning; 0: no limit.
     */
    uint64_t thinking_budget;
    /**
     * 1 switches reasoning on, 2 off; 0: the model's default.
     */
    uint32_t thinking;
    /**
     * 1 if an answer may have one call of a tool only.
     */
    uint32_t single_tool_call;
    /**
     * 1 if the last message is the start of the answer, which the model continues.
     */
    uint32_t continue_last;
    /**
     * Must be 0.
     */
    uint32_t reserved;
} ingle_chat_options;

/**
 * A number that is added to a token's logit.
 */
typedef struct ingle_logit_bias {
    /**
     * Token id.
     */
    uint32_t token;
    /**
     * The bias; minus infinity forbids the token.
     */
    float bias;
} ingle_logit_bias;

/**
 * Options of an answer. A field that is 0 or null means the default, unless `zeros` has its bit.
 * The default of a sampling parameter is the model's own, as its makers recommend.
 */
typedef struct ingle_generation_options {
    /**
     * sizeof(ingle_generation_options).
     */
    size_t struct_size;
    /**
     * Bits INGLE_ZERO_…, for fields whose 0 is meant.
     */
    uint64_t zeros;
    /**
     * Maximum number of tokens of an answer; 0: no limit but the context.
     */
    uint64_t max_tokens;
    /**
     * Least number of tokens of an answer.
     */
    uint64_t min_tokens;
    /**
     * Divisor of the logits.
     */
    float temperature;
    /**
     * Keeps the fewest best tokens whose probabilities reach this sum; 1 keeps all.
     */
    float top_p;
    /**
     * Drops tokens less likely than this fraction of the likeliest.
     */
    float min_p;
    /**
     * Keeps tokens nearest to the entropy until their probabilities reach this sum; 1 keeps all.
     */
    float typical_p;
    /**
     * Divides positive logits of recent tokens and multiplies negative ones; 1 is off.
     */
    float repeat_penalty;
    /**
     * Subtracted from the logits of recent tokens.
     */
    float presence_penalty;
    /**
     * Subtracted from the logits of recent tokens for each time they occurred.
     */
    float frequency_penalty;
    /**
     * Keeps tokens whose logit is at most this many standard deviations below the best.
     */
    float top_n_sigma;
    /**
     * Keeps this number of best tokens.
     */
    uint64_t top_k;
    /**
     * Number of last tokens that penalties count.
     */
    uint64_t penalty_window;
    /**
     * Seed of the random numbers; the default is a random one.
     */
    uint64_t seed;
    /**
     * Texts before which the answer ends.
     */
    const char *const *stop;
    /**
     * Number of `stop`.
     */
    size_t n_stop;
    /**
     * Tokens at which the answer ends.
     */
    const uint32_t *stop_tokens;
    /**
     * Number of `stop_tokens`.
     */
    size_t n_stop_tokens;
    /**
     * Biases of tokens.
     */
    const struct ingle_logit_bias *logit_bias;
    /**
     * Number of `logit_bias`.
     */
    size_t n_logit_bias;
    /**
     * The grammar to which the answer is held, in the form of `grammar_kind`.
     */
    const char *grammar;
    /**
     * INGLE_GRAMMAR_…; 0: no grammar.
     */
    uint32_t grammar_kind;
    /**
     * Number of answers to the prompt, which is computed once; 0 means 1.
     */
    uint32_t n;
    /**
     * Name of an adapter of the load options; null: the model alone.
     */
    const char *adapter;
    /**
     * Time in milliseconds after which the answer ends; 0: none.
     */
    uint64_t timeout_ms;
    /**
     * Requests with higher values go first.
     */
    int32_t priority;
    /**
     * 1 to continue after the model's end token.
     */
    uint32_t ignore_end;
    /**
     * 1 to report each token beside the text.
     */
    uint32_t with_tokens;
    /**
     * 1 to report the progress of prefill.
     */
    uint32_t with_progress;
    /**
     * Number of likeliest tokens to report beside each token, with log-probabilities.
     */
    uint32_t logprobs;
    /**
     * 1 to compute the whole prompt, even if the cache has its beginning.
     */
    uint32_t no_prompt_cache;
} ingle_generation_options;

/**
 * A token of an answer. This struct will not change.
 */
typedef struct ingle_token {
    /**
     * Token id.
     */
    uint32_t id;
    /**
     * Natural logarithm of the token's probability; NaN if it was not computed.
     */
    float logprob;
    /**
     * The token's bytes. A character may span several tokens.
     */
    const char *bytes;
    /**
     * Number of `bytes`.
     */
    size_t n_bytes;
    /**
     * The likeliest tokens at this position, if the options want them.
     */
    const struct ingle_token *top;
    /**
     * Number of `top`.
     */
    size_t n_top;
} ingle_token;

/**
 * A piece of an answer. Its pointers are valid until the answer's next event, or until the answer
 * is freed.
 */
typedef struct ingle_event {
    /**
     * sizeof(ingle_event), which the caller sets.
     */
    size_t struct_size;
    /**
     * INGLE_EVENT_…
     */
    uint32_t kind;
    /**
     * Index among the `n` answers, from 0.
     */
    uint32_t choice;
    /**
     * UTF-8 with a zero byte after it; never null.
     */
    const char *text;
    /**
     * Number of bytes of `text`.
     */
    size_t n_text;
    /**
     * Id of a call that begins; else null.
     */
    const char *call_id;
    /**
     * Index of the call within the answer, from 0.
     */
    uint32_t call;
    /**
     * INGLE_STOP_…, at the end.
     */
    uint32_t stop_reason;
    /**
     * Tokens since the last event, if the options want them.
     */
    const struct ingle_token *tokens;
    /**
     * Number of `tokens`.
     */
    size_t n_tokens;
    /**
     * Tokens of the prompt; at the end and with progress.
     */
    uint64_t prompt_tokens;
    /**
     * Tokens of the prompt that were in the cache; at the end and with progress.
     */
    uint64_t cached_tokens;
    /**
     * Tokens of the prompt that are available; with progress.
     */
    uint64_t prefilled_tokens;
    /**
     * Tokens of the answer, with reasoning and calls; at the end.
     */
    uint64_t completion_tokens;
    /**
     * Tokens of reasoning; at the end.
     */
    uint64_t reasoning_tokens;
    /**
     * The seed that was used; at the end.
     */
    uint64_t seed;
    /**
     * Seconds from the first step to the first token, as far as they are known.
     */
    double prefill_seconds;
    /**
     * Seconds from the first token to the last so far.
     */
    double decode_seconds;
} ingle_event;

/**
 * Receives the events of ingle_answer_read. `event` is valid during the call. A result other than
 * 0 cancels the answer. The function must neither throw nor free the answer.
 */
typedef int32_t (*ingle_event_callback)(const struct ingle_event *event, void *user);

/**
 * Success.
 */
#define INGLE_OK 0

/**
 * Every answer has ended; there is no further event.
 */
#define INGLE_DONE 1

/**
 * No event came within the time.
 */
#define INGLE_PENDING 2

/**
 * The answer was cancelled.
 */
#define INGLE_CANCELLED 3

/**
 * An argument or an option is wrong: a null pointer, text that is not UTF-8, an unknown word, or a
 * request that this model cannot answer.
 */
#define INGLE_ERROR_ARGUMENT -1

/**
 * A struct_size is wrong, or a struct sets options that this version of the library lacks.
 */
#define INGLE_ERROR_STRUCT_SIZE -2

/**
 * The caller's buffer is too small.
 */
#define INGLE_ERROR_BUFFER -3

/**
 * The model or the adapter was not found, or the model could not be fetched.
 */
#define INGLE_ERROR_NOT_FOUND -4

/**
 * A file of the model is damaged or has an unknown form.
 */
#define INGLE_ERROR_MODEL -5

/**
 * The prompt is longer than the context.
 */
#define INGLE_ERROR_CONTEXT -6

/**
 * The memory is too short.
 */
#define INGLE_ERROR_MEMORY -7

/**
 * The device is absent or failed.
 */
#define INGLE_ERROR_DEVICE -8

/**
 * The request took longer than it allows.
 */
#define INGLE_ERROR_TIMEOUT -9

/**
 * Too many requests wait.
 */
#define INGLE_ERROR_OVERLOADED -10

/**
 * Another thread reads this answer.
 */
#define INGLE_ERROR_BUSY -11

/**
 * The model failed.
 */
#define INGLE_ERROR_FAILED -12

/**
 * The library has a defect. Its handles can be freed; other calls on them may fail.
 */
#define INGLE_ERROR_PANIC -13

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * Version of the library, such as "0.1.0".
 */
const char *ingle_version(void);

/**
 * INGLE_ABI_VERSION of the library, to compare with that of the header.
 */
uint32_t ingle_abi_version(void);

/**
 * Bits INGLE_HAS_…: devices that this build knows. The machine may still lack them.
 */
uint64_t ingle_capabilities(void);

/**
 * Message of this thread's last error, in English; empty if there was none. The text is valid
 * until the thread's next error. A success does not clear it.
 */
const char *ingle_last_error(void);

/**
 * Loads a model: a path, a name of the catalog, or hf:org/repo, which is fetched if needed. The
 * options may be null. Free the model with ingle_model_free.
 */
ingle_status ingle_load(const char *source,
                        const struct ingle_load_options *options,
                        struct ingle_model **model);

/**
 * Frees a model. Its answers stay valid; the memory is freed with the last of them. Null is
 * allowed.
 */
void ingle_model_free(struct ingle_model *model);

/**
 * Facts about a model. Set `info->struct_size` before.
 */
ingle_status ingle_model_get_info(const struct ingle_model *model, struct ingle_model_info *info);

/**
 * Tokens of a text, with the model's start tokens. Control tokens in the text are parsed. `tokens`
 * has room for `capacity` tokens, and may be null if that is 0. `n_tokens` is set to their number,
 * even if the room is too small: INGLE_ERROR_BUFFER.
 */
ingle_status ingle_tokenize(const struct ingle_model *model,
                            const char *text,
                            uint32_t *tokens,
                            size_t capacity,
                            size_t *n_tokens);

/**
 * Text of tokens, without names of control tokens. Bytes that are not UTF-8 become U+FFFD. Free
 * `text` with ingle_string_free. `n_bytes` may be null.
 */
ingle_status ingle_detokenize(const struct ingle_model *model,
                              const uint32_t *tokens,
                              size_t n_tokens,
                              char **text,
                              size_t *n_bytes);

/**
 * Vectors of texts, which are computed together: `n_texts` rows of `n_dims` numbers (see
 * ingle_model_info). `capacity` is the number of floats for which `vectors` has room. `n_tokens`
 * is set to the number of tokens of all texts, and may be null.
 */
ingle_status ingle_embed(const struct ingle_model *model,
                         const char *const *texts,
                         size_t n_texts,
                         float *vectors,
                         size_t capacity,
                         uint64_t *n_tokens);

/**
 * Scores of documents for a query, in their order; larger is better. `capacity` is the number of
 * floats for which `scores` has room.
 */
ingle_status ingle_rerank(const struct ingle_model *model,
                          const char *query,
                          const char *const *documents,
                          size_t n_documents,
                          float *scores,
                          size_t capacity);

/**
 * Transcribes a recording: the bytes of a WAV, AIFF, MP3, M4A, FLAC or OGG Vorbis file. The
 * options may be null. `json` becomes an object with "text", "language", "duration" (in seconds)
 * and "segments"; free it with ingle_string_free. `n_json` may be null.
 */
ingle_status ingle_transcribe(const struct ingle_model *model,
                              const uint8_t *file,
                              size_t n_file,
                              const struct ingle_transcribe_options *options,
                              char **json,
                              size_t *n_json);

/**
 * Answers a chat. `messages` is a JSON array in OpenAI's form: objects with "role", "content" (a
 * text, or parts with texts and images as data URLs), "tool_calls" and "tool_call_id". Both
 * options may be null. It returns once the request is queued. Free the answer with
 * ingle_answer_free.
 */
ingle_status ingle_chat(const struct ingle_model *model,
                        const char *messages,
                        const struct ingle_chat_options *chat,
                        const struct ingle_generation_options *generation,
                        struct ingle_answer **answer);

/**
 * Continues a text. The model's start tokens are added, and control tokens in the text are parsed.
 * `suffix` is null, or the text after the gap to fill, for models that were trained for that. The
 * options may be null. Free the answer with ingle_answer_free.
 */
ingle_status ingle_complete(const struct ingle_model *model,
                            const char *prompt,
                            const char *suffix,
                            const struct ingle_generation_options *generation,
                            struct ingle_answer **answer);

/**
 * Continues tokens, to which nothing is added. The options may be null. Free the answer with
 * ingle_answer_free.
 */
ingle_status ingle_complete_tokens(const struct ingle_model *model,
                                   const uint32_t *tokens,
                                   size_t n_tokens,
                                   const struct ingle_generation_options *generation,
                                   struct ingle_answer **answer);

/**
 * Waits for the next event. Set `event->struct_size` before. Returns INGLE_OK with an event,
 * INGLE_DONE after the end of every answer, or INGLE_CANCELLED.
 */
ingle_status ingle_answer_next(struct ingle_answer *answer, struct ingle_event *event);

/**
 * Like ingle_answer_next, but returns INGLE_PENDING if no event comes within `timeout_ms`
 * milliseconds; 0 does not wait.
 */
ingle_status ingle_answer_next_timeout(struct ingle_answer *answer,
                                       uint64_t timeout_ms,
                                       struct ingle_event *event);

/**
 * Reads all events, and passes each to `callback` on this thread. Returns INGLE_DONE, or
 * INGLE_CANCELLED if the callback or another thread cancelled the answer.
 */
ingle_status ingle_answer_read(struct ingle_answer *answer,
                               ingle_event_callback callback,
                               void *user);

/**
 * Waits for the end, and returns what was not read before, as JSON like OpenAI's: "choices" with
 * "index", "message", "finish_reason" and "tokens", and "usage". Free `json` with
 * ingle_string_free. `n_bytes` may be null. No event follows.
 */
ingle_status ingle_answer_json(struct ingle_answer *answer, char **json, size_t *n_bytes);

/**
 * Cancels an answer, from any thread. A thread that waits for it returns INGLE_CANCELLED, and so
 * do later calls. Null is allowed.
 */
void ingle_answer_cancel(struct ingle_answer *answer);

/**
 * Frees an answer, and cancels it if it has not ended. No other thread may use it any more. Null
 * is allowed.
 */
void ingle_answer_free(struct ingle_answer *answer);

/**
 * Frees a text that a function of this library returned; null is allowed.
 */
void ingle_string_free(char *text);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* INGLE_H */

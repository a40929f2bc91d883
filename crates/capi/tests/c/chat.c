/* Chats and completions with the scripted model: chat MODEL. */

#include "check.h"
#include <pthread.h>

#define GREETING "Hello from a scripted model: caf\xc3\xa9."

static const char MESSAGES[] =
    "[{\"role\":\"system\",\"content\":\"Be brief.\"},"
    "{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"Hello?\"}]}]";

static const char TOOLS[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"get_weather\",\"parameters\":"
    "{\"type\":\"object\",\"properties\":{\"city\":{\"type\":\"string\"}},\"required\":[\"city\"]}}}]";

typedef struct {
    char text[256];
    size_t n_text, n_events, n_tokens;
    size_t cancel_at; /* The event at which the callback cancels; 0: never. */
    uint32_t stop_reason;
} seen;

static int32_t collect(const ingle_event *event, void *user) {
    seen *all = (seen *)user;
    all->n_events++;
    CHECK(event->text != NULL && event->text[event->n_text] == 0);
    if (event->kind == INGLE_EVENT_TEXT) {
        if (all->n_text + event->n_text < sizeof all->text) {
            memcpy(all->text + all->n_text, event->text, event->n_text);
            all->n_text += event->n_text;
        }
        for (size_t i = 0; i < event->n_tokens; i++) {
            const ingle_token *token = &event->tokens[i];
            CHECK(token->n_bytes == 0 || token->bytes != NULL);
            CHECK(token->n_top != 2 || (token->top[0].id == token->id && token->logprob <= 0));
            all->n_tokens++;
        }
    } else if (event->kind == INGLE_EVENT_END) {
        all->stop_reason = event->stop_reason;
        CHECK(event->prompt_tokens > 0 && event->completion_tokens > 0);
    }
    return all->cancel_at != 0 && all->n_events >= all->cancel_at;
}

static void streams(const ingle_model *model) {
    ingle_answer *answer = NULL;
    ingle_generation_options options = greedy();
    options.logprobs = 2;
    OK(ingle_chat(model, MESSAGES, NULL, &options, &answer));
    seen polled;
    memset(&polled, 0, sizeof polled);
    STRUCT(ingle_event, event);
    ingle_status status;
    while ((status = ingle_answer_next(answer, &event)) == INGLE_OK) {
        collect(&event, &polled);
    }
    CHECK(status == INGLE_DONE && strcmp(polled.text, GREETING) == 0);
    CHECK(polled.stop_reason == INGLE_STOP_END && polled.n_tokens >= 10);
    EXPECT(INGLE_DONE, ingle_answer_next(answer, &event));
    ingle_answer_free(answer);

    OK(ingle_chat(model, MESSAGES, NULL, &options, &answer));
    seen called;
    memset(&called, 0, sizeof called);
    EXPECT(INGLE_DONE, ingle_answer_read(answer, collect, &called));
    CHECK(strcmp(called.text, GREETING) == 0);
    ingle_answer_free(answer);

    /* A stop text, and a limit. */
    const char *stop[] = {" model"};
    options.stop = stop;
    options.n_stop = 1;
    char *json = NULL;
    OK(ingle_chat(model, MESSAGES, NULL, &options, &answer));
    OK(ingle_answer_json(answer, &json, NULL));
    CHECK(strstr(json, "\"content\":\"Hello from a scripted\"") && strstr(json, "\"stop_text\":\" model\""));
    ingle_string_free(json);
    EXPECT(INGLE_ERROR_ARGUMENT, ingle_answer_json(answer, &json, NULL));
    CHECK(json == NULL);
    ingle_answer_free(answer);
}

/* A callback must not read its own answer. */
static int32_t read_again(const ingle_event *event, void *user) {
    STRUCT(ingle_event, own);
    (void)event;
    EXPECT(INGLE_ERROR_BUSY, ingle_answer_next((ingle_answer *)user, &own));
    return 0;
}

static void answers_twice(const ingle_model *model) {
    ingle_generation_options options = greedy();
    options.n = 2;
    options.with_progress = 1;
    ingle_answer *answer = NULL;
    char *json = NULL;
    size_t n_json = 0;
    OK(ingle_chat(model, MESSAGES, NULL, &options, &answer));
    OK(ingle_answer_json(answer, &json, &n_json));
    const char *second = strstr(json, "\"index\":1");
    CHECK(strstr(json, GREETING) < second && strstr(second, GREETING) != NULL && strlen(json) == n_json);
    ingle_string_free(json);
    ingle_answer_free(answer);

    OK(ingle_chat(model, MESSAGES, NULL, &options, &answer));
    EXPECT(INGLE_DONE, ingle_answer_read(answer, read_again, answer));
    ingle_answer_free(answer);

    /* The context has room for 500 tokens, which take longer than the allowed time. */
    options.n = 0;
    options.timeout_ms = 1;
    options.ignore_end = 1;
    OK(ingle_complete(model, "Hey!", NULL, &options, &answer));
    seen all;
    memset(&all, 0, sizeof all);
    STRUCT(ingle_event, event);
    while (ingle_answer_next(answer, &event) == INGLE_OK) {
        if (event.kind == INGLE_EVENT_PROGRESS) {
            CHECK(event.prompt_tokens == 4 && event.prefilled_tokens <= 4);
        }
        all.stop_reason = event.kind == INGLE_EVENT_END ? event.stop_reason : all.stop_reason;
    }
    CHECK(all.stop_reason == INGLE_STOP_TIMEOUT);
    ingle_answer_free(answer);
}

static void endless(const ingle_model *model, ingle_answer **answer) {
    ingle_generation_options options = greedy();
    OK(ingle_complete(model, "Hey!", NULL, &options, answer));
}

static void *wait_for_end(void *answer) {
    STRUCT(ingle_event, event);
    ingle_status status;
    do {
        status = ingle_answer_next((ingle_answer *)answer, &event);
    } while (status == INGLE_OK);
    return status == INGLE_CANCELLED ? answer : NULL;
}

static void cancels(const char *path) {
    ingle_model *model = load(path, 512, 1);
    ingle_answer *answer = NULL;
    endless(model, &answer);
    seen all;
    memset(&all, 0, sizeof all);
    all.cancel_at = 2;
    EXPECT(INGLE_CANCELLED, ingle_answer_read(answer, collect, &all));
    CHECK(all.n_events == 2 && all.text[0] == '!');
    STRUCT(ingle_event, event);
    EXPECT(INGLE_CANCELLED, ingle_answer_next(answer, &event));
    ingle_answer_free(answer);

    /* Another thread cancels; the waiting one returns. The queued answer has no event before. */
    ingle_answer *first = NULL;
    endless(model, &first);
    endless(model, &answer);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, wait_for_end, answer) == 0);
    ingle_answer_cancel(answer);
    void *result = NULL;
    CHECK(pthread_join(thread, &result) == 0 && result == answer);
    char *json = NULL;
    EXPECT(INGLE_CANCELLED, ingle_answer_json(answer, &json, NULL));
    ingle_answer_free(answer);

    /* The model can be freed before its answer, which is cancelled midway. */
    ingle_model_free(model);
    OK(ingle_answer_next(first, &event));
    ingle_answer_free(first);
}

static void times_out(const ingle_model *model) {
    ingle_answer *answer = NULL;
    endless(model, &answer);
    STRUCT(ingle_event, event);
    ingle_status status;
    size_t n_events = 0, n_text = 0;
    uint32_t reason = 0;
    while ((status = ingle_answer_next_timeout(answer, n_events % 2, &event)) != INGLE_DONE) {
        CHECK(status == INGLE_OK || status == INGLE_PENDING);
        if (status == INGLE_OK) {
            n_events++;
            n_text += event.kind == INGLE_EVENT_TEXT ? event.n_text : 0;
            reason = event.kind == INGLE_EVENT_END ? event.stop_reason : reason;
        }
    }
    /* The answer fills the context, and no event was lost. */
    CHECK(reason == INGLE_STOP_CONTEXT_FULL && n_text > 500);
    ingle_answer_free(answer);
}

static void calls_tools(const ingle_model *model) {
    STRUCT(ingle_chat_options, chat);
    chat.tools = TOOLS;
    chat.tool_choice = "auto";
    ingle_generation_options options = greedy();
    ingle_answer *answer = NULL;
    OK(ingle_chat(model, MESSAGES, &chat, &options, &answer));
    STRUCT(ingle_event, event);
    char arguments[64] = "", id[64] = "";
    while (ingle_answer_next(answer, &event) == INGLE_OK) {
        if (event.kind == INGLE_EVENT_CALL_BEGIN) {
            CHECK(strcmp(event.text, "get_weather") == 0 && strlen(event.call_id) < sizeof id);
            strcpy(id, event.call_id);
        } else if (event.kind == INGLE_EVENT_CALL_ARGUMENTS) {
            strncat(arguments, event.text, sizeof arguments - strlen(arguments) - 1);
        } else if (event.kind == INGLE_EVENT_END) {
            CHECK(event.stop_reason == INGLE_STOP_TOOL_CALLS);
        }
    }
    CHECK(strncmp(id, "call_", 5) == 0 && strstr(arguments, "\"Oslo\"") != NULL);
    ingle_answer_free(answer);

    chat.tool_choice = "{\"type\":\"function\",\"function\":{\"name\":\"get_weather\"}}";
    char *json = NULL;
    OK(ingle_chat(model, MESSAGES, &chat, &options, &answer));
    OK(ingle_answer_json(answer, &json, NULL));
    CHECK(strstr(json, "\"finish_reason\":\"tool_calls\"") && strstr(json, "\"name\":\"get_weather\""));
    ingle_string_free(json);
    ingle_answer_free(answer);
    chat.tool_choice = "sometimes";
    EXPECT(INGLE_ERROR_ARGUMENT, ingle_chat(model, MESSAGES, &chat, &options, &answer));
    SAYS("tool_choice");
    CHECK(answer == NULL);
}

/* Writes the answer under a grammar to `text`. */
static void held(const ingle_model *model, uint32_t kind, const char *grammar, char *text, size_t room) {
    ingle_generation_options options = greedy();
    options.grammar_kind = kind;
    options.grammar = grammar;
    options.max_tokens = 40;
    /* JSON may have white space without end, which the logits of this model do not prevent. */
    const ingle_logit_bias no_space[] = {
        {'\t', -INFINITY}, {'\n', -INFINITY}, {'\r', -INFINITY}, {' ', -INFINITY}};
    if (kind == INGLE_GRAMMAR_JSON_SCHEMA) {
        options.logit_bias = no_space;
        options.n_logit_bias = sizeof no_space / sizeof *no_space;
    }
    ingle_answer *answer = NULL;
    OK(ingle_complete(model, "x", NULL, &options, &answer));
    seen all;
    memset(&all, 0, sizeof all);
    EXPECT(INGLE_DONE, ingle_answer_read(answer, collect, &all));
    ingle_answer_free(answer);
    CHECK(all.n_text < room);
    memcpy(text, all.text, all.n_text + 1);
}

static void follows_grammars(const ingle_model *model) {
    char text[256];
    held(model, INGLE_GRAMMAR_REGEX, "[b-d]{3}-7", text, sizeof text);
    CHECK(strlen(text) == 5 && strspn(text, "bcd") == 3 && strcmp(text + 3, "-7") == 0);
    held(model, INGLE_GRAMMAR_GBNF, "root ::= \"yes\" \" sir\"", text, sizeof text);
    CHECK(strcmp(text, "yes sir") == 0);
    held(model, INGLE_GRAMMAR_LARK, "start: \"a\" \"bc\"", text, sizeof text);
    CHECK(strcmp(text, "abc") == 0);
    held(model, INGLE_GRAMMAR_JSON_SCHEMA, "{\"type\":\"object\",\"properties\":{\"ok\":{\"const\":true}},"
         "\"required\":[\"ok\"],\"additionalProperties\":false}", text, sizeof text);
    CHECK(strcmp(text, "{\"ok\":true}") == 0);

    ingle_generation_options options = greedy();
    ingle_answer *answer = NULL;
    options.grammar_kind = INGLE_GRAMMAR_JSON_SCHEMA;
    options.grammar = "{";
    EXPECT(INGLE_ERROR_ARGUMENT, ingle_complete(model, "x", NULL, &options, &answer));
    SAYS("grammar");
    options.grammar_kind = INGLE_GRAMMAR_REGEX;
    options.grammar = "(";
    EXPECT(INGLE_ERROR_ARGUMENT, ingle_complete(model, "x", NULL, &options, &answer));
    options.grammar_kind = 99;
    EXPECT(INGLE_ERROR_ARGUMENT, ingle_complete(model, "x", NULL, &options, &answer));
    SAYS("99");
}

static void tokenizes(const ingle_model *model) {
    uint32_t tokens[8];
    size_t n = 0;
    OK(ingle_tokenize(model, "a<|user|>b", tokens, 8, &n));
    CHECK(n == 3);
    char *text = NULL;
    size_t n_bytes = 0;
    OK(ingle_detokenize(model, tokens, 1, &text, &n_bytes));
    CHECK(n_bytes == 1 && strcmp(text, "a") == 0);
    ingle_string_free(text);
    EXPECT(INGLE_ERROR_BUFFER, ingle_tokenize(model, "many", tokens, 2, &n));
    CHECK(n == 4);
    tokens[0] = 1000000;
    EXPECT(INGLE_ERROR_ARGUMENT, ingle_detokenize(model, tokens, 1, &text, NULL));
    CHECK(text == NULL);
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    ingle_model *model = load(argv[1], 512, 2);
    STRUCT(ingle_model_info, info);
    OK(ingle_model_get_info(model, &info));
    CHECK(info.capabilities == (INGLE_CAN_CHAT | INGLE_CAN_COMPLETE | INGLE_CAN_TOKENIZE));
    CHECK(strcmp(info.device, "cpu") == 0 && info.n_ctx == 512 && info.n_sequences == 2);
    streams(model);
    answers_twice(model);
    cancels(argv[1]);
    times_out(model);
    calls_tools(model);
    follows_grammars(model);
    tokenizes(model);
    ingle_model_free(model);
    printf("done\n");
    return 0;
}

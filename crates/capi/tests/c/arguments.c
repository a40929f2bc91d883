/* Null pointers, texts that are no UTF-8, and sizes of structs: arguments MODEL. */

#include "check.h"

static const char HELLO[] = "[{\"role\":\"user\",\"content\":\"a\"}]";

static void nulls(const ingle_model *model) {
    ingle_model *loaded = NULL;
    ingle_answer *answer = NULL;
    uint32_t token = 65;
    size_t n = 0;
    float number = 0;
    char *text = NULL;
    const char *none = NULL;
    STRUCT(ingle_model_info, info);
    STRUCT(ingle_event, event);
    EXPECT(INGLE_ERROR_ARGUMENT, ingle_load(NULL, NULL, &loaded));
    SAYS("source is null");
    EXPECT(INGLE_ERROR_ARGUMENT, ingle_load("x", NULL, NULL));
    EXPECT(INGLE_ERROR_ARGUMENT, ingle_model_get_info(NULL, &info));
    EXPECT(INGLE_ERROR_ARGUMENT, ingle_model_get_info(model, NULL));
    EXPECT(INGLE_ERROR_ARGUMENT, ingle_chat(NULL, HELLO, NULL, NULL, &answer));
    SAYS("model is null");
    EXPECT(INGLE_ERROR_ARGUMENT, ingle_chat(model, NULL, NULL, NULL, &answer));
    EXPECT(INGLE_ERROR_ARGUMENT, ingle_chat(model, HELLO, NULL, NULL, NULL));
    EXPECT(INGLE_ERROR_ARGUMENT, ingle_complete(model, NULL, NULL, NULL, &answer));
    EXPECT(INGLE_ERROR_ARGUMENT, ingle_complete_tokens(model, NULL, 1, NULL, &answer));
    EXPECT(INGLE_ERROR_ARGUMENT, ingle_complete_tokens(model, &token, (size_t)-1, NULL, &answer));
    CHECK(answer == NULL);
    EXPECT(INGLE_ERROR_ARGUMENT, ingle_answer_next(NULL, &event));
    EXPECT(INGLE_ERROR_ARGUMENT, ingle_answer_next_timeout(NULL, 0, &event));
    EXPECT(INGLE_ERROR_ARGUMENT, ingle_answer_read(NULL, NULL, NULL));
    EXPECT(INGLE_ERROR_ARGUMENT, ingle_answer_json(NULL, &text, &n));
    EXPECT(INGLE_ERROR_ARGUMENT, ingle_tokenize(NULL, "a", &token, 1, &n));
    EXPECT(INGLE_ERROR_ARGUMENT, ingle_tokenize(model, NULL, &token, 1, &n));
    EXPECT(INGLE_ERROR_ARGUMENT, ingle_tokenize(model, "a", NULL, 1, &n));
    EXPECT(INGLE_ERROR_ARGUMENT, ingle_tokenize(model, "a", &token, 1, NULL));
    EXPECT(INGLE_ERROR_ARGUMENT, ingle_detokenize(model, NULL, 1, &text, &n));
    EXPECT(INGLE_ERROR_ARGUMENT, ingle_detokenize(model, &token, 1, NULL, &n));
    EXPECT(INGLE_ERROR_ARGUMENT, ingle_embed(model, NULL, 1, &number, 1, NULL));
    EXPECT(INGLE_ERROR_ARGUMENT, ingle_embed(model, &none, 1, &number, 1, NULL));
    EXPECT(INGLE_ERROR_ARGUMENT, ingle_rerank(model, NULL, &none, 1, &number, 1));
    EXPECT(INGLE_ERROR_ARGUMENT, ingle_transcribe(model, NULL, 1, NULL, &text, NULL));
    ingle_model_free(NULL);
    ingle_answer_free(NULL);
    ingle_answer_cancel(NULL);
    ingle_string_free(NULL);

    OK(ingle_chat(model, HELLO, NULL, NULL, &answer));
    EXPECT(INGLE_ERROR_ARGUMENT, ingle_answer_next(answer, NULL));
    EXPECT(INGLE_ERROR_ARGUMENT, ingle_answer_read(answer, NULL, NULL));
    SAYS("callback is null");
    EXPECT(INGLE_ERROR_ARGUMENT, ingle_answer_json(answer, NULL, NULL));
    ingle_answer_free(answer);
}

static void texts(const ingle_model *model) {
    ingle_answer *answer = NULL;
    EXPECT(INGLE_ERROR_ARGUMENT, ingle_complete(model, "\xff", NULL, NULL, &answer));
    SAYS("prompt is not UTF-8");
    EXPECT(INGLE_ERROR_ARGUMENT, ingle_chat(model, "no", NULL, NULL, &answer));
    SAYS("messages is no JSON");
    EXPECT(INGLE_ERROR_ARGUMENT, ingle_chat(model, "[1]", NULL, NULL, &answer));
    EXPECT(INGLE_ERROR_ARGUMENT, ingle_chat(model, "[{}]", NULL, NULL, &answer));
    SAYS("messages[0] has no role");
    STRUCT(ingle_load_options, load);
    ingle_model *other = NULL;
    load.device = "abacus";
    EXPECT(INGLE_ERROR_ARGUMENT, ingle_load("x", &load, &other));
    SAYS("abacus");
    load.device = NULL;
    load.kv_type = "q1";
    EXPECT(INGLE_ERROR_ARGUMENT, ingle_load("x", &load, &other));
    ingle_generation_options options = greedy();
    options.temperature = -1;
    EXPECT(INGLE_ERROR_ARGUMENT, ingle_complete(model, "a", NULL, &options, &answer));
    SAYS("temperature");
    options = greedy();
    options.zeros |= (uint64_t)1 << 63;
    EXPECT(INGLE_ERROR_ARGUMENT, ingle_complete(model, "a", NULL, &options, &answer));
    SAYS("zeros");
}

/* A struct of a newer header: known fields, and one more. */
typedef struct {
    ingle_generation_options known;
    uint64_t more;
} newer_options;

static void sizes(const ingle_model *model) {
    ingle_answer *answer = NULL;
    const size_t wrong[] = {0, 1, 4, sizeof(ingle_generation_options) - 1, 1 << 20, (size_t)-8};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        ingle_generation_options options = greedy();
        options.struct_size = wrong[i];
        EXPECT(INGLE_ERROR_STRUCT_SIZE, ingle_complete(model, "!", NULL, &options, &answer));
        SAYS("ingle_generation_options");
        STRUCT(ingle_model_info, info);
        info.struct_size = wrong[i];
        EXPECT(INGLE_ERROR_STRUCT_SIZE, ingle_model_get_info(model, &info));
        CHECK(info.n_vocab == 0);
    }

    /* An older caller has the first fields only. What lies behind is not read. */
    ingle_generation_options options;
    memset(&options, 0xff, sizeof options);
    options.struct_size = offsetof(ingle_generation_options, temperature);
    options.zeros = INGLE_ZERO_TEMPERATURE;
    options.max_tokens = 3;
    options.min_tokens = 0;
    OK(ingle_complete(model, "!", NULL, &options, &answer));
    char *json = NULL;
    size_t n = 0;
    OK(ingle_answer_json(answer, &json, &n));
    CHECK(n == strlen(json) && strstr(json, "\"content\":\"!!!\"") && strstr(json, "\"length\""));
    ingle_string_free(json);
    ingle_answer_free(answer);

    /* A newer caller may set what this library knows, and nothing else. */
    newer_options newer;
    memset(&newer, 0, sizeof newer);
    newer.known = greedy();
    newer.known.struct_size = sizeof newer;
    newer.known.max_tokens = 2;
    OK(ingle_complete(model, "!", NULL, &newer.known, &answer));
    /* Results are cut to the caller's size. */
    ingle_event event;
    memset(&event, 0x55, sizeof event);
    event.struct_size = offsetof(ingle_event, call_id);
    EXPECT(INGLE_OK, ingle_answer_next(answer, &event));
    CHECK(event.kind == INGLE_EVENT_TEXT && event.text[0] == '!');
    CHECK(event.struct_size == offsetof(ingle_event, call_id) && event.call == 0x55555555);
    /* A wrong size loses no event. */
    size_t n_text = event.n_text;
    uint32_t last = 0;
    event.struct_size = 3;
    EXPECT(INGLE_ERROR_STRUCT_SIZE, ingle_answer_next(answer, &event));
    event.struct_size = sizeof event;
    while (ingle_answer_next(answer, &event) == INGLE_OK) {
        n_text += event.kind == INGLE_EVENT_TEXT ? event.n_text : 0;
        last = event.kind;
    }
    CHECK(n_text == 2 && last == INGLE_EVENT_END);
    ingle_answer_free(answer);
    newer.more = 1;
    EXPECT(INGLE_ERROR_STRUCT_SIZE, ingle_complete(model, "!", NULL, &newer.known, &answer));
    CHECK(answer == NULL);
}

int main(int argc, char **argv) {
    CHECK(argc == 2 && ingle_abi_version() == INGLE_ABI_VERSION);
    CHECK(strchr(ingle_version(), '.') != NULL && strcmp(ingle_last_error(), "") == 0);
    CHECK((ingle_capabilities() & ~(uint64_t)(INGLE_HAS_CUDA | INGLE_HAS_METAL)) == 0);
    ingle_model *model = load(argv[1], 64, 1);
    nulls(model);
    texts(model);
    sizes(model);
    ingle_model_free(model);
    printf("done\n");
    return 0;
}

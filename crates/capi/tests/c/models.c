/* Several models and threads, adapters, vectors and scores:
   models SCRIPTED LLAMA ADAPTER EMBEDDER TEXT FIRST SECOND RERANKER WHISPER DAMAGED. */

#include "check.h"
#include <pthread.h>

enum { N_THREADS = 8, N_REQUESTS = 4, N_TOKENS = 12 };

typedef struct {
    const ingle_model *model;
    uint32_t tokens[N_TOKENS];
    size_t n_tokens;
    uint32_t first; /* The second token of the prompt. */
} work;

/* Continues three tokens, and keeps the answer's tokens. */
static void complete(work *of) {
    const uint32_t prompt[] = {1, of->first, 30};
    ingle_generation_options options = greedy();
    options.max_tokens = N_TOKENS;
    options.with_tokens = 1;
    options.ignore_end = 1;
    ingle_answer *answer = NULL;
    OK(ingle_complete_tokens(of->model, prompt, 3, &options, &answer));
    STRUCT(ingle_event, event);
    of->n_tokens = 0;
    ingle_status status;
    while ((status = ingle_answer_next(answer, &event)) == INGLE_OK) {
        for (size_t i = 0; i < event.n_tokens && of->n_tokens < N_TOKENS; i++) {
            of->tokens[of->n_tokens++] = event.tokens[i].id;
        }
    }
    CHECK(status == INGLE_DONE && of->n_tokens == N_TOKENS);
    ingle_answer_free(answer);
}

static void *complete_often(void *user) {
    work *mine = (work *)user;
    complete(mine);
    for (int i = 1; i < N_REQUESTS; i++) {
        work again = *mine;
        complete(&again);
        CHECK(memcmp(again.tokens, mine->tokens, sizeof again.tokens) == 0);
    }
    /* Each thread has its own last error. */
    ingle_answer *answer = NULL;
    char adapter[16];
    snprintf(adapter, sizeof adapter, "none%u", (unsigned)mine->first);
    ingle_generation_options options = greedy();
    options.adapter = adapter;
    CHECK(ingle_complete_tokens(mine->model, &mine->first, 1, &options, &answer) < 0);
    SAYS(adapter);
    return NULL;
}

static void many_threads(const char *path) {
    ingle_model *model = load(path, 64, 4);
    pthread_t threads[N_THREADS];
    work works[N_THREADS];
    memset(works, 0, sizeof works);
    for (int i = 0; i < N_THREADS; i++) {
        works[i].model = model;
        works[i].first = 20 + (uint32_t)i % 4;
        CHECK(pthread_create(&threads[i], NULL, complete_often, &works[i]) == 0);
    }
    for (int i = 0; i < N_THREADS; i++) {
        CHECK(pthread_join(threads[i], NULL) == 0);
    }
    /* Threads with equal prompts have equal answers. */
    for (int i = 4; i < N_THREADS; i++) {
        CHECK(memcmp(works[i].tokens, works[i - 4].tokens, sizeof works[i].tokens) == 0);
    }
    CHECK(memcmp(works[0].tokens, works[1].tokens, sizeof works[0].tokens) != 0);
    ingle_model_free(model);
}

static void two_models(const char *scripted, const char *llama) {
    ingle_model *first = load(scripted, 64, 1), *second = load(llama, 64, 1);
    ingle_answer *hello = NULL;
    ingle_generation_options options = greedy();
    OK(ingle_chat(first, "[{\"role\":\"user\",\"content\":\"a\"}]", NULL, &options, &hello));
    work other;
    memset(&other, 0, sizeof other);
    other.model = second;
    other.first = 20;
    complete(&other);
    char *json = NULL;
    OK(ingle_answer_json(hello, &json, NULL));
    CHECK(strstr(json, "Hello from a scripted model") != NULL);
    ingle_string_free(json);
    ingle_answer_free(hello);
    ingle_model_free(first);
    ingle_model_free(second);
}

static void out_of_context(const char *path) {
    ingle_model *model = load(path, 64, 1);
    uint32_t prompt[100];
    for (int i = 0; i < 100; i++) {
        prompt[i] = 1 + (uint32_t)i;
    }
    ingle_answer *answer = NULL;
    EXPECT(INGLE_ERROR_CONTEXT, ingle_complete_tokens(model, prompt, 100, NULL, &answer));
    SAYS("64");
    CHECK(answer == NULL);
    prompt[0] = 1u << 30;
    EXPECT(INGLE_ERROR_ARGUMENT, ingle_complete_tokens(model, prompt, 1, NULL, &answer));
    EXPECT(INGLE_ERROR_ARGUMENT, ingle_complete_tokens(model, prompt, 0, NULL, &answer));
    /* This model has no chat template and computes no vectors. */
    EXPECT(INGLE_ERROR_ARGUMENT, ingle_chat(model, "[{\"role\":\"user\",\"content\":\"a\"}]", NULL, NULL, &answer));
    const char *text = "a";
    float number;
    CHECK(ingle_embed(model, &text, 1, &number, 1, NULL) < 0);
    char *json = NULL;
    CHECK(ingle_transcribe(model, (const uint8_t *)text, 1, NULL, &json, NULL) < 0 && json == NULL);
    OK(ingle_complete(model, "w1 w20", NULL, NULL, &answer));
    ingle_answer_free(answer);
    ingle_model_free(model);
}

static void adapters(const char *llama, const char *path) {
    STRUCT(ingle_adapter, adapter);
    adapter.name = "tuned";
    adapter.path = path;
    adapter.factor = 8;
    STRUCT(ingle_load_options, options);
    options.device = "cpu";
    options.n_ctx = 64;
    options.adapters = &adapter;
    options.n_adapters = 1;
    ingle_model *model = NULL;
    OK(ingle_load(llama, &options, &model));
    float logprobs[2] = {0, 0};
    for (int with = 0; with < 2; with++) {
        const uint32_t prompt[] = {1, 20, 30};
        ingle_generation_options generation = greedy();
        generation.max_tokens = 1;
        generation.zeros |= INGLE_ZERO_LOGPROBS;
        generation.adapter = with ? "tuned" : NULL;
        ingle_answer *answer = NULL;
        OK(ingle_complete_tokens(model, prompt, 3, &generation, &answer));
        STRUCT(ingle_event, event);
        while (ingle_answer_next(answer, &event) == INGLE_OK) {
            if (event.n_tokens > 0) {
                logprobs[with] = event.tokens[0].logprob;
            }
        }
        ingle_answer_free(answer);
    }
    CHECK(logprobs[0] < 0 && logprobs[1] < 0 && logprobs[0] != logprobs[1]);
    ingle_model_free(model);
    adapter.path = "/nonexistent";
    CHECK(ingle_load(llama, &options, &model) < 0 && model == NULL);
    SAYS("tuned");
}

static void embeds(const char *path, const char *text, double first, double second) {
    ingle_model *model = load(path, 0, 0);
    STRUCT(ingle_model_info, info);
    OK(ingle_model_get_info(model, &info));
    CHECK(info.capabilities == (INGLE_CAN_EMBED | INGLE_CAN_TOKENIZE));
    size_t n_dims = (size_t)info.n_dims;
    CHECK(n_dims > 2);
    const char *texts[] = {"w7 w8", text};
    float *vectors = (float *)calloc(2 * n_dims, sizeof *vectors);
    CHECK(vectors != NULL);
    uint64_t n_tokens = 0;
    OK(ingle_embed(model, texts, 2, vectors, 2 * n_dims, &n_tokens));
    CHECK(n_tokens == 42);
    CHECK(fabs(vectors[n_dims] - first) < 1e-3 && fabs(vectors[n_dims + 1] - second) < 1e-3);
    CHECK(fabs(vectors[0] - vectors[n_dims]) > 1e-3);
    EXPECT(INGLE_ERROR_BUFFER, ingle_embed(model, texts, 2, vectors, n_dims, NULL));
    ingle_answer *answer = NULL;
    CHECK(ingle_complete(model, "w7", NULL, NULL, &answer) < 0);
    free(vectors);
    ingle_model_free(model);
}

static void reranks(const char *path) {
    ingle_model *model = load(path, 0, 0);
    const char *documents[] = {"The giant panda is a bear that eats bamboo.", "x"};
    float scores[2] = {-1, -1};
    OK(ingle_rerank(model, "what is a panda?", documents, 2, scores, 2));
    CHECK(scores[0] > 0 && scores[0] < 1 && scores[1] > 0 && scores[0] != scores[1]);
    EXPECT(INGLE_ERROR_BUFFER, ingle_rerank(model, "what is a panda?", documents, 2, scores, 1));
    documents[1] = NULL;
    EXPECT(INGLE_ERROR_ARGUMENT, ingle_rerank(model, "what is a panda?", documents, 2, scores, 2));
    ingle_model_free(model);
}

static void bad_models(const char *whisper, const char *damaged) {
    ingle_model *model = NULL;
    EXPECT(INGLE_ERROR_NOT_FOUND, ingle_load("/nonexistent/model.gguf", NULL, &model));
    CHECK(model == NULL);
    SAYS("/nonexistent/model.gguf");
    EXPECT(INGLE_ERROR_MODEL, ingle_load(damaged, NULL, &model));
    CHECK(model == NULL);
    EXPECT(INGLE_ERROR_NOT_FOUND, ingle_load("", NULL, &model));
    /* This speech model has no tokenizer, and so no token for texts without times. */
    EXPECT(INGLE_ERROR_MODEL, ingle_load(whisper, NULL, &model));
    CHECK(model == NULL);
    SAYS("notimestamps");
}

int main(int argc, char **argv) {
    CHECK(argc == 11);
    many_threads(argv[2]);
    two_models(argv[1], argv[2]);
    out_of_context(argv[2]);
    adapters(argv[2], argv[3]);
    embeds(argv[4], argv[5], atof(argv[6]), atof(argv[7]));
    reranks(argv[8]);
    bad_models(argv[9], argv[10]);
    printf("done\n");
    return 0;
}

/* A transcript of a recording: speech MODEL FILE. */

#include "check.h"

static void watch(uint32_t kind, const char *text, uint64_t done, uint64_t total, void *user) {
    (void)done;
    (void)total;
    CHECK(kind >= INGLE_PROGRESS_START && kind <= INGLE_PROGRESS_NOTE && text != NULL);
    ++*(int *)user;
}

int main(int argc, char **argv) {
    CHECK(argc == 3);
    int n_calls = 0;
    STRUCT(ingle_load_options, load);
    load.device = "cpu";
    load.progress = watch;
    load.progress_user = &n_calls;
    ingle_model *model = NULL;
    OK(ingle_load(argv[1], &load, &model));
    STRUCT(ingle_model_info, info);
    OK(ingle_model_get_info(model, &info));
    CHECK(info.capabilities & INGLE_CAN_TRANSCRIBE);

    FILE *file = fopen(argv[2], "rb");
    CHECK(file != NULL);
    static uint8_t bytes[1 << 20];
    size_t n_bytes = fread(bytes, 1, sizeof bytes, file);
    CHECK(fclose(file) == 0 && n_bytes > 0 && n_bytes < sizeof bytes);
    STRUCT(ingle_transcribe_options, options);
    options.word_times = 1;
    char *json = NULL;
    OK(ingle_transcribe(model, bytes, n_bytes, &options, &json, NULL));
    printf("%s\n", json);
    ingle_string_free(json);
    EXPECT(INGLE_ERROR_ARGUMENT, ingle_transcribe(model, bytes, 3, &options, &json, NULL));
    CHECK(json == NULL);
    options.language = "xx";
    EXPECT(INGLE_ERROR_ARGUMENT, ingle_transcribe(model, bytes, n_bytes, &options, &json, NULL));
    SAYS("xx");
    ingle_model_free(model);
    return 0;
}

/* Similarity of texts to the first one: embed MODEL TEXT TEXT... */

#include <ingle.h>
#include <stdio.h>
#include <stdlib.h>

static int fail(const char *words) {
    fprintf(stderr, "%s\n", words);
    return 1;
}

int main(int argc, char **argv) {
    if (argc < 4) {
        return fail("usage: embed MODEL TEXT TEXT...");
    }
    ingle_model *model;
    if (ingle_load(argv[1], NULL, &model) != INGLE_OK) {
        return fail(ingle_last_error());
    }
    ingle_model_info info = {.struct_size = sizeof info};
    if (ingle_model_get_info(model, &info) != INGLE_OK) {
        return fail(ingle_last_error());
    }
    if (!(info.capabilities & INGLE_CAN_EMBED)) {
        return fail("this model computes no embeddings");
    }
    size_t n_texts = (size_t)argc - 2, n_dims = (size_t)info.n_dims;
    float *vectors = malloc(n_texts * n_dims * sizeof *vectors);
    if (vectors == NULL) {
        return fail("the memory is too short");
    }
    const char *const *texts = (const char *const *)(argv + 2);
    if (ingle_embed(model, texts, n_texts, vectors, n_texts * n_dims, NULL) != INGLE_OK) {
        return fail(ingle_last_error());
    }
    for (size_t i = 1; i < n_texts; i++) {
        float sum = 0; /* The vectors have length 1. */
        for (size_t k = 0; k < n_dims; k++) {
            sum += vectors[k] * vectors[i * n_dims + k];
        }
        printf("%.4f  %s\n", sum, texts[i]);
    }
    free(vectors);
    ingle_model_free(model);
    return 0;
}

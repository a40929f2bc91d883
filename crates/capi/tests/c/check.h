/* Checks of the C programs that drive the library. */

#ifndef CHECK_H
#define CHECK_H

#include <ingle.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                                                               \
    do {                                                                                               \
        if (!(condition)) {                                                                            \
            fprintf(stderr, "%s:%d: %s\n  last error: %s\n", __FILE__, __LINE__, #condition,           \
                    ingle_last_error());                                                               \
            exit(1);                                                                                   \
        }                                                                                              \
    } while (0)

/* Checks a status, and prints the one that was found. */
#define EXPECT(status, call)                                                                           \
    do {                                                                                               \
        ingle_status found_ = (call);                                                                  \
        if (found_ != (status)) {                                                                      \
            fprintf(stderr, "%s:%d: %s is %d\n  last error: %s\n", __FILE__, __LINE__, #call, found_,  \
                    ingle_last_error());                                                               \
            exit(1);                                                                                   \
        }                                                                                              \
    } while (0)

#define OK(call) EXPECT(INGLE_OK, call)

/* Declares a struct of zeros with its size. */
#define STRUCT(type, name)                                                                             \
    type name;                                                                                         \
    memset(&name, 0, sizeof name);                                                                     \
    name.struct_size = sizeof name

/* Checks words of the last error. */
#define SAYS(words) CHECK(strstr(ingle_last_error(), words) != NULL)

static inline ingle_model *load(const char *path, uint64_t n_ctx, uint64_t n_sequences) {
    STRUCT(ingle_load_options, options);
    options.device = "cpu";
    options.n_threads = 1;
    options.n_ctx = n_ctx;
    options.n_sequences = n_sequences;
    ingle_model *model = NULL;
    OK(ingle_load(path, &options, &model));
    return model;
}

/* Options of the likeliest tokens. */
static inline ingle_generation_options greedy(void) {
    STRUCT(ingle_generation_options, options);
    options.zeros = INGLE_ZERO_TEMPERATURE;
    return options;
}

#endif

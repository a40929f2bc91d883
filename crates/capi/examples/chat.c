/* A chat in the terminal: chat MODEL. Ctrl-D ends it. */

#include <ingle.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A text that grows; the messages so far, as JSON. */
typedef struct {
    char *bytes;
    size_t n;
} text;

static void append(text *to, const char *bytes, size_t n) {
    char *grown = realloc(to->bytes, to->n + n + 1);
    if (grown == NULL) {
        fprintf(stderr, "the memory is too short\n");
        exit(1);
    }
    memcpy(grown + to->n, bytes, n);
    grown[to->n + n] = 0;
    to->bytes = grown;
    to->n += n;
}

static void append_quoted(text *to, const char *bytes, size_t n) {
    append(to, "\"", 1);
    for (size_t i = 0; i < n; i++) {
        unsigned char byte = (unsigned char)bytes[i];
        char escaped[8];
        if (byte < 0x20 || byte == '"' || byte == '\\') {
            append(to, escaped, (size_t)snprintf(escaped, sizeof escaped, "\\u%04x", byte));
        } else {
            append(to, bytes + i, 1);
        }
    }
    append(to, "\"", 1);
}

static void append_message(text *to, const char *role, const char *words, size_t n) {
    static const char start[] = "{\"role\":", middle[] = ",\"content\":", comma[] = ",";
    if (to->n > 1) {
        append(to, comma, 1);
    }
    append(to, start, sizeof start - 1);
    append_quoted(to, role, strlen(role));
    append(to, middle, sizeof middle - 1);
    append_quoted(to, words, n);
    append(to, "}", 1);
}

/* Prints the answer as it comes, and keeps it in `user`, a text. */
static int32_t print_event(const ingle_event *event, void *user) {
    if (event->kind == INGLE_EVENT_TEXT) {
        fwrite(event->text, 1, event->n_text, stdout);
        fflush(stdout);
        append(user, event->text, event->n_text);
    }
    return 0;
}

static int fail(void) {
    fprintf(stderr, "%s\n", ingle_last_error());
    return 1;
}

int main(int argc, char **argv) {
    if (argc != 2) {
        fprintf(stderr, "usage: chat MODEL\n");
        return 2;
    }
    ingle_model *model;
    if (ingle_load(argv[1], NULL, &model) != INGLE_OK) {
        return fail();
    }
    text messages = {0};
    append(&messages, "[", 1);
    char line[4096];
    while (printf("> "), fflush(stdout), fgets(line, sizeof line, stdin) != NULL) {
        append_message(&messages, "user", line, strcspn(line, "\n"));
        text request = {0}, reply = {0};
        append(&request, messages.bytes, messages.n);
        append(&request, "]", 1);
        ingle_answer *answer;
        if (ingle_chat(model, request.bytes, NULL, NULL, &answer) != INGLE_OK) {
            return fail();
        }
        ingle_status status = ingle_answer_read(answer, print_event, &reply);
        ingle_answer_free(answer);
        if (status != INGLE_DONE) {
            return fail();
        }
        printf("\n");
        append_message(&messages, "assistant", reply.n == 0 ? "" : reply.bytes, reply.n);
        free(request.bytes);
        free(reply.bytes);
    }
    free(messages.bytes);
    ingle_model_free(model);
    return 0;
}

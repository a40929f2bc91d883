// The step as kernels see it: the parts of its region of the step buffer. The host writes the
// region before it submits the step.
#pragma once

#include "step_parts.h"

// Returns the id of a token. A link to an output without a chosen token is token 0: the step runs,
// and the host discards its results.
static inline uint token_of(uint token, device const uint *chosen) {
    if ((token & LINKED) == 0) return token;
    const uint id = chosen[token & ~LINKED];
    return id == NO_TOKEN ? 0 : id;
}

// Rows of a value in this step: `per_token` rows for each token, or one row for each output if
// `per_token` is 0.
static inline uint rows_of(device const Step &step, uint per_token) {
    return per_token == 0 ? step.n_outputs : step.n_rows * per_token;
}

// Index of the first entry of a span's page table for a KV group.
static inline uint page_table_of(device const Step &step, uint span, uint group) {
    return (span * step.n_groups + group) * step.pages_per_table;
}

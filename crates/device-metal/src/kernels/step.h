// What a step is, as kernels see it: the parts of its region of the step buffer, which the host
// writes before it submits the step.
#pragma once

#include "step_parts.h"

// The id of a token. A link to an output that chose nothing gives token 0: its step runs, and the
// host discards it.
static inline uint token_of(uint token, device const uint *chosen) {
    if ((token & LINKED) == 0) return token;
    const uint id = chosen[token & ~LINKED];
    return id == NO_TOKEN ? 0 : id;
}

// Rows that a value has in this step: `per_token` for each token; 0: one for each output.
static inline uint rows_of(device const Step &step, uint per_token) {
    return per_token == 0 ? step.n_outputs : step.n_rows * per_token;
}

// Where the page table of a span for a KV group begins.
static inline uint page_table_of(device const Step &step, uint span, uint group) {
    return (span * step.n_groups + group) * step.pages_per_table;
}

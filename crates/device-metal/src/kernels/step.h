// What a step is, as kernels see it: the parts of its region of the step buffer, which the host writes before it submits the
// step. build.rs gives the host the same structs.
#pragma once

// Sizes of this step. 32 bytes.
struct Step {
    uint n_rows;          // tokens
    uint n_outputs;       // rows whose logits are wanted
    uint n_spans;         // sequences
    uint n_groups;        // KV groups, each with a page table of a span
    uint pages_per_table; // entries of a page table
    uint first_chosen;    // where the token of output 0 goes in the buffer of chosen tokens
    uint reserved0;
    uint reserved1;
};

// A token is an id, or this bit and an index into the buffer of chosen tokens: an output of an earlier step chose it.
#define LINKED 0x80000000u
// In the buffer of chosen tokens: no token could be chosen, or none was wanted.
#define NO_TOKEN 0xffffffffu

// The id of a token. A link to an output that chose nothing gives token 0: its step runs, and the host discards it.
static inline uint token_of(uint token, device const uint *chosen) {
    if ((token & LINKED) == 0) return token;
    const uint id = chosen[token & ~LINKED];
    return id == NO_TOKEN ? 0 : id;
}

// Of a span's states: there was none, the sequence begins.
#define STATE_NONE 0xffffffffu

// Consecutive rows of one sequence. Its page tables are those of its index. 32 bytes.
struct Span {
    uint first_row;
    uint n_rows;
    uint first_position; // of the first row in its sequence
    uint adapter;        // 0: none
    uint state_from;     // the sequence's state before the span, or STATE_NONE
    uint state_to;       // and after it; no state of the step is both
    uint reserved0;
    uint reserved1;
};

// Rows that a value has in this step: `per_token` for each token; 0: one for each output.
static inline uint rows_of(device const Step &step, uint per_token) {
    return per_token == 0 ? step.n_outputs : step.n_rows * per_token;
}

// Where the page table of a span for a KV group begins.
static inline uint page_table_of(device const Step &step, uint span, uint group) {
    return (span * step.n_groups + group) * step.pages_per_table;
}

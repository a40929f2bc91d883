// What a step is, as kernels see it: the parts of the step buffer, which the host patches before each step and which
// chained steps patch on the GPU. Mirrored in src/arguments.rs.
#pragma once

// Sizes of this step. 32 bytes.
struct Step {
    uint n_rows;          // tokens
    uint n_outputs;       // rows whose logits are wanted
    uint n_spans;         // sequences
    uint n_groups;        // KV groups, each with a page table of a span
    uint pages_per_table; // entries of a page table
    uint n_chained;       // tokens that a chain has chosen so far
    uint n_recent;        // tokens before the chain that have penalties
    uint reserved;
};

// Consecutive rows of one sequence. Its page tables are those of its index. 16 bytes.
struct Span {
    uint first_row;
    uint n_rows;
    uint first_position; // of the first row in its sequence
    uint reserved;
};

// Rows that a value has in this step: `per_token` for each token; 0: one for each output.
static inline uint rows_of(device const Step &step, uint per_token) {
    return per_token == 0 ? step.n_outputs : step.n_rows * per_token;
}

// Where the page table of a span for a KV group begins.
static inline uint page_table_of(device const Step &step, uint span, uint group) {
    return (span * step.n_groups + group) * step.pages_per_table;
}

// Spans and sampling parameters: parts of a step's region that the host writes in the same form for
// every GPU. The file build.rs translates the structs to Rust.
#pragma once

// A token is an id, or this bit and an index into the buffer of chosen tokens: an output of an
// earlier step chose it.
#define LINKED 0x80000000u
// In the buffer of chosen tokens: no token could be chosen, or none was wanted.
#define NO_TOKEN 0xffffffffu
// A span's state before it: the sequence begins, and its state is zeros.
#define STATE_NONE 0xffffffffu

// Sizes of this step, at the start of its region: for kernels whose arguments do not hold them. 32
// bytes.
struct Step {
    uint n_rows;          // tokens
    uint n_outputs;       // rows whose logits are wanted
    uint n_spans;         // sequences
    uint n_groups;        // KV groups, each with a page table of a span
    uint pages_per_table; // entries of a page table
    uint first_chosen;    // index of the token of output 0 in the buffer of chosen tokens
    uint reserved0;
    uint reserved1;
};

// Consecutive rows of one sequence. The span's index selects its page tables. 32 bytes.
struct Span {
    uint first_row;
    uint n_rows;
    uint first_position; // position of the first row in its sequence
    uint state_from; // the sequence's state before the span, or STATE_NONE
    uint state_to; // the sequence's state after the span; no state of the step is both
    uint adapter; // 0: none
    uint reserved0;
    uint reserved1;
};

// A token, and the number that is added to its logit. 8 bytes.
struct Bias {
    uint token;
    float value;
};

// The choice of an output's token. 80 bytes.
struct Choice {
    uint how;           // one of CHOOSE_*
    uint top_k;         // 0: all
    uint nucleus;       // top-p in 2^-32, at least 1; 0: all
    uint random_low;    // the random number in 2^-64, lower word
    uint random_high;   // its upper word
    uint first_recent;  // index among the step's recent tokens
    uint n_recent;      // recent tokens that have penalties
    uint first_pending; // index among the step's pending tokens
    uint n_pending;     // pending tokens that have penalties
    float temperature;  // above 0
    float floor;        // logarithm of min-p; -infinity: all
    float repeat;       // penalty: divides positive logits, multiplies negative ones
    float presence;     // penalty: subtracted once
    float frequency;    // penalty: subtracted for each occurrence
    uint chosen;        // index of its token in the buffer of chosen tokens
    uint first_bias;    // index among the step's biases
    uint n_biases;
    uint mask; // 0: none; else 1 and the index of its first word among the masks
    uint reserved0;
    uint reserved1;
};

// The GPU leaves the output alone: nothing is chosen, or the host does it.
#define CHOOSE_NOTHING 0
#define CHOOSE_BEST 1
#define CHOOSE_SAMPLE 2

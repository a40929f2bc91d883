// What a step is, as kernels see it: the parts of the step buffer, which the host writes before it submits the
// step. build.rs gives the host the same structs.
#pragma once

// A token is an id, or this bit and an index into the buffer of chosen tokens: an output of an earlier step chose it.
#define LINKED 0x80000000u
// In the buffer of chosen tokens: no token could be chosen, or none was wanted.
#define NO_TOKEN 0xffffffffu
// Of a span's states: the sequence begins.
#define STATE_NONE 0xffffffffu

// Consecutive rows of one sequence. Its page tables are those of its index. 32 bytes.
struct Span {
    uint first_row;
    uint n_rows;
    uint first_position; // of the first row in its sequence
    uint state_from; // STATE_NONE: zeros
    uint state_to;
    uint adapter; // 0: none
    uint reserved0;
    uint reserved1;
};

// A token, and what is added to its logit.
struct Bias {
    uint token;
    float value;
};

// How the token of an output is chosen. 80 bytes.
struct Choice {
    uint how;           // one of CHOOSE_*
    uint top_k;         // 0: all
    uint nucleus;       // top-p in 2^-32, at least 1; 0: all
    uint random_low;    // the random number in 2^-64, lower word
    uint random_high;
    uint first_recent;  // of the step's recent tokens
    uint n_recent;      // how many of them have penalties
    uint first_pending; // of the step's pending tokens
    uint n_pending;     // how many of them have penalties
    float temperature;  // above 0
    float floor;        // logarithm of min-p; -infinity: all
    float repeat;
    float presence;
    float frequency;
    uint chosen; // where its token goes in the buffer of chosen tokens
    uint first_bias; // of the step's biases
    uint n_biases;
    uint mask; // 0: none; else 1 and where its words begin among the masks
    uint reserved0;
    uint reserved1;
};

// The GPU leaves the output alone: nothing is chosen, or the host does it.
#define CHOOSE_NOTHING 0
#define CHOOSE_BEST 1
#define CHOOSE_SAMPLE 2

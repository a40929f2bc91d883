// How tokens are chosen. build.rs gives the host the same structs.
#pragma once

// argmax, and the kernels of this folder.
struct ChooseArguments {
    uint cols; // of a row of logits; of argmax with FC_BESTS: parts of the row
    uint reserved0;
    uint reserved1;
    uint reserved2;
};

// How the token of an output is chosen: a part of the step's region. 64 bytes.
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
    uint reserved0;
    uint reserved1;
};

// The GPU leaves the output alone: nothing is chosen, or the host does it.
#define CHOOSE_NOTHING 0
#define CHOOSE_BEST 1
#define CHOOSE_SAMPLE 2

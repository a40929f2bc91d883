// How the tokens of a chain are chosen: a part of the step buffer, which the host writes when a chain begins. Mirrored in
// src/arguments.rs. 48 bytes.
#pragma once

struct Sampling {
    uint n_vocab;
    uint top_k;        // 0: all
    uint nucleus;      // top-p in 2^-32, at least 1; 0: all
    uint window;       // last tokens that have penalties
    float temperature; // above 0
    float floor;       // logarithm of min-p; -infinity: all
    float repeat;
    float presence;
    float frequency;
    uint reserved0;
    uint reserved1;
    uint reserved2;
};

// What was chosen where nothing can be.
#define NO_TOKEN 0xffffffffu

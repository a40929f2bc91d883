// Cosines and sines of RoPE, which all heads of all layers share. The step's first embedding writes
// them (embed.h), or a dispatch of its own (turns.metal).
//
// Each list of frequencies with its factor has a table (rows, n_dims / 2) of float2. The tables of
// a plan are in one buffer.
#pragma once
#include "arguments.h"

// Writes pairs `first`, `first + step` and so on of a row, in all tables. The angle is an f32
// product, as in the reference.
static inline void write_turns(device float2 *turns, device const TurnPair *pairs, uint n_pairs, uint row, uint position,
                               uint first, uint step) {
    for (uint i = first; i < n_pairs; i += step) {
        const float angle = float(position) * pairs[i].frequency, scale = pairs[i].scale;
        turns[pairs[i].first + row * pairs[i].stride] = float2(precise::cos(angle) * scale, precise::sin(angle) * scale);
    }
}

// Between two steps of a chain: the token that was chosen becomes the next step's, one position on.
//
// Buffers: 1 step, 2 best (1), 3 tokens, 4 positions, 5 spans, 6 chosen (as many as a chain has), 7 recent (step.n_recent and
// as many). One thread of one threadgroup of 32 writes. Where no token could be chosen the step runs once more with the token
// that it had: the host ends the chain there, and every token stays one of the vocabulary.
#include <metal_stdlib>
using namespace metal;
#include "sampling/arguments.h"
#include "step.h"

kernel void advance(
        device Step *step [[buffer(1)]],
        device const uint *best [[buffer(2)]],
        device uint *tokens [[buffer(3)]],
        device uint *positions [[buffer(4)]],
        device Span *spans [[buffer(5)]],
        device uint *chosen [[buffer(6)]],
        device uint *recent [[buffer(7)]],
        uint thread_index [[thread_index_in_threadgroup]]) {
    if (thread_index != 0) return;
    const uint token = best[0];
    const uint n = step->n_chained;
    chosen[n] = token;
    if (token != NO_TOKEN) tokens[0] = token;
    recent[step->n_recent + n] = tokens[0];
    positions[0] += 1;
    spans[0].first_position += 1;
    step->n_chained = n + 1;
}

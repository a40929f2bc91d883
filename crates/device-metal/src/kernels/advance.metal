// Between two steps of a chain: the token that was chosen becomes the next step's, one position on.
//
// Buffers: 1 step, 2 argmax (1), 3 tokens, 4 positions, 5 spans, 6 chosen (as many as a chain has). One thread of one
// threadgroup of 32 writes.
#include <metal_stdlib>
using namespace metal;
#include "step.h"

kernel void advance(
        device Step *step [[buffer(1)]],
        device const uint *best [[buffer(2)]],
        device uint *tokens [[buffer(3)]],
        device uint *positions [[buffer(4)]],
        device Span *spans [[buffer(5)]],
        device uint *chosen [[buffer(6)]],
        uint thread_index [[thread_index_in_threadgroup]]) {
    if (thread_index != 0) return;
    const uint token = best[0];
    chosen[step->n_chained] = token;
    tokens[0] = token;
    positions[0] += 1;
    spans[0].first_position += 1;
    step->n_chained += 1;
}

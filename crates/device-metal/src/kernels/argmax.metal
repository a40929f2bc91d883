// Index of the largest column of each row of outputs; the lowest of equals; NaN is never the largest. With CHAINED, the one row's
// becomes the next token (advance.h).
//
// A threadgroup makes one row: each thread every n-th column, then over the SIMD-group, then over the SIMD-groups. With BESTS it
// looks at the largest of each threadgroup of the product that made the row (linear/gemv.h), and not at the row.
//
// Buffers: 0 ArgmaxArguments, 1 step, 2 x (outputs, cols), 3 out (outputs), 4 with BESTS: (outputs, cols) of {float bits, column};
// with CHAINED: 5 tokens, 6 positions, 7 spans, 8 chosen, 9 recent. Constants: BESTS, CHAINED. Grid: (outputs) threadgroups of
// 1024 at most, whole SIMD-groups. Moves 4 bytes an element, or 8.
#include <metal_stdlib>
using namespace metal;
#include "advance.h"
#include "arguments.h"
#include "constants.h"
#include "step.h"

constant bool BESTS [[function_constant(FC_BESTS)]];
constant bool CHAINED [[function_constant(FC_CHAINED)]];

// No column.
#define NONE 0xffffffffu

kernel void argmax(
        constant ArgmaxArguments &args [[buffer(0)]],
        device Step *step [[buffer(1)]],
        device const float *x [[buffer(2)]],
        device uint *out [[buffer(3)]],
        device const uint2 *bests [[buffer(4)]],
        device uint *tokens [[buffer(5)]],
        device uint *positions [[buffer(6)]],
        device Span *spans [[buffer(7)]],
        device uint *chosen [[buffer(8)]],
        device uint *recent [[buffer(9)]],
        uint row [[threadgroup_position_in_grid]],
        uint thread_index [[thread_index_in_threadgroup]],
        uint n_threads [[threads_per_threadgroup]],
        uint lane [[thread_index_in_simdgroup]],
        uint simdgroup [[simdgroup_index_in_threadgroup]],
        uint n_simdgroups [[simdgroups_per_threadgroup]]) {
    threadgroup float values[32];
    threadgroup uint indices[32];
    if (row >= step->n_outputs) return;
    const ulong first = ulong(row) * args.cols;
    float best = -INFINITY;
    uint index = NONE;
    // Columns ascend, so that of equals the first stays.
    for (uint i = thread_index; i < args.cols; i += n_threads) {
        float value;
        uint column = i;
        if (BESTS) {
            const uint2 pair = bests[first + i];
            value = as_type<float>(pair.x);
            column = pair.y;
        } else {
            value = x[first + i];
        }
        if (value > best && column != NONE) {
            best = value;
            index = column;
        }
    }
    const float top = simd_max(best);
    const uint lowest = simd_min(best == top ? index : NONE);
    if (lane == 0) {
        values[simdgroup] = top;
        indices[simdgroup] = lowest;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (thread_index != 0) return;
    best = -INFINITY;
    index = NONE;
    for (uint i = 0; i < n_simdgroups; i++) {
        if (values[i] > best || (values[i] == best && indices[i] < index)) {
            best = values[i];
            index = indices[i];
        }
    }
    // Nothing was larger than -infinity: the first, as the reference has it.
    const uint token = index == NONE ? 0 : index;
    out[row] = token;
    if (CHAINED) advance(token, step, tokens, positions, spans, chosen, recent);
}

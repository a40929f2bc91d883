// The best token of each output that needs one: the column of the largest logit, the lowest such
// column if several are equal. NaN and -infinity are never chosen.
//
// A threadgroup computes one row: each thread searches every n-th column, then the SIMD-group, then
// the threadgroup reduces the results. With BESTS the kernel searches the largest logits that the
// head's threadgroups left (linear/gemv.h), instead of the row.
//
// Buffers: 0 ChooseArguments, 1 step, 2 choices (outputs), 3 logits (outputs, cols), 4 chosen: from
// step.first_chosen on the token of each output, NO_TOKEN if there is none; 5 with BESTS: (outputs,
// cols) of {float bits, column}. Constants: BESTS. Grid: (outputs) threadgroups of at most 1024
// threads, whole SIMD-groups. Threadgroups of outputs that need no best token return at once. Moves
// 4 bytes an element, or 8 with BESTS.
#include <metal_stdlib>
using namespace metal;
#include "constants.h"
#include "sampling/arguments.h"
#include "step.h"

constant bool BESTS [[function_constant(FC_BESTS)]];

// No column.
#define NONE 0xffffffffu

kernel void argmax(
        constant ChooseArguments &args [[buffer(0)]],
        device const Step *step [[buffer(1)]],
        device const Choice *choices [[buffer(2)]],
        device const float *logits [[buffer(3)]],
        device uint *chosen [[buffer(4)]],
        device const uint2 *bests [[buffer(5)]],
        uint row [[threadgroup_position_in_grid]],
        uint thread_index [[thread_index_in_threadgroup]],
        uint n_threads [[threads_per_threadgroup]],
        uint lane [[thread_index_in_simdgroup]],
        uint simdgroup [[simdgroup_index_in_threadgroup]],
        uint n_simdgroups [[simdgroups_per_threadgroup]]) {
    threadgroup float values[32];
    threadgroup uint indices[32];
    if (row >= step->n_outputs || choices[row].how != CHOOSE_BEST) return;
    const ulong first = ulong(row) * args.cols;
    float best = -INFINITY;
    uint index = NONE;
    // Columns ascend, so the lowest of equal columns stays.
    for (uint i = thread_index; i < args.cols; i += n_threads) {
        float value;
        uint column = i;
        if (BESTS) {
            const uint2 pair = bests[first + i];
            value = as_type<float>(pair.x);
            column = pair.y;
        } else {
            value = logits[first + i];
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
    // NONE equals NO_TOKEN: no logit is larger than -infinity.
    chosen[step->first_chosen + row] = index;
}

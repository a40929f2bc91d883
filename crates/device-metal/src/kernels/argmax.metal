// Index of the largest column of each row of outputs; the lowest of equals; NaN is never the largest.
//
// A threadgroup makes one row: each thread every n-th column, then over the SIMD-group, then over the SIMD-groups.
//
// Buffers: 0 ArgmaxArguments, 1 step, 2 x (outputs, cols), 3 out (outputs). Grid: (outputs) threadgroups of 1024 at most,
// whole SIMD-groups. Moves 4 bytes an element.
#include <metal_stdlib>
using namespace metal;
#include "arguments.h"
#include "step.h"

kernel void argmax(
        constant ArgmaxArguments &args [[buffer(0)]],
        device const Step *step [[buffer(1)]],
        device const float *x [[buffer(2)]],
        device uint *out [[buffer(3)]],
        uint row [[threadgroup_position_in_grid]],
        uint thread_index [[thread_index_in_threadgroup]],
        uint n_threads [[threads_per_threadgroup]],
        uint lane [[thread_index_in_simdgroup]],
        uint simdgroup [[simdgroup_index_in_threadgroup]],
        uint n_simdgroups [[simdgroups_per_threadgroup]]) {
    threadgroup float values[32];
    threadgroup uint indices[32];
    if (row >= step->n_outputs) return;
    device const float *logits = x + row * args.cols;
    float best = -INFINITY;
    uint index = args.cols;
    for (uint i = thread_index; i < args.cols; i += n_threads) {
        const float value = logits[i];
        if (value > best) {
            best = value;
            index = i;
        }
    }
    const float top = simd_max(best);
    const uint first = simd_min(best == top ? index : args.cols);
    if (lane == 0) {
        values[simdgroup] = top;
        indices[simdgroup] = first;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (thread_index != 0) return;
    best = -INFINITY;
    index = args.cols;
    for (uint i = 0; i < n_simdgroups; i++) {
        if (values[i] > best || (values[i] == best && indices[i] < index)) {
            best = values[i];
            index = indices[i];
        }
    }
    // Nothing was larger than -infinity: the first, as the reference has it.
    out[row] = index == args.cols ? 0 : index;
}

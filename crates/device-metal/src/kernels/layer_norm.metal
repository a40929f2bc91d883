// out = (x - mean(x)) / sqrt(mean((x - mean(x))^2) + eps) * weight [+ bias], over whole rows.
//
// A threadgroup computes one row: first the mean, then the variance of x - mean, so that rows far
// from zero lose no precision. Sums are f32: each thread adds every n-th column, then simd_sum,
// then the SIMD-groups in order.
//
// Buffers: 0 NormArguments (group is cols), 1 step, 2 x (rows, cols), 3 out (rows, cols), 4 weight
// (cols), 5 bias (cols). The bias may be bound to anything without FC_HAS_BIAS. Constants:
// FC_HAS_BIAS. Grid: (1, rows) threadgroups of 32 to 1024 threads, whole SIMD-groups. Moves 8 bytes
// an element.
#include <metal_stdlib>
using namespace metal;
#include "arguments.h"
#include "constants.h"
#include "reduce.h"
#include "step.h"

constant bool HAS_BIAS [[function_constant(FC_HAS_BIAS)]];

kernel void layer_norm(
        constant NormArguments &args [[buffer(0)]],
        device const Step *step [[buffer(1)]],
        device const float *x [[buffer(2)]],
        device float *out [[buffer(3)]],
        device const float *weight [[buffer(4)]],
        device const float *bias [[buffer(5)]],
        uint2 position [[threadgroup_position_in_grid]],
        uint thread_index [[thread_index_in_threadgroup]],
        uint2 n_threads [[threads_per_threadgroup]],
        uint lane [[thread_index_in_simdgroup]],
        uint simdgroup [[simdgroup_index_in_threadgroup]],
        uint n_simdgroups [[simdgroups_per_threadgroup]]) {
    threadgroup float scratch[32];
    if (position.y >= rows_of(*step, args.per_token)) return;
    const uint start = position.y * args.cols;
    float sum = 0.0f;
    for (uint i = thread_index; i < args.cols; i += n_threads.x) sum += x[start + i];
    const float mean = threadgroup_sum(sum, scratch, simdgroup, lane, n_simdgroups) / float(args.cols);
    float squares = 0.0f;
    for (uint i = thread_index; i < args.cols; i += n_threads.x) {
        const float rest = x[start + i] - mean;
        squares += rest * rest;
    }
    squares = threadgroup_sum(squares, scratch, simdgroup, lane, n_simdgroups);
    const float factor = 1.0f / precise::sqrt(squares / float(args.cols) + args.eps);
    for (uint i = thread_index; i < args.cols; i += n_threads.x) {
        float value = (x[start + i] - mean) * factor * weight[i];
        if (HAS_BIAS) value += bias[i];
        out[start + i] = value;
    }
}

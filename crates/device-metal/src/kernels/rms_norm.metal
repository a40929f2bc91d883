// out = x / sqrt(mean(x^2) + eps) * weight, over groups of neighbouring columns.
//
// A threadgroup computes one group of one row. The sum of squares is f32: each thread adds every
// n-th column, then simd_sum, then the SIMD-groups in order. x is read twice, the second time from
// the cache.
//
// Buffers: 0 NormArguments, 1 step, 2 x (rows, cols), 3 out (rows, cols), 4 weight (group) or
// (cols); may be bound to anything without FC_HAS_WEIGHT. Constants: FC_HAS_WEIGHT.
// Grid: (cols / group, rows) threadgroups of 32 to 1024 threads, whole SIMD-groups.
// Moves 8 bytes an element.
#include <metal_stdlib>
using namespace metal;
#include "arguments.h"
#include "constants.h"
#include "reduce.h"
#include "step.h"

constant bool HAS_WEIGHT [[function_constant(FC_HAS_WEIGHT)]];

kernel void rms_norm(
        constant NormArguments &args [[buffer(0)]],
        device const Step *step [[buffer(1)]],
        device const float *x [[buffer(2)]],
        device float *out [[buffer(3)]],
        device const float *weight [[buffer(4)]],
        uint2 position [[threadgroup_position_in_grid]],
        uint thread_index [[thread_index_in_threadgroup]],
        uint2 n_threads [[threads_per_threadgroup]],
        uint lane [[thread_index_in_simdgroup]],
        uint simdgroup [[simdgroup_index_in_threadgroup]],
        uint n_simdgroups [[simdgroups_per_threadgroup]]) {
    threadgroup float scratch[32];
    if (position.y >= rows_of(*step, args.per_token)) return;
    const uint start = position.y * args.cols + position.x * args.group;
    float sum = 0.0f;
    for (uint i = thread_index; i < args.group; i += n_threads.x) sum += x[start + i] * x[start + i];
    sum = threadgroup_sum(sum, scratch, simdgroup, lane, n_simdgroups);
    const float factor = 1.0f / precise::sqrt(sum / float(args.group) + args.eps);
    for (uint i = thread_index; i < args.group; i += n_threads.x) {
        float value = x[start + i] * factor;
        if (HAS_WEIGHT) value *= weight[position.x * args.group % args.weights + i];
        out[start + i] = value;
    }
}

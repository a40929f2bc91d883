// Adds a branch to the residual stream, after norms of its own or as the sum of experts' parts, and
// computes the norms of the sum that follow:
//
//     out = factor * (residual + rms_norm(branch) * weight), normed_n = rms_norm(out) * norm_n
//
// join.h has the formula of the branch, and the order of sums. A threadgroup computes a row, and
// keeps it in `out` between its passes.
//
// Buffers: 0 JoinArguments, 1 step, 2 x (rows, cols), 3 out (rows, cols; overlaps no input), 4
// weight (cols), 5 residual (rows, cols), 6 first_weight (cols), 7 other (rows, cols) or (rows,
// n_parts * cols), 8 other_weight (cols), 9 chosen (rows, n_parts), 10, 11, 12 norms (cols), 13,
// 14, 15 normed (rows, cols). Buffers that the constants leave unused may be bound to anything.
// Constants: those of join.h. Grid: (rows) threadgroups of 32 to 1024 threads, whole SIMD-groups.
// Moves 12 bytes an element, 4 more for each norm.
#include <metal_stdlib>
using namespace metal;
#include "join.h"
#include "step.h"

kernel void join(
        constant JoinArguments &args [[buffer(0)]],
        device const Step *step [[buffer(1)]],
        device const float *x [[buffer(2)]],
        device float *out [[buffer(3)]],
        device const float *weight [[buffer(4)]],
        device const float *residual [[buffer(5)]],
        device const float *first_weight [[buffer(6)]],
        device const float *other [[buffer(7)]],
        device const float *other_weight [[buffer(8)]],
        device const float *chosen [[buffer(9)]],
        device const float *norm_0 [[buffer(10)]],
        device const float *norm_1 [[buffer(11)]],
        device const float *norm_2 [[buffer(12)]],
        device float *normed_0 [[buffer(13)]],
        device float *normed_1 [[buffer(14)]],
        device float *normed_2 [[buffer(15)]],
        uint position [[threadgroup_position_in_grid]],
        uint tid [[thread_index_in_threadgroup]],
        uint n_threads [[threads_per_threadgroup]],
        uint lane [[thread_index_in_simdgroup]],
        uint sg [[simdgroup_index_in_threadgroup]],
        uint n_sg [[simdgroups_per_threadgroup]]) {
    threadgroup float scratch[32];
    if (position >= rows_of(*step, args.per_token)) return;
    const uint start = position * args.cols;
    const uint parts = position * args.n_parts;
    const JoinRow from = {x + start, weight, residual + start, first_weight,
                          other + (JOIN_PARTS ? parts * args.cols : start), other_weight, chosen + parts};
    const JoinThread at = {tid, n_threads, sg, lane, n_sg};
    device float *row = out + start;
    const float squares = join_row(row, from, args, scratch, at);
    if (JOIN_NORMS == 0) return;
    const float factor = join_factor(squares, args.cols, args.norm_eps);
    for (uint i = tid; i < args.cols; i += n_threads) {
        const float value = row[i] * factor;
        normed_0[start + i] = value * norm_0[i];
        if (JOIN_NORMS > 1) normed_1[start + i] = value * norm_1[i];
        if (JOIN_NORMS > 2) normed_2[start + i] = value * norm_2[i];
    }
}

// linear_<type>_joined: y = epilogue(n(sum) W_i^T + bias_i) for one row, with sum = factor *
// (residual + rms_norm(branch) * weight). One dispatch adds a branch to the residual stream after
// norms of the branch's own (join.h), and multiplies the next reader's weights with it.
// linear_<type>_<last>_joined (linear/mixed.metal): the same with three weights, the last of which
// has another type.
//
// Host contract
//   buffers  0 JoinedArguments (linear/arguments.h)    1 x (cols)
//            2 norm (cols), JOIN_NORMS: n(sum) = rms_norm(sum) * norm
//            3 to 14 codes, planes and biases, 16, 17, 18 y_i, 19 partials, as in linear/gemv.h
//            15 residual (cols)
//            20 weight (cols), JOIN_WEIGHT
//            21 first_weight, 22 pair, 23 pair_weight (cols), JOIN_PAIR
//            24 sum (cols), overlaps no input
//            25 up (n_out_0), LINEAR_UP
//   threads  32 * S, S = 1 to 16 simdgroups, LINEAR_SPLIT divides S
//   grid     (ceil(G / (S / LINEAR_SPLIT * passes)), 1, 1), G as in linear/gemv.h with R = 4; there
//            is one row
//   constants those of linear/gemv.h, with LINEAR_NORM, _RESIDUAL and _ROW_GATE false; those of
//            join.h, with JOIN_PARTS false, JOIN_NORM true, JOIN_NORMS 0 or 1
//   threadgroup memory 0  16 * ceil(n_in / 4) bytes
//   reads    each weight once; branch, residual and norms once for each threadgroup (from caches)
//
// Every threadgroup computes the row itself, in threadgroup memory; the first one also writes the
// sum. To limit this repetition, a simdgroup computes `passes` neighbouring blocks, and
// threadgroups are as large as possible.
//
// Order of accumulation: that of join.h, then that of linear/gemv.h. The bits are those of join
// followed by linear_<type>_gemv_1.
#pragma once
#include "join.h"
#include "linear/gemv.h"
#include "linear/parameters.h"

template<class D, class LAST>
kernel void linear_joined(constant JoinedArguments & a [[buffer(0)]],
                          PRODUCT_BUFFERS,
                          device const float * weight [[buffer(20)]],
                          device const float * first_weight [[buffer(21)]],
                          device const float * pair [[buffer(22)]],
                          device const float * pair_weight [[buffer(23)]],
                          device float * sum [[buffer(24)]],
                          device const float * up [[buffer(25)]],
                          threadgroup float4 * memory [[threadgroup(0)]],
                          PRODUCT_THREAD) {
    threadgroup float levels[16];
    threadgroup float scratch[16];
    threadgroup float split_sums[16 * 4];
    threadgroup float split_squares[16];
    threadgroup uint2 best[16];
    if (D::LEVELS && tid < 16) levels[tid] = D::level(tid);

    threadgroup float * row = (threadgroup float *) memory;
    const uint n_in = a.linear.n_in, n_threads = 32 * n_sg;
    const JoinRow from = {x, weight, other, first_weight, pair, pair_weight, x};
    const JoinThread at = {tid, n_threads, sg, lane, n_sg};
    const float squares = join_row(row, from, a.join, scratch, at);
    const float factor = JOIN_NORMS > 0 ? join_factor(squares, n_in, a.join.norm_eps) : 1.0f;
    for (uint i = tid; i < n_in; i += n_threads) {
        const float value = row[i];
        if (place.x == 0) sum[i] = value;
        if (JOIN_NORMS > 0) row[i] = value * factor * norm[i];
    }
    if (tid < (4 - n_in % 4) % 4) row[n_in + tid] = 0.0f;
    threadgroup_barrier(mem_flags::mem_threadgroup);

    ThreadgroupRow input;
    input.x = row;
    const BoundWeights weights = PRODUCT_WEIGHTS;
    const GemvMemory<1> shared = {levels, split_sums, split_squares, best};
    const uint first = (place.x * (n_sg / LINEAR_SPLIT) + sg / LINEAR_SPLIT) * a.passes;
    for (uint pass = 0; pass < a.passes; pass++) {
        const GemvPlace of_pass = {sg, lane, pass, 0, 1};
        gemv_block<D, LAST, 1, 4>(a.linear, weights, input, norm, up, up, first + pass, shared, of_pass);
    }
    if (LINEAR_ARGMAX) write_best<1>(partials, shared, 1, n_sg, place.x, n_places.x, tid);
}

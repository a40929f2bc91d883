// linear_<type>_merged: y = residual + bias + x W^T for one row x that attention left in parts,
// since its positions were split over threadgroups (attention/parts.h). Every threadgroup here
// merges the parts before it multiplies.
//
//     x = merged heads (n_heads * head_dim), W (n_out_0, n_in), y (n_out_0) f32
//
// Host contract
//   buffers  0 MergedArguments (linear/arguments.h)
//            3 codes, 6 scales, 9 offsets of the weight, aligned as in linear/gemv.h
//            12 bias (n_out_0), LINEAR_BIAS
//            15 residual (n_out_0), may be y, LINEAR_RESIDUAL
//            16 y
//            21 sinks (n_heads) f32, if has_sinks
//            22 parts (n_heads, n_splits, 4 * ceil(head_dim / 4)) f32
//            23 totals (n_heads, n_splits) float2
//   threads  32 * S, S = 1 to 16 simdgroups, LINEAR_SPLIT divides S
//   grid     (ceil(B / (S / LINEAR_SPLIT)), 1, 1), B = ceil(n_out_0 / 4); there is one row
//   constants LINEAR_BIAS, _RESIDUAL, _SPLIT; LINEAR_NORM, _GATE, _UP, _ROW_GATE, _ARGMAX and
//            _SOFTCAP are false, _WEIGHTS is 1; those of the type
//   threadgroup memory 0  16 * ceil(n_in / 4) bytes
//   reads    the weight once, the parts once for each threadgroup (from caches); so threadgroups
//            are as large as possible
//
// Order of accumulation: splits ascending, the sink last, for each column; then that of
// linear/gemv.h. The bits are those of attention_merge followed by linear_<type>_gemv_1.
#pragma once
#include "attention/parts.h"
#include "linear/gemv.h"
#include "linear/parameters.h"

template<class D>
kernel void linear_merged(constant MergedArguments & a [[buffer(0)]],
                          PRODUCT_BUFFERS,
                          device const float * sinks [[buffer(21)]],
                          device const float4 * parts [[buffer(22)]],
                          device const float2 * totals [[buffer(23)]],
                          threadgroup float4 * memory [[threadgroup(0)]],
                          PRODUCT_THREAD) {
    threadgroup float levels[16];
    threadgroup float split_sums[16 * 4];
    threadgroup float split_squares[16];
    threadgroup uint2 best[16];
    if (D::LEVELS && tid < 16) levels[tid] = D::level(tid);

    threadgroup float * row = (threadgroup float *) memory;
    const uint n_in = a.linear.n_in, fours = (a.head_dim + 3) / 4;
    for (uint at = tid; at < a.n_heads * fours; at += 32 * n_sg) {
        const uint head = at / fours, i = at % fours;
        float sink = 0.0f;
        if (a.has_sinks) sink = sinks[head];
        const float4 merged = merged_four(parts + head * a.n_splits * fours, totals + head * a.n_splits, a.n_splits, fours,
                                          a.has_sinks, sink, i);
        for (uint c = 0; c < 4 && 4 * i + c < a.head_dim; c++) row[head * a.head_dim + 4 * i + c] = merged[c];
    }
    if (tid < (4 - n_in % 4) % 4) row[n_in + tid] = 0.0f;
    threadgroup_barrier(mem_flags::mem_threadgroup);

    ThreadgroupRow input;
    input.x = row;
    const BoundWeights weights = PRODUCT_WEIGHTS;
    const GemvMemory<1> shared = {levels, split_sums, split_squares, best};
    const GemvPlace at = {sg, lane, 0, 0, 1};
    // `norm` is passed as norm and as row gate, but read as neither: both constants are false.
    gemv_block<D, D, 1, 4>(a.linear, weights, input, norm, other, norm, place.x * (n_sg / LINEAR_SPLIT) + sg / LINEAR_SPLIT, shared, at);
}

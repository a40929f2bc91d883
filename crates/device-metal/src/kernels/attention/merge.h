// attention_merge: merges the parts of a row that ATTENTION_SPLIT left. If only one projection
// reads the result, and of a single row, linear/merged.h merges them instead.
//
// Host contract
//   buffers  0 AttentionArguments, 1 Step, 8 sinks, 9 out, 10 partials, 11 totals, as in
//            attention/decode.h
//   threads  a multiple of 32
//   grid     (n_heads, n, 1)
//   constants ATTENTION_HEAD_DIM, ATTENTION_SINKS
//
// Formula and order: merged_four in attention/parts.h.
#pragma once
#include "attention/vectors.h"

kernel void attention_merge(constant AttentionArguments & a [[buffer(0)]],
                            device const Step * step [[buffer(1)]],
                            device const float * sinks [[buffer(8)]],
                            device float * out [[buffer(9)]],
                            device const float4 * partials [[buffer(10)]],
                            device const float2 * totals [[buffer(11)]],
                            uint2 place [[threadgroup_position_in_grid]],
                            ushort tid [[thread_index_in_threadgroup]],
                            ushort n_sg [[simdgroups_per_threadgroup]]) {
    if (place.y >= step->n_rows) return;
    const ulong head = ulong(place.y) * a.n_heads + place.x;
    float sink = 0.0f;
    if (ATTENTION_SINKS) sink = sinks[place.x];
    for (uint i = tid; i < HEAD_FOURS; i += 32 * n_sg) {
        const float4 merged = merged_four(partials + head * a.n_splits * HEAD_FOURS, totals + head * a.n_splits, a.n_splits,
                                          HEAD_FOURS, ATTENTION_SINKS, sink, i);
        for (uint c = 0; c < 4 && 4 * i + c < ATTENTION_HEAD_DIM; c++) out[head * ATTENTION_HEAD_DIM + 4 * i + c] = merged[c];
    }
}

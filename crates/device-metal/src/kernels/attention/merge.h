// attention_merge: the parts of a row's positions that ATTENTION_SPLIT made apart become one.
//
// Host contract
//   buffers  0 AttentionArguments, 1 Step, 8 sinks, 9 out, 10 partials, 11 totals, as in attention/decode.h
//   threads  a multiple of 32
//   grid     (n_heads, n, 1)
//   constants ATTENTION_HEAD_DIM, ATTENTION_SINKS
//
// out = sum over splits of exp(m_i - m) * partial_i / (sum of exp(m_i - m) * l_i + exp(sink - m)), splits ascending, the sink last.
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
    device const float2 * total = totals + head * a.n_splits;
    device const float4 * part = partials + head * a.n_splits * HEAD_FOURS;
    float m = LEAST_SCORE;
    for (uint i = 0; i < a.n_splits; i++) m = max(m, total[i].x);
    if (ATTENTION_SINKS) m = max(m, sinks[place.x]);
    float l = 0.0f;
    for (uint i = 0; i < a.n_splits; i++) l += total[i].y * exp(total[i].x - m);
    if (ATTENTION_SINKS) l += exp(sinks[place.x] - m);
    for (uint i = tid; i < HEAD_FOURS; i += 32 * n_sg) {
        float4 sum = float4(0.0f);
        for (uint s = 0; s < a.n_splits; s++) sum += exp(total[s].x - m) * part[s * HEAD_FOURS + i];
        for (uint c = 0; c < 4 && 4 * i + c < ATTENTION_HEAD_DIM; c++) {
            out[head * ATTENTION_HEAD_DIM + 4 * i + c] = sum[c] / l;
        }
    }
}

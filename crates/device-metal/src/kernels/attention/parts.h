// Attention of a row whose positions were split over threadgroups: the results of each split, and
// their merge.
//
// For each head a split writes its largest score m, the sum l of exp(score - m), and the sum of
// exp(score - m) * value.
#pragma once
#include <metal_stdlib>
using namespace metal;

// Less than any score, and finite in every math mode.
#define LEAST_SCORE (-1.0e30f)

// Returns columns 4 i to 4 i + 3 of a head: the sum over splits of exp(m_s - m) * part_s, divided
// by the sum of exp(m_s - m) * l_s and, with a sink, exp(sink - m). m is the largest of all m_s and
// the sink. Splits ascend, the sink is last.
//
// `parts` (n_splits, fours) and `totals` (n_splits), pairs (m, l), are those of the head.
static inline float4 merged_four(device const float4 * parts, device const float2 * totals, uint n_splits, uint fours,
                                 bool has_sink, float sink, uint i) {
    float m = LEAST_SCORE;
    for (uint s = 0; s < n_splits; s++) m = max(m, totals[s].x);
    if (has_sink) m = max(m, sink);
    float l = 0.0f;
    float4 sum = float4(0.0f);
    for (uint s = 0; s < n_splits; s++) {
        const float factor = exp(totals[s].x - m);
        l += totals[s].y * factor;
        sum += factor * parts[s * fours + i];
    }
    if (has_sink) l += exp(sink - m);
    return sum / l;
}

// The k largest of a softmax over a row's columns, by a SIMD-group: what route.metal and expert_groups.metal do with a row.
//
// The largest is found k times, each time among those after the one found before (smaller, or
// equal with a higher id), so nothing is marked and equals come in the order of their ids. NaN counts as -infinity. Sums of
// exponentials: each lane every 32nd column, then simd_sum; of the chosen ones: in their order.
#pragma once
#include "arguments.h"
#include "constants.h"

constant bool NORMALISE [[function_constant(FC_NORMALISE)]];
constant bool HAS_SCALES [[function_constant(FC_HAS_WEIGHT)]];

// `logits` (n_experts), `ids` and `weights` (k) of one row; scales (n_experts).
static inline void route_row(constant RouteArguments &args, device const float *logits, device uint *ids, device float *weights,
                             device const float *scales, uint lane) {
    // Lane j keeps the j-th chosen.
    uint my_id = 0;
    float my_logit = -INFINITY;
    float last = INFINITY;
    uint last_id = 0;
    float largest = 0.0f;
    for (uint j = 0; j < args.k; j++) {
        float best = -INFINITY;
        uint best_id = args.n_experts;
        for (uint i = lane; i < args.n_experts; i += 32) {
            const float raw = logits[i];
            const float value = isnan(raw) ? -INFINITY : raw;
            const bool after = j == 0 || value < last || (value == last && i > last_id);
            if (after && (value > best || best_id == args.n_experts)) {
                best = value;
                best_id = i;
            }
        }
        const float top = simd_max(best);
        const uint id = simd_min(best == top ? best_id : args.n_experts);
        if (j == 0) largest = top;
        last = top;
        last_id = id;
        if (lane == j) {
            my_id = id;
            my_logit = top;
        }
    }
    float sum = 0.0f;
    for (uint i = lane; i < args.n_experts; i += 32) sum += precise::exp(logits[i] - largest);
    sum = simd_sum(sum);
    float p = lane < args.k ? precise::exp(my_logit - largest) / sum : 0.0f;
    if (NORMALISE) p /= simd_sum(p);
    if (lane < args.k) {
        float weight = p * args.factor;
        if (HAS_SCALES) weight *= scales[my_id];
        ids[lane] = my_id;
        weights[lane] = weight;
    }
}

// The k largest of a softmax over all columns: which experts run a row, and how much each counts.
//
// A SIMD-group makes one row. The largest is found k times, each time among those after the one found before (smaller, or
// equal with a higher id), so nothing is marked and equals come in the order of their ids. NaN counts as -infinity. Sums of
// exponentials: each lane every 32nd column, then simd_sum; of the chosen ones: in their order.
//
// Buffers: 0 RouteArguments, 1 step, 2 x (rows, n_experts), 3 ids (rows, k), 4 weights (rows, k), 5 scales (n_experts).
// Without scales anything may be bound there. Constants: FC_NORMALISE, FC_HAS_WEIGHT (scales). k is at most 32.
// Grid: (rows) threadgroups of 32.
#include <metal_stdlib>
using namespace metal;
#include "arguments.h"
#include "constants.h"
#include "step.h"

constant bool NORMALISE [[function_constant(FC_NORMALISE)]];
constant bool HAS_SCALES [[function_constant(FC_HAS_WEIGHT)]];

kernel void route(
        constant RouteArguments &args [[buffer(0)]],
        device const Step *step [[buffer(1)]],
        device const float *x [[buffer(2)]],
        device uint *ids [[buffer(3)]],
        device float *weights [[buffer(4)]],
        device const float *scales [[buffer(5)]],
        uint row [[threadgroup_position_in_grid]],
        uint lane [[thread_index_in_simdgroup]]) {
    if (row >= rows_of(*step, args.per_token)) return;
    device const float *logits = x + row * args.n_experts;
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
        ids[row * args.k + lane] = my_id;
        weights[row * args.k + lane] = weight;
    }
}

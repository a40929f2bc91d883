// Choice of the k experts of a row, and their weights, by one SIMD-group, for route.metal.
//
//   scores   a softmax over the row's columns, or with FC_SIGMOID a sigmoid of each
//   sizes    values by which experts are chosen: the logits, or with FC_HAS_BIAS or FC_GROUPS the
//            scores plus the biases. With FC_GROUPS the sum of a group's n_best largest sizes ranks
//            the group; experts outside the n_used best groups have size -infinity
//   weights  scores of the chosen experts, with FC_NORMALISE divided by their sum, times factors
//
// The SIMD-group finds the largest size k times. Each search considers only sizes after the
// previous one (smaller, or equal with a higher id). So nothing is marked, and equal sizes are
// chosen in the order of their ids. Sizes are recomputed in each search; NaN counts as -infinity.
//
// Sums of exponentials: each lane adds every 32nd column, then simd_sum. Chosen scores: simd_sum. A
// group's sizes: one lane adds them, the largest first.
#pragma once
#include "arguments.h"
#include "constants.h"

constant bool NORMALISE [[function_constant(FC_NORMALISE)]];
constant bool HAS_SCALES [[function_constant(FC_HAS_WEIGHT)]];
constant bool SIGMOID [[function_constant(FC_SIGMOID)]];
constant bool HAS_BIAS [[function_constant(FC_HAS_BIAS)]];
constant bool GROUPS [[function_constant(FC_GROUPS)]];

// A row of logits.
struct RouteRow {
    device const float *logits; // (n_experts)
    device const float *bias;   // (n_experts), FC_HAS_BIAS
    float largest;              // largest logit, unless FC_SIGMOID
    float sum;                  // sum of exp(logit - largest), unless FC_SIGMOID

    float score(uint i) const {
        if (SIGMOID) return 1.0f / (1.0f + precise::exp(-logits[i]));
        return precise::exp(logits[i] - largest) / sum;
    }

    float size(uint i) const {
        float size = HAS_BIAS || GROUPS ? score(i) : logits[i];
        if (HAS_BIAS) size += bias[i];
        return isnan(size) ? -INFINITY : size;
    }
};

// Returns true if size `a` of `index` comes after size `b` of `other` in the order of choice.
static inline bool comes_after(float a, uint index, float b, uint other) { return a < b || (a == b && index > other); }

// Returns true if experts of the lane's group can be chosen.
static inline bool is_group_used(constant RouteArguments &args, thread const RouteRow &row, uint lane) {
    const uint cols = args.n_experts / args.n_groups, first = lane * cols;
    float sum = 0.0f;
    if (lane < args.n_groups) {
        float last = INFINITY;
        uint last_id = 0;
        for (uint j = 0; j < min(args.n_best, cols); j++) {
            float best = -INFINITY;
            uint best_id = cols;
            for (uint i = 0; i < cols; i++) {
                const float size = row.size(first + i);
                if ((j == 0 || comes_after(size, i, last, last_id)) && (size > best || best_id == cols)) {
                    best = size;
                    best_id = i;
                }
            }
            sum += best;
            last = best;
            last_id = best_id;
        }
    }
    if (isnan(sum)) sum = -INFINITY;
    uint before = 0;
    for (uint group = 0; group < args.n_groups; group++) {
        const float other = simd_shuffle(sum, ushort(group));
        before += comes_after(sum, lane, other, group) ? 1 : 0;
    }
    return lane < args.n_groups && before < args.n_used;
}

// Routes one row: `logits` (n_experts), `ids` and `weights` (k); bias, scales (n_experts).
static inline void route_row(constant RouteArguments &args, device const float *logits, device uint *ids, device float *weights,
                             device const float *scales, device const float *bias, uint lane) {
    RouteRow row;
    row.logits = logits;
    row.bias = bias;
    row.largest = -INFINITY;
    row.sum = 0.0f;
    if (!SIGMOID) {
        for (uint i = lane; i < args.n_experts; i += 32) {
            if (!isnan(logits[i])) row.largest = max(row.largest, logits[i]);
        }
        row.largest = simd_max(row.largest);
        for (uint i = lane; i < args.n_experts; i += 32) row.sum += precise::exp(logits[i] - row.largest);
        row.sum = simd_sum(row.sum);
    }
    uint used = 0; // a bit for each group
    if (GROUPS) used = simd_sum(is_group_used(args, row, lane) ? 1u << lane : 0u);
    const uint group = GROUPS ? args.n_experts / args.n_groups : args.n_experts;
    uint my_id = 0; // lane j keeps the j-th chosen
    float last = INFINITY;
    uint last_id = 0;
    for (uint j = 0; j < args.k; j++) {
        float best = -INFINITY;
        uint best_id = args.n_experts;
        for (uint i = lane; i < args.n_experts; i += 32) {
            const bool can_be = !GROUPS || (used >> i / group & 1) == 1;
            const float size = can_be ? row.size(i) : -INFINITY;
            if ((j == 0 || comes_after(size, i, last, last_id)) && (size > best || best_id == args.n_experts)) {
                best = size;
                best_id = i;
            }
        }
        last = simd_max(best);
        last_id = simd_min(best == last ? best_id : args.n_experts);
        if (lane == j) my_id = last_id;
    }
    float p = lane < args.k ? row.score(my_id) : 0.0f;
    // The sum may be 0: sigmoids of very small logits are.
    if (NORMALISE) p /= max(simd_sum(p), FLT_MIN);
    if (lane < args.k) {
        float weight = p * args.factor;
        if (HAS_SCALES) weight *= scales[my_id];
        ids[lane] = my_id;
        weights[lane] = weight;
    }
}

// Chooses the experts of each row, and their weights: the k largest of a softmax over all columns,
// or of sigmoids, with biases and in groups (route.h). A SIMD-group computes one row.
//
// Buffers: 0 RouteArguments, 1 step, 2 x (rows, n_experts), 3 ids (rows, k), 4 weights (rows, k), 5
// scales (n_experts), 6 bias (n_experts). Buffers that the constants leave unused may be bound to
// anything. Constants: FC_NORMALISE, FC_HAS_WEIGHT (scales), FC_SIGMOID, FC_HAS_BIAS, FC_GROUPS. k
// and n_groups are at most 32. Grid: (rows) threadgroups of 32.
#include <metal_stdlib>
using namespace metal;
#include "route.h"
#include "step.h"

kernel void route(
        constant RouteArguments &args [[buffer(0)]],
        device const Step *step [[buffer(1)]],
        device const float *x [[buffer(2)]],
        device uint *ids [[buffer(3)]],
        device float *weights [[buffer(4)]],
        device const float *scales [[buffer(5)]],
        device const float *bias [[buffer(6)]],
        uint row [[threadgroup_position_in_grid]],
        uint lane [[thread_index_in_simdgroup]]) {
    if (row >= rows_of(*step, args.per_token)) return;
    route_row(args, x + row * args.n_experts, ids + row * args.k, weights + row * args.k, scales, bias, lane);
}

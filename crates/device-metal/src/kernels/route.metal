// The k largest of a softmax over all columns: which experts run a row, and how much each counts. How: route.h. A SIMD-group makes one
// row.
//
// Buffers: 0 RouteArguments, 1 step, 2 x (rows, n_experts), 3 ids (rows, k), 4 weights (rows, k), 5 scales (n_experts).
// Without scales anything may be bound there. Constants: FC_NORMALISE, FC_HAS_WEIGHT (scales). k is at most 32.
// Grid: (rows) threadgroups of 32.
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
        uint row [[threadgroup_position_in_grid]],
        uint lane [[thread_index_in_simdgroup]]) {
    if (row >= rows_of(*step, args.per_token)) return;
    route_row(args, x + row * args.n_experts, ids + row * args.k, weights + row * args.k, scales, lane);
}

// out[:, j] = x_j + bias[ids[:, j]], where x_j is the j-th of k parts of a row, of `group` columns
// each.
//
// Buffers: 0 ElementArguments, 1 step, 2 x (rows, k * group), 3 ids (rows, k), 4 bias (n_experts,
// group), 5 out (rows, k * group). Grid: ceil(rows * k * group / 256) threadgroups of 256. Moves 12
// bytes an element.
#include <metal_stdlib>
using namespace metal;
#include "arguments.h"
#include "step.h"

kernel void expert_bias(
        constant ElementArguments &args [[buffer(0)]],
        device const Step *step [[buffer(1)]],
        device const float *x [[buffer(2)]],
        device const uint *ids [[buffer(3)]],
        device const float *bias [[buffer(4)]],
        device float *out [[buffer(5)]],
        uint i [[thread_position_in_grid]]) {
    if (i >= rows_of(*step, args.per_token) * args.cols) return;
    out[i] = x[i] + bias[ids[i / args.group] * args.group + i % args.group];
}

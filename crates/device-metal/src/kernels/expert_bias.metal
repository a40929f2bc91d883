// out[:, j] = x_j + bias[ids[:, j]], x_j the j-th of k parts of a row.
//
// Buffers: 0 ExpertSumArguments (cols: of a part), 1 step, 2 x (rows, k * cols), 3 ids (rows, k), 4 bias (n_experts, cols),
// 5 out (rows, k * cols). Grid: ceil(rows * k * cols / 256) threadgroups of 256. Moves 12 bytes an element.
#include <metal_stdlib>
using namespace metal;
#include "arguments.h"
#include "step.h"

kernel void expert_bias(
        constant ExpertSumArguments &args [[buffer(0)]],
        device const Step *step [[buffer(1)]],
        device const float *x [[buffer(2)]],
        device const uint *ids [[buffer(3)]],
        device const float *bias [[buffer(4)]],
        device float *out [[buffer(5)]],
        uint i [[thread_position_in_grid]]) {
    if (i >= rows_of(*step, args.per_token) * args.k * args.cols) return;
    out[i] = x[i] + bias[ids[i / args.cols] * args.cols + i % args.cols];
}

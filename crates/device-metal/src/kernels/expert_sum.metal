// out = sum over j of weights[:, j] * x_j [+ residual], where x_j is the j-th of k parts of a row.
// The sum is in the order of j.
//
// Buffers: 0 ExpertSumArguments, 1 step, 2 x (rows, k * cols), 3 weights (rows, k), 4 out (rows,
// cols; may be the residual), 5 residual (rows, cols); may be bound to anything without
// FC_HAS_RESIDUAL. Constants: FC_HAS_RESIDUAL. Grid: ceil(rows * cols / 256) threadgroups of 256.
// Moves 4 * (k + 1) bytes an element of out, 4 more with a residual.
#include <metal_stdlib>
using namespace metal;
#include "arguments.h"
#include "constants.h"
#include "step.h"

constant bool HAS_RESIDUAL [[function_constant(FC_HAS_RESIDUAL)]];

kernel void expert_sum(
        constant ExpertSumArguments &args [[buffer(0)]],
        device const Step *step [[buffer(1)]],
        device const float *x [[buffer(2)]],
        device const float *weights [[buffer(3)]],
        device float *out [[buffer(4)]],
        device const float *residual [[buffer(5)]],
        uint i [[thread_position_in_grid]]) {
    if (i >= rows_of(*step, args.per_token) * args.cols) return;
    const uint row = i / args.cols;
    const uint column = i % args.cols;
    float sum = 0.0f;
    for (uint j = 0; j < args.k; j++) {
        sum += weights[row * args.k + j] * x[(row * args.k + j) * args.cols + column];
    }
    if (HAS_RESIDUAL) sum += residual[i];
    out[i] = sum;
}

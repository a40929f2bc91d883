// out[i] = x[outputs[i]]: selects the rows of outputs from the rows of tokens.
//
// Buffers: 0 ElementArguments (per_token 0), 1 step, 2 x (tokens, cols), 3 outputs (n_outputs), 4
// out (outputs, cols). Grid: ceil(outputs * cols / 256) threadgroups of 256. Moves 8 bytes an
// element.
#include <metal_stdlib>
using namespace metal;
#include "arguments.h"
#include "step.h"

kernel void select_rows(
        constant ElementArguments &args [[buffer(0)]],
        device const Step *step [[buffer(1)]],
        device const float *x [[buffer(2)]],
        device const uint *outputs [[buffer(3)]],
        device float *out [[buffer(4)]],
        uint i [[thread_position_in_grid]]) {
    if (i < step->n_outputs * args.cols) out[i] = x[outputs[i / args.cols] * args.cols + i % args.cols];
}

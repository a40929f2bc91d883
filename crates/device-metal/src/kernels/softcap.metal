// out = cap * tanh(x / cap), element by element; the cap is ElementArguments.factor.
//
// Buffers: 0 ElementArguments, 1 step, 2 x (rows, cols), 3 out (rows, cols; may be x).
// Grid: ceil(rows * cols / 256) threadgroups of 256. Moves 8 bytes an element.
#include <metal_stdlib>
using namespace metal;
#include "activation.h"
#include "arguments.h"
#include "step.h"

kernel void softcap(
        constant ElementArguments &args [[buffer(0)]],
        device const Step *step [[buffer(1)]],
        device const float *x [[buffer(2)]],
        device float *out [[buffer(3)]],
        uint i [[thread_position_in_grid]]) {
    if (i < rows_of(*step, args.per_token) * args.cols) out[i] = args.factor * hyperbolic_tangent(x[i] / args.factor);
}

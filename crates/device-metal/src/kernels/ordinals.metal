// out[:, j] = j.
//
// Buffers: 0 ElementArguments (cols: k), 1 step, 2 out (rows, k). Grid: ceil(rows * k / 256)
// threadgroups of 256. Moves 4 bytes an element.
#include <metal_stdlib>
using namespace metal;
#include "arguments.h"
#include "step.h"

kernel void ordinals(
        constant ElementArguments &args [[buffer(0)]],
        device const Step *step [[buffer(1)]],
        device uint *out [[buffer(2)]],
        uint i [[thread_position_in_grid]]) {
    if (i < rows_of(*step, args.per_token) * args.cols) out[i] = i % args.cols;
}

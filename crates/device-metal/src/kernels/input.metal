// out = an input of the step, copied from the step buffer to the arena.
//
// Buffers: 0 ElementArguments, 1 step, 2 input (rows, cols), 3 out (rows, cols).
// Grid: ceil(rows * cols / 256) threadgroups of 256. Moves 8 bytes an element.
#include <metal_stdlib>
using namespace metal;
#include "arguments.h"
#include "step.h"

kernel void input(
        constant ElementArguments &args [[buffer(0)]],
        device const Step *step [[buffer(1)]],
        device const float *given [[buffer(2)]],
        device float *out [[buffer(3)]],
        uint i [[thread_position_in_grid]]) {
    if (i < rows_of(*step, args.per_token) * args.cols) out[i] = given[i];
}

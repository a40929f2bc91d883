// out = a + b, element by element.
//
// Buffers: 0 ElementArguments, 1 step, 2 a (rows, cols), 3 b (rows, cols), 4 out (rows, cols; may
// be a or b). Grid: ceil(rows * cols / 256) threadgroups of 256. Moves 12 bytes an element.
#include <metal_stdlib>
using namespace metal;
#include "arguments.h"
#include "step.h"

kernel void add(
        constant ElementArguments &args [[buffer(0)]],
        device const Step *step [[buffer(1)]],
        device const float *a [[buffer(2)]],
        device const float *b [[buffer(3)]],
        device float *out [[buffer(4)]],
        uint i [[thread_position_in_grid]]) {
    if (i < rows_of(*step, args.per_token) * args.cols) out[i] = a[i] + b[i];
}

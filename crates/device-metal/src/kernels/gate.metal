// out = kind(gate) * up, element by element.
//
// Buffers: 0 ElementArguments, 1 step, 2 gate (rows, cols), 3 up (rows, cols), 4 out (rows, cols;
// may be gate or up). Constants: FC_ACTIVATION. Grid: ceil(rows * cols / 256) threadgroups of 256.
// Moves 12 bytes an element.
#include <metal_stdlib>
using namespace metal;
#include "activation.h"
#include "arguments.h"
#include "constants.h"
#include "step.h"

constant uint KIND [[function_constant(FC_ACTIVATION)]];

kernel void gate(
        constant ElementArguments &args [[buffer(0)]],
        device const Step *step [[buffer(1)]],
        device const float *gates [[buffer(2)]],
        device const float *up [[buffer(3)]],
        device float *out [[buffer(4)]],
        uint i [[thread_position_in_grid]]) {
    if (i < rows_of(*step, args.per_token) * args.cols) out[i] = activation(KIND, gates[i]) * up[i];
}

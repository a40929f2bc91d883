// out = g * sigmoid(factor * g) * (u + 1), g = min(gate, limit), u = max(-limit, min(up, limit)).
//
// Buffers: 0 ElementArguments, 1 step, 2 gate (rows, cols), 3 up (rows, cols), 4 out (rows, cols;
// may be gate or up). Grid: ceil(rows * cols / 256) threadgroups of 256. Moves 12 bytes an element.
#include <metal_stdlib>
using namespace metal;
#include "arguments.h"
#include "step.h"

kernel void gate_clamped(
        constant ElementArguments &args [[buffer(0)]],
        device const Step *step [[buffer(1)]],
        device const float *gates [[buffer(2)]],
        device const float *ups [[buffer(3)]],
        device float *out [[buffer(4)]],
        uint i [[thread_position_in_grid]]) {
    if (i >= rows_of(*step, args.per_token) * args.cols) return;
    const float gate = min(gates[i], args.limit);
    const float up = max(-args.limit, min(ups[i], args.limit));
    out[i] = gate / (1.0f + precise::exp(-args.factor * gate)) * (up + 1.0f);
}

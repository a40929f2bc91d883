// out[i] = the adapter of the span that output i belongs to, 0 without an adapter.
//
// Buffers: 0 ElementArguments (cols 1), 1 step, 2 out (rows, 1), 3 outputs (n_outputs), 4 row_spans
// (tokens), 5 spans. Grid: ceil(rows / 256) threadgroups of 256. Moves 12 bytes a row.
#include <metal_stdlib>
using namespace metal;
#include "arguments.h"
#include "step.h"

kernel void adapters(
        constant ElementArguments &args [[buffer(0)]],
        device const Step *step [[buffer(1)]],
        device uint *out [[buffer(2)]],
        device const uint *outputs [[buffer(3)]],
        device const uint *row_spans [[buffer(4)]],
        device const Span *spans [[buffer(5)]],
        uint i [[thread_position_in_grid]]) {
    if (i >= rows_of(*step, args.per_token)) return;
    const uint row = args.per_token == 0 ? outputs[i] : i;
    out[i] = spans[row_spans[row]].adapter;
}

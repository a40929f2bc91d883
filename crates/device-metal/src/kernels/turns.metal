// The cosines and sines of the step's positions (turns.h), for plans that rotate heads before they
// embed anything.
//
// Buffers: 0 ElementArguments (cols: pairs of all tables), 1 step, 2 positions (tokens), 3 pairs
// (cols) TurnPair, 4 the tables. Grid: ceil(tokens * cols / 256) threadgroups of 256.
#include <metal_stdlib>
using namespace metal;
#include "step.h"
#include "turns.h"

kernel void turns(
        constant ElementArguments &args [[buffer(0)]],
        device const Step *step [[buffer(1)]],
        device const uint *positions [[buffer(2)]],
        device const TurnPair *pairs [[buffer(3)]],
        device float2 *out [[buffer(4)]],
        uint i [[thread_position_in_grid]]) {
    const uint row = i / args.cols;
    if (row < step->n_rows) write_turns(out, pairs, args.cols, row, positions[row], i % args.cols, args.cols);
}

// Masks the logits of outputs, in place: a token whose bit is 0 gets minus infinity. Bit t % 32 of
// word t / 32 belongs to token t.
//
// A thread masks every n-th token of an output. The lanes of a SIMD-group read one word.
//
// Buffers: 0 ChooseArguments, 1 step, 2 choices (outputs), 3 logits (outputs, cols), 4 masks: an
// output's words begin at choice.mask - 1. Grid: (any number, outputs); threads of outputs without
// a mask return at once. Reads 4 bytes for 32 tokens, and writes at most 4 for each token.
#include <metal_stdlib>
using namespace metal;
#include "sampling/arguments.h"
#include "step.h"

kernel void masks(
        constant ChooseArguments &args [[buffer(0)]],
        device const Step *step [[buffer(1)]],
        device const Choice *choices [[buffer(2)]],
        device float *logits [[buffer(3)]],
        device const uint *masks [[buffer(4)]],
        uint2 position [[thread_position_in_grid]],
        uint2 size [[threads_per_grid]]) {
    const uint row = position.y;
    if (row >= step->n_outputs || choices[row].mask == 0) return;
    masks += choices[row].mask - 1;
    logits += ulong(row) * args.cols;
    for (uint token = position.x; token < args.cols; token += size.x) {
        if ((masks[token / 32] >> (token % 32) & 1) == 0) logits[token] = -INFINITY;
    }
}

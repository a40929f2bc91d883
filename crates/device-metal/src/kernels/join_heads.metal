// Concatenates heads: each head of out is a head of a, followed by the same head of b.
//
// Buffers: 0 ElementArguments, 1 step, 2 a (rows, n_heads * taken), 3 b (rows, n_heads * (group -
// taken)), 4 out (rows, n_heads * group). Grid: ceil(rows * columns of out / 256) threadgroups
// of 256. Moves 8 bytes an element.
#include <metal_stdlib>
using namespace metal;
#include "arguments.h"
#include "step.h"

kernel void join_heads(
        constant ElementArguments &args [[buffer(0)]],
        device const Step *step [[buffer(1)]],
        device const float *a [[buffer(2)]],
        device const float *b [[buffer(3)]],
        device float *out [[buffer(4)]],
        uint i [[thread_position_in_grid]]) {
    if (i >= rows_of(*step, args.per_token) * args.cols) return;
    const uint head = i / args.group;
    const uint at = i % args.group;
    out[i] = at < args.taken ? a[head * args.taken + at] : b[head * (args.group - args.taken) + at - args.taken];
}

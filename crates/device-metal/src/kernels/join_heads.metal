// Heads put together: those of out are those of a, each with that of b after it.
//
// Buffers: 0 JoinHeadsArguments, 1 step, 2 a (rows, n_heads * a_dim), 3 b (rows, n_heads * b_dim),
// 4 out (rows, n_heads * (a_dim + b_dim)). Grid: ceil(rows * columns of out / 256) threadgroups of 256. Moves 8 bytes an element.
#include <metal_stdlib>
using namespace metal;
#include "arguments.h"
#include "step.h"

kernel void join_heads(
        constant JoinHeadsArguments &args [[buffer(0)]],
        device const Step *step [[buffer(1)]],
        device const float *a [[buffer(2)]],
        device const float *b [[buffer(3)]],
        device float *out [[buffer(4)]],
        uint i [[thread_position_in_grid]]) {
    const uint both = args.a_dim + args.b_dim;
    if (i >= rows_of(*step, args.per_token) * args.n_heads * both) return;
    const uint head = i / both;
    const uint at = i % both;
    out[i] = at < args.a_dim ? a[head * args.a_dim + at] : b[head * args.b_dim + at - args.a_dim];
}

// out = x[:, first .. first + taken] of each group of columns.
//
// Buffers: 0 ElementArguments, 1 step, 2 x (rows, groups * group), 3 out (rows, groups * taken).
// Grid: ceil(rows * groups * taken / 256) threadgroups of 256. Moves 8 bytes an element of out.
#include <metal_stdlib>
using namespace metal;
#include "arguments.h"
#include "step.h"

kernel void columns(
        constant ElementArguments &args [[buffer(0)]],
        device const Step *step [[buffer(1)]],
        device const float *x [[buffer(2)]],
        device float *out [[buffer(3)]],
        uint i [[thread_position_in_grid]]) {
    if (i < rows_of(*step, args.per_token) * args.cols) out[i] = x[i / args.taken * args.group + args.first + i % args.taken];
}

// out = x[:, first .. first + to] of each group of columns: whole rows where there is one.
//
// Buffers: 0 ColumnsArguments, 1 step, 2 x (rows, groups * from), 3 out (rows, groups * to).
// Grid: ceil(rows * groups * to / 256) threadgroups of 256. Moves 8 bytes an element of out.
#include <metal_stdlib>
using namespace metal;
#include "arguments.h"
#include "step.h"

kernel void columns(
        constant ColumnsArguments &args [[buffer(0)]],
        device const Step *step [[buffer(1)]],
        device const float *x [[buffer(2)]],
        device float *out [[buffer(3)]],
        uint i [[thread_position_in_grid]]) {
    if (i < rows_of(*step, args.per_token) * args.cols) out[i] = x[i / args.to * args.from + args.first + i % args.to];
}

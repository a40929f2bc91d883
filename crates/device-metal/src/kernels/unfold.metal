// The windows of a convolution along the rows of each span (im2col):
// out[i][c * size + j] = x[stride * i + j - (size - 1) / 2][c], 0 outside the span.
//
// Buffers: 0 UnfoldArguments, 1 step, 2 x (tokens * per_token * stride, cols), 3 out (tokens *
// per_token, cols * size), 4 row_spans (tokens), 5 spans. Grid: ceil(rows * cols * size / 256)
// threadgroups of 256. Moves 8 bytes an element of out.
#include <metal_stdlib>
using namespace metal;
#include "arguments.h"
#include "step.h"

kernel void unfold(
        constant UnfoldArguments &args [[buffer(0)]],
        device const Step *step [[buffer(1)]],
        device const float *x [[buffer(2)]],
        device float *out [[buffer(3)]],
        device const uint *row_spans [[buffer(4)]],
        device const Span *spans [[buffer(5)]],
        uint at [[thread_position_in_grid]]) {
    const uint width = args.cols * args.size;
    if (at >= step->n_rows * args.per_token * width) return;
    const uint row = at / width;
    const uint column = at % width / args.size;
    const uint tap = at % args.size;
    device const Span &span = spans[row_spans[row / args.per_token]];
    const uint first = span.first_row * args.per_token;
    // Row of x, counted from the span's first. Before it the difference wraps, past any row.
    const uint from = args.stride * (row - first) + tap - (args.size - 1) / 2;
    const bool inside = from < span.n_rows * args.per_token * args.stride;
    out[at] = inside ? x[(first * args.stride + from) * args.cols + column] : 0.0f;
}

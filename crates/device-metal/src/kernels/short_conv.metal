// A causal convolution along the positions of each sequence, column by column:
// out[t][c] = bias[c] + sum over j of weight[c][j] * x[t + 1 - size + j][c]. The size - 1 rows
// before a span are the sequence's state (zeros at its beginning). The last size - 1 rows up to the
// span's end become the new state, the oldest first.
//
// A thread computes one element, and stores its x in the state if the row is one of the last.
// Sums: the bias first, then in the order of j.
//
// Buffers: 0 ShortConvArguments, 1 step, 2 x (tokens, cols), 3 out (tokens, cols), 4 row_spans
// (tokens), 5 spans, 6 weight (cols, size), 7 bias (cols), 8 the layer's part of state 0 (size - 1,
// cols). The bias may be bound to anything without FC_HAS_BIAS. Constants: FC_HAS_BIAS. Grid:
// ceil(tokens * cols / 256) threadgroups of 256. Moves 8 bytes an element, and the weights; a row
// of x is read `size` times, from caches.
#include <metal_stdlib>
using namespace metal;
#include "arguments.h"
#include "constants.h"
#include "step.h"

constant bool HAS_BIAS [[function_constant(FC_HAS_BIAS)]];

kernel void short_conv(
        constant ShortConvArguments &args [[buffer(0)]],
        device const Step *step [[buffer(1)]],
        device const float *x [[buffer(2)]],
        device float *out [[buffer(3)]],
        device const uint *row_spans [[buffer(4)]],
        device const Span *spans [[buffer(5)]],
        device const float *weight [[buffer(6)]],
        device const float *bias [[buffer(7)]],
        device float *states [[buffer(8)]],
        uint i [[thread_position_in_grid]]) {
    const uint row = i / args.cols, column = i % args.cols;
    if (row >= step->n_rows) return;
    device const Span &span = spans[row_spans[row]];
    // Rows are counted from the oldest row of the state: `before` rows of the state, then the
    // span's.
    const uint before = args.size - 1, own = row - span.first_row;
    const bool begins = span.state_from == STATE_NONE;
    device const float *from = states + (begins ? 0 : ulong(span.state_from) * args.state_stride) + column;
    device float *to = states + ulong(span.state_to) * args.state_stride + column;
    device const float *rows = x + ulong(span.first_row) * args.cols + column;
    float sum = 0.0f;
    if (HAS_BIAS) sum = bias[column];
    for (uint j = 0; j < args.size; j++) {
        const uint at = own + j;
        float value = 0.0f;
        if (at >= before) value = rows[ulong(at - before) * args.cols];
        else if (!begins) value = from[at * args.cols];
        sum = fma(weight[column * args.size + j], value, sum);
    }
    out[i] = sum;
    // The new state is rows span.n_rows to span.n_rows + before - 1. It never overwrites the old
    // state.
    if (own + before >= span.n_rows) to[(own + before - span.n_rows) * args.cols] = rows[ulong(own) * args.cols];
    if (own > 0) return;
    for (uint at = span.n_rows; at < before; at++) to[(at - span.n_rows) * args.cols] = begins ? 0.0f : from[at * args.cols];
}

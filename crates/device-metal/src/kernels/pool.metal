// out[i] = the mean of all rows of the span that holds row outputs[i], or its first or last row.
//
// A thread computes one column of one output. The mean is summed row by row with Kahan's
// compensation, to be as exact as the interpreter's f64 sums.
//
// Buffers: 0 ElementArguments (per_token 0), 1 step, 2 x (tokens, cols), 3 out (outputs, cols), 4
// outputs (n_outputs), 5 row_spans (tokens), 6 spans. Constants: FC_POOLING. Grid: ceil(outputs *
// cols / 256) threadgroups of 256. Moves 4 bytes for each element of the span and of out.
#include <metal_stdlib>
using namespace metal;
#include "arguments.h"
#include "constants.h"
#include "step.h"

constant uint KIND [[function_constant(FC_POOLING)]];

kernel void pool(
        constant ElementArguments &args [[buffer(0)]],
        device const Step *step [[buffer(1)]],
        device const float *x [[buffer(2)]],
        device float *out [[buffer(3)]],
        device const uint *outputs [[buffer(4)]],
        device const uint *row_spans [[buffer(5)]],
        device const Span *spans [[buffer(6)]],
        uint i [[thread_position_in_grid]]) {
    if (i >= step->n_outputs * args.cols) return;
    const uint column = i % args.cols;
    device const Span &span = spans[row_spans[outputs[i / args.cols]]];
    if (KIND == 1) {
        out[i] = x[span.first_row * args.cols + column];
    } else if (KIND == 2) {
        out[i] = x[(span.first_row + span.n_rows - 1) * args.cols + column];
    } else {
        float sum = 0.0f;
        float lost = 0.0f;
        for (uint row = 0; row < span.n_rows; row++) {
            const float term = x[(span.first_row + row) * args.cols + column] - lost;
            const float next = sum + term;
            lost = (next - sum) - term;
            sum = next;
        }
        out[i] = sum / float(span.n_rows);
    }
}

// out[i] pools all rows of the span of row rows[i]: their mean, the first row or the last row.
// Grid: (columns / 256, outputs).
#include "kernels.cuh"

KERNEL(256) pool(const __grid_constant__ SpanArguments a) {
    begin();
    const uint column = blockIdx.x * 256 + threadIdx.x;
    if (column >= a.cols) return;
    const Span span = a.spans[a.row_spans[a.rows[blockIdx.y]]];
    const float *x = a.x + ulong(span.first_row) * a.cols + column;
    float value;
    if (a.kind == 0) {
        float sum = 0.0f;
        for (uint i = 0; i < span.n_rows; i++) sum += x[ulong(i) * a.cols];
        value = sum / float(span.n_rows);
    } else {
        value = x[a.kind == 1 ? 0 : ulong(span.n_rows - 1) * a.cols];
    }
    a.out[ulong(blockIdx.y) * a.cols + column] = value;
}

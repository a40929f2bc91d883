// The windows of a convolution along the rows of each span: out[i][c * size + j] = x[stride * i + j
// - (size - 1) / 2][c], 0 outside the span. `cols` is the number of columns of x, and `n_rows` the
// number of rows of out. A token has `kind` rows of out. Grid: (columns of out / 256, rows of out).
#include "kernels.cuh"

KERNEL(256) unfold(const __grid_constant__ SpanArguments a) {
    begin();
    const uint column = blockIdx.x * 256 + threadIdx.x, row = blockIdx.y;
    if (column >= a.cols * a.size) return;
    const Span span = a.spans[a.row_spans[row / a.kind]];
    const int first = int(span.first_row * a.kind * a.stride), end = first + int(span.n_rows * a.kind * a.stride);
    const int from = int(a.stride * row + column % a.size) - int((a.size - 1) / 2);
    const bool inside = from >= first && from < end;
    a.out[ulong(row) * a.cols * a.size + column] = inside ? a.x[ulong(from) * a.cols + column / a.size] : 0.0f;
}

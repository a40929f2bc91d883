// A causal convolution along the positions of each sequence, column by column. It begins with the
// state, the size - 1 rows before the span. The last size - 1 rows up to the span's end become the
// new state. Sums are in the order of the weights. Grid: (columns / 128, rows). There are at least
// as many rows as spans.
#include "kernels.cuh"

KERNEL(128) short_conv(const __grid_constant__ SpanArguments a) {
    begin();
    const uint column = blockIdx.x * 128 + threadIdx.x;
    if (column >= a.cols || blockIdx.y >= a.n_spans) return;
    const Span span = a.spans[blockIdx.y];
    // Spans after the step's last one have no rows.
    if (span.n_rows == 0) return;
    const float *x = a.x + ulong(span.first_row) * a.cols + column;
    const uint n = a.size - 1;
    const float *before = span.state_from == STATE_NONE ? nullptr : a.states + span.state_from * a.state_stride + column;
    float *after = a.states + span.state_to * a.state_stride + column;
    const auto at = [&](int row) {
        if (row >= 0) return x[ulong(row) * a.cols];
        return before == nullptr ? 0.0f : before[ulong(row + int(n)) * a.cols];
    };
    for (uint i = 0; i < span.n_rows; i++) {
        float sum = a.bias != nullptr ? a.bias[column] : 0.0f;
        for (uint j = 0; j < a.size; j++) sum = __fmaf_rn(a.weight[column * a.size + j], at(int(i + j) - int(n)), sum);
        a.out[ulong(span.first_row + i) * a.cols + column] = sum;
    }
    // The old state and the new state never share memory.
    for (uint j = 0; j < n; j++) after[ulong(j) * a.cols] = at(int(span.n_rows + j) - int(n));
}

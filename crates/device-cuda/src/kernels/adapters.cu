// out[i] = the adapter of the span that row i belongs to, 0 for none; u32. Rows are tokens, or with
// `rows` outputs. Grid: (1, rows).
#include "kernels.cuh"

KERNEL(32) adapters(const __grid_constant__ SpanArguments a) {
    begin();
    const uint i = blockIdx.y, row = a.kind != 0 ? a.rows[i] : i;
    if (threadIdx.x == 0) ((uint *)a.out)[i] = a.spans[a.row_spans[row]].adapter;
}

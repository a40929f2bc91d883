// out[i] = the adapter of the span of row i, u32; 0 means no adapter. Rows are tokens, or outputs
// if `rows` is set. Grid: (1, rows).
#include "kernels.cuh"

KERNEL(32) adapters(const __grid_constant__ SpanArguments a) {
    begin();
    const uint i = blockIdx.y, row = a.kind != 0 ? a.rows[i] : i;
    if (threadIdx.x == 0) ((uint *)a.out)[i] = a.spans[a.row_spans[row]].adapter;
}

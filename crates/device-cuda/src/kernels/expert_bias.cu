// out[:, j] = x_j + bias[ids[:, j]], x_j the j-th of `taken` parts of a row. Grid: (columns / 256,
// rows).
#include "kernels.cuh"

KERNEL(256) expert_bias(const __grid_constant__ ElementArguments a) {
    begin();
    const uint column = blockIdx.x * 256 + threadIdx.x;
    if (column >= a.cols) return;
    const ulong at = ulong(blockIdx.y) * a.cols + column;
    const uint id = a.rows[ulong(blockIdx.y) * a.taken + column / a.group];
    a.out[at] = a.a[at] + a.b[ulong(id) * a.group + column % a.group];
}

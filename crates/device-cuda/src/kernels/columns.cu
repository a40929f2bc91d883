// Copies neighbouring columns of each group: out[:, g * taken + j] = a[:, g * group + first + j].
// Grid: (columns / 256, rows).
#include "kernels.cuh"

KERNEL(256) columns(const __grid_constant__ ElementArguments a) {
    begin();
    const uint column = blockIdx.x * 256 + threadIdx.x;
    if (column >= a.cols) return;
    const ulong at = ulong(blockIdx.y) * a.cols + column;
    a.out[at] = a.a[ulong(blockIdx.y) * a.x_cols + column / a.taken * a.group + a.first + column % a.taken];
}

// out[:, j] = j, as u32. Grid: (columns / 256, rows).
#include "kernels.cuh"

KERNEL(256) ordinals(const __grid_constant__ ElementArguments a) {
    begin();
    const uint column = blockIdx.x * 256 + threadIdx.x;
    if (column >= a.cols) return;
    ((uint *)a.out)[ulong(blockIdx.y) * a.cols + column] = column;
}

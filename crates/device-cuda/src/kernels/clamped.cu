// out = max(factor, min(a, limit)). Grid: (columns / 256, rows).
#include "kernels.cuh"

KERNEL(256) clamped(const __grid_constant__ ElementArguments a) {
    begin();
    const uint column = blockIdx.x * 256 + threadIdx.x;
    if (column >= a.cols) return;
    const ulong at = ulong(blockIdx.y) * a.cols + column;
    a.out[at] = fmaxf(a.factor, fminf(a.a[at], a.limit));
}

// out = g * sigmoid(factor * g) * (u + 1), g = min(a, limit), u = max(-limit, min(b, limit)). Grid:
// (columns / 256, rows).
#include "kernels.cuh"

KERNEL(256) gate_clamped(const __grid_constant__ ElementArguments a) {
    begin();
    const uint column = blockIdx.x * 256 + threadIdx.x;
    if (column >= a.cols) return;
    const ulong at = ulong(blockIdx.y) * a.cols + column;
    const float g = fminf(a.a[at], a.limit), u = fmaxf(-a.limit, fminf(a.b[at], a.limit));
    a.out[at] = g / (1.0f + expf(-a.factor * g)) * (u + 1.0f);
}

// out = residual + sum over j of weights[:, j] * x_j. In order of j. Grid: (columns / 256, rows).
#include "kernels.cuh"

KERNEL(256) expert_sum(const __grid_constant__ ExpertSumArguments a) {
    begin();
    const uint column = blockIdx.x * 256 + threadIdx.x, row = blockIdx.y;
    if (column >= a.cols) return;
    float sum = 0.0f;
    for (uint j = 0; j < a.k; j++) {
        const ulong pair = ulong(row) * a.k + j;
        sum = __fmaf_rn(a.weights[pair], a.x[pair * a.cols + column], sum);
    }
    const ulong at = ulong(row) * a.cols + column;
    a.out[at] = a.residual != nullptr ? a.residual[at] + sum : sum;
}

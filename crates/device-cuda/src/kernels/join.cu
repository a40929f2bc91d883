// Adds the output of a branch to the residual stream: out = factor * (residual + norm(x)), over
// whole rows. Grid: (1, rows).
#include "kernels.cuh"

KERNEL(256) join(const __grid_constant__ NormArguments a) {
    begin();
    __shared__ float shared[33];
    const ulong at = ulong(blockIdx.y) * a.cols;
    float inverse = 1.0f;
    if (a.group != 0) {
        float sum = 0.0f;
        for (uint i = threadIdx.x; i < a.cols; i += blockDim.x) sum = __fmaf_rn(a.x[at + i], a.x[at + i], sum);
        inverse = rsqrtf(block_sum(sum, shared) / float(a.cols) + a.eps);
    }
    for (uint i = threadIdx.x; i < a.cols; i += blockDim.x) {
        float value = a.x[at + i] * inverse;
        if (a.weight != nullptr) value *= a.weight[i];
        a.out[at + i] = a.factor * (a.residual[at + i] + value);
    }
}

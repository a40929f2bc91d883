// out = x / sqrt(mean(x^2) + eps) * weight, over groups of neighbouring columns. Sums are f32. Each
// thread sums every n-th column, then the threads' sums are added by a butterfly. Grid: (groups of
// a row, rows).
#include "kernels.cuh"

KERNEL(256) rms_norm(const __grid_constant__ NormArguments a) {
    begin();
    __shared__ float shared[33];
    const ulong at = ulong(blockIdx.y) * a.cols + ulong(blockIdx.x) * a.group;
    float sum = 0.0f;
    for (uint i = threadIdx.x; i < a.group; i += blockDim.x) sum = __fmaf_rn(a.x[at + i], a.x[at + i], sum);
    const float inverse = rsqrtf(block_sum(sum, shared) / float(a.group) + a.eps);
    for (uint i = threadIdx.x; i < a.group; i += blockDim.x) {
        const float value = a.x[at + i] * inverse;
        a.out[at + i] = a.weight != nullptr ? value * a.weight[blockIdx.x * a.weight_stride + i] : value;
    }
}

// out = (x - mean) / sqrt(mean((x - mean)^2) + eps) * weight + bias, over whole rows, in two
// passes. Grid: (1, rows).
#include "kernels.cuh"

KERNEL(256) layer_norm(const __grid_constant__ NormArguments a) {
    begin();
    __shared__ float shared[33];
    const ulong at = ulong(blockIdx.y) * a.cols;
    float sum = 0.0f;
    for (uint i = threadIdx.x; i < a.cols; i += blockDim.x) sum += a.x[at + i];
    const float mean = block_sum(sum, shared) / float(a.cols);
    float squares = 0.0f;
    for (uint i = threadIdx.x; i < a.cols; i += blockDim.x) {
        const float d = a.x[at + i] - mean;
        squares = __fmaf_rn(d, d, squares);
    }
    const float deviation = sqrtf(block_sum(squares, shared) / float(a.cols) + a.eps);
    for (uint i = threadIdx.x; i < a.cols; i += blockDim.x) {
        const float value = (a.x[at + i] - mean) / deviation * a.weight[i];
        a.out[at + i] = a.bias != nullptr ? value + a.bias[i] : value;
    }
}

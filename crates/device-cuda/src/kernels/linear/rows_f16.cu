// Prepares rows for the products of many rows (gemm.cuh): the norm if there is one, then halves.
// Each row is divided by the power of two that brings its largest magnitude to 1 or a little more,
// so no value overflows or underflows. Grid: (rows).
#include "kernels.cuh"

KERNEL(256) rows_f16(const __grid_constant__ RowsArguments a) {
    begin();
    __shared__ float shared[33];
    const ulong row = blockIdx.x;
    const float *x = a.x + row * a.n_in;
    float inverse = 1.0f;
    if (a.has_norm) {
        float sum = 0.0f;
        for (uint i = threadIdx.x; i < a.n_in; i += 256) sum = __fmaf_rn(x[i], x[i], sum);
        inverse = rsqrtf(__fadd_rn(__fdiv_rn(block_sum(sum, shared), float(a.n_in)), a.eps));
    }
    const auto at = [&](uint i) {
        float value = x[i];
        if (a.has_norm) {
            value = __fmul_rn(value, inverse);
            if (a.norm != nullptr) value = __fmul_rn(value, a.norm[i]);
        }
        return value;
    };
    float most = 0.0f;
    for (uint i = threadIdx.x; i < a.n_in; i += 256) most = fmaxf(most, fabsf(at(i)));
    most = block_max(most, shared);
    // 2^exponent <= most. NaN and infinity stay NaN and infinity in the halves.
    const uint exponent = (__float_as_uint(most) >> 23) & 255;
    const bool usual = exponent > 0 && exponent < 254;
    const float scale = usual ? __uint_as_float(exponent << 23) : 1.0f, by = usual ? __uint_as_float((254 - exponent) << 23) : 1.0f;
    for (uint i = threadIdx.x; i < a.stride; i += 256) {
        const float value = i < a.n_in ? at(i) : 0.0f;
        a.x_f16[row * a.stride + i] = f16_of_f32(value * by);
        if (a.normed != nullptr && i < a.n_in) a.normed[row * a.n_in + i] = value;
    }
    if (threadIdx.x == 0) a.x_scales[row] = scale;
}

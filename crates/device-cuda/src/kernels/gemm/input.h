// rows_input, rms_norm_input, gate_input: f32 rows to the tiled input of a product (gemm/arguments.h).
//
//   rows_input      out = x                                   rms_norm_input   out = x / sqrt(mean(x^2) + eps) * weight
//   gate_input      out = activation(x) * up
//
// Host contract
//   parameter  InputArguments; x rows 16-byte aligned, n_cols a multiple of 4
//   threads    256; grid (n_rows): one row a block
// Bytes: each input once, 2 a value written, in lines of 128 bytes. Values past 65504 are clamped.
// Order of accumulation of the squares: thread t sums its columns ascending, then a tree over threads.
#pragma once
#include "gemm/epilogue.h"

#define INPUT_ROWS 0
#define INPUT_RMS_NORM 1
#define INPUT_GATE 2

template <int KIND> INLINE void write_input(const InputArguments &a) {
    __shared__ float squares[8];
    const u32 row = blockIdx.x, n_chunks = a.k_tiles * 8;
    const u32 source = a.rows ? a.rows[row] : row;
    if (source == NO_ROW) { // of a group's last 8 rows
        for (u32 chunk = threadIdx.x; chunk < n_chunks; chunk += 256)
            *(uint4 *)(a.out + tiled_chunk(chunk, row, a.row_groups)) = make_uint4(0, 0, 0, 0);
        return;
    }
    const float *x = a.x + (u64)source * a.x_stride;
    float scale = 1.0f;
    if (KIND == INPUT_RMS_NORM) {
        float sum = 0;
        for (u32 c = threadIdx.x * 4; c < a.n_cols; c += 1024) {
            const float4 v = *(const float4 *)(x + c);
            sum += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
        }
#pragma unroll
        for (int m = 16; m; m /= 2) sum += __shfl_xor_sync(~0u, sum, m);
        if ((threadIdx.x & 31) == 0) squares[threadIdx.x >> 5] = sum;
        __syncthreads();
        sum = 0;
#pragma unroll
        for (int i = 0; i < 8; i++) sum += squares[i];
        scale = rsqrtf(sum / (float)a.n_cols + a.eps);
    }
    for (u32 chunk = threadIdx.x; chunk < n_chunks; chunk += 256) {
        float v[8];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const u32 c = chunk * 8 + half * 4;
            float4 f = make_float4(0, 0, 0, 0);
            if (c < a.n_cols) {
                f = *(const float4 *)(x + c);
                if (KIND == INPUT_RMS_NORM) {
                    const float4 w = a.weight ? *(const float4 *)(a.weight + c) : make_float4(1, 1, 1, 1);
                    f.x *= scale * w.x, f.y *= scale * w.y, f.z *= scale * w.z, f.w *= scale * w.w;
                }
                if (KIND == INPUT_GATE) {
                    const float4 u = *(const float4 *)(a.up + (u64)source * a.x_stride + c);
                    f.x = activate(a.activation, f.x) * u.x, f.y = activate(a.activation, f.y) * u.y;
                    f.z = activate(a.activation, f.z) * u.z, f.w = activate(a.activation, f.w) * u.w;
                }
            }
            v[4 * half] = f.x, v[4 * half + 1] = f.y, v[4 * half + 2] = f.z, v[4 * half + 3] = f.w;
        }
        *(uint4 *)(a.out + tiled_chunk(chunk, row, a.row_groups)) =
            make_uint4(pack_half2_clamped(v[0], v[1]), pack_half2_clamped(v[2], v[3]), pack_half2_clamped(v[4], v[5]),
                       pack_half2_clamped(v[6], v[7]));
    }
}

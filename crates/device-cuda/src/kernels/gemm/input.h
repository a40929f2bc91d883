// rows_input: makes the tiled input of a product (gemm/arguments.h) of f32 rows.
//
//   out = x * s   or, with the norm,   out = x / sqrt(mean(x^2) + eps) * weight * s
//
// With `scales`, s is the power of two that brings the row's largest magnitude to 1 or a little
// more, and 1 / s is stored there. Halves then keep their accuracy for rows with only large or only
// small values. Without `scales`, s is 1, and values past 65504 become infinite.
//
// Host contract
//   parameter InputArguments; x 16-byte aligned
//   threads THREADS; grid (n_rows): one row a block
// Bytes: each input once from memory (columns past 8 THREADS KEPT once more from L1); 2 a value
// written, in lines of 128 bytes. Order of accumulation of the squares: thread t sums its columns
// ascending, then a tree over threads.
#pragma once
#include "gemm/epilogue.h"

// Columns c .. c + 7 of a row; columns past its end are 0.
INLINE void load_8(const float *x, u32 c, u32 n_cols, float (&v)[8]) {
    if ((n_cols & 3) == 0 && c + 8 <= n_cols) {
        const float4 low = *(const float4 *)(x + c), high = *(const float4 *)(x + c + 4);
        v[0] = low.x, v[1] = low.y, v[2] = low.z, v[3] = low.w;
        v[4] = high.x, v[5] = high.y, v[6] = high.z, v[7] = high.w;
        return;
    }
#pragma unroll
    for (int i = 0; i < 8; i++) v[i] = c + i < n_cols ? x[c + i] : 0.0f;
}

// KEPT: groups of 8 columns that a thread keeps in registers. Longer rows are read twice.
template <int THREADS, int KEPT> INLINE void write_input(const InputArguments &a) {
    __shared__ float squares[THREADS / 32], largest[THREADS / 32];
    const u32 row = blockIdx.x, n_chunks = a.k_tiles * 8, lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    // Data that no kernel writes may be loaded before the rows are ready.
    dependency_launch();
    const bool weighted = a.has_norm && a.weight;
    float kept[KEPT][8], weights[KEPT][8];
#pragma unroll
    for (int i = 0; i < KEPT; i++) {
        const u32 c = (i * THREADS + threadIdx.x) * 8;
        if (weighted && c < a.n_cols) load_8(a.weight, c, a.n_cols, weights[i]);
    }
    dependency_wait();
    const u32 pair = a.pairs ? a.pairs[row] : row;
    if (pair == PAST_ROWS) return;
    if (pair == NO_ROW) { // a padding row of an expert
        for (u32 chunk = threadIdx.x; chunk < n_chunks; chunk += THREADS)
            *(uint4 *)(a.out + tiled_chunk(chunk, row, a.row_groups)) = make_uint4(0, 0, 0, 0);
        if (a.scales && threadIdx.x == 0) a.scales[row] = 0.0f;
        return;
    }
    const float *x = a.x + (u64)(a.pairs ? pair / a.pairs_a_row : row) * a.n_cols;
    float by = 1.0f, sum = 0.0f, most = 0.0f;
    // Multiplies eight columns by the norm's weights, and updates the row's largest magnitude and
    // sum of squares.
    auto take = [&](float (&v)[8], const float (&w)[8]) {
#pragma unroll
        for (int i = 0; i < 8; i++) {
            sum += v[i] * v[i];
            if (weighted) v[i] *= w[i];
            most = fmaxf(most, fabsf(v[i]));
        }
    };
    auto load = [&](u32 chunk, float (&v)[8]) {
        float w[8];
        load_8(x, chunk * 8, a.n_cols, v);
        if (weighted) load_8(a.weight, chunk * 8, a.n_cols, w);
        take(v, w);
    };
#pragma unroll
    for (int i = 0; i < KEPT; i++) {
        const u32 c = (i * THREADS + threadIdx.x) * 8;
        if (c < a.n_cols) load_8(x, c, a.n_cols, kept[i]);
        else
            for (int e = 0; e < 8; e++) kept[i][e] = weights[i][e] = 0.0f;
    }
#pragma unroll
    for (int i = 0; i < KEPT; i++) take(kept[i], weights[i]);
    if (a.has_norm || a.scales) {
        for (u32 chunk = KEPT * THREADS + threadIdx.x; chunk * 8 < a.n_cols; chunk += THREADS) {
            float v[8];
            load(chunk, v);
        }
#pragma unroll
        for (int m = 16; m; m /= 2) {
            sum += __shfl_xor_sync(~0u, sum, m);
            most = fmaxf(most, __shfl_xor_sync(~0u, most, m));
        }
        if (lane == 0) squares[warp] = sum, largest[warp] = most;
        __syncthreads();
        sum = 0.0f, most = 0.0f;
#pragma unroll
        for (int i = 0; i < THREADS / 32; i++) sum += squares[i], most = fmaxf(most, largest[i]);
        if (a.has_norm) by = rsqrtf(sum / (float)a.n_cols + a.eps);
        if (a.scales) {
            // 2^exponent <= most. NaN and infinity stay NaN and infinity in the halves.
            const u32 exponent = (__float_as_uint(most * by) >> 23) & 255;
            const bool usual = exponent > 0 && exponent < 254;
            if (threadIdx.x == 0) a.scales[row] = usual ? __uint_as_float(exponent << 23) : 1.0f;
            if (usual) by *= __uint_as_float((254 - exponent) << 23);
        }
    }
    auto store = [&](u32 chunk, const float (&v)[8]) {
        *(uint4 *)(a.out + tiled_chunk(chunk, row, a.row_groups)) =
            make_uint4(pack_half2(v[0] * by, v[1] * by), pack_half2(v[2] * by, v[3] * by), pack_half2(v[4] * by, v[5] * by),
                       pack_half2(v[6] * by, v[7] * by));
    };
#pragma unroll
    for (int i = 0; i < KEPT; i++)
        if (i * THREADS + threadIdx.x < n_chunks) store(i * THREADS + threadIdx.x, kept[i]);
    for (u32 chunk = KEPT * THREADS + threadIdx.x; chunk < n_chunks; chunk += THREADS) {
        float v[8];
        load(chunk, v);
        store(chunk, v);
    }
}

// y = x W^T for a small matrix in F32, such as a router's, for one row or many, with the norm of x
// before it and a bias after it. Everything is f32.
//
// The norm's 1 / sqrt(mean(x^2) + eps) multiplies the sums at the end, so that x is read once. Rows
// of W are padded with zeros to whole groups of 32 columns.
//
// Host contract
//   parameter LinearArguments with one matrix and TAIL_STORE
//   small_row, for few rows: threads 256, grid (n_out, rows), a block for each result. Thread t
//   sums columns 4 t, 4 t + 1024, and so on, then a tree over threads.
//   small_rows: threads 128, grid (n_out / 16, rows / 32), by tiles. Columns of x ascending, one
//   sum for each result.
#pragma once
#include "linear/product.cuh"

// Four columns from column c on; columns past the end are 0.
__device__ __forceinline__ Vec4 small_four(const float *x, uint c, uint n) {
    if ((n & 3) == 0 && c < n) return *(const Vec4 *)(x + c);
    return {c < n ? x[c] : 0.0f, c + 1 < n ? x[c + 1] : 0.0f, c + 2 < n ? x[c + 2] : 0.0f, c + 3 < n ? x[c + 3] : 0.0f};
}

__device__ __forceinline__ Vec4 small_norm(const LinearArguments &a, uint c) {
    if (a.norm == nullptr) return {1.0f, 1.0f, 1.0f, 1.0f};
    return small_four(a.norm, c, a.n_in);
}

__device__ __forceinline__ void write_small_row(const LinearArguments &a) {
    __shared__ float reduction[33];
    announce();
    const uint column = blockIdx.x, padded = (a.n_in + 31) / 32 * 32;
    const float *w = (const float *)(a.m0.weight.codes + ulong(column) * a.m0.weight.code_stride), *x_row = a.x + ulong(blockIdx.y) * a.n_in;
    float sum = 0.0f, square = 0.0f;
    // Weights are loaded before x is ready.
    Vec4 next = {0.0f, 0.0f, 0.0f, 0.0f}, norm = next;
    uint c = threadIdx.x * 4;
    if (c < padded) next = *(const Vec4 *)(w + c), norm = small_norm(a, c);
    await();
    for (; c < padded; c += 1024) {
        const Vec4 x = small_four(x_row, c, a.n_in);
        square = __fmaf_rn(x.x, x.x, __fmaf_rn(x.y, x.y, __fmaf_rn(x.z, x.z, __fmaf_rn(x.w, x.w, square))));
        sum = __fmaf_rn(x.x * norm.x, next.x, sum), sum = __fmaf_rn(x.y * norm.y, next.y, sum);
        sum = __fmaf_rn(x.z * norm.z, next.z, sum), sum = __fmaf_rn(x.w * norm.w, next.w, sum);
        if (c + 1024 < padded) next = *(const Vec4 *)(w + c + 1024), norm = small_norm(a, c + 1024);
    }
    sum = block_sum(sum, reduction);
    if (a.has_norm) {
        square = block_sum(square, reduction);
        sum *= rsqrtf(__fadd_rn(__fdiv_rn(square, float(a.n_in)), a.eps));
    }
    if (threadIdx.x == 0) a.m0.out[ulong(blockIdx.y) * a.m0.n_out + column] = sum + (a.m0.bias != nullptr ? a.m0.bias[column] : 0.0f);
}

#define SMALL_ROWS 32
#define SMALL_COLUMNS 16
#define SMALL_K 32

__device__ __forceinline__ void write_small_rows(const LinearArguments &a) {
    // Tiles by column of x, so that a thread reads neighbouring rows and columns together.
    __shared__ float xs[SMALL_K][SMALL_ROWS + 4], ws[SMALL_K][SMALL_COLUMNS + 2];
    __shared__ float squares[SMALL_ROWS];
    begin();
    const uint t = threadIdx.x, first_row = blockIdx.y * SMALL_ROWS, first_column = blockIdx.x * SMALL_COLUMNS;
    const uint padded = (a.n_in + SMALL_K - 1) / SMALL_K * SMALL_K;
    // Loads: four threads have a row of x, 8 columns each; eight threads have a row of W, 4 columns
    // each.
    const uint x_row = t >> 2, x_at = (t & 3) * 8, w_row = t >> 3, w_at = (t & 7) * 4;
    const bool has_x = first_row + x_row < a.n_rows, has_w = first_column + w_row < a.m0.n_out;
    const float *x = a.x + ulong(has_x ? first_row + x_row : 0) * a.n_in;
    const float *w = (const float *)(a.m0.weight.codes + ulong(has_w ? first_column + w_row : 0) * a.m0.weight.code_stride);
    Vec4 x0, x1, w0;
    float square = 0.0f;
    const auto load = [&](uint k) {
        x0 = small_four(x, k + x_at, a.n_in), x1 = small_four(x, k + x_at + 4, a.n_in);
        w0 = *(const Vec4 *)(w + k + w_at);
    };
    load(0);
    const uint r = (t >> 3) * 2, c = (t & 7) * 2;
    float sums[2][2] = {{0.0f, 0.0f}, {0.0f, 0.0f}};
    for (uint k = 0; k < padded; k += SMALL_K) {
        __syncthreads();
        const float v[8] = {x0.x, x0.y, x0.z, x0.w, x1.x, x1.y, x1.z, x1.w};
        const Vec4 n0 = small_norm(a, k + x_at), n1 = small_norm(a, k + x_at + 4);
        const float norm[8] = {n0.x, n0.y, n0.z, n0.w, n1.x, n1.y, n1.z, n1.w};
#pragma unroll
        for (int i = 0; i < 8; i++) {
            square = __fmaf_rn(v[i], v[i], square);
            xs[x_at + i][x_row] = v[i] * norm[i];
        }
        ws[w_at][w_row] = w0.x, ws[w_at + 1][w_row] = w0.y, ws[w_at + 2][w_row] = w0.z, ws[w_at + 3][w_row] = w0.w;
        __syncthreads();
        if (k + SMALL_K < padded) load(k + SMALL_K);
#pragma unroll
        for (int i = 0; i < SMALL_K; i++) {
            const float xa = xs[i][r], xb = xs[i][r + 1], wa = ws[i][c], wb = ws[i][c + 1];
            sums[0][0] = __fmaf_rn(xa, wa, sums[0][0]), sums[0][1] = __fmaf_rn(xa, wb, sums[0][1]);
            sums[1][0] = __fmaf_rn(xb, wa, sums[1][0]), sums[1][1] = __fmaf_rn(xb, wb, sums[1][1]);
        }
    }
    square += __shfl_xor_sync(0xffffffffu, square, 1);
    square += __shfl_xor_sync(0xffffffffu, square, 2);
    if ((t & 3) == 0) squares[x_row] = square;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const uint row = first_row + r + i;
        if (row >= a.n_rows) continue;
        const float inverse = a.has_norm ? rsqrtf(__fadd_rn(__fdiv_rn(squares[r + i], float(a.n_in)), a.eps)) : 1.0f;
#pragma unroll
        for (int j = 0; j < 2; j++) {
            const uint column = first_column + c + j;
            if (column >= a.m0.n_out) continue;
            const float bias = a.m0.bias != nullptr ? a.m0.bias[column] : 0.0f;
            a.m0.out[ulong(row) * a.m0.n_out + column] = sums[i][j] * inverse + bias;
        }
    }
}

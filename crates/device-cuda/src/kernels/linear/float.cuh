// y = x W^T for few rows, W in f32, f16 or bf16, with the same norm and epilogues as gemv.cuh.
// Products and sums are f32. Lane l has columns 8 l to 8 l + 7 of each 256, in order, then lanes
// are summed by a butterfly. This order does not depend on ROWS and NR. Rows of W are padded with
// zeros to whole groups of 32 columns.
#pragma once
#include "linear/floats.cuh"
#include "linear/product.cuh"

// Columns of all rows that fit in shared memory.
#define STAGED_FLOATS 8192

template <class T, int ROWS, int NR> __device__ __forceinline__ void float_gemv(const LinearArguments &a) {
    extern __shared__ Word4 memory[];
    float *staged = (float *)memory; // (ROWS, COLUMNS)
    constexpr uint COLUMNS = STAGED_FLOATS / ROWS;
    __shared__ float reduction[33];
    begin();
    const Task task = task_of<ROWS>(a);
    const uint lane = threadIdx.x & 31, warp = blockIdx.x * GEMV_WARPS + (threadIdx.x >> 5);
    const uint n_columns = (a.n_in + 31) / 32 * 32;
    const uchar *rows[NR];
    bool exists[NR];
#pragma unroll
    for (int s = 0; s < NR; s++) {
        const Slot slot = slot_of<NR>(a, warp, s);
        const MatrixArguments &m = matrix(a, slot.matrix);
        exists[s] = slot.exists;
        rows[s] = m.weight.codes + (slot.exists ? ulong(task.expert) * m.n_out + slot.row : 0) * m.weight.code_stride;
    }
    const float residual = residual_of<ROWS, NR>(a, task, warp);
    float inverse[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        inverse[r] = 1.0f;
        if (a.has_norm && r < task.n_rows) inverse[r] = norm_of(a, a.x + (task.x_row + r) * a.n_in, reduction);
    }
    float sums[NR][ROWS];
#pragma unroll
    for (int s = 0; s < NR; s++)
#pragma unroll
        for (int r = 0; r < ROWS; r++) sums[s][r] = 0.0f;
    for (uint first = 0; first < n_columns; first += COLUMNS) {
        const uint n = min(COLUMNS, n_columns - first);
        if (first > 0) __syncthreads();
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            if (r >= task.n_rows) break;
            const float *x = a.x + (task.x_row + r) * a.n_in;
            for (uint i = threadIdx.x; i < n; i += GEMV_THREADS) {
                staged[r * COLUMNS + i] = x_at(a, x, first + i, inverse[r]);
            }
        }
        __syncthreads();
#pragma unroll 1
        for (uint i = lane * 8; i < n; i += 256) {
            typename T::Raw raw[NR];
#pragma unroll
            for (int s = 0; s < NR; s++) {
                if (exists[s]) T::load(raw[s], rows[s], first + i);
            }
#pragma unroll
            for (int s = 0; s < NR; s++) {
                if (!exists[s]) continue;
                float w[8];
                T::values(raw[s], w);
#pragma unroll
                for (int r = 0; r < ROWS; r++) {
                    const Vec4 x0 = *(const Vec4 *)(staged + r * COLUMNS + i);
                    const Vec4 x1 = *(const Vec4 *)(staged + r * COLUMNS + i + 4);
                    float sum = sums[s][r];
                    sum = __fmaf_rn(w[0], x0.x, sum), sum = __fmaf_rn(w[1], x0.y, sum);
                    sum = __fmaf_rn(w[2], x0.z, sum), sum = __fmaf_rn(w[3], x0.w, sum);
                    sum = __fmaf_rn(w[4], x1.x, sum), sum = __fmaf_rn(w[5], x1.y, sum);
                    sum = __fmaf_rn(w[6], x1.z, sum), sum = __fmaf_rn(w[7], x1.w, sum);
                    sums[s][r] = sum;
                }
            }
        }
    }
#pragma unroll
    for (int s = 0; s < NR; s++)
#pragma unroll
        for (int r = 0; r < ROWS; r++) sums[s][r] = warp_sum(sums[s][r]);
    if (warp < a.n_warps) finish<ROWS, NR>(a, task, warp, residual, sums);
}

// y = x W^T for few rows, W of an integer type, with the norm of x before it, and bias, residual or
// gate after it.
//
// The block rounds x to 8 bits in groups of 32 columns, in shared memory: q = round(x / d), d the
// largest magnitude / 127. A warp computes NR columns of ROWS rows. Lane l has groups l, l + 32,
// and so on, with 8 dp4a for each group, row and column. Sums over groups are f32, in the order of
// the groups, then over lanes by a butterfly. The order of a row's sum is therefore independent of
// NR, ROWS and other rows.
//
// Bytes moved: W once for ROWS rows; x once a block. Grid: (columns / (NR * 8 warps), rows / ROWS).
#pragma once
#include "linear/blocks.cuh"
#include "linear/product.cuh"

// Groups of all rows that fit in shared memory.
#define STAGED 1024

template <int ROWS> struct Staged {
    static constexpr int GROUPS = STAGED / ROWS; // a multiple of 32
    Word4 low[ROWS][GROUPS];  // columns 0 to 15 of the group
    Word4 high[ROWS][GROUPS]; // columns 16 to 31
    Word2 scale[ROWS][GROUPS]; // x: d as f32 bits; y: the sums of the integers of both halves
};

template <int ROWS>
__device__ __forceinline__ void stage(const LinearArguments &a, const Task &task, uint first, uint n_groups,
                                      const float (&inverse)[ROWS], Vec4 norm_first, Staged<ROWS> &staged) {
    // 8 lanes have a group, 4 columns each.
    const uint part = threadIdx.x & 7, worker = threadIdx.x >> 3;
    const bool aligned = (a.n_in & 3) == 0;
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        if (r >= task.n_rows) break;
        const float *x = a.x + (task.x_row + r) * a.n_in;
        // All lanes of a warp run the same iterations, since they call shuffles.
        for (uint base = 0; base < n_groups; base += GEMV_THREADS / 8) {
            const uint g = base + worker;
            const uint column = (first + g) * 32 + part * 4;
            float v[4] = {0.0f, 0.0f, 0.0f, 0.0f};
            if (g < n_groups) {
                if (aligned && !a.has_norm && column < a.n_in) {
                    const Vec4 four = *(const Vec4 *)(x + column);
                    v[0] = four.x, v[1] = four.y, v[2] = four.z, v[3] = four.w;
                } else if (aligned && a.norm != nullptr && first + base == 0 && column < a.n_in) {
                    // The norm's weights were loaded before x.
                    const Vec4 four = *(const Vec4 *)(x + column);
                    v[0] = __fmul_rn(__fmul_rn(four.x, inverse[r]), norm_first.x);
                    v[1] = __fmul_rn(__fmul_rn(four.y, inverse[r]), norm_first.y);
                    v[2] = __fmul_rn(__fmul_rn(four.z, inverse[r]), norm_first.z);
                    v[3] = __fmul_rn(__fmul_rn(four.w, inverse[r]), norm_first.w);
                } else {
#pragma unroll
                    for (int i = 0; i < 4; i++) v[i] = x_at(a, x, column + i, inverse[r]);
                }
            }
            float most = fmaxf(fmaxf(fabsf(v[0]), fabsf(v[1])), fmaxf(fabsf(v[2]), fabsf(v[3])));
#pragma unroll
            for (int step = 4; step > 0; step /= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, step));
            const float d = most * (1.0f / 127.0f);
            const float to = most > 0.0f ? __fdiv_rn(127.0f, most) : 0.0f;
            uint word = 0;
#pragma unroll
            for (int i = 0; i < 4; i++) word |= uint(__float2int_rn(v[i] * to) & 255) << (8 * i);
            int sum = __dp4a(int(word), 0x01010101, 0);
            sum += __shfl_xor_sync(0xffffffffu, sum, 1);
            sum += __shfl_xor_sync(0xffffffffu, sum, 2);
            const int other = __shfl_xor_sync(0xffffffffu, sum, 4);
            if (g < n_groups) {
                uint *to_words = part < 4 ? (uint *)&staged.low[r][g] : (uint *)&staged.high[r][g];
                to_words[part & 3] = word;
                // A NaN or infinite column makes the whole group's product NaN.
                const float scale = most < INFINITY_F ? d : NAN_F;
                if (part == 0) staged.scale[r][g] = {__float_as_uint(scale), (uint(sum) & 0xffff) | (uint(other) << 16)};
            }
        }
    }
}

template <class T, int ROWS, int NR> __device__ __forceinline__ void gemv(const LinearArguments &a) {
    extern __shared__ Word4 memory[];
    Staged<ROWS> &staged = *(Staged<ROWS> *)memory;
    __shared__ float reduction[33];
    announce();
    // An earlier kernel chooses the experts, but weights are constant.
    if (a.k > 0) await();
    const Task task = task_of<ROWS>(a);
    const uint lane = threadIdx.x & 31, warp = blockIdx.x * GEMV_WARPS + (threadIdx.x >> 5);
    const uint n_groups = (a.n_in + 31) / 32;
    Row rows[NR];
    bool exists[NR];
#pragma unroll
    for (int s = 0; s < NR; s++) {
        const Slot slot = slot_of<NR>(a, warp, s);
        const MatrixArguments &m = matrix(a, slot.matrix);
        exists[s] = slot.exists && lane < n_groups;
        rows[s] = row_of(m, slot.exists ? ulong(task.expert) * m.n_out + slot.row : 0);
    }
    // The first weights are loaded while x is prepared.
    typename T::Raw raw[NR];
#pragma unroll
    for (int s = 0; s < NR; s++) {
        if (exists[s]) T::load(raw[s], rows[s], lane);
    }
    Vec4 norm_first = {1.0f, 1.0f, 1.0f, 1.0f};
    if (a.has_norm && a.norm != nullptr && (a.n_in & 3) == 0 && threadIdx.x * 4 < a.n_in) {
        norm_first = *(const Vec4 *)(a.norm + threadIdx.x * 4);
    }
    await();
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

    for (uint first = 0; first < n_groups; first += Staged<ROWS>::GROUPS) {
        const uint n = min(uint(Staged<ROWS>::GROUPS), n_groups - first);
        if (first > 0) __syncthreads();
        stage<ROWS>(a, task, first, n, inverse, norm_first, staged);
        __syncthreads();
#pragma unroll 1
        for (uint g = lane; g < n; g += 32) {
#pragma unroll
            for (int s = 0; s < NR; s++) {
                if (!exists[s]) continue;
                typename T::Raw mine = raw[s];
                if (first + g + 32 < n_groups) T::load(raw[s], rows[s], first + g + 32);
                uint words[8];
#pragma unroll
                for (int k = 0; k < 8; k++) words[k] = mine.codes.word(k);
                const GroupScales scales = T::scales(mine, rows[s], first + g);
                const int zero = T::zero(rows[s]);
#pragma unroll
                for (int r = 0; r < ROWS; r++) {
                    const Word4 low = staged.low[r][g], high = staged.high[r][g];
                    const Word2 of_x = staged.scale[r][g];
                    const int sum0 = int(of_x.y << 16) >> 16, sum1 = int(of_x.y) >> 16;
                    int dot0 = 0, dot1 = 0;
#pragma unroll
                    for (int k = 0; k < 4; k++) dot0 = __dp4a(int(words[k]), int(word_of(low, k)), dot0);
#pragma unroll
                    for (int k = 0; k < 4; k++) dot1 = __dp4a(int(words[4 + k]), int(word_of(high, k)), dot1);
                    float value;
                    if (T::HALVES) {
                        value = __fmaf_rn(scales.s0, float(dot0 - zero * sum0),
                                          __fmul_rn(scales.s1, float(dot1 - zero * sum1)));
                        if (T::HAS_MIN) {
                            value = __fmaf_rn(scales.b0, float(sum0), __fmaf_rn(scales.b1, float(sum1), value));
                        }
                    } else {
                        value = __fmul_rn(scales.s0, float(dot0 + dot1 - zero * (sum0 + sum1)));
                        if (T::HAS_MIN) value = __fmaf_rn(scales.b0, float(sum0 + sum1), value);
                    }
                    sums[s][r] = __fmaf_rn(__uint_as_float(of_x.x), value, sums[s][r]);
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

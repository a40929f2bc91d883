// Code that products with few rows share: the columns of a warp, the norm of a row, and the
// epilogue of a sum.
#pragma once
#include "activation.cuh"

#define GEMV_THREADS 256
#define GEMV_WARPS 8

__device__ __forceinline__ const MatrixArguments &matrix(const LinearArguments &a, uint index) {
    return index == 0 ? a.m0 : index == 1 ? a.m1 : a.m2;
}

// The matrix and row of column `slot` of a warp. With TAIL_GATE the slots of a warp are pairs of a
// gate row and an up row. A row of n_out or more means no column.
struct Slot {
    uint matrix;
    uint row;
    bool exists;
};

template <int NR> __device__ __forceinline__ Slot slot_of(const LinearArguments &a, uint warp, int slot) {
    if (a.tail == TAIL_GATE) {
        const uint row = warp * (NR / 2) + slot / 2;
        return {uint(slot & 1), row, row < a.m0.n_out};
    }
    uint row = warp * NR + slot;
    if (row < a.m0.n_out) return {0, row, true};
    row -= a.m0.n_out;
    if (a.n_matrices > 1 && row < a.m1.n_out) return {1, row, true};
    row -= a.n_matrices > 1 ? a.m1.n_out : 0;
    return {2, row, a.n_matrices > 2 && row < a.m2.n_out};
}

// The rows of x and of the outputs of a block, and the expert whose matrix it multiplies.
struct Task {
    ulong x_row;
    ulong out_row; // the first row of the outputs
    int n_rows;
    uint expert;
};

template <int ROWS> __device__ __forceinline__ Task task_of(const LinearArguments &a) {
    if (a.k > 0) {
        const uint pair = blockIdx.y;
        return {ulong(a.x_per_pair ? pair : pair / a.k), pair, 1, a.ids[pair]};
    }
    const uint first = blockIdx.y * ROWS;
    return {first, first, min(ROWS, int(a.n_rows - first)), 0};
}

// TAIL_GATE: a column of the output, from the sums of its gate row and up row.
__device__ __forceinline__ float gated(const LinearArguments &a, uint row, float gate, float up) {
    if (a.m0.bias != nullptr) gate += a.m0.bias[row];
    if (a.m1.bias != nullptr) up += a.m1.bias[row];
    return activate(a.activation, gate) * up;
}

// 1 / sqrt(mean(x^2) + eps) of a row. All threads of the block call it, and all get it. `shared`
// has 33 floats.
__device__ __forceinline__ float norm_of(const LinearArguments &a, const float *x, float *shared) {
    float sum = 0.0f;
    for (uint i = threadIdx.x; i < a.n_in; i += GEMV_THREADS) sum = __fmaf_rn(x[i], x[i], sum);
    return rsqrtf(__fadd_rn(__fdiv_rn(block_sum(sum, shared), float(a.n_in)), a.eps));
}

// A column of x after the norm; 0 past the end of the row.
__device__ __forceinline__ float x_at(const LinearArguments &a, const float *x, uint column, float inverse) {
    if (column >= a.n_in) return 0.0f;
    float value = x[column];
    if (a.has_norm) {
        value = __fmul_rn(value, inverse);
        if (a.norm != nullptr) value = __fmul_rn(value, a.norm[column]);
    }
    return value;
}

// The residual of the sum that this lane stores (TAIL_ADD), loaded before the sums are ready.
template <int ROWS, int NR>
__device__ __forceinline__ float residual_of(const LinearArguments &a, const Task &task, uint warp) {
    static_assert(NR * ROWS <= 32, "a lane writes one sum");
    const uint lane = threadIdx.x & 31, row = lane % ROWS;
    if (a.tail != TAIL_ADD || lane >= NR * ROWS || row >= task.n_rows) return 0.0f;
    const Slot slot = slot_of<NR>(a, warp, lane / ROWS);
    return slot.exists ? a.residual[(task.out_row + row) * matrix(a, slot.matrix).n_out + slot.row] : 0.0f;
}

// Stores the sums of a warp, which all its lanes have.
template <int ROWS, int NR>
__device__ __forceinline__ void finish(const LinearArguments &a, const Task &task, uint warp, float residual,
                                       float (&sums)[NR][ROWS]) {
    const uint lane = threadIdx.x & 31;
    if (a.tail == TAIL_GATE) {
#pragma unroll
        for (int s = 0; s + 1 < NR; s += 2) {
            const Slot slot = slot_of<NR>(a, warp, s);
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                if (lane != uint((s / 2 * ROWS + r) & 31) || !slot.exists || r >= task.n_rows) continue;
                a.out[(task.out_row + r) * a.m0.n_out + slot.row] = gated(a, slot.row, sums[s][r], sums[s + 1][r]);
            }
        }
        return;
    }
#pragma unroll
    for (int s = 0; s < NR; s++) {
        const Slot slot = slot_of<NR>(a, warp, s);
        const MatrixArguments &m = matrix(a, slot.matrix);
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            if (lane != uint((s * ROWS + r) & 31) || !slot.exists || r >= task.n_rows) continue;
            float value = sums[s][r];
            if (m.bias != nullptr) value += m.bias[slot.row];
            const ulong at = (task.out_row + r) * m.n_out + slot.row;
            if (a.tail == TAIL_ADD) a.out[at] = residual + value;
            else m.out[at] = value;
        }
    }
}

// out[i] = scale * table[token[i]]. A thread decodes a group of 32 columns. Grid: (groups / 128,
// rows).
#pragma once
#include "linear/rows.cuh"

__device__ __forceinline__ uint token_of(const EmbedArguments &a, uint row) {
    uint token = a.tokens[row];
    if (a.chosen != nullptr && (token & LINKED) != 0) token = a.chosen[token & ~LINKED];
    return embedded(a, token);
}

template <class T> __device__ __forceinline__ void embed(const EmbedArguments &a) {
    begin();
    const uint g = blockIdx.x * blockDim.x + threadIdx.x;
    if (g * 32 >= a.cols) return;
    const Row row = row_of(a.table, token_of(a, blockIdx.y));
    typename T::Raw raw;
    T::load(raw, row, g);
    const GroupScales scales = T::scales(raw, row, g);
    const int zero = T::zero(row);
    float *out = a.out + ulong(blockIdx.y) * a.cols + g * 32;
    for (int k = 0; k < 8; k++) {
        float w[4];
        four_of<T>(raw, scales, zero, k, w);
        for (int i = 0; i < 4; i++) {
            if (g * 32 + 4 * k + i < a.cols) out[4 * k + i] = a.scale * w[i];
        }
    }
}

template <class T> __device__ __forceinline__ void float_embed(const EmbedArguments &a) {
    begin();
    const uint first = (blockIdx.x * blockDim.x + threadIdx.x) * 32;
    if (first >= a.cols) return;
    const uchar *row = a.table.weight.codes + ulong(token_of(a, blockIdx.y)) * a.table.weight.code_stride;
    float *out = a.out + ulong(blockIdx.y) * a.cols + first;
    for (int k = 0; k < 4; k++) {
        typename T::Raw raw;
        T::load(raw, row, first + 8 * k);
        float w[8];
        T::values(raw, w);
        for (int i = 0; i < 8; i++) {
            if (first + 8 * k + i < a.cols) out[8 * k + i] = a.scale * w[i];
        }
    }
}

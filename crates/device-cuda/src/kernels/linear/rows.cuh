// Rows of the embedding: the row of a token, and some of its columns.
#pragma once
#include "common.cuh"
#include "step.h"
#include "linear/arguments.h"
#include "arguments.h"
#include "linear/blocks.cuh"
#include "linear/floats.cuh"

// The row of a token. The token may be NO_TOKEN if its output chose none; the step then runs, and
// the host discards its result.
__device__ __forceinline__ uint embedded(const EmbedArguments &a, uint token) { return token == NO_TOKEN ? 0 : min(token, a.n_table - 1); }

// Four neighbouring columns of a row of a table, the first a multiple of four. `embed` and
// `float_embed` decode them in the same way.
template <class T> struct RowsOfBlocks {
    static __device__ __forceinline__ void four(const MatrixArguments &table, uint index, uint column, float scale, float (&out)[4]) {
        const Row row = row_of(table, index);
        typename T::Raw raw;
        T::load(raw, row, column / 32);
        float w[4];
        four_of<T>(raw, T::scales(raw, row, column / 32), T::zero(row), column % 32 / 4, w);
        for (int i = 0; i < 4; i++) out[i] = scale * w[i];
    }
};
template <class T> struct RowsOfFloats {
    static __device__ __forceinline__ void four(const MatrixArguments &table, uint index, uint column, float scale, float (&out)[4]) {
        typename T::Raw raw;
        T::load(raw, table.weight.codes + ulong(index) * table.weight.code_stride, column & ~7u);
        float w[8];
        T::values(raw, w);
        for (int i = 0; i < 4; i++) out[i] = scale * (column & 4 ? w[4 + i] : w[i]);
    }
};

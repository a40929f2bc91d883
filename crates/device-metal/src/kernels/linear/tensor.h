// The tiles of linear/gemm.h and expert_linear.h on tensor units (tensor_units.h): LINEAR_TENSOR.
//
// Four simdgroups multiply BX rows of x by 64 rows of a weight, TENSOR_COLUMNS columns at a time.
// Weights are decoded into threadgroup memory, without padding. Rows of x are floats in device
// memory, which the unit reads itself; those of an expert's pairs lie apart, and are staged beside
// the weights. Sums stay in two results of BX by 32, for the first and the last 32 rows of the
// tile. With LINEAR_GATE these are the gate and the same 32 rows of up, so that a thread has both
// values of an element. Results go from registers through the epilogue to device memory.
//
// The next columns are loaded while the unit multiplies the current ones.
//
// Order of accumulation: TENSOR_COLUMNS columns at a time, within them in the unit's own order.
#pragma once
#include "tensor_units.h"

#ifdef WITH_TENSORS
// Columns that are multiplied at a time.
#define TENSOR_COLUMNS 64
// Float4s of threadgroup memory that linear_gemm needs, for tiles of operands of `size` bytes.
#define GEMM_FOURS(BX, size) (((64 + BX) * 32 > 64 * TENSOR_COLUMNS ? (64 + BX) * 32 : 64 * TENSOR_COLUMNS) * (size) / 16)
// Pairs that expert_gemm stages at once: 64 rows of floats do not fit beside the weights.
#define EXPERT_STAGED(size) ((size) == 4 ? 32 : 64)
// Float4s of threadgroup memory that expert_gemm needs.
#define EXPERT_FOURS(size) ((64 + EXPERT_STAGED(size)) * TENSOR_COLUMNS * (size) / 16)

// Rows of x in device memory.
struct RowsInPlace {
    typedef DeviceTile Tile;
    device float * x;
    int stride;
    int n_rows;

    void load(uint, uint, ushort) {}
    void store(ushort) const {}
    Tile tile(uint k, int n) const { return Tile(x + k, dextents<int, 2>(n, n_rows), array<int, 2>({1, stride})); }
};

// BX rows of x anywhere. A thread stages BX / 2 columns of row tid / (128 / BX).
template<class D, short BX> struct StagedRows {
    typedef typename D::Operand T;
    typedef ThreadgroupTile<T> Tile;
    device const float * x_row;
    threadgroup T * staged; // (BX, TENSOR_COLUMNS)
    float4 held[BX / 8];

    void load(uint k, uint n_in, ushort tid) {
        #pragma clang loop unroll(full)
        for (short j = 0; j < BX / 8; j++) {
            const uint column = k + tid % (128 / BX) * (BX / 2) + 4 * j;
            held[j] = column < n_in ? load_x<D>(x_row, column, n_in) : float4(0.0f);
        }
    }
    void store(ushort tid) const {
        threadgroup vec<T, 4> * to =
            (threadgroup vec<T, 4> *) (staged + tid / (128 / BX) * TENSOR_COLUMNS + tid % (128 / BX) * (BX / 2));
        #pragma clang loop unroll(full)
        for (short j = 0; j < BX / 8; j++) to[j] = OperandVector<T>::of_x(held[j]);
    }
    Tile tile(uint, int n) const { return Tile(staged, dextents<int, 2>(n, BX), array<int, 2>({1, TENSOR_COLUMNS})); }
};

// A thread's 32 columns of row tid / 2 of a tile of weights.
template<class D> struct WeightPart {
    typedef typename D::Operand T;
    WeightRow row;
    Held<D> held[2];

    void load(uint k, uint n_in, ushort tid) {
        #pragma clang loop unroll(full)
        for (short i = 0; i < 2; i++) {
            const uint index = k / 16 + tid % 2 * 2 + i;
            if (16 * index < n_in) held[i].load(row, index, n_in);
        }
    }
    // Stores what `load` loaded.
    void store(threadgroup T * tile, uint k, uint n_in, ushort tid) const {
        threadgroup vec<T, 4> * to = (threadgroup vec<T, 4> *) (tile + tid / 2 * TENSOR_COLUMNS + tid % 2 * 32);
        #pragma clang loop unroll(full)
        for (short i = 0; i < 2; i++) {
            const uint index = k / 16 + tid % 2 * 2 + i;
            if (16 * index >= n_in) continue;
            const auto values = held[i].values(index);
            #pragma clang loop unroll(full)
            for (short j = 0; j < 4; j++) to[4 * i + j] = OperandVector<T>::of(values.v[j]);
        }
    }
};

// Multiplies a tile of rows of x by the tile of weights whose row tid / 2 is `w_row`. Passes each
// element's row, column and two sums to `output`.
template<class D, short BX, class Rows, class Output>
static inline void tensor_tile(WeightRow w_row, Rows rows, uint n_in, threadgroup typename D::Operand * tile_w, Output output, ushort tid) {
    typedef typename D::Operand T;
    typedef ThreadgroupTile<T> Weights;
    typedef typename Rows::Tile X;
    TensorProduct<BX, 32, true, is_same<T, half>::value> product;
    auto first = product.template get_destination_cooperative_tensor<X, Weights, float>();
    auto last = product.template get_destination_cooperative_tensor<X, Weights, float>();
    clear_sums(first);
    clear_sums(last);

    WeightPart<D> part;
    part.row = w_row;
    part.load(0, n_in, tid);
    rows.load(0, n_in, tid);
    for (uint k = 0; k < n_in; k += TENSOR_COLUMNS) {
        threadgroup_barrier(mem_flags::mem_threadgroup);
        part.store(tile_w, k, n_in, tid);
        rows.store(tid);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        if (k + TENSOR_COLUMNS < n_in) {
            part.load(k + TENSOR_COLUMNS, n_in, tid);
            rows.load(k + TENSOR_COLUMNS, n_in, tid);
        }
        const int n = min(uint(TENSOR_COLUMNS), n_in - k);
        X x = rows.tile(k, n);
        Weights w_first(tile_w, dextents<int, 2>(n, 32), array<int, 2>({1, TENSOR_COLUMNS}));
        Weights w_last(tile_w + 32 * TENSOR_COLUMNS, dextents<int, 2>(n, 32), array<int, 2>({1, TENSOR_COLUMNS}));
        product.run(x, w_first, first);
        product.run(x, w_last, last);
    }
    #pragma clang loop unroll(full)
    for (ushort i = 0; i < first.get_capacity(); i++) {
        if (!first.is_valid_element(i)) continue;
        const auto at = first.get_multidimensional_index(i);
        output.write(at[1], at[0], first[i], last[i]);
    }
}
#else
#define GEMM_FOURS(BX, size) ((64 + BX) * 2 * (size))
#define EXPERT_FOURS(size) GEMM_FOURS(64, size)
#endif

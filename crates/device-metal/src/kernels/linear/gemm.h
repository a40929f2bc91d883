// linear_<type>_gemm_<BX>: y = x W^T for many rows of x, by tiles of BX = 32 or 64 rows of x and 64
// rows of a weight.
//
//     y_i = epilogue(x W_i^T + bias_i), W_i (n_out_i, n_in), x (n_rows, n_in) f32,
//     y_i (n_rows, n_out_i) f32
//
// Host contract
//   buffers  0 LinearArguments    1 x
//            3, 4, 5 codes, 6, 7, 8 scales, 9, 10, 11 offsets of weights 0, 1, 2
//            12, 13, 14 biases    15 residual, or up, as in linear/gemv.h
//            16, 17, 18 y_0, y_1, y_2
//            20 Step              21 row_gate (n_rows), LINEAR_ROW_GATE
//            Alignments and unused buffers as in linear/gemv.h.
//   threads  128
//   grid     (ceil(n_rows / BX), T, 1), T = sum over weights of ceil(n_out_i / 64); with
//            LINEAR_GATE T = ceil(n_out_0 / 32). Neighbours read the same weights.
//   constants LINEAR_BIAS, _RESIDUAL, _GATE, _UP, _ROW_GATE, _ACTIVATION, _WEIGHTS, _SOFTCAP,
//            _BOUNDED, _TENSOR; LINEAR_SCALAR for floats and integer rows; AFFINE_GROUP, _SCALE,
//            _SYMMETRIC, _WIDE for affine types
//   threadgroup memory  none to be set; a tile takes GEMM_FOURS float4s (linear/tensor.h)
//   reads    a weight's tile once for BX rows of x, nothing after the end of a row
//
// Operands are halves (saturated at 65504 where the codec or x may exceed it), or floats if a half
// would lose precision of the file (F32, BF16, integer rows); sums are floats. Four simdgroups, two
// by two, compute BX / 2 rows of x times 32 rows of W each: 2 or 4 by 4 matrices of 8 x 8. A tile
// has 32 columns. The next 32 are loaded while the matrices of the current ones are multiplied, and
// decoded when they are stored. The 64 operands of a matrix are neighbours in a tile, so that a
// load of it meets each bank once. Two simdgroups whose rows of x are all absent still load and
// store their part of the tiles, but multiply nothing. An expert rarely fills its tile (PARTIAL):
// none of its simdgroups multiplies eight rows that are absent.
//
// With LINEAR_TENSOR, linear/tensor.h multiplies the tile instead.
//
// With LINEAR_GATE the rows of a tile are 16 of the gate, the same 16 of up, and so on, so that a
// simdgroup has both. With LINEAR_TENSOR they are 32 of each.
//
// Order of accumulation: columns ascending by 8, within 8 in the order of the matrix unit.
#pragma once
#include <metal_stdlib>
using namespace metal;
#include "activation.h"
#include "linear/arguments.h"
#include "linear/block.h"
#include "linear/gemv.h"
#include "linear/parameters.h"
#include "step.h"

template<class T> struct OperandVector;
template<> struct OperandVector<float> {
    static float4 of(float4 v) { return v; }
    static float4 of_x(float4 v) { return v; }
};
template<> struct OperandVector<half> {
    static half4 of(half4 v) { return v; }
    static half4 of(float4 v) { return half4(clamp(v, float4(-65504.0f), float4(65504.0f))); }
    static half4 of_x(float4 v) { return LINEAR_BOUNDED ? half4(v) : of(v); }
};

// A tile in matrices of 8 x 8, four for each 8 rows.
struct MatrixTile {
    // Index of an operand.
    static ushort at(ushort row, ushort column) { return (row / 8 * 4 + column / 8) * 64 + row % 8 * 8 + column % 8; }
};

// A thread's part of 32 columns of a tile: 16 columns of row tid / 2 of the weights, and BX / 4
// columns of row tid / (128 / BX) of x.
template<class D, short BX> struct TilePart {
    WeightRow w_row;
    device const float * x_row;
    Held<D> w;
    uint index; // index of the 16 values in the row
    float4 x[BX / 16];

    // Loads the part of columns k to k + 31.
    void load(uint k, uint n_in, ushort tid) {
        const uint x_column = k + tid % (128 / BX) * (BX / 4);
        index = k / 16 + tid % 2;
        w.load(w_row, index, n_in);
        #pragma clang loop unroll(full)
        for (short j = 0; j < BX / 16; j++) x[j] = load_x<D>(x_row, x_column + 4 * j, n_in);
    }

    // Stores the part to the tiles.
    void store(threadgroup typename D::Operand * tile_w, threadgroup typename D::Operand * tile_x, ushort tid) const {
        typedef typename D::Operand T;
        typedef vec<T, 4> T4;
        const ushort w_column = tid % 2 * 16, x_row = tid / (128 / BX), x_column = tid % (128 / BX) * (BX / 4);
        const auto values = w.values(index);
        #pragma clang loop unroll(full)
        for (short j = 0; j < 4; j++) {
            *(threadgroup T4 *) (tile_w + MatrixTile::at(tid / 2, w_column + 4 * j)) = OperandVector<T>::of(values.v[j]);
        }
        #pragma clang loop unroll(full)
        for (short j = 0; j < BX / 16; j++) {
            *(threadgroup T4 *) (tile_x + MatrixTile::at(x_row, x_column + 4 * j)) = OperandVector<T>::of_x(x[j]);
        }
    }
};

// The products of simdgroup (sg / 2, sg % 2) in a tile: BX / 16 by 4 matrices, rows of x by rows of
// the weight.
template<short BX> struct GemmSums {
    simdgroup_float8x8 m[BX / 16][4];
};

template<class D, short BX, bool PARTIAL>
static inline GemmSums<BX> gemm_products(WeightRow w_row, device const float * x_row, uint n_in, uint n_rows,
                                         threadgroup typename D::Operand * tile_w, threadgroup typename D::Operand * tile_x,
                                         ushort tid, ushort sg) {
    typedef typename D::Operand T;
    GemmSums<BX> sums;
    #pragma clang loop unroll(full)
    for (short i = 0; i < BX / 16; i++) {
        #pragma clang loop unroll(full)
        for (short j = 0; j < 4; j++) sums.m[i][j] = make_filled_simdgroup_matrix<float, 8>(0.0f);
    }
    TilePart<D, BX> part;
    part.w_row = w_row;
    part.x_row = x_row;
    part.load(0, n_in, tid);
    // Blocks of eight rows of the simdgroup that are not absent.
    const uint first_row = sg / 2 * (BX / 2), n_blocks = n_rows > first_row ? (n_rows - first_row + 7) / 8 : 0;
    for (uint k = 0; k < n_in; k += 32) {
        threadgroup_barrier(mem_flags::mem_threadgroup);
        part.store(tile_w, tile_x, tid);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        if (k + 32 < n_in) part.load(k + 32, n_in, tid);
        if (n_blocks == 0) continue;
        threadgroup const T * from_x = tile_x + MatrixTile::at(sg / 2 * (BX / 2), 0);
        threadgroup const T * from_w = tile_w + MatrixTile::at(sg % 2 * 32, 0);
        #pragma clang loop unroll(full)
        for (short step = 0; step < 4; step++) {
            simdgroup_matrix<T, 8, 8> mx[BX / 16], mw[4];
            #pragma clang loop unroll(full)
            for (short i = 0; i < BX / 16; i++) {
                simdgroup_load(mx[i], from_x + MatrixTile::at(8 * i, 8 * step), 8, ulong2(0, 0), false);
            }
            #pragma clang loop unroll(full)
            for (short j = 0; j < 4; j++) {
                simdgroup_load(mw[j], from_w + MatrixTile::at(8 * j, 8 * step), 8, ulong2(0, 0), true);
            }
            simdgroup_barrier(mem_flags::mem_none);
            #pragma clang loop unroll(full)
            for (short i = 0; i < BX / 16; i++) {
                if (PARTIAL && uint(i) >= n_blocks) continue;
                #pragma clang loop unroll(full)
                for (short j = 0; j < 4; j++) simdgroup_multiply_accumulate(sums.m[i][j], mx[i], mw[j], sums.m[i][j]);
            }
        }
    }
    return sums;
}

// Returns the weight (0, or 1 for up) and the row of it that is row `tid / 2` of a tile of weights.
// The tile begins with row `first`.
static inline uint2 tile_row(uint first, ushort tid) {
    const uint row = tid / 2;
    if (!LINEAR_GATE) return uint2(0, first + row);
    if (LINEAR_TENSOR) return uint2(row / 32, first + row % 32);
    return uint2(row % 32 / 16, first + row / 32 * 16 + row % 16);
}

// Epilogue and destination of the products of one weight.
struct GemmOutput {
    device const float * bias_0; // bias of the gate, or of the weight
    device const float * bias_1; // bias of up
    device const float * other; // residual, or up
    device const float * row_gate;
    device float * y;
    uint n_out;
    uint up_stride;
    uint first_row; // first row of x
    uint n_rows;    // rows of x in the tile
    uint first;     // first column of y
    float softcap;
};

// Writes element (row, column) of y from its product, and with LINEAR_GATE that of up. Elements of
// absent rows and columns are not written.
static inline void write_product(GemmOutput o, uint row, uint column, float value, float rise) {
    if (row >= o.n_rows || column >= o.n_out) return;
    const ulong y_row = o.first_row + row, at = y_row * o.n_out + column;
    if (LINEAR_BIAS) value += o.bias_0[column];
    if (LINEAR_GATE) {
        if (LINEAR_BIAS) rise += o.bias_1[column];
        value = activation(LINEAR_ACTIVATION, value) * rise;
    }
    if (LINEAR_ROW_GATE) value *= activation(ACTIVATION_SIGMOID, o.row_gate[y_row]);
    if (LINEAR_RESIDUAL) value += o.other[at];
    if (LINEAR_UP) value = activation(LINEAR_ACTIVATION, value) * o.other[y_row * o.up_stride + column];
    if (LINEAR_SOFTCAP) value = o.softcap * hyperbolic_tangent(value / o.softcap);
    o.y[at] = value;
}

// Writes eight rows of y, from row x_0 of the tile on. `strip` has 32 products of each, `stride`
// floats apart; with LINEAR_GATE they are 16 columns of y. A simdgroup calls it, lanes are columns.
static inline void write_strip(GemmOutput o, threadgroup const float * strip, ushort stride, uint x_0, ushort sg, ushort lane) {
    const ushort columns = LINEAR_GATE ? 16 : 32, c = lane % columns;
    for (uint r = lane / columns; r < 8; r += 32 / columns) {
        const float rise = LINEAR_GATE ? strip[r * stride + 16 + c] : 0.0f;
        write_product(o, x_0 + r, o.first + sg % 2 * columns + c, strip[r * stride + c], rise);
    }
}

#include "linear/tensor.h"

#ifdef WITH_TENSORS
// Writes what linear/tensor.h multiplied.
struct TensorOutput {
    GemmOutput o;
    void write(uint row, uint column, float first, float last) const {
        write_product(o, row, o.first + column, first, last);
        if (!LINEAR_GATE) write_product(o, row, o.first + 32 + column, last, 0.0f);
    }
};
#endif

template<class D, short BX>
kernel void linear_gemm(constant LinearArguments & a [[buffer(0)]],
                        PRODUCT_BUFFERS,
                        device const Step * step [[buffer(20)]],
                        device const float * row_gate [[buffer(21)]],
                        PRODUCT_THREAD) {
    typedef typename D::Operand T;
    threadgroup float levels[16];
    threadgroup float4 tiles[GEMM_FOURS(BX, sizeof(T))];
    threadgroup T * tile_w = (threadgroup T *) tiles;
    threadgroup T * tile_x = tile_w + 64 * 32;
    if (D::LEVELS) {
        if (tid < 16) levels[tid] = D::level(tid);
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }

    const uint all_rows = rows_of(*step, a.per_token), first_x = place.x * BX;
    if (first_x >= all_rows) return;
    const uint n_rows = min(all_rows - first_x, uint(BX));

    const BoundWeights weights = PRODUCT_WEIGHTS;
    const Target w = target_of(weights, a, place.y, 64);
    const uint n_out = w.n_out;
    const uint first = w.unit * (LINEAR_GATE ? 32 : 64);

    // Absent rows repeat the last one.
    const uint2 w_at = tile_row(first, tid);
    const bool up = LINEAR_GATE && w_at.x == 1;
    const WeightRow w_row = weight_row(up ? codes_1 : w.codes, up ? scales_1 : w.scales, up ? offsets_1 : w.offsets, levels, a,
                                       min(w_at.y, n_out - 1));
    const uint x_at = min(uint(tid / (128 / BX)), n_rows - 1);
    device const float * x_row = x + ulong(first_x + x_at) * a.x_stride;
    GemmOutput output;
    output.bias_0 = w.bias;
    output.bias_1 = bias_1;
    output.other = other;
    output.row_gate = row_gate;
    output.y = w.y;
    output.n_out = n_out;
    output.up_stride = a.up_stride;
    output.first_row = first_x;
    output.n_rows = n_rows;
    output.first = first;
    output.softcap = a.softcap;

#ifdef WITH_TENSORS
    if (LINEAR_TENSOR) {
        device float * rows = (device float *) x + ulong(first_x) * a.x_stride;
        tensor_tile<D, BX>(w_row, RowsInPlace{rows, int(a.x_stride), int(n_rows)}, a.n_in, tile_w, TensorOutput{output}, tid);
        return;
    }
#endif
    const GemmSums<BX> sums = gemm_products<D, BX, false>(w_row, x_row, a.n_in, n_rows, tile_w, tile_x, tid, sg);

    // Eight rows of x and 32 neighbouring columns at a time pass through the tiles' memory.
    threadgroup_barrier(mem_flags::mem_threadgroup);
    threadgroup float * strip = (threadgroup float *) tiles + sg * 256;
    #pragma clang loop unroll(full)
    for (short i = 0; i < BX / 16; i++) {
        #pragma clang loop unroll(full)
        for (short j = 0; j < 4; j++) simdgroup_store(sums.m[i][j], strip + 8 * j, 32, ulong2(0, 0), false);
        simdgroup_barrier(mem_flags::mem_threadgroup);
        write_strip(output, strip, 32, sg / 2 * (BX / 2) + 8 * i, sg, lane);
        simdgroup_barrier(mem_flags::mem_threadgroup);
    }
}

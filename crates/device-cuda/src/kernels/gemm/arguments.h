// Arguments of the products, their inputs and the repacks: plain structs, passed by value as a
// kernel's only parameter. Pointers are device addresses; unused fields are 0. build.rs gives the
// host the same structs.
//
// Layouts
//
//   packed weights: [ceil(n_out / 64)][k_tiles][TILE bytes], k_tiles = 2 * ceil(n_in / 128). A tile
//   is 64 rows by 64 columns of one codec (codec.h), in the register order of the first operand of
//   mma.m16n8k16. Elements outside the matrix are 0.
//   tiled input ("X"): f16, [k_tiles][row_groups][8 rows][64 columns], 1,024 bytes for a group of 8
//   rows. Chunk c of 16 bytes of row r is stored as chunk c ^ r (the 128-byte swizzle of wgmma).
//   Columns past n_in are 0. Rows past the last one may hold anything, but their group of 8 must
//   exist. 1,024-byte aligned.
#pragma once
#include "gemm/types.h"

#define EPILOGUE_STORE 0 // y = sum + bias, of up to three matrices that were packed one after the other
#define EPILOGUE_ADD 1   // y = sum + bias + residual
#define EPILOGUE_GATE 2  // packed rows interleaved, 8 of gate then 8 of up: y = activation(gate) * up

#define ACTIVATION_SILU 0
#define ACTIVATION_GELU_TANH 1
#define ACTIVATION_GELU_ERF 2
#define ACTIVATION_RELU 3

// y[m][n] = sum over k of x[m][k] * w[n][k]
struct GemmArguments {
    uint n_rows;  // rows of x (tokens)
    uint n_out;  // rows of the weights, gate and up together
    const uchar *weights;  // packed weights; experts one after the other
    const uchar *x;  // tiled input
    float *y;  // (n_rows, y_stride)
    const float *residual;  // f32 (n_rows, y_stride): EPILOGUE_ADD; may be y
    const float *bias;  // f32 (n_out) or 0; not with EPILOGUE_GATE
    const float *x_scales;  // 0, or (n_rows): what each row of x was divided by
    float *y1;  // (n_rows, y_stride1): of the packed rows from first1 on
    float *y2;
    const float *bias1;
    const float *bias2;
    float *partials;  // n_splits > 1: f32 (tiles, n_splits, 128, tile width)
    uint *counters;  // n_splits > 1: (tiles) u32, zeros; zeros again afterwards
    // 0, or grouped by expert: (.x expert, .y first row of the tile in x, .z rows of the tile)
    const uint4 *tiles;
    const uint *n_tiles;  // grouped: number of tiles, on the device
    const uint *pairs;  // grouped: the row of y of each row of x
    ulong expert_bytes;  // grouped: bytes of one expert's packed weights
    uint k_tiles;  // see above; even
    uint row_groups;  // groups of 8 rows from one k tile of x to the next
    uint y_stride;
    uint n_splits;  // parts of K, at most k_tiles / 2; 1 if K is not split, and for grouped tiles
    uint epilogue;
    uint activation;
    // first packed row of a second matrix, a multiple of 64; 0: no second matrix. y has y_stride
    // columns then
    uint first1;
    uint first2;
    uint y_stride1;  // columns of the second matrix
    uint y_stride2;
};

// Arguments of rows_input, which makes a tiled input of f32 rows.
struct InputArguments {
    uint n_rows;  // of `out`
    uint n_cols;
    const float *x;  // (n, n_cols)
    const float *weight;  // of the norm: (n_cols) or 0
    uchar *out;  // tiled
    float *scales;  // 0, or (n_rows): the power of two by which each row is divided
    // 0, or for each row of `out` its pair: `pairs_a_row` times the row of x, plus a remainder; or
    // NO_ROW, PAST_ROWS
    const uint *pairs;
    uint k_tiles;
    uint row_groups;
    uint has_norm;
    float eps;
    uint pairs_a_row;
    uint reserved;
};
#define NO_ROW 0xffffffffu     // zeros
#define PAST_ROWS 0xfffffffeu  // nothing reads this row

// Arguments of expert_tiles, which sorts rows by the experts that they chose (expert_tiles.h).
struct ExpertTilesArguments {
    uint n_rows;
    uint k;  // experts of a row
    uint n_experts;
    uint width;  // most rows of a tile
    const uint *ids;  // (n_rows, k)
    uint *pairs;  // (n_rows * k + 7 * n_experts)
    uint4 *tiles;  // (n_rows * k / width + n_experts)
    uint *n_tiles;  // (1)
};

// Arguments of the repacks, which make packed weights of a file's rows.
struct RepackArguments {
    const uchar *rows;  // (n_rows) rows of row_bytes
    // 0, or n_rows rows of a second matrix, interleaved with the first by eights
    const uchar *up_rows;
    const uchar *scales;  // affine types: (n_rows, groups) and, for up_rows, up_scales
    const uchar *biases;
    const uchar *up_scales;
    const uchar *up_biases;
    uchar *packed;  // of the whole matrix
    ulong row_bytes;
    uint n_rows;  // of one matrix
    uint n_cols;
    uint first_row;  // packed row of the first one, a multiple of 64 (matrices joined row by row)
    uint k_tiles;
    uint bits;  // affine types
    uint group;
    uint scale_type;  // affine types: 0 f32, 1 f16, 2 bf16, 3 E8M0
    uint symmetric;  // affine types: no biases, 2^(bits - 1) is subtracted
};

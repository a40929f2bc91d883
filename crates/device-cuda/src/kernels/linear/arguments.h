// Arguments of the products. build.rs gives the host the same structs.
#pragma once

// A matrix, or a stack of matrices as one of all their rows. Its numbers are stored in planes, each
// row of a plane beginning at a multiple of its stride: `codes` and `high` hold the integers
// (linear/codes.cuh), `scales` and `supers` what they are multiplied by (linear/blocks.cuh). 48
// bytes.
struct WeightArguments {
    const uchar *codes;
    const uchar *high;
    const uchar *scales;
    const uchar *supers;
    uint code_stride; // bytes
    uint high_stride;
    uint scale_stride;
    uint super_stride;
};

// One matrix of a product.
struct MatrixArguments {
    WeightArguments weight;
    const float *bias; // may be null
    float *out;
    uint n_out;
    uint kind; // of affine types: one of SCALE_*, and SYMMETRIC
    uint group_shift; // of affine types: a group is 32 << group_shift columns
    uint reserved;
};

// gemv and gemm.
struct LinearArguments {
    uint n_rows;
    uint n_in;
    uint n_matrices;
    uint tail; // one of TAIL_*
    uint activation;
    uint has_norm;
    float eps;
    uint k; // of experts: how many a row has; 0: no experts
    uint x_per_pair; // of experts: 1: each has its own rows
    uint n_warps; // warps' worth of columns
    uint k_parts; // gemv_one: warps that share a column
    uint reserved;
    const float *x;
    const float *norm; // of the norm: may be null
    const float *residual;
    const uint *ids; // (rows, k)
    const float *pair_weights; // gemv_experts with x_per_pair: (k)
    float *out; // of TAIL_ADD and TAIL_GATE
    const ushort *x_f16; // gemm: rows in halves, each divided by its scale
    const float *x_scales; // gemm
    MatrixArguments m0;
    MatrixArguments m1;
    MatrixArguments m2;
};

#define TAIL_STORE 0
#define TAIL_ADD 1
#define TAIL_GATE 2

// The numbers that scales are stored as.
#define SCALE_F32 0
#define SCALE_F16 1
#define SCALE_BF16 2
#define SYMMETRIC 4

// rows_f16: rows on their way to gemm.
struct RowsArguments {
    uint n_rows;
    uint n_in;
    uint stride; // halves from one row to the next, a multiple of 32; what is beyond n_in is zero
    uint has_norm;
    float eps;
    uint reserved;
    const float *x;
    const float *norm;
    ushort *x_f16;
    float *x_scales;
    float *normed; // may be null: the norm's value, for others
};

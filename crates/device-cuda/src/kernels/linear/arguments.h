// Arguments of the products. build.rs gives the host the same structs.
#pragma once

// A matrix, or a stack of matrices that are one matrix of all their rows. Its data is in planes,
// and each row of a plane begins at a multiple of the plane's stride. `codes` and `high` hold the
// integers (linear/codes.cuh), `scales` and `supers` their factors (linear/blocks.cuh). 48 bytes.
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
    uint kind; // affine types: one of SCALE_*, and SYMMETRIC
    uint group_shift; // affine types: a group is 32 << group_shift columns
    uint reserved;
};

// Arguments of gemv and gemm.
struct LinearArguments {
    uint n_rows;
    uint n_in;
    uint n_matrices;
    uint tail; // one of TAIL_*
    uint activation;
    uint has_norm;
    float eps;
    uint k; // experts of a row; 0: no experts
    uint x_per_pair; // 1: each expert has its own rows of x
    uint n_warps; // number of warps that all columns need
    uint k_parts; // gemv_one: warps that share a column
    uint reserved;
    const float *x;
    const float *norm; // weights of the norm, may be null
    const float *residual;
    const uint *ids; // (rows, k)
    const float *pair_weights; // gemv_experts with x_per_pair: (k)
    float *out; // TAIL_ADD and TAIL_GATE
    const ushort *x_f16; // gemm: rows as halves, each divided by its scale
    const float *x_scales; // gemm: scales of the rows of x_f16
    MatrixArguments m0;
    MatrixArguments m1;
    MatrixArguments m2;
};

#define TAIL_STORE 0
#define TAIL_ADD 1
#define TAIL_GATE 2

// Types of stored scales.
#define SCALE_F32 0
#define SCALE_F16 1
#define SCALE_BF16 2
#define SYMMETRIC 4

// Arguments of rows_f16, which prepares rows for gemm.
struct RowsArguments {
    uint n_rows;
    uint n_in;
    uint stride; // halves from one row to the next, a multiple of 32; columns past n_in are zero
    uint has_norm;
    float eps;
    uint reserved;
    const float *x;
    const float *norm;
    ushort *x_f16;
    float *x_scales;
    float *normed; // may be null; rows after the norm in f32, for other kernels
};

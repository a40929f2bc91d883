// Arguments of the kernels that multiply with weights. All fields have 4 bytes; sizes are multiples
// of 16. build.rs gives the host the same structs.
#pragma once

// linear/gemv.h, linear/gemm.h, expert_linear.h: 64 bytes
struct LinearArguments {
    uint n_in;           // columns of x and of each weight
    uint per_token;      // rows of x for each token; 0: one for each output (rows_of in step.h)
    uint x_stride;       // floats from one row of x to the next
    uint row_bytes;      // bytes of a weight's row, without planes
    uint scale_bytes;    // bytes of a row of its plane of scales (and of offsets); 0 without planes
    uint n_out_0;        // rows of weight 0
    uint n_out_1;        // of weight 1; 0 without
    uint n_out_2;        // of weight 2; 0 without
    float eps;           // LINEAR_NORM: added to the mean square
    float softcap;       // LINEAR_SOFTCAP: the bound
    uint n_experts;      // expert_linear: matrices
    uint experts_per_row; // expert_linear: k, columns of ids
    uint up_stride;      // LINEAR_UP: floats from one row of up to the next
    uint reserved0;
    uint reserved1;
    uint reserved2;
};

// linear/merged.h: 80 bytes
struct MergedArguments {
    LinearArguments linear; // one weight, one row
    uint n_heads;           // of the attention, n_in = n_heads * head_dim
    uint head_dim;
    uint n_splits;          // parts of each head
    uint has_sinks;         // 0: none
};

// join.metal: a branch that joins the residual stream (join.h). 32 bytes
struct JoinArguments {
    uint per_token;
    uint cols;
    uint n_parts;    // JOIN_PARTS
    float factor;    // of the sum
    float eps;       // of the norm of the branch
    float first_eps; // JOIN_PAIR: of the norm of x
    float other_eps; // of that of the other
    float norm_eps;  // of the norms of the sum
};

// linear/joined.h: 112 bytes
struct JoinedArguments {
    LinearArguments linear; // one row
    JoinArguments join;     // cols = n_in
    uint passes;            // blocks that a simdgroup makes
    uint reserved0;
    uint reserved1;
    uint reserved2;
};

// expert_linear_<type>_gemv: 80 bytes
struct ExpertArguments {
    LinearArguments experts;
    uint beside_n_in;        // EXPERTS_BESIDE: columns of the dense weight
    uint beside_row_bytes;   // as row_bytes, of it
    uint beside_scale_bytes; // as scale_bytes, of it
    uint beside_n_out;       // rows of it
};

// expert_groups.metal, expert_linear.h: up to 32 pairs of one expert. 16 bytes
struct ExpertTile {
    uint expert;  // whose matrix
    uint first;   // index into `order` of the first pair
    uint n_pairs; // 0: nothing to do
    uint zero;    // padding
};

// embed.h: 16 bytes
struct EmbedArguments {
    uint n_cols;      // columns of the table and of out
    uint row_bytes;   // bytes of a row of the table, without planes
    uint scale_bytes; // bytes of a row of its plane of scales; 0 without planes
    float scale;      // factor on every value
};

// Arguments of the kernels that multiply with weights. All fields have 4 bytes; sizes are multiples
// of 16. build.rs translates them to Rust for the host.
#pragma once

// Arguments of linear/gemv.h, linear/gemm.h and expert_linear.h: 64 bytes.
struct LinearArguments {
    uint n_in;           // columns of x and of each weight
    uint per_token;      // rows of x for each token; 0: one row for each output (rows_of in step.h)
    uint x_stride;       // floats between the starts of two rows of x
    uint row_bytes;      // bytes of a row of a weight, without planes
    uint scale_bytes;    // bytes of a row of the plane of scales (and of offsets); 0 without planes
    uint n_out_0;        // rows of weight 0
    uint n_out_1;        // rows of weight 1; 0 without weight 1
    uint n_out_2;        // rows of weight 2; 0 without weight 2
    float eps;           // LINEAR_NORM: added to the mean square
    float softcap;       // LINEAR_SOFTCAP: bound of the output
    uint n_experts;      // expert_linear: number of matrices
    uint experts_per_row; // expert_linear: k, columns of ids
    uint up_stride;      // LINEAR_UP: floats between the starts of two rows of up
    uint reserved0;
    uint reserved1;
    uint reserved2;
};

// Arguments of linear/merged.h: 80 bytes.
struct MergedArguments {
    LinearArguments linear; // one weight, one row
    uint n_heads;           // heads of the attention, n_in = n_heads * head_dim
    uint head_dim;
    uint n_splits;          // parts of each head
    uint has_sinks;         // 0: no sinks
};

// Arguments of join.metal, which adds a branch to the residual stream (join.h): 32 bytes.
struct JoinArguments {
    uint per_token;  // rows for each token; 0: one row for each output
    uint cols;       // columns of a row
    uint n_parts;    // JOIN_PARTS: parts of a row
    float factor;    // factor of the sum
    float eps;       // JOIN_NORM: of the norm of the branch
    float first_eps; // JOIN_PAIR: of the norm of x
    float other_eps; // JOIN_PAIR: of the norm of `other`
    float norm_eps;  // JOIN_NORMS: of the norms of the sum
};

// Arguments of linear/joined.h: 112 bytes.
struct JoinedArguments {
    LinearArguments linear; // one row
    JoinArguments join;     // cols = n_in
    uint passes;            // blocks that a simdgroup computes
    uint reserved0;
    uint reserved1;
    uint reserved2;
};

// Arguments of expert_linear_<type>_gemv: 80 bytes.
struct ExpertArguments {
    LinearArguments experts;
    uint beside_n_in;        // EXPERTS_BESIDE: columns of the dense weight
    uint beside_row_bytes;   // like row_bytes, for the dense weight
    uint beside_scale_bytes; // like scale_bytes, for the dense weight
    uint beside_n_out;       // rows of the dense weight
};

// Up to 64 pairs of one expert (expert_groups.metal, expert_linear.h): 16 bytes.
struct ExpertTile {
    uint expert;  // index of the expert
    uint first;   // index into `order` of the first pair
    uint n_pairs; // 0: the tile is unused
    uint zero;    // padding
};

// Arguments of embed.h: 32 bytes.
struct EmbedArguments {
    uint n_cols;      // columns of the table and of out
    uint row_bytes;   // bytes of a row of the table, without planes
    uint scale_bytes; // bytes of a row of the plane of scales; 0 without planes
    float scale;      // factor on every value
    uint n_turns;     // pairs of all tables of cosines and sines (turns.h); 0: written elsewhere
    uint reserved0;
    uint reserved1;
    uint reserved2;
};

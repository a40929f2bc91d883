// Arguments of the kernels of this folder: structs of 4-byte fields, sizes multiples of 16, passed
// with setBytes at buffer
// 0. build.rs gives the host the same structs. Those of linear/ and attention/ are in those
//    folders.
#pragma once

// Kernels whose operands are the same on every GPU (device-gpu/src/signature.rs): activate, gate,
// gate_clamped, add, scale, softcap, clamped, columns, join_heads, expert_bias, select_rows, input,
// ordinals. And pool, adapters.
struct ElementArguments {
    uint per_token; // rows of out, see rows_of in step.h
    uint cols;      // of a row of out
    uint first;     // columns: the first one taken of each group
    // columns: of a group of x; expert_bias: of an expert; join_heads: of a head of out
    uint group;
    // columns: taken of each group; expert_bias: experts of a row; join_heads: columns of a head of
    // a
    uint taken;
    // scale: the factor; softcap: the cap; clamped: the least; gate_clamped: in the sigmoid
    float factor;
    float limit;    // clamped: the most; gate_clamped: bound of both
    uint reserved;
};

// rms_norm and layer_norm.
struct NormArguments {
    uint per_token;
    uint cols;  // of a row
    uint group; // columns normalised together
    float eps;
    uint weights; // rms_norm: length of the weight, group or cols; not 0
    uint reserved0;
    uint reserved1;
    uint reserved2;
};

// How the heads of one value turn.
struct TurnArguments {
    uint n_heads;
    uint n_dims; // columns of a head that turn
    float scale; // on cosine and sine
    float eps;   // of the norm before
};

// rope: heads of one value.
struct RopeArguments {
    uint head_dim;
    uint reserved0;
    uint reserved1;
    uint reserved2;
    TurnArguments turn;
};

// Where keys and values of a layer lie in the pages of its group.
struct PagesArguments {
    uint layer_offset; // bytes of a page before the layer's
    uint group;
    uint page_len;
    uint n_kv_heads;
    uint head_dim;
    uint values_are_keys; // 1: a page has no values, the keys are read for them
    uint reserved0;
    uint reserved1;
};

// kv_write.
struct KvWriteArguments {
    PagesArguments pages;
};

// qk_rope_kv.
struct QkRopeKvArguments {
    PagesArguments pages;
    TurnArguments q; // n_heads 0: no query heads
    TurnArguments k;
    float v_eps;     // FC_V_NORM
    uint reserved0;
    uint reserved1;
    uint reserved2;
};

// route.
struct RouteArguments {
    uint per_token;
    uint n_experts;
    uint k;
    float factor;
    uint n_groups; // FC_GROUPS; divides n_experts
    uint n_used;   // groups whose experts can be chosen
    uint n_best;   // experts whose sizes are a group's
    uint reserved;
};

// expert_sum.
struct ExpertSumArguments {
    uint per_token;
    uint cols;
    uint k;
    uint reserved;
};

// unfold.
struct UnfoldArguments {
    uint per_token; // rows of out for each token
    uint cols;      // of x
    uint size;      // rows of a window
    uint stride;    // rows from one window to the next
};

// short_conv.
struct ShortConvArguments {
    uint cols;
    uint size;         // rows of a window
    uint state_stride; // numbers from one state to the next
    uint reserved;
};

// gated_delta and selective_scan: see scan.h.
struct ScanArguments {
    uint n_heads;
    uint n_shared;     // heads of keys and queries
    uint rows;         // of a head's state: columns of a key
    uint cols;         // and of a value
    uint state_stride; // numbers from one state to the next
    float scale;       // gated_delta: factor on the output
    uint least_chunk;  // rows of a span from which on it goes in chunks, see scan_chunks.h
    uint reserved;
};

// peaks.
struct PeakArguments {
    uint n_vectors;
    uint reserved0;
    uint reserved1;
    uint reserved2;
};

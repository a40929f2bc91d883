// Arguments of the kernels of this folder: structs of 4-byte fields, sizes multiples of 16, passed
// with setBytes at buffer 0. build.rs translates them to Rust for the host. linear/ and attention/
// have headers of their own.
#pragma once

// Arguments of element-wise kernels, whose operands are the same on every GPU
// (device-gpu/src/signature.rs): activate, gate, gate_clamped, add, scale, softcap, clamped,
// columns, join_heads, expert_bias, select_rows, input, ordinals. Also of pool and adapters.
struct ElementArguments {
    uint per_token; // rows of out for each token, see rows_of in step.h
    uint cols;      // columns of out
    uint first;     // columns: the first column taken of each group
    // Columns of a group of x (columns), of an expert (expert_bias), of a head of out (join_heads).
    uint group;
    // Columns taken of each group (columns), experts of a row (expert_bias), columns of a head of a
    // (join_heads).
    uint taken;
    // Factor (scale), cap (softcap), lower bound (clamped), factor in the sigmoid (gate_clamped).
    float factor;
    float limit;    // upper bound (clamped), bound of gate and up (gate_clamped)
    uint reserved;
};

// Arguments of rms_norm and layer_norm.
struct NormArguments {
    uint per_token; // rows for each token, see rows_of in step.h
    uint cols;  // columns of a row
    uint group; // columns normalised together
    float eps;
    uint weights; // rms_norm: length of the weight, group or cols; not 0
    uint reserved0;
    uint reserved1;
    uint reserved2;
};

// Norm and RoPE of the heads of one value.
struct TurnArguments {
    uint n_heads;
    uint n_dims; // columns of a head that RoPE rotates
    float eps;   // of the norm before RoPE
    uint reserved;
};

// A pair of columns in a table of cosines and sines (turns.h).
struct TurnPair {
    float frequency; // radians per position
    float scale;     // factor on cosine and sine
    uint first;      // index of row 0's entry among the entries of all tables
    uint stride;     // entries from a row to the next
};

// Arguments of rope.
struct RopeArguments {
    uint head_dim;
    uint reserved0;
    uint reserved1;
    uint reserved2;
    TurnArguments turn;
};

// Place of a layer's keys and values in the pages of its KV group.
struct PagesArguments {
    uint layer_offset; // offset of the layer in a page, in bytes
    uint group;
    uint page_len;
    uint n_kv_heads;
    uint head_dim;
    uint values_are_keys; // 1: pages store no values, the keys are the values
    uint reserved0;
    uint reserved1;
};

// Arguments of kv_write.
struct KvWriteArguments {
    PagesArguments pages;
};

// Arguments of qk_rope_kv.
struct QkRopeKvArguments {
    PagesArguments pages;
    TurnArguments q; // n_heads 0: no query heads
    TurnArguments k;
    float v_eps;     // FC_V_NORM
    uint reserved0;
    uint reserved1;
    uint reserved2;
};

// Arguments of route and expert_groups.
struct RouteArguments {
    uint per_token;
    uint n_experts;
    uint k;
    float factor;
    uint n_groups; // FC_GROUPS; divides n_experts
    uint n_used;   // groups whose experts can be chosen
    uint n_best;   // experts of a group whose sizes are summed
    uint reserved;
};

// Arguments of expert_sum.
struct ExpertSumArguments {
    uint per_token;
    uint cols;
    uint k;
    uint reserved;
};

// Arguments of unfold.
struct UnfoldArguments {
    uint per_token; // rows of out for each token
    uint cols;      // of x
    uint size;      // rows of a window
    uint stride;    // rows between the starts of two windows
};

// Arguments of short_conv.
struct ShortConvArguments {
    uint cols;
    uint size;         // rows of a window
    uint state_stride; // floats between the starts of two states
    uint reserved;
};

// Arguments of gated_delta and selective_scan, see scan.h.
struct ScanArguments {
    uint n_heads;
    uint n_shared;     // heads of keys and queries
    uint rows;         // rows of a head's state: columns of a key
    uint cols;         // columns of a head's state: columns of a value
    uint state_stride; // floats between the starts of two states
    float scale;       // gated_delta: factor on the output
    uint least_chunk;  // minimum rows of a span that is computed in chunks, see scan_chunks.h
    uint reserved;
};

// Arguments of peaks.metal.
struct PeakArguments {
    uint n_vectors;
    uint reserved0;
    uint reserved1;
    uint reserved2;
};

// Arguments of kernels. build.rs gives the host the same structs, where a pointer is a u64, an
// address in GPU memory. The first field of each struct is the number of rows of the command in
// this step. The host writes it at each launch, and the other fields when a program is compiled.
#pragma once

// A range of a step's memory to copy from pinned memory.
struct Copy {
    uint first_word;
    uint n_words;
};

// Arguments of step_load, which copies words of the host's region to the same offsets of the GPU's.
// The steps of one launch have a region each: the host's regions are a ring, and the GPU's have the
// same indices.
struct StepLoadArguments {
    const uint *from; // the first region
    uint *to;
    uint region_words;
    uint first_region; // index of the first step's region
    uint n_regions;
    uint reserved;
    Copy copies0;
    Copy copies1;
    Copy copies2;
    Copy copies3;
    Copy copies4;
    Copy copies5;
    Copy copies6;
    Copy copies7;
};

// Arguments of element-wise kernels, columns, join_heads, select_rows, input, expert_bias and
// ordinals.
struct ElementArguments {
    uint n_rows;
    uint cols; // columns of the output
    uint x_cols; // columns of x
    uint first; // columns: first copied column of a group
    // columns: columns of a group of x; expert_bias: columns of an expert; join_heads: columns of a
    // head of out
    uint group;
    // copied columns of a group (columns), experts of a row (expert_bias), columns of a head of a
    // (join_heads)
    uint taken;
    uint kind; // one of ACTIVATE_*
    // scale: the factor; softcap: the cap; gate_clamped: factor in the sigmoid; clamped: minimum
    float factor;
    float limit; // gate_clamped: limit of both inputs; clamped: the maximum
    uint reserved;
    const float *a;
    const float *b;
    const uint *rows; // select_rows: indices of rows; expert_bias: (n, taken) ids
    float *out;
};

#define ACTIVATE_SILU 0
#define ACTIVATE_GELU_TANH 1
#define ACTIVATE_GELU_ERF 2
#define ACTIVATE_RELU 3
#define ACTIVATE_SIGMOID 4
#define ACTIVATE_IDENTITY 5
#define ACTIVATE_RELU_SQUARED 6
#define ACTIVATE_SOFTPLUS 7

// Arguments of rms_norm, layer_norm and join.
struct NormArguments {
    uint n_rows;
    uint cols;
    uint group; // columns normalised together
    float eps;
    float factor; // join: factor of the sum
    uint weight_stride; // rms_norm: weights from one group to the next; 0: all groups share them
    const float *x;
    const float *weight; // may be null
    const float *bias; // may be null
    const float *residual; // join: the residual
    float *out;
};

// Arguments of rope.
struct RopeArguments {
    uint n_rows;
    uint n_heads;
    uint head_dim;
    uint n_dims;
    uint interleaved; // 1: pairs (2i, 2i + 1); 0: (i, i + n_dims / 2)
    float scale;
    const float *x;
    const float *frequencies; // null: no rotation
    const uint *positions;
    float *out;
};

// A layer's part of the pages of its group. 64 bytes.
struct PagesArguments {
    uchar *pool;
    ulong page_bytes;
    ulong layer_offset;
    const uint *tables; // page tables of the step for the group: (spans, table_stride)
    uint table_stride; // entries from one span's table to the next
    uint page_len;
    uint n_kv_heads;
    uint head_dim;
    uint values_are_keys; // 1: keys are also the values
    uint reserved;
    const uint *known; // bias that keys are stored without (key_bias.cuh); null: none
};

// Arguments of kv_write and qk_rope_kv: norm and RoPE of heads, and their store to the KV cache.
struct HeadsArguments {
    uint n_rows;
    uint n_q_heads; // 0: no queries
    uint q_norm; // 1: heads of q are normalised
    uint k_norm;
    uint v_norm;
    uint n_dims; // columns of a head with RoPE; 0: none
    uint interleaved;
    uint k_turns; // 1: RoPE is applied to keys as to queries
    float scale; // factor of the rotated columns
    float q_eps;
    float k_eps;
    float v_eps;
    const float *q;
    const float *k;
    const float *v;
    const float *q_weight; // may be null
    const float *k_weight;
    const float *frequencies;
    const uint *positions;
    const uint *row_spans;
    float *q_out; // null: queries are not stored
    float *k_out; // null: no other kernel reads the keys
    PagesArguments pages;
};

// Arguments of attention, cross_attention, self_attention and the merge of split positions.
struct AttentionArguments {
    uint n_rows;
    uint n_heads;
    uint n_splits; // blocks that share the positions of a row
    uint split_len; // fewest positions of a split
    uint window; // 0: none; self_attention: 1 + the rows that a row sees to each side
    uint n_states; // number of encoder states; 0: attention to the positions of the sequence
    float scale;
    float softcap; // 0: none
    uint chunked; // 1: the window begins at a multiple of its length
    uint both_ways; // 1: a row also sees later rows of its span
    const float *q;
    const float *sinks; // may be null
    const uint *positions;
    const uint *row_spans;
    const Span *spans;
    const float *k; // self_attention: rows instead of pages
    const float *v;
    float *out;
    float *partials; // (rows, heads, splits, head_dim): weighted values of a split
    float *totals; // (rows, heads, splits, 2): largest score of a split, and sum of its weights
    PagesArguments pages;
};

// Arguments of row_f16: heads and attention of one row.
struct RowArguments {
    uint n_rows;
    uint reserved;
    HeadsArguments heads;
    AttentionArguments attention;
};

// Arguments of cross_scores.
struct ScoresArguments {
    uint n_rows;
    uint n_heads;
    uint n_chosen;
    uint n_states;
    float scale;
    uint reserved;
    const float *q;
    const uint *heads; // (n_chosen)
    const uint *row_spans;
    float *out;
    PagesArguments pages;
};

// Arguments of route.
struct RouteArguments {
    uint n_rows;
    uint n_experts;
    uint k;
    uint normalise;
    float factor;
    uint sigmoid; // 1: scores are sigmoids of x, not a softmax
    uint n_groups; // 0: experts are chosen from all
    uint n_used; // groups whose experts can be chosen
    uint n_best; // experts of a group whose scores are summed
    uint reserved;
    const float *x;
    const float *bias; // may be null; added to scores for the choice only
    const float *scales; // may be null
    uint *ids;
    float *weights;
};

// Arguments of expert_sum.
struct ExpertSumArguments {
    uint n_rows;
    uint k;
    uint cols;
    uint reserved;
    const float *x;
    const float *weights;
    const float *residual; // may be null
    float *out;
};

// Arguments of embed and embed_positions.
struct EmbedArguments {
    uint n_rows;
    uint cols;
    float scale;
    uint n_table;
    const uint *tokens; // or positions
    const uint *chosen;
    float *out;
    MatrixArguments table;
};

// Arguments of pool, unfold, short_conv and adapters.
struct SpanArguments {
    uint n_rows;
    uint cols;
    uint size; // rows of a window
    uint stride;
    // pool: 0 mean, 1 first, 2 last; adapters: 1: a row for each output; unfold: rows of a token
    uint kind;
    uint n_spans;
    const float *x;
    const float *weight;
    const float *bias; // short_conv: may be null
    const Span *spans;
    const uint *row_spans;
    const uint *rows; // pool and adapters: the output rows
    float *states; // short_conv: the layer's part of state 0
    ulong state_stride; // floats from one state to the next
    float *out;
};

// Arguments of gated_delta and selective_scan: heads whose states are matrices (rows, cols).
struct ScanArguments {
    uint n_rows;
    uint n_heads;
    uint n_shared; // heads of queries and keys, or groups of b and c
    uint rows; // rows of a head's state: columns of a key, or of b
    uint cols; // columns of a value
    uint n_spans;
    uint tiled; // gated_delta: head h has key head h % n_shared
    uint step_per_row; // gated_delta: 1: a decay for each row of the state
    float scale;
    uint reserved;
    const float *x; // values
    const float *k; // keys, or b
    const float *q; // queries, or c
    const float *step;
    const float *beta;
    const float *rate;
    const float *skip; // may be null
    const Span *spans;
    float *states; // the layer's part of state 0
    ulong state_stride;
    float *out;
};

// Arguments of all_reduce and all_gather, and of their kernels for many rows (collective.cu).
struct CollectiveArguments {
    uint n_rows;
    uint cols; // columns of x
    uint rank;
    uint n_ranks;
    uint is_alone; // 1: no other rank is on the same GPU
    uint reserved;
    const float *x; // (n, cols), this rank's
    float *out; // (n, cols); all_gather: (n, n_ranks * cols)
    // chunks that each block has exchanged so far, then those of the kernels for many rows
    uint *epochs;
    const ulong *inboxes; // the address of each rank's inbox
};

// Most blocks of a collective, and of one for many rows.
#define COLLECTIVE_BLOCKS 64
#define COLLECTIVE_BLOCKS_MANY 128

// Arguments of argmax, penalties, masks and sample.
struct ChooseArguments {
    uint n_rows;
    uint cols;
    float *logits;
    const Choice *choices;
    const uint *recent;
    const uint *pending;
    uint *chosen;
    uint *host_chosen; // copy of `chosen` in pinned memory
    uint *bests; // (rows, BEST_PARTS, 2): the best of each part
    const Bias *biases;
    const uint *masks; // in pinned memory: a bit for each token, 1 if it is allowed
};

// Parts of a row of logits.
#define BEST_PARTS 32

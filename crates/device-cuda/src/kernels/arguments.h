// Arguments of kernels. build.rs gives the host the same structs: a pointer is a u64 there, the
// address of memory of the GPU. The first field of each is how many rows the step has for the
// command; the host writes it when it launches, the rest is written when a program is compiled.
#pragma once

// Part of a step's memory on its way from pinned memory.
struct Copy {
    uint first_word;
    uint n_words;
};

// step_load: words of the host's region to the same places of the GPU's.
// Several steps of one launch have a region each, of the host's one after the other in a ring, and
// the same places in it.
struct StepLoadArguments {
    const uint *from; // the first region
    uint *to;
    uint region_words;
    uint first_region; // of the first step
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

// Element-wise kernels, columns, join_heads, select_rows, input, expert_bias, ordinals.
struct ElementArguments {
    uint n_rows;
    uint cols; // of the output
    uint x_cols; // of a row of x
    uint first; // columns: the first that is taken of a group
    uint group; // columns: of x; expert_bias: columns of an expert; join_heads: of a head of out
    // columns: of each group; expert_bias: experts of a row; join_heads: columns of a head of a
    uint taken;
    uint kind; // one of ACTIVATE_*
    // scale: the factor; softcap: the bound; gate_clamped: in the sigmoid; clamped: the least
    float factor;
    float limit; // gate_clamped: of both; clamped: the most
    uint reserved;
    const float *a;
    const float *b;
    const uint *rows; // select_rows: which rows; expert_bias: (n, taken) ids
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

// rms_norm, layer_norm, join.
struct NormArguments {
    uint n_rows;
    uint cols;
    uint group; // columns normalised together
    float eps;
    float factor; // join: on the sum
    uint weight_stride; // rms_norm: from one group's weights to the next; 0: all have the same
    const float *x;
    const float *weight; // may be null
    const float *bias; // may be null
    const float *residual; // join: what is added
    float *out;
};

// rope.
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

// One layer's part of the pages of its group. 64 bytes.
struct PagesArguments {
    uchar *pool;
    ulong page_bytes;
    ulong layer_offset;
    const uint *tables; // of the step, of the group: (spans, stride)
    uint table_stride; // entries from one span's table to the next
    uint page_len;
    uint n_kv_heads;
    uint head_dim;
    uint values_are_keys; // 1: there are no values beside the keys
    uint reserved;
    const uint *known; // what its keys are stored without (key_bias.cuh); null: nothing
};

// kv_write and qk_rope_kv: heads on their way to the cache.
struct HeadsArguments {
    uint n_rows;
    uint n_q_heads; // 0: no queries
    uint q_norm; // 1: heads of q are normalised
    uint k_norm;
    uint v_norm;
    uint n_dims; // columns of a head that turn; 0: none
    uint interleaved;
    uint k_turns; // 1: keys turn as queries do
    float scale; // of the rotation
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
    float *q_out; // null: queries stay
    float *k_out; // null: nobody else reads the keys
    PagesArguments pages;
};

// attention, cross_attention, self_attention and the merge of split positions.
struct AttentionArguments {
    uint n_rows;
    uint n_heads;
    uint n_splits; // blocks that share the positions of a row
    uint split_len; // positions of a split, at least
    uint window; // 0: none; self_attention: rows that a row sees to each side, and 1
    uint n_states; // of encoder states: how many; 0: the positions of the sequence
    float scale;
    float softcap; // 0: none
    uint chunked; // 1: the window begins at a multiple of its length
    uint both_ways; // 1: a row sees the rows of its span after it, too
    const float *q;
    const float *sinks; // may be null
    const uint *positions;
    const uint *row_spans;
    const Span *spans;
    const float *k; // self_attention: rows instead of pages
    const float *v;
    float *out;
    float *partials; // (rows, heads, splits, head_dim): sums of a split
    float *totals; // (rows, heads, splits, 2): its largest score, and the sum of its weights
    PagesArguments pages;
};

// row_f16: heads on their way to the cache and their attention, of one row.
struct RowArguments {
    uint n_rows;
    uint reserved;
    HeadsArguments heads;
    AttentionArguments attention;
};

// cross_scores.
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

// route.
struct RouteArguments {
    uint n_rows;
    uint n_experts;
    uint k;
    uint normalise;
    float factor;
    uint sigmoid; // 1: scores are sigmoids of x, not a softmax
    uint n_groups; // 0: experts are chosen of all
    uint n_used; // groups whose experts can be chosen
    uint n_best; // experts of a group whose scores are summed
    uint reserved;
    const float *x;
    const float *bias; // may be null: added where experts are chosen
    const float *scales; // may be null
    uint *ids;
    float *weights;
};

// expert_sum.
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

// embed, embed_positions.
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

// pool, unfold, short_conv, adapters.
struct SpanArguments {
    uint n_rows;
    uint cols;
    uint size; // of a window
    uint stride;
    uint kind; // of pool: 0 mean, 1 first, 2 last; of adapters: 1: a row for each output
    uint n_spans;
    const float *x;
    const float *weight;
    const float *bias; // of short_conv: may be null
    const Span *spans;
    const uint *row_spans;
    const uint *rows; // of pool and adapters: the output rows
    float *states; // of short_conv: of the layer in state 0
    ulong state_stride; // numbers from one state to the next
    float *out;
};

// gated_delta and selective_scan: heads whose states are matrices (rows, cols).
struct ScanArguments {
    uint n_rows;
    uint n_heads;
    uint n_shared; // heads of queries and keys, or groups of b and c
    uint rows; // of a head's state: columns of a key, or of b
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
    float *states; // of the layer in state 0
    ulong state_stride;
    float *out;
};

// all_reduce, all_gather, and those of many rows (collective.cu): what the GPUs of a group
// exchange.
struct CollectiveArguments {
    uint n_rows;
    uint cols; // of x
    uint rank;
    uint n_ranks;
    uint is_alone; // 1: no other rank is on the same GPU
    uint reserved;
    const float *x; // (n, cols) of this rank
    float *out; // (n, cols); all_gather: (n, n_ranks * cols)
    uint *epochs; // by block: chunks that it has exchanged so far; then those of many rows
    const ulong *inboxes; // by rank: the address of its inbox
};

// Blocks of a collective, at most; of many rows.
#define COLLECTIVE_BLOCKS 64
#define COLLECTIVE_BLOCKS_MANY 128

// argmax, penalties, masks, sample.
struct ChooseArguments {
    uint n_rows;
    uint cols;
    float *logits;
    const Choice *choices;
    const uint *recent;
    const uint *pending;
    uint *chosen;
    uint *host_chosen; // the same in pinned memory
    uint *bests; // (rows, BEST_PARTS, 2): the best of each part
    const Bias *biases;
    const uint *masks; // in pinned memory: a bit for each token, 1: it is allowed
};

// Parts of a row of logits.
#define BEST_PARTS 32

// The table of the persistent decode kernels (README.md), their packed weights, and the arguments
// of a launch. Plain data: a phase is an entry of the table, not code. The host reads the structs,
// enums and numbers below from this file (`build.rs`).
//
// Packed rows
//   A product's rows come in groups of 8. Group i of G belongs to block b of n_blocks if
//   b * G / n_blocks <= i < (b + 1) * G / n_blocks. K is padded to 128 * k_quads * warps columns.
//   A unit is 8 rows by 128 columns, which are 4 blocks of 32: lane l has row l % 8, block l / 8.
//   A step is one unit for each warp w that has columns, of the blocks (w * k_quads + quad) * 4 and
//   the three after it. A step is padded to 128 bytes.
//   A thread block reads its groups in passes of up to 8: for each pass, for each quad, for each
//   group of the pass, one step. All steps lie in this order, groups * k_quads of them in all.
//
// Bytes of a unit: 32 x 16 of nibbles (byte i of word k has column 8 k + i in its lower half and
// column 8 k + 4 + i in its upper half), then by codec
//   q4   32 x 2: d                                weight = d * (q - 8)
//   q4m  32 x 4: d, m                             weight = d * q + m
//   q5m  32 x 4: fifth bits (bits 2 k + i of byte b: column 8 k + 4 i + b),
//        then 32 x 4: d, m                        weight = d * q + m
//   q6   32 x 8: upper bits (word h, chunk 2 h + i: bits 4 i + 2 j + 8 b of byte b:
//        column 8 (2 h + i) + 4 j + b),
//        then 32 x 4: d of both halves            weight = d * (q - 32)
//   q8   instead of nibbles 32 x 32 signed bytes in two planes of 32 x 16 (columns 0..15, 16..31),
//        then 32 x 2: d                           weight = d * q
//   q2m  no nibbles; 32 x 8 like the upper bits of q6,
//        then 32 x 8: d, m of both halves         weight = d * q + m
//   q3   32 x 4: d of both halves                 weight = d * (q - 4)
//   nl   nibbles in the order of their columns, word k from column 8 k on;
//        then 32 x 2: d                           weight = d * the q-th value of IQ4_NL
//   fp4  like nl, but d is the upper half of an f32; weight = d * twice the q-th value of E2M1
//   f16  no nibbles; for each of the 4 blocks, for each of the 8 rows, 4 x 16 bytes of halves:
//        columns 0 to 7, 8 to 15 and so on, each in the order 0 2 1 3 4 6 5 7.
//        Only the kernel for several rows multiplies this codec.
//
// Mixtures
//   gate and up   for each expert, bundles of 16 rows of both matrices: groups gate, up, gate, up,
//                 with zeros after the last row. Each bundle has, for each quad, a step for each of
//                 its 4 groups.
//   down          for each expert, groups of 8 rows; of each group one unit for every 128 columns,
//                 in order. Warp w multiplies every eighth unit, from w on, of the chosen experts'
//                 units one after the other.
//   router        rows of floats, 1,024 * k_quads columns; a step of 4,096 bytes for each quad, in
//                 which warp w has columns (w * k_quads + quad) * 128 .. + 127.
//
// q, k and v
//   One matrix after the other in one QKV phase if all have one type. Otherwise up to three QKV
//   phases follow each other, each of one matrix or of two neighbours. All of them multiply the
//   input that the first one received. Attention follows the last one.
//
// A chunk is 8 values that one block publishes for others, in 16 bytes: 8 signed bytes with a scale
// of 12 bits (the upper bits of an f32), a float, and 4 bits of epoch in each word. For several
// rows the values are integers of 10 bits (exchange.cuh).
#pragma once
#include "gemm/types.h"
#include "step.h"
#include "linear/arguments.h"
#include "arguments.h"

// Codecs of packed weights.
enum PersistentCodec : uint {
    PERSISTENT_CODEC_Q4 = 0,
    PERSISTENT_CODEC_Q4M = 1,
    PERSISTENT_CODEC_Q8 = 2,
    PERSISTENT_CODEC_Q6 = 3,
    PERSISTENT_CODEC_Q5M = 4,
    PERSISTENT_CODEC_F16 = 5, // only in the kernel for several rows
    PERSISTENT_CODEC_Q2M = 6, // from this one on, prebuilt kernels lack the codec
    PERSISTENT_CODEC_Q3 = 7,
    PERSISTENT_CODEC_NL = 8,
    PERSISTENT_CODEC_FP4 = 9,
};

// Kinds of phases: the result that the epilogue computes from a product's sums.
enum PersistentKind : uint {
    PERSISTENT_QKV = 0,         // q, k and v, or a part of them: f32 words to the attention
    PERSISTENT_ADD = 1,         // added to the residual; its norm is the next phase's input
    PERSISTENT_GATE = 2,        // activation(gate) * up is the next phase's input
    PERSISTENT_HEAD = 3,        // logits; the best one is the token
    PERSISTENT_ROUTE = 4,       // scores of experts: f32 words to all blocks, before the scale
    PERSISTENT_EXPERTS = 5,     // like GATE, of the chosen experts, times each expert's weight
    PERSISTENT_ADD_EXPERTS = 6, // like ADD; K is the chosen experts' columns one after the other
};

// Flags of a QKV phase that has a part of q, k and v. A block has at most one pass of a part.
enum PersistentQkvPart : uint {
    PERSISTENT_CONTINUES = 1, // not the first part: its input has been received
    PERSISTENT_CONTINUED = 2, // not the last part: attention does not follow yet
    PERSISTENT_REVERSED = 4,  // the first block has the last groups, which evens out the parts
    PERSISTENT_OF_THREE = 8,  // the first or last of three parts: their sums share one buffer
};

// Parts of an exchange that a phase's input comes from, in bytes from its start. All hold chunks.
enum PersistentInput : uint {
    EXCHANGE_INPUT = 0,         // input of QKV and of the head
    EXCHANGE_MIDDLE = 65536,    // input of gate and up
    EXCHANGE_GATED = 131072,    // input of down
    EXCHANGE_ATTENDED = 262144, // input of the attention's output matrix
};

// The other parts of the exchange of the kernel for one row, in bytes from its start.
#define EXCHANGE_QKV 327680        // words: (rows of q, k and v)
#define EXCHANGE_PARTIALS 458752   // words: (n_kv_heads, splits, H * D + 2 * H)
#define EXCHANGE_BEST 1507328      // 64-bit words
#define EXCHANGE_WIDE 1511424      // words: input of a router, (hidden)
#define EXCHANGE_SCORES 1527808    // words: (n_experts)
#define EXCHANGE_SQUARES 1528832   // words: (2, PERSISTENT_COPIES, 256)
#define PERSISTENT_EXCHANGE 1545216 // bytes of the whole exchange
#define PERSISTENT_COPIES 8        // copies of the squares, so that blocks poll different L2 lines

// Parts of the exchange of the kernel for several rows, in bytes. A phase names its input by a
// PersistentInput, which `PersistentBlock::part` translates. Chunks of the rows are stored
// together: (chunks, 8).
#define EXCHANGE_ROWS_INPUT 0          // 8 rows of 8,192 columns
#define EXCHANGE_ROWS_MIDDLE 131072    // 8 rows of 8,192 columns
#define EXCHANGE_ROWS_ATTENDED 262144  // 8 rows of 8,192 columns
#define EXCHANGE_ROWS_GATED 393216     // 8 rows of 32,768 columns
#define EXCHANGE_ROWS_QKV 917504       // words: (8, rows of q, k and v)
#define EXCHANGE_ROWS_PARTIALS 1441792 // words: (blocks, H * D + 2 * H)
#define EXCHANGE_ROWS_SQUARES 2490368  // words: (2, 8, 256)
#define EXCHANGE_ROWS_BEST 2506752     // 64-bit words: (8, 256)
#define EXCHANGE_ROWS_WIDE 2523136     // words: (8, hidden)
#define EXCHANGE_ROWS_SCORES 2654208   // words: (8, PERSISTENT_MAX_EXPERTS)
#define PERSISTENT_ROWS_EXCHANGE 2662400 // bytes of the whole exchange
// After both exchanges and the turn, each block has cosines and sines of earlier rows of its
// sequence in the step, at most 7. Cosines and sines of its own row are in shared memory.
#define PERSISTENT_ROTARY_AT 5325056
#define PERSISTENT_ROTARY 21504 // bytes of a block, for heads of 256 columns

// Bytes of a unit, by codec.
#define PERSISTENT_UNIT_Q4 576
#define PERSISTENT_UNIT_Q4M 640
#define PERSISTENT_UNIT_Q8 1088
#define PERSISTENT_UNIT_Q6 896
#define PERSISTENT_UNIT_Q5M 768
#define PERSISTENT_UNIT_F16 2048
#define PERSISTENT_UNIT_Q2M 512
#define PERSISTENT_UNIT_Q3 640
#define PERSISTENT_UNIT_NL 576
#define PERSISTENT_UNIT_FP4 576
#define PERSISTENT_ROUTER_STEP 4096 // bytes of a router's step
#define PERSISTENT_BUNDLE 4         // groups of a bundle of gate and up of an expert

#define PERSISTENT_THREADS 320       // threads of a block
#define PERSISTENT_PASS 8            // most groups of a pass
#define PERSISTENT_MAX_SPLITS 32     // most blocks of a KV head of a row
#define PERSISTENT_TILE 16           // positions that a warp attends to at a time
#define PERSISTENT_MAX_BLOCKS 160    // most blocks of a launch
#define PERSISTENT_MAX_SLOTS 40      // most slots of the ring
#define PERSISTENT_LEAST_SLOT 9216   // least bytes of a slot
#define PERSISTENT_MAX_OWN 64        // most rows of the residual of a block, one row of a step
#define PERSISTENT_MAX_VOCAB 524288  // most tokens, a power of two
#define PERSISTENT_MAX_EXPERTS 256   // most experts of a mixture
#define PERSISTENT_MAX_USED 32       // most experts chosen for a token
#define PERSISTENT_MAX_WIDE 4096     // most columns of the residual of a mixture
#define PERSISTENT_CHOICE 272        // bytes of shared memory after the phases, of a mixture
#define PERSISTENT_INPUT 2560        // bytes of shared memory for 1,024 columns of the input

// Limits and sizes of the kernel for several rows.
#define PERSISTENT_MOST_ROWS 8       // most rows of a step
#define PERSISTENT_ROWS_MAX_OWN 32   // most rows of the residual of a block
#define PERSISTENT_ROWS_USED 8       // most experts chosen for a row
#define PERSISTENT_ROWS_CHOICE 1584  // bytes of shared memory after the phases, of a mixture
#define PERSISTENT_ROWS_INPUT 16640  // bytes of shared memory for 1,024 columns of the input
#define PERSISTENT_FEWEST_QUADS 4    // least most_quads; wider inputs come in parts of this size

// Bytes of dynamic shared memory without the ring, the input and the phases. Heads have d columns,
// and a KV head has h query heads.
#define PERSISTENT_SHARED(d, h) (4752 + 12 * (d) + 36 * (h) * (d) + 64 * (h))
#define PERSISTENT_SHARED_ROWS(d, h) (PERSISTENT_SHARED(d, h) + 33024)

// One product. Each thread block keeps a copy in shared memory and fills in the last fields.
// Three pointers have two uses each, by the kind of phase:
//   norm_or_sinks          ADD: norm before the next phase, (hidden). QKV: sinks, (n_heads), or 0.
//   q_norm_or_second_bias  QKV: norm of the heads of q, (head_dim), or 0. ROUTE: a bias that counts
//                          for the choice alone, (n_experts), or 0. EXPERTS: bias of up.
//   k_norm_or_factors      QKV: norm of the heads of k, (head_dim), or 0. ROUTE: factors of the
//                          experts' weights, (n_experts), or 0.
// `bias` is 0 or, by kind, QKV: (rows of this phase). ROUTE: (n_experts). ADD: (hidden).
// EXPERTS: (n_experts, expert_ffn), of gate. ADD_EXPERTS: (n_experts, hidden).
struct PersistentPhase {
    const uchar *weights;   // packed
    const float *norm_or_sinks; // ADD: norm; QKV: sinks
    const float *post_norm; // ADD: 0, or a norm of the sums before they are added (hidden)
    const float *bias;      // of the product
    const float *q_norm_or_second_bias; // QKV: norm of q; ROUTE: bias of the choice; EXPERTS: of up
    const float *k_norm_or_factors; // QKV: norm of k; ROUTE: factors of experts
    uchar *pages;           // QKV: the layer's part of the first page of its KV group
    uint page_bytes;        // QKV: bytes of a page of the group
    uint table;             // QKV: first entry of the group in the page table
    uint window;            // QKV: positions that are seen, 0 for all
    uint rotation;          // QKV: 0 for none, or which frequencies, 1 or 2
    uint qkv_part;          // QKV: flags of PersistentQkvPart, 0 for all of q, k and v
    uint first_row;         // QKV: first row of this phase among the rows of q, k and v
    uint kind;              // a PersistentKind
    uint codec;             // a PersistentCodec
    uint input;             // a PersistentInput
    uint groups;            // groups of 8 rows; ROUTE: experts; EXPERTS: bundles that a token uses
    uint k_quads;           // units of a group that a warp multiplies
    uint warps;             // units of a step: warps that have columns, 1 to 8
    uint chunks;            // chunks of the input
    uint activation;        // GATE, EXPERTS: an ACTIVATION_*
    uint gate_refill;       // 1: after this phase's weights, those of one more layer may be loaded
    uint own_first;         // filled in by the kernel: first group of the block
    uint own_groups;        // filled in by the kernel: groups of the block
    uint pieces;            // filled in by the kernel: pieces of the ring for the block's part
    uint credit;            // filled in by the kernel: pieces since the previous gate_refill
    uint reserved;
};

struct PersistentArguments {
    uint n_rows;            // rows of the step: 1, or up to 8 in the kernel for several rows
    uint n_phases;          // entries of the table
    const PersistentPhase *phases; // the table
    const float *x;         // (n_rows, hidden): the residual before the first layer
    const float *first_norm; // (hidden): norm of the first phase's input
    const float *frequencies1; // (head_dim / 2) radians a position, or 0
    const float *frequencies2; // (head_dim / 2) radians a position, or 0
    const uint *position;   // (n_rows)
    const uint *page_table; // of the first sequence, one KV group after the other
    const uint *row_spans;  // several rows: (n_rows), the sequence of each row
    const Span *spans;      // several rows: spans of the sequences, whose rows follow one another
    const Choice *choice;   // 0: no token is chosen; else (n_rows)
    uint *chosen;           // tokens that outputs chose, for the next step
    uint *host_chosen;      // tokens that outputs chose, for the host
    float *logits;          // (n_rows, n_vocab)
    float *trace;           // 0, or (n_rows, hidden): the residual after the last layer
    uchar *exchange;        // two exchanges and the turn, zeros at first; then cosines and sines
    float rotation_scale1;  // factor of cosine and sine of frequencies1
    float rotation_scale2;  // factor of cosine and sine of frequencies2
    uint interleaved;       // 1: RoPE rotates columns 2 i and 2 i + 1 together
    uint hidden;            // columns of the residual
    uint n_kv_heads;        // KV heads
    uint n_vocab;           // tokens
    uint n_splits;          // one row: blocks of a KV head, 1 to PERSISTENT_MAX_SPLITS
    uint page_len;          // positions of a page, a power of two
    uint slot_bytes;        // bytes of a slot of the ring, a multiple of 128
    uint n_slots;           // slots of the ring
    float eps;              // of all norms
    float attention_scale;  // times log2(e)
    float softcap;          // of scores, 0 for none
    uint poll_delay;        // cycles from a block's own publication to its first poll
    uint refill_gates;      // 1: gate_refill counts
    uint in_flight;         // pieces loaded at once where refills do not wait for gates; < n_slots
    uint stop_phase;        // phases that run; n_phases for all
    uint most_quads;        // largest k_quads whose input shared memory holds
    uint table_stride;      // entries of page_table from one sequence to the next
    uint n_experts;         // 0: no mixture
    uint n_used;            // experts that are chosen
    uint expert_ffn;        // rows of an expert's gate
    uint expert_sigmoid;    // scores of experts: 1 a sigmoid of each, 0 a softmax over all
    uint expert_normalise;  // 1: weights of the chosen experts are divided by their sum
    float expert_factor;    // factor of all weights of experts
    float expert_limit;     // 0, or the limit of a clamped gate (`clamped_gate`, mixture.cuh)
    float expert_alpha;     // alpha of a clamped gate
    uint more_steps;        // steps of the launch after the first; needs PERSISTENT_EMBEDDING
    uint step_bytes;        // bytes from position, page_table, choice of a step to the next step's
    uint reserved;
    EmbedArguments embedding; // of the steps after the first
};

// Argument of persistent_repack_<type>, which packs a file's rows.
struct PersistentRepackArguments {
    uint n_rows;            // rows of one matrix
    uint n_cols;            // columns of one matrix
    const uchar *rows;      // rows as the file has them, of row_bytes
    const uchar *up_rows;   // 0, or rows of a second matrix: groups alternate between both
    uchar *packed;          // start of the whole phase
    ulong row_bytes;        // bytes of a row
    uint first_group;       // packed group of the first row
    uint k_quads;           // units of a group that a warp multiplies
    uint warps;             // units of a step
    uint groups;            // groups of the whole phase
    uint n_blocks;          // blocks that the kernel will run with
    uint gate;              // 1: a PERSISTENT_GATE phase, whose pairs of groups stay together
    uint units;             // 0, or units of a group of an expert's down, which follow each other
    uint reserved;
};

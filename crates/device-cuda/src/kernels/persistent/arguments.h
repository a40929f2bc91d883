// The table of the persistent decode kernel (decode.cuh), and what belongs to a launch. Plain data: a phase is an entry, not code.
//
// Layouts
//
//   packed rows: a product's rows in groups of 8; group i of G belongs to block b if b * G / n_blocks <= i < (b + 1) * G / n_blocks.
//       K is padded to 128 * k_quads * warps. A unit is 8 rows by 4 blocks of 32 columns: lane l has row l % 8, block l / 8. A step is a unit
//       for each warp w that has columns, blocks (w * k_quads + quad) * 4 .. + 3, padded to 128 bytes. A block of threads reads, for each pass of up to 8 of
//       its groups, for each quad, for each group, a step. All of it lies in this order, groups * k_quads steps for each thread block.
//       Bytes of a unit: 32 x 16 of nibbles (word k, byte i: column 8 k + i low, 8 k + 4 + i high), then by codec
//         q4   32 x 2: d                                  weight = d * (q - 8)
//         q4m  32 x 4: d, m                               weight = d * q + m
//         q5m  32 x 4: upper bits (bits 2 k + i of byte b: column 8 k + 4 i + b), then 32 x 4: d, m    weight = d * q + m
//         q6   32 x 8: upper bits (word h, chunk 2 h + i: bits 4 i + 2 j + 8 b of byte b: column 8 (2 h + i) + 4 j + b),
//              then 32 x 4: d of both halves of the block  weight = d * (q - 32)
//         q8   32 x 32 signed bytes in two planes of 32 x 16 (columns 0..15, 16..31), then 32 x 2: d
//         q2m  no nibbles: 32 x 8 as the upper bits of q6, then 32 x 8: d, m of both halves of the block    weight = d * q + m
//         q3   32 x 4: d of both halves of the block  weight = d * (q - 4)
//         nl   nibbles in the order of their columns, word k from column 8 k on; then 32 x 2: d    weight = d * the q-th value of IQ4_NL
//         fp4  the same, but d is the upper half of an f32    weight = d * twice the q-th value of E2M1
//         f16  halves alone, as a lane of the kernel of several rows multiplies them: for each of the 4 blocks for each of the 8 rows
//              4 x 16 bytes, columns 0 to 7, 8 to 15 ... in the order 0 2 1 3 4 6 5 7. The kernel of one row has no code for it
//   experts, gate and up: for each expert, bundles of 16 rows of both (gate, up, gate, up in groups of 8; zeros after the last row), of each
//       bundle for each quad its 4 groups, a step each.
//   experts, down: for each expert, groups of 8 rows, of each a unit for every 128 columns, in order. Of all units of a row, those of the
//       chosen experts one after the other, warp w multiplies every eighth from w on.
//   router: rows of floats, 1,024 * k_quads columns, a step of 4,096 bytes a quad: for warp w columns (w * k_quads + quad) * 128 .. + 127.
//   rows of q, k and v: one matrix after the other, in one QKV phase where all have one type. Else they are up to three phases in a row, each
//       of one matrix or of two that follow each other. All multiply the input that the first one waits for, and attention follows the last.
//   chunk: 8 values handed over in 16 bytes: int8 with a 12-bit scale (upper bits of the f32), a float, 4 bits of epoch a word;
//       of several rows integers of 10 bits (exchange.cuh).
#pragma once
#include "gemm/types.h"
#include "step.h"
#include "linear/arguments.h"
#include "arguments.h"

#define PERSISTENT_CODEC_Q4 0
#define PERSISTENT_CODEC_Q4M 1
#define PERSISTENT_CODEC_Q8 2
#define PERSISTENT_CODEC_Q6 3
#define PERSISTENT_CODEC_Q5M 4
#define PERSISTENT_CODEC_F16 5
#define PERSISTENT_CODEC_Q2M 6
#define PERSISTENT_CODEC_Q3 7
#define PERSISTENT_CODEC_NL 8
#define PERSISTENT_CODEC_FP4 9

// What becomes of a product's sums.
#define PERSISTENT_QKV 0    // q, k and v or a part of them: f32 words to the attention of the same layer; the input is a norm's
#define PERSISTENT_ADD 1    // added to the residual, whose norm is the next phase's input
#define PERSISTENT_GATE 2   // groups alternate between gate and up; activation(gate) * up is the next phase's input
#define PERSISTENT_HEAD 3   // logits; the best is the token
#define PERSISTENT_ROUTE 4  // scores of experts, f32 words to all blocks, before the norm's scale; groups are experts
#define PERSISTENT_EXPERTS 5 // gate and up of the chosen; activation(gate) * up * the expert's weight is the next phase's input; groups are bundles
#define PERSISTENT_ADD_EXPERTS 6 // down of the chosen: as PERSISTENT_ADD, K is theirs one after the other

// Flags of a QKV phase that has a part of q, k and v.
#define PERSISTENT_CONTINUES 1 // it is not the first: its input is there
#define PERSISTENT_CONTINUED 2 // it is not the last: attention does not follow yet
#define PERSISTENT_REVERSED 4  // the first block has the last groups: so blocks with fewer rows of the part before have more of this one
#define PERSISTENT_OF_THREE 8  // the first and the last of three: their sums have one place, which the last waits for
// Of such a part a block has one pass at most.

// Parts of an exchange, in bytes.
#define EXCHANGE_INPUT 0          // chunks: input of QKV and head
#define EXCHANGE_MIDDLE 65536     // chunks: input of gate/up
#define EXCHANGE_GATED 131072     // chunks: input of down
#define EXCHANGE_ATTENDED 262144  // chunks: input of O
#define EXCHANGE_QKV 327680       // words: (rows of q, k and v)
#define EXCHANGE_PARTIALS 458752  // words: (n_kv_heads, splits, H * D + 2 * H)
#define EXCHANGE_BEST 1507328     // 64-bit words
#define EXCHANGE_WIDE 1511424     // words: input of a router, (hidden)
#define EXCHANGE_SCORES 1527808   // words: (n_experts)
#define EXCHANGE_SQUARES 1528832  // words: (2, PERSISTENT_COPIES, 256)
#define PERSISTENT_EXCHANGE 1545216
// Squares are there so many times, each for as many of the blocks: all would ask the same few lines of L2 for them again and again (NOTES.md).
#define PERSISTENT_COPIES 8

// The same of a kernel for several rows. A phase names its input by the constant above; chunks of the rows lie together: (chunks, 8).
#define EXCHANGE_ROWS_INPUT 0         // 131,072 each: 8 rows of 8,192 columns
#define EXCHANGE_ROWS_MIDDLE 131072
#define EXCHANGE_ROWS_ATTENDED 262144
#define EXCHANGE_ROWS_GATED 393216    // 8 rows of 32,768 columns
#define EXCHANGE_ROWS_QKV 917504      // words: (8, rows of q, k and v)
#define EXCHANGE_ROWS_PARTIALS 1441792 // words: (blocks, H * D + 2 * H)
#define EXCHANGE_ROWS_SQUARES 2490368 // words: (2, 8, 256)
#define EXCHANGE_ROWS_BEST 2506752    // 64-bit words: (8, 256)
#define EXCHANGE_ROWS_WIDE 2523136    // words: (8, hidden)
#define EXCHANGE_ROWS_SCORES 2654208  // words: (8, PERSISTENT_MAX_EXPERTS)
#define PERSISTENT_ROWS_EXCHANGE 2662400
// Behind both exchanges and the turn each block has room for cosines and sines of the up to 7 rows of its sequence that come before its own
// row in the step. Those of its own row are in shared memory.
#define PERSISTENT_TURNS_AT 5325056
#define PERSISTENT_TURNS 21504 // heads of 256 columns

// Blocks of a KV head of a row, at most.
#define PERSISTENT_MAX_SPLITS 32
// Positions that a warp attends to at a time.
#define PERSISTENT_TILE 16
// Most blocks of a launch, most slots of the ring and their least size, most rows of the residual that a block has.
#define PERSISTENT_MAX_BLOCKS 160
#define PERSISTENT_MAX_SLOTS 40
#define PERSISTENT_LEAST_SLOT 9216 // bytes
#define PERSISTENT_MAX_ROWS 64
// Most tokens: a power of two.
#define PERSISTENT_MAX_VOCAB 524288
// Of a mixture: most experts, most that are chosen, most columns of the residual.
#define PERSISTENT_MAX_EXPERTS 256
#define PERSISTENT_MAX_USED 32
#define PERSISTENT_MAX_WIDE 4096
// Bytes of dynamic shared memory after the phases, of a mixture.
#define PERSISTENT_CHOICE 272
// Of a kernel for several rows: most experts that are chosen for a row, and those bytes.
#define PERSISTENT_ROWS_USED 8
#define PERSISTENT_ROWS_CHOICE 1584
// Bytes of dynamic shared memory beside the ring, the input and the phases, for heads of d columns and h query heads of a KV head.
#define PERSISTENT_SHARED(d, h) (4752 + 12 * (d) + 36 * (h) * (d) + 64 * (h))
// The same of a kernel for several rows.
#define PERSISTENT_SHARED_ROWS(d, h) (PERSISTENT_SHARED(d, h) + 33024)
// Rows of a kernel for several rows; rows of the residual that a block has there, at most; bytes of the input of 1,024 columns.
#define PERSISTENT_MOST_ROWS 8
#define PERSISTENT_MOST_OWN 32
#define PERSISTENT_ROWS_INPUT 16640
// Least most_quads of it: input of other phases comes by so many times 1,024 columns.
#define PERSISTENT_FEWEST_QUADS 4

// One product. Each block of threads keeps a copy in shared memory.
struct PersistentPhase {
    const uchar *weights;
    const float *norm;      // ADD: weights of the norm that the next phase's input needs (hidden); QKV: 0, or (n_heads), sinks of attention
    const float *post_norm; // ADD: 0, or weights of a norm of the sums, before they are added (hidden)
    const float *bias;      // of the product: 0, or QKV: (rows of this phase); ROUTE: (n_experts); ADD: (hidden); EXPERTS: (n_experts, expert_ffn), of gate; ADD_EXPERTS: (n_experts, hidden)
    const float *q_norm;    // QKV: 0, or (head_dim): norms of the heads; ROUTE: 0, or (n_experts), added where experts are chosen; EXPERTS: 0, or as the bias, of up
    const float *k_norm;    // ROUTE: 0, or (n_experts): factors of the experts' weights
    uchar *pages;           // QKV: of the layer's KV group, from the layer's part of the first page on
    uint page_bytes;        // QKV: of a page of the group
    uint table;             // QKV: first entry of the group in the page table
    uint window;            // QKV: 0 for none
    uint rotation;          // QKV: 0 for none, or which frequencies, 1 or 2
    uint qkv_part;          // QKV: PERSISTENT_CONTINUES ..., 0 for all of q, k and v
    uint first_row;         // QKV: of its rows among those of q, k and v
    uint kind;
    uint codec;
    uint input;             // part of the exchange that it reads
    uint groups;            // of 8 rows
    uint k_quads;           // of 1,024 columns: units of a group that a warp multiplies
    uint warps;             // that have columns, of 8: units of a step
    uint chunks;            // of 8 columns that the input has
    uint activation;        // GATE, EXPERTS
    uint gate_refill;       // 1: when this phase has read its weights, those of a layer more may be loaded
    uint own_first;         // the rest is written by the kernel, in its copy: the block's first group
    uint own_groups;
    uint pieces;            // of the block's weights
    uint credit;            // pieces of the phases from after the gate before to this gate
    uint reserved;
};

struct PersistentArguments {
    uint n_rows;            // 1; of a kernel for several rows up to 8
    uint n_phases;
    const PersistentPhase *phases;
    const float *x;         // (n_rows, hidden): the residual before the first layer
    const float *first_norm; // (hidden), of the first phase's input
    const float *frequencies1; // (head_dim / 2) radians a position, or 0
    const float *frequencies2;
    const uint *position;   // (n_rows)
    const uint *page_table; // of the first sequence, one group after the other
    const uint *row_spans;  // of several rows: (n_rows), the sequence of each
    const Span *spans;      // of several rows: of each sequence, whose rows follow one another
    const Choice *choice;   // 0: no token is chosen; else (n_rows)
    uint *chosen;           // tokens that outputs chose
    uint *host_chosen;
    float *logits;          // (n_rows, n_vocab)
    float *trace;           // 0, or (n_rows, hidden): the residual after the last layer
    uchar *exchange;        // twice the bytes of an exchange and a word, the turn: zeros before the first launch; then turns of several rows
    float rotation_scale1;  // on cosine and sine
    float rotation_scale2;
    uint interleaved;       // rotation: pairs (2 i, 2 i + 1)
    uint hidden;
    uint n_kv_heads;
    uint n_vocab;
    uint n_splits;          // blocks of one KV head, 1 to PERSISTENT_MAX_SPLITS; n_kv_heads * n_splits <= n_blocks. Of several rows the kernel has as many as fit
    uint page_len;          // a power of two
    uint slot_bytes;        // of a piece of the ring; a multiple of 128, at least a step and PERSISTENT_LEAST_SLOT
    uint n_slots;
    float eps;
    float attention_scale;  // times log2(e)
    float softcap;          // 0: none; of scores
    uint poll_delay;        // cycles from a block's own publication to its first poll
    uint refill_gates;      // 1: gate_refill counts
    uint in_flight;         // pieces that are on their way at once where refills do not wait for gates; less than n_slots
    uint stop_phase;        // phases that run; n_phases: all
    uint most_quads;        // the largest k_quads of a phase; of several rows of one whose input is as wide as the residual
    uint table_stride;      // entries of page_table from a sequence to the next
    uint n_experts;         // 0: no mixture
    uint n_used;            // experts that are chosen
    uint expert_ffn;        // rows of an expert's gate
    uint expert_sigmoid;    // scores: 1 a sigmoid of each, 0 a softmax over all
    uint expert_normalise;  // 1: weights are divided by their sum
    float expert_factor;    // on all weights
    float expert_limit;     // 0, or gates of experts are clamped: g * sigmoid(expert_alpha * g) * (u + 1), g of at most the limit, u within it
    float expert_alpha;
    uint more_steps;        // that follow in the launch; 0 unless the kernel was compiled with PERSISTENT_EMBEDDING. Each is of one position more, and begins with the token that the one before chose
    uint step_bytes;        // from what the host says of a step (position, page_table, choice) to the next step's
    uint reserved;
    EmbedArguments embedding; // of the steps that follow
};

// From a file's rows to packed rows: persistent_repack_<type>.
struct PersistentRepackArguments {
    uint n_rows;            // of one matrix
    uint n_cols;
    const uchar *rows;      // of row_bytes
    const uchar *up_rows;   // 0, or a second matrix: groups alternate between both
    uchar *packed;          // of the whole phase
    ulong row_bytes;
    uint first_group;       // packed group of the first row
    uint k_quads;
    uint warps;
    uint groups;            // of the whole phase
    uint n_blocks;          // that the kernel will run with
    uint gate;              // 1: of a PERSISTENT_GATE phase, whose pairs of groups stay together
    uint units;             // 0, or units of a group, which follow each other, no more than there are columns for (down of an expert)
    uint reserved;
};

// The table of the persistent decode kernel (decode.cuh), and what belongs to a launch. Plain data: a phase is an entry, not code.
//
// Layouts
//
//   packed rows: a product's rows in groups of 8; group i of G belongs to block b if b * G / n_blocks <= i < (b + 1) * G / n_blocks.
//       K is padded to 1,024 * k_quads. A unit is 8 rows by 4 blocks of 32 columns: lane l has row l % 8, block l / 8. A step is 8
//       units, one for each warp w: blocks (w * k_quads + quad) * 4 .. + 3. A block of threads reads, for each pass of up to 8 of
//       its groups, for each quad, for each group, a step. All of it lies in this order, groups * k_quads steps for each thread block.
//       Bytes of a unit: 32 x 16 of nibbles (word k, byte i: column 8 k + i low, 8 k + 4 + i high), then by codec
//         q4   32 x 2: d                                  weight = d * (q - 8)
//         q4m  32 x 4: d, m                               weight = d * q + m
//         q6   32 x 8: upper bits (word h, chunk 2 h + i: bits 4 i + 2 j + 8 b of byte b: column 8 (2 h + i) + 4 j + b),
//              then 32 x 4: d of both halves of the block  weight = d * (q - 32)
//         q8   32 x 32 signed bytes in two planes of 32 x 16 (columns 0..15, 16..31), then 32 x 2: d
//   chunk: 8 values handed over in 16 bytes: int8 with a 12-bit scale (upper bits of the f32), a float, 4 bits of epoch a word.
#pragma once
#include "gemm/types.h"

#define PERSISTENT_CODEC_Q4 0
#define PERSISTENT_CODEC_Q4M 1
#define PERSISTENT_CODEC_Q8 2
#define PERSISTENT_CODEC_Q6 3

// What becomes of a product's sums.
#define PERSISTENT_QKV 0    // f32 words to the attention of the same layer, which follows; the input is a norm's
#define PERSISTENT_ADD 1    // added to the residual, whose norm is the next phase's input
#define PERSISTENT_GATE 2   // groups alternate between gate and up; activation(gate) * up is the next phase's input
#define PERSISTENT_HEAD 3   // logits; the best is the next token

// One product. 112 bytes. Each block of threads keeps a copy in shared memory.
struct PersistentPhase {
    const uchar *weights;
    const float *norm;      // ADD: weights of the norm that the next phase's input needs (hidden)
    const float *post_norm; // ADD: 0, or weights of a norm of the sums, before they are added (hidden)
    const float *bias;      // QKV: 0, or (rows)
    const float *q_norm;    // QKV: 0, or (head_dim): norms of the heads
    const float *k_norm;
    ulong layer_offset;     // QKV: of the layer within a page
    uint kind;
    uint codec;
    uint groups;            // of 8 rows
    uint k_quads;           // of 1,024 columns
    uint chunks;            // of 8 columns that the input has
    uint activation;        // GATE
    uint window;            // QKV: 0 for none
    uint table;             // QKV: first entry of the layer's group in the page table
    uint gate_refill;       // 1: when this phase has read its weights, those of a layer more may be loaded
    uint own_first;         // the rest is written by the kernel, in its copy: the block's first group
    uint own_groups;
    uint pieces;            // of the block's weights
    uint credit;            // pieces of the phases from after the gate before to this gate
    uint reserved;
};

struct PersistentArguments {
    uint n_tokens;          // to decode in this launch
    uint first_position;
    const PersistentPhase *phases;
    const uchar *embedding; // rows of the file's type
    const float *first_norm; // (hidden), of the first phase's input
    const float *rotations; // (positions, head_dim / 2) cosine and sine
    uchar *pool;            // KV pages, keys [n_kv_heads][page_len][head_dim] f16, then values
    const uint *page_table; // of the sequence
    uint *tokens;           // (n_tokens + 1): [0] is the first input; token t + 1 is what t's row chose
    float *best_logits;     // (n_tokens)
    float *logits;          // 0, or (n_vocab): of the last token
    float *trace;           // 0, or (n_tokens, hidden): the residual after the last layer
    uchar *exchange;        // PERSISTENT_EXCHANGE bytes, zeros at launch
    ulong page_bytes;
    ulong embedding_row_bytes;
    uint n_phases;
    uint hidden;
    uint n_kv_heads;
    uint n_vocab;
    uint n_splits;          // blocks of one KV head, 1 to 16; n_kv_heads * n_splits <= n_blocks
    uint page_len;
    uint slot_bytes;        // of a piece of the ring; a multiple of 128, at least a step
    uint n_slots;           // at most 40
    uint embedding_type;    // 0 f32, 1 f16, 2 bf16, 3 Q8_0, 4 Q4_0, 5 Q6_K, 6 Q4_K
    float embedding_scale;
    float eps;
    float attention_scale;  // times log2(e)
    float softcap;          // 0: none; of scores
    uint interleaved;       // rotation: pairs (2 i, 2 i + 1)
    uint poll_delay;        // cycles from a block's own publication to its first poll
    uint merge_delay;
    uint refill_gates;      // 1: gate_refill counts
    uint stop_phase;        // phases of a token that run; n_phases: all
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
    uint groups;            // of the whole phase
    uint n_blocks;          // that the kernel will run with
    uint gate;              // 1: of a PERSISTENT_GATE phase, whose pairs of groups stay together
    uint reserved;
};

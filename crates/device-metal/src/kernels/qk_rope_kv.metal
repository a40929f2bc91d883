// Norm and RoPE of the heads of q and k, and the KV write of k and v, for many rows; or norm and
// RoPE of q alone.
//
// A SIMD-group computes one head of one row: query heads first, then key heads, then value heads.
// The head is in threadgroup memory between norm, RoPE and store. Sum of squares: each lane adds
// every 32nd column, then simd_sum. With FC_WHOLE_ROWS the SIMD-group of each head adds the squares
// of all heads of q, or of k.
//
// Buffers: 0 QkRopeKvArguments, 1 step, 2 q (tokens, q.n_heads * head_dim), 3 k (tokens, n_kv_heads
// * head_dim), 4 v (like k), 5 q_out (like q; may be q), 6 positions (tokens), 7 row_spans
// (tokens), 8 page_tables, 10 norm weight of q (head_dim; with FC_WHOLE_ROWS of all heads), 11 of
// k, 12 turns of q (tokens, n_dims / 2) float2 (turns.h), 13 of k, 14 k_out (like k), 15 the
// layer's bias of keys (key_bias.h). Buffers that the constants leave unused may be bound to
// anything. Constants: FC_KV_TYPE, FC_Q_NORM, FC_K_NORM, FC_Q_WEIGHT, FC_K_WEIGHT, FC_Q_ROPE,
// FC_K_ROPE, FC_K_OUT, FC_V_NORM, FC_WHOLE_ROWS, FC_KEY_BIAS. Threadgroup memory: 0 head_dim
// floats, rounded up to 16 bytes. Grid: (heads, tokens) threadgroups of 32; heads is q.n_heads +
// 2 * n_kv_heads, or q.n_heads + n_kv_heads if values are keys, or q.n_heads alone.
#include <metal_stdlib>
using namespace metal;
#include "constants.h"
#include "key_bias.h"
#include "kv_store.h"
#include "rotate.h"

constant uint KIND [[function_constant(FC_KV_TYPE)]];
constant bool Q_NORM [[function_constant(FC_Q_NORM)]];
constant bool K_NORM [[function_constant(FC_K_NORM)]];
constant bool Q_WEIGHT [[function_constant(FC_Q_WEIGHT)]];
constant bool K_WEIGHT [[function_constant(FC_K_WEIGHT)]];
constant uint Q_ROPE [[function_constant(FC_Q_ROPE)]];
constant uint K_ROPE [[function_constant(FC_K_ROPE)]];
constant bool K_OUT [[function_constant(FC_K_OUT)]];
constant bool V_NORM [[function_constant(FC_V_NORM)]];
constant bool WHOLE_ROWS [[function_constant(FC_WHOLE_ROWS)]];
constant bool KEY_BIAS [[function_constant(FC_KEY_BIAS)]];

// One head of a row of q, k or v.
struct Head {
    uint row;
    uint index; // among the heads of q, or of k or v
    bool is_q;
    bool is_k;
    bool is_v;
    uint head_dim;
    uint n_heads; // heads of a row of q, or of k or v
    uint start;   // index of the first column in q, k or v
};

static inline Head head_at(constant QkRopeKvArguments &args, uint2 place) {
    Head h;
    const uint n_q = args.q.n_heads, n_kv = args.pages.n_kv_heads;
    h.row = place.y;
    h.is_q = place.x < n_q;
    h.is_k = !h.is_q && place.x < n_q + n_kv;
    h.is_v = !h.is_q && !h.is_k;
    h.index = h.is_q ? place.x : (place.x - n_q) % n_kv;
    h.head_dim = args.pages.head_dim;
    h.n_heads = h.is_q ? n_q : n_kv;
    h.start = (h.row * h.n_heads + h.index) * h.head_dim;
    return h;
}

// Loads the head to `values`, and normalises it.
static inline void load_head(threadgroup float *values, constant QkRopeKvArguments &args, Head h, device const float *q,
                             device const float *k, device const float *v, device const float *q_weight,
                             device const float *k_weight, uint lane) {
    float sum = 0.0f;
    for (uint i = lane; i < h.head_dim; i += 32) {
        float value;
        if (h.is_q) value = q[h.start + i];
        else if (h.is_k) value = k[h.start + i];
        else value = v[h.start + i];
        values[i] = value;
        sum += value * value;
    }
    uint n_normed = h.head_dim, weight_at = 0;
    if (WHOLE_ROWS && !h.is_v) {
        n_normed = h.n_heads * h.head_dim;
        weight_at = h.index * h.head_dim;
        sum = 0.0f;
        for (uint i = lane; i < n_normed; i += 32) {
            float value;
            if (h.is_q) value = q[h.row * n_normed + i];
            else value = k[h.row * n_normed + i];
            sum += value * value;
        }
    }
    sum = simd_sum(sum);
    if ((h.is_q && Q_NORM) || (h.is_k && K_NORM) || (h.is_v && V_NORM)) {
        const float eps = h.is_q ? args.q.eps : h.is_k ? args.k.eps : args.v_eps;
        const float factor = 1.0f / precise::sqrt(sum / float(n_normed) + eps);
        for (uint i = lane; i < h.head_dim; i += 32) {
            float value = values[i] * factor;
            if (h.is_q && Q_WEIGHT) value *= q_weight[weight_at + i];
            if (h.is_k && K_WEIGHT) value *= k_weight[weight_at + i];
            values[i] = value;
        }
    }
}

// Rotates the head. A lane has the pairs lane, lane + 32, ...
static inline void rotate_head(threadgroup float *values, constant QkRopeKvArguments &args, Head h,
                               device const float2 *q_turns, device const float2 *k_turns, uint lane) {
    const uint style = h.is_q ? Q_ROPE : h.is_k ? K_ROPE : ROPE_NONE;
    if (style == ROPE_NONE) return;
    const uint n_dims = h.is_q ? args.q.n_dims : args.k.n_dims;
    for (uint pair = lane; pair < n_dims / 2; pair += 32) {
        float2 turn;
        if (h.is_q) turn = q_turns[h.row * (n_dims / 2) + pair];
        else turn = k_turns[h.row * (n_dims / 2) + pair];
        const uint2 columns = pair_of(style, pair, n_dims);
        const float a = values[columns.x];
        const float b = values[columns.y];
        values[columns.x] = a * turn.x - b * turn.y;
        values[columns.y] = b * turn.x + a * turn.y;
    }
}

kernel void qk_rope_kv(
        constant QkRopeKvArguments &args [[buffer(0)]],
        device const Step *step [[buffer(1)]],
        device const float *q [[buffer(2)]],
        device const float *k [[buffer(3)]],
        device const float *v [[buffer(4)]],
        device float *q_out [[buffer(5)]],
        device const uint *positions [[buffer(6)]],
        device const uint *row_spans [[buffer(7)]],
        device const Page *page_tables [[buffer(8)]],
        device const float *q_weight [[buffer(10)]],
        device const float *k_weight [[buffer(11)]],
        device const float2 *q_turns [[buffer(12)]],
        device const float2 *k_turns [[buffer(13)]],
        device float *k_out [[buffer(14)]],
        device const uint *bias [[buffer(15)]],
        threadgroup float *head_values [[threadgroup(0)]],
        uint2 place [[threadgroup_position_in_grid]],
        uint lane [[thread_index_in_simdgroup]]) {
    if (place.y >= step->n_rows) return;
    const Head h = head_at(args, place);
    const uint position = positions[h.row];
    load_head(head_values, args, h, q, k, v, q_weight, k_weight, lane);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    rotate_head(head_values, args, h, q_turns, k_turns, lane);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (h.is_q) {
        for (uint i = lane; i < h.head_dim; i += 32) q_out[h.start + i] = head_values[i];
        return;
    }
    if (h.is_k && K_OUT) {
        for (uint i = lane; i < h.head_dim; i += 32) k_out[h.start + i] = head_values[i];
    }
    if (h.is_k && KEY_BIAS) {
        simdgroup_barrier(mem_flags::mem_threadgroup);
        key_bias(bias, h.n_heads, h.index).subtract(head_values, position, ushort(lane));
        simdgroup_barrier(mem_flags::mem_threadgroup);
    }
    const uint table = page_table_of(*step, row_spans[h.row], args.pages.group);
    device uchar *page = page_tables[table + position / args.pages.page_len].bytes;
    device uchar *vector = page + vector_offset(KIND, args.pages, place.x - args.q.n_heads, position);
    for (uint first = 0; first < h.head_dim; first += 32) {
        const uint column = first + lane;
        const bool inside = column < h.head_dim;
        store_column(KIND, vector, column, lane, inside, inside ? head_values[column] : 0.0f);
    }
}

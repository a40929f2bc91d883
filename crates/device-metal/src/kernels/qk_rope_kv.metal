// Norm and Rope of the heads of q and k, and the KV write of k and v, for many rows; or norm and
// Rope of q alone.
//
// A SIMD-group makes one head of one row: query heads first, then key heads, then value heads. The
// head stands in threadgroup memory between norm, turn and store. Sum of squares: each lane every
// 32nd column, then simd_sum; with FC_WHOLE_ROWS each head's SIMD-group adds all heads of q, or of
// k.
//
// Buffers: 0 QkRopeKvArguments, 1 step, 2 q (tokens, q.n_heads * head_dim), 3 k (tokens,
// n_kv_heads * head_dim), 4 v (the same), 5 q_out (as q; may be q), 6 positions (tokens), 7
// row_spans (tokens), 8 page_tables, 10 norm weight of q (head_dim, or of all heads), 11 of k, 12
// frequencies of q, 13 of k, 14 k_out (as k; as q_out), 15 the layer's bias of keys (key_bias.h).
// What the constants leave out may be bound to anything. Constants: FC_KV_TYPE, FC_Q_NORM,
// FC_K_NORM, FC_Q_WEIGHT, FC_K_WEIGHT, FC_Q_ROPE, FC_K_ROPE, FC_K_OUT, FC_V_NORM, FC_WHOLE_ROWS,
// FC_KEY_BIAS. Threadgroup memory: 0 head_dim floats, rounded up to 16 bytes. Grid: (q.n_heads +
// 2 * n_kv_heads, or where values are keys q.n_heads + n_kv_heads, or q.n_heads alone; tokens)
// threadgroups of 32.
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
        device const float *q_frequencies [[buffer(12)]],
        device const float *k_frequencies [[buffer(13)]],
        device float *k_out [[buffer(14)]],
        device const uint *bias [[buffer(15)]],
        threadgroup float *head_values [[threadgroup(0)]],
        uint2 place [[threadgroup_position_in_grid]],
        uint lane [[thread_index_in_simdgroup]]) {
    const uint row = place.y;
    if (row >= step->n_rows) return;
    const uint head_dim = args.pages.head_dim;
    const uint n_q = args.q.n_heads;
    const uint n_kv = args.pages.n_kv_heads;
    const uint position = positions[row];
    const bool is_q = place.x < n_q;
    const bool is_k = !is_q && place.x < n_q + n_kv;
    const uint head = is_q ? place.x : (place.x - n_q) % n_kv;

    // Load, and normalise.
    const uint start = (row * (is_q ? n_q : n_kv) + head) * head_dim;
    float sum = 0.0f;
    for (uint i = lane; i < head_dim; i += 32) {
        float value;
        if (is_q) value = q[start + i];
        else if (is_k) value = k[start + i];
        else value = v[start + i];
        head_values[i] = value;
        sum += value * value;
    }
    const bool is_v = !is_q && !is_k;
    uint n_normed = head_dim, weight_at = 0;
    if (WHOLE_ROWS && !is_v) {
        const uint n_heads = is_q ? n_q : n_kv;
        sum = 0.0f;
        for (uint i = lane; i < n_heads * head_dim; i += 32) {
            float value;
            if (is_q) value = q[row * n_heads * head_dim + i];
            else value = k[row * n_heads * head_dim + i];
            sum += value * value;
        }
        n_normed = n_heads * head_dim;
        weight_at = head * head_dim;
    }
    sum = simd_sum(sum);
    if ((is_q && Q_NORM) || (is_k && K_NORM) || (is_v && V_NORM)) {
        const float eps = is_q ? args.q.eps : is_k ? args.k.eps : args.v_eps;
        const float factor = 1.0f / precise::sqrt(sum / float(n_normed) + eps);
        for (uint i = lane; i < head_dim; i += 32) {
            float value = head_values[i] * factor;
            if (is_q && Q_WEIGHT) value *= q_weight[weight_at + i];
            if (is_k && K_WEIGHT) value *= k_weight[weight_at + i];
            head_values[i] = value;
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);

    // Turn: a lane has the pairs lane, lane + 32, ...
    const uint style = is_q ? Q_ROPE : is_k ? K_ROPE : ROPE_NONE;
    if (style != ROPE_NONE) {
        const uint n_dims = is_q ? args.q.n_dims : args.k.n_dims;
        const float scale = is_q ? args.q.scale : args.k.scale;
        for (uint pair = lane; pair < n_dims / 2; pair += 32) {
            float frequency;
            if (is_q) frequency = q_frequencies[pair];
            else frequency = k_frequencies[pair];
            const float2 turn = turn_of(position, frequency, scale);
            const uint2 columns = pair_of(style, pair, n_dims);
            const float a = head_values[columns.x];
            const float b = head_values[columns.y];
            head_values[columns.x] = a * turn.x - b * turn.y;
            head_values[columns.y] = b * turn.x + a * turn.y;
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);

    // Store.
    if (is_q) {
        for (uint i = lane; i < head_dim; i += 32) q_out[start + i] = head_values[i];
        return;
    }
    if (is_k && K_OUT) {
        for (uint i = lane; i < head_dim; i += 32) k_out[start + i] = head_values[i];
    }
    if (is_k && KEY_BIAS) {
        simdgroup_barrier(mem_flags::mem_threadgroup);
        key_bias(bias, n_kv, head).subtract(head_values, position, ushort(lane));
        simdgroup_barrier(mem_flags::mem_threadgroup);
    }
    const uint table = page_table_of(*step, row_spans[row], args.pages.group);
    device uchar *page = page_tables[table + position / args.pages.page_len].bytes;
    device uchar *vector = page + vector_offset(KIND, args.pages, place.x - n_q, position);
    for (uint first = 0; first < head_dim; first += 32) {
        const uint column = first + lane;
        const bool inside = column < head_dim;
        store_column(KIND, vector, column, lane, inside, inside ? head_values[column] : 0.0f);
    }
}

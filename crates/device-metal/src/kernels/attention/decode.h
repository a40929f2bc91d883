// attention_decode_<kv>, cross_attention_decode_<kv>: flash attention of few rows, one threadgroup
// for a row, a KV head's query heads and a part of the positions. <kv>: f32, f16, q8_0.
//
//     out = softmax(softcap(scale * q k^T)) v     over positions first .. last of the row's sequence: last is the row's own, or with
//                                                 ATTENTION_BOTH_WAYS that of its span's last row
//
// q may be normalised and turned first. With ATTENTION_FUSED the row's own k and v are not yet in
// the cache: k is normalised and turned too, k and v are stored and take part (as they are read
// back later), all in this kernel. Every row must then belong to a sequence of its own. Where
// values are keys, k is stored alone, and v is not read.
//
// Host contract
//   buffers 0 AttentionArguments (attention/arguments.h) 1 Step 2 q (n, n_heads * head_dim) f32,
//   multiple of 4 bytes
//            3 positions (n)     4 row_spans (n)             5 spans, ATTENTION_BOTH_WAYS     6 page_tables
//            8 sinks (n_heads) f32, ATTENTION_SINKS          9 out (n, n_heads * head_dim) f32, may be q
//            10 partials (n, n_heads, n_splits, 4 * ceil(head_dim / 4)) f32, 11 totals (n, n_heads, n_splits) float2: ATTENTION_SPLIT
//            12 k, 13 v (n, n_kv_heads * head_dim) f32, ATTENTION_FUSED; 14 norm of q, 15 of k (head_dim; with
//               ATTENTION_WHOLE_ROWS of all heads), 16 frequencies of q, 17 of k (n_dims / 2): where its constants ask for it;
//            18 the layer's bias of keys (key_bias.h), ATTENTION_KEY_BIAS
//            What the constants leave unused is bound all the same, to anything. Layers lie at multiples of 16 bytes in pages.
//   threads  32 * S, S = 1 to 8 simdgroups
//   grid (n_kv_heads * ceil(group / ATTENTION_HEADS), n_splits or 1, n), group = n_heads /
//   n_kv_heads constants all of attention/constants.h; cross_attention_decode takes no notice of
//   _WINDOW, _CHUNKED,
//            _BOTH_WAYS, _FUSED, _KEY_BIAS, norms and turns
//   threadgroup memory 0 4 * (max(ATTENTION_HEADS + 2, S) * D + S * ATTENTION_HEADS * 34) bytes,
//   with ATTENTION_KEY_BIAS
//            4 * ATTENTION_HEADS * (1 + head_dim) more, rounded up to 16; D = 4 * ceil(head_dim / 4)
//   reads K and V of the positions once for ATTENTION_HEADS heads; of pages outside first .. last
//   nothing out may be q only without ATTENTION_SPLIT and with group <= ATTENTION_HEADS
//
// A simdgroup takes tiles of 32 positions in turn: scores (attention/scores.h), then an online
// softmax with a position a lane, then the values, a vector of four columns a lane and as many
// positions at once as lanes are left. Probabilities pass through 32 floats a head of threadgroup
// memory. Splits take neighbouring tiles.
//
// Order of accumulation: positions ascending in a simdgroup's tiles (the row's own position last),
// then simdgroups ascending, then splits ascending; the sink last.
#pragma once
#include "attention/scores.h"
#include "key_bias.h"
#include "rotate.h"

// Lanes that share a vector of values.
#define VALUE_LANES (HEAD_FOURS > 16 ? 32 : HEAD_FOURS > 8 ? 16 : HEAD_FOURS > 4 ? 8 : 4)

// The factor of a norm over `n` neighbours of a vector. One simdgroup calls it.
template<class P> static inline float norm_factor(P values, uint n, float eps, ushort lane) {
    float sum = 0.0f;
    for (uint i = lane; i < n; i += 32) sum += values[i] * values[i];
    return 1.0f / precise::sqrt(simd_sum(sum) / float(n) + eps);
}

// Normalise and turn a head that stands in threadgroup memory. One simdgroup calls it. `row`: all
// heads of the head's row, `weight`: the head's own.
static inline void norm_and_turn(threadgroup float * head, device const float * row, uint n_heads, bool norm, bool weighted,
                                 uint rope, constant TurnArguments & turn, device const float * weight,
                                 device const float * frequencies, uint position, ushort lane) {
    if (norm) {
        const float factor = ATTENTION_WHOLE_ROWS ? norm_factor(row, n_heads * ATTENTION_HEAD_DIM, turn.eps, lane)
                                                  : norm_factor((threadgroup const float *) head, ATTENTION_HEAD_DIM, turn.eps, lane);
        for (uint i = lane; i < ATTENTION_HEAD_DIM; i += 32) {
            float value = head[i] * factor;
            if (weighted) value *= weight[i];
            head[i] = value;
        }
        simdgroup_barrier(mem_flags::mem_threadgroup);
    }
    if (rope != ROPE_NONE) {
        for (uint pair = lane; pair < turn.n_dims / 2; pair += 32) {
            const float2 t = turn_of(position, frequencies[pair], turn.scale);
            const uint2 columns = pair_of(rope, pair, turn.n_dims);
            const float a = head[columns.x], b = head[columns.y];
            head[columns.x] = a * t.x - b * t.y;
            head[columns.y] = b * t.x + a * t.y;
        }
        simdgroup_barrier(mem_flags::mem_threadgroup);
    }
}

// ENCODER: all encoder states of a layer are seen.
template<class K, bool ENCODER>
kernel void attention_decode(constant AttentionArguments & a [[buffer(0)]],
                             device const Step * step [[buffer(1)]],
                             device const float * q [[buffer(2)]],
                             device const uint * positions [[buffer(3)]],
                             device const uint * row_spans [[buffer(4)]],
                             device const Span * spans [[buffer(5)]],
                             device const Page * page_tables [[buffer(6)]],
                             device const float * sinks [[buffer(8)]],
                             device float * out [[buffer(9)]],
                             device float4 * partials [[buffer(10)]],
                             device float2 * totals [[buffer(11)]],
                             device const float * k_row [[buffer(12)]],
                             device const float * v_row [[buffer(13)]],
                             device const float * q_weight [[buffer(14)]],
                             device const float * k_weight [[buffer(15)]],
                             device const float * q_frequencies [[buffer(16)]],
                             device const float * k_frequencies [[buffer(17)]],
                             device const uint * bias_words [[buffer(18)]],
                             threadgroup float4 * memory [[threadgroup(0)]],
                             uint3 place [[threadgroup_position_in_grid]],
                             ushort tid [[thread_index_in_threadgroup]],
                             ushort sg [[simdgroup_index_in_threadgroup]],
                             ushort n_sg [[simdgroups_per_threadgroup]],
                             ushort lane [[thread_index_in_simdgroup]]) {
    const bool fused = !ENCODER && ATTENTION_FUSED, biased = !ENCODER && ATTENTION_KEY_BIAS;
    const uint row = place.z, split = place.y;
    if (row >= step->n_rows) return;
    const uint group = a.n_heads / a.pages.n_kv_heads;
    const uint chunks = (group + ATTENTION_HEADS - 1) / ATTENTION_HEADS;
    const uint kv_head = place.x / chunks, first_in_group = place.x % chunks * ATTENTION_HEADS;
    const uint first_head = kv_head * group + first_in_group;
    const uint n_heads = min(uint(ATTENTION_HEADS), group - first_in_group);

    // Threadgroup memory: heads of q, k, v; later the simdgroups' sums of a head. Behind it
    // probabilities and totals.
    threadgroup float * vectors = (threadgroup float *) memory;
    const uint fours = HEAD_FOURS, columns = 4 * HEAD_FOURS;
    threadgroup float * probabilities =
        vectors + max(uint(ATTENTION_HEADS) + 2, uint(n_sg)) * columns + sg * ATTENTION_HEADS * 32;
    threadgroup float * sums =
        vectors + max(uint(ATTENTION_HEADS) + 2, uint(n_sg)) * columns + n_sg * ATTENTION_HEADS * 32;
    // Terms of the queries, behind the totals.
    threadgroup float * terms = sums + n_sg * ATTENTION_HEADS * 2;
    KeyBias known;
    if (biased) known = key_bias(bias_words, a.pages.n_kv_heads, kv_head);
    const uint n_terms = biased ? 1 + 2 * known.n_pairs : 0;

    const HeadPages pages = head_pages(K::KIND, a, page_tables, step, row_spans[row], kv_head);
    const uint own = ENCODER ? a.n_positions - 1 : positions[row];
    uint first = 0, last = own;
    if (!ENCODER) {
        if (ATTENTION_BOTH_WAYS) {
            device const Span & span = spans[row_spans[row]];
            last = span.first_position + span.n_rows - 1;
        }
        first = first_seen(a, own);
    }

    // A simdgroup makes a head of q at a time, or k, or v.
    const uint n_stored = a.pages.values_are_keys != 0 ? 1 : 2;
    for (uint i = sg; i < ATTENTION_HEADS + (fused ? n_stored : 0); i += n_sg) {
        threadgroup float * head = vectors + i * columns;
        const bool is_q = i < ATTENTION_HEADS, is_k = i == ATTENTION_HEADS;
        for (uint c = lane; c < columns; c += 32) {
            float value = 0.0f;
            if (c < ATTENTION_HEAD_DIM) {
                if (is_q && i < n_heads) value = q[(ulong(row) * a.n_heads + first_head + i) * ATTENTION_HEAD_DIM + c];
                if (is_k) value = k_row[(ulong(row) * a.pages.n_kv_heads + kv_head) * ATTENTION_HEAD_DIM + c];
                if (!is_q && !is_k) value = v_row[(ulong(row) * a.pages.n_kv_heads + kv_head) * ATTENTION_HEAD_DIM + c];
            }
            head[c] = value;
        }
        simdgroup_barrier(mem_flags::mem_threadgroup);
        if (!ENCODER && is_q) {
            // Of a head that is not there, what the last one has.
            const uint weight_at = ATTENTION_WHOLE_ROWS ? (first_head + min(i, n_heads - 1)) * ATTENTION_HEAD_DIM : 0;
            norm_and_turn(head, q + ulong(row) * a.n_heads * ATTENTION_HEAD_DIM, a.n_heads, ATTENTION_Q_NORM, ATTENTION_Q_WEIGHT,
                          ATTENTION_Q_ROPE, a.q, q_weight + weight_at, q_frequencies, own, lane);
        }
        if (fused && is_k) {
            const uint weight_at = ATTENTION_WHOLE_ROWS ? kv_head * ATTENTION_HEAD_DIM : 0;
            norm_and_turn(head, k_row + ulong(row) * a.pages.n_kv_heads * ATTENTION_HEAD_DIM, a.pages.n_kv_heads, ATTENTION_K_NORM,
                          ATTENTION_K_WEIGHT, ATTENTION_K_ROPE, a.k, k_weight + weight_at, k_frequencies, own, lane);
        }
        if (fused && ATTENTION_V_NORM && !is_q && !is_k) {
            const float factor = norm_factor((threadgroup const float *) head, ATTENTION_HEAD_DIM, a.v_eps, lane);
            for (uint c = lane; c < ATTENTION_HEAD_DIM; c += 32) head[c] *= factor;
            simdgroup_barrier(mem_flags::mem_threadgroup);
        }
        if (is_q) {
            for (uint c = lane; c < columns; c += 32) head[c] *= a.scale;
            if (biased) {
                simdgroup_barrier(mem_flags::mem_threadgroup);
                threadgroup float * of_head = terms + i * n_terms;
                const float constant_term = known.constant_term(head, lane);
                if (lane == 0) of_head[0] = constant_term;
                for (uint pair = lane; pair < known.n_pairs; pair += 32) {
                    const float2 t = known.terms_of(pair, head);
                    of_head[1 + 2 * pair] = t.x;
                    of_head[2 + 2 * pair] = t.y;
                }
            }
            continue;
        }
        if (biased && is_k) {
            known.subtract(head, own, lane);
            simdgroup_barrier(mem_flags::mem_threadgroup);
        }
        // One page holds the row's own position; nobody else reads it in this dispatch.
        const bool stores = split == 0 && first_in_group == 0;
        const uint vector_head = is_k ? kv_head : a.pages.n_kv_heads + kv_head;
        device uchar * vector = pages.table[own >> pages.shift].bytes + vector_offset(K::KIND, a.pages, vector_head, own);
        for (uint begin = 0; begin < ATTENTION_HEAD_DIM; begin += 32) {
            const uint c = begin + lane;
            const bool inside = c < ATTENTION_HEAD_DIM;
            const float value = inside ? head[c] : 0.0f;
            const float stored = K::stored(value);
            if (inside) head[c] = stored;
            if (stores) store_column(K::KIND, vector, c, lane, inside, value);
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);

    // Tiles of 32 positions: those of this split, every n_sg-th of them.
    threadgroup const float4 * q_heads = memory;
    const uint key_group = lane / VALUE_LANES, key_groups = 32 / VALUE_LANES, four = lane % VALUE_LANES;
    float4 acc[8][5];
    float most[8], total[8];
    #pragma clang loop unroll(full)
    for (uint h = 0; h < ATTENTION_HEADS; h++) {
        #pragma clang loop unroll(full)
        for (uint i = 0; i < 5; i++) acc[h][i] = float4(0.0f);
        most[h] = LEAST_SCORE;
        total[h] = 0.0f;
    }
    const uint end = fused ? own : last + 1; // behind the last position in the cache
    if (first < end) {
        const uint first_tile = first / 32, n_tiles = (end - 1) / 32 + 1 - first_tile;
        const uint per_split = ATTENTION_SPLIT ? (n_tiles + a.n_splits - 1) / a.n_splits : n_tiles;
        const uint last_tile = min((split + 1) * per_split, n_tiles);
        for (uint tile = split * per_split + sg; tile < last_tile; tile += n_sg) {
            const uint start = (first_tile + tile) * 32, position = start + lane;
            const bool seen = position >= first && position < end;
            TileScores scores = tile_scores<K>(q_heads, pages, start, first, end - 1, lane);
            if (biased) {
                #pragma clang loop unroll(full)
                for (uint h = 0; h < ATTENTION_HEADS; h++) scores.s[h] += terms[h * n_terms];
                for (uint pair = 0; pair < known.n_pairs; pair++) {
                    const float2 t = known.turn(pair, position);
                    #pragma clang loop unroll(full)
                    for (uint h = 0; h < ATTENTION_HEADS; h++) {
                        scores.s[h] += terms[h * n_terms + 1 + 2 * pair] * t.x + terms[h * n_terms + 2 + 2 * pair] * t.y;
                    }
                }
            }
            #pragma clang loop unroll(full)
            for (uint h = 0; h < ATTENTION_HEADS; h++) {
                const float s = seen ? capped(scores.s[h], a.softcap) : LEAST_SCORE;
                const float m = max(most[h], simd_max(s));
                const float p = seen ? exp(s - m) : 0.0f, shrink = exp(most[h] - m);
                most[h] = m;
                total[h] = fma(total[h], shrink, p);
                #pragma clang loop unroll(full)
                for (uint i = 0; i * VALUE_LANES < fours; i++) acc[h][i] *= shrink;
                probabilities[h * 32 + lane] = p;
            }
            simdgroup_barrier(mem_flags::mem_threadgroup);
            for (uint part = 0; part < 2; part++) {
                // Sixteen neighbours lie in one page.
                const uint low = max(start + 16 * part, first), high = min(start + 16 * part + 15, end - 1);
                if (low > high) continue;
                device const uchar * page = pages.key(low) - (low & pages.mask) * pages.vector + (pages.values - pages.keys);
                for (uint n = key_group; n < 16; n += key_groups) {
                    const uint at = clamp(start + 16 * part + n, low, high);
                    device const uchar * vector = page + (at & pages.mask) * pages.vector;
                    #pragma clang loop unroll(full)
                    for (uint i = 0; i * VALUE_LANES < fours; i++) {
                        if (four + i * VALUE_LANES < fours) {
                            const float4 v = K::four(vector, four + i * VALUE_LANES);
                            #pragma clang loop unroll(full)
                            for (uint h = 0; h < ATTENTION_HEADS; h++) acc[h][i] = fma(float4(probabilities[h * 32 + 16 * part + n]), v, acc[h][i]);
                        }
                    }
                }
            }
            simdgroup_barrier(mem_flags::mem_threadgroup);
        }
    }
    if (fused && split == 0 && sg == 0) {
        threadgroup const float4 * own_k = memory + ATTENTION_HEADS * fours;
        threadgroup const float4 * own_v = n_stored == 1 ? own_k : own_k + fours;
        #pragma clang loop unroll(full)
        for (uint h = 0; h < ATTENTION_HEADS; h++) {
            float s = 0.0f;
            for (uint i = lane; i < fours; i += 32) s += dot(q_heads[h * fours + i], own_k[i]);
            if (biased) {
                if (lane == 0) s += terms[h * n_terms];
                for (uint pair = lane; pair < known.n_pairs; pair += 32) {
                    const float2 t = known.turn(pair, own);
                    s += terms[h * n_terms + 1 + 2 * pair] * t.x + terms[h * n_terms + 2 + 2 * pair] * t.y;
                }
            }
            s = capped(simd_sum(s), a.softcap);
            const float m = max(most[h], s);
            const float p = exp(s - m), shrink = exp(most[h] - m);
            most[h] = m;
            total[h] = total[h] * shrink + (lane == 0 ? p : 0.0f);
            #pragma clang loop unroll(full)
            for (uint i = 0; i * VALUE_LANES < fours; i++) {
                acc[h][i] *= shrink;
                if (key_group == 0 && four + i * VALUE_LANES < fours) acc[h][i] += p * own_v[four + i * VALUE_LANES];
            }
        }
    }

    // Lanes with the same columns, then simdgroups.
    #pragma clang loop unroll(full)
    for (uint h = 0; h < ATTENTION_HEADS; h++) {
        total[h] = simd_sum(total[h]);
        #pragma clang loop unroll(full)
        for (uint other = VALUE_LANES; other < 32; other *= 2) {
            #pragma clang loop unroll(full)
            for (uint i = 0; i * VALUE_LANES < fours; i++) acc[h][i] += simd_shuffle_xor(acc[h][i], ushort(other));
        }
        if (lane == 0) {
            sums[(sg * ATTENTION_HEADS + h) * 2] = most[h];
            sums[(sg * ATTENTION_HEADS + h) * 2 + 1] = total[h];
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    #pragma clang loop unroll(full)
    for (uint h = 0; h < ATTENTION_HEADS; h++) {
        // Heads by their index as constants, so that their sums stay in registers.
        if (h >= n_heads) continue;
        float m = LEAST_SCORE, l = 0.0f;
        for (uint i = 0; i < n_sg; i++) m = max(m, sums[(i * ATTENTION_HEADS + h) * 2]);
        for (uint i = 0; i < n_sg; i++) {
            l += sums[(i * ATTENTION_HEADS + h) * 2 + 1] * exp(sums[(i * ATTENTION_HEADS + h) * 2] - m);
        }
        const float part = exp(most[h] - m);
        #pragma clang loop unroll(full)
        for (uint i = 0; i * VALUE_LANES < fours; i++) {
            if (key_group == 0 && four + i * VALUE_LANES < fours) memory[sg * fours + four + i * VALUE_LANES] = acc[h][i] * part;
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        const ulong head = ulong(row) * a.n_heads + first_head + h;
        float factor = 1.0f;
        if (!ATTENTION_SPLIT) {
            float sink = 0.0f;
            if (ATTENTION_SINKS) {
                const float all = max(m, sinks[first_head + h]);
                factor = exp(m - all);
                sink = exp(sinks[first_head + h] - all);
            }
            factor = factor / (l * factor + sink);
        }
        for (uint i = tid; i < fours; i += 32 * n_sg) {
            float4 sum = memory[i];
            for (uint other = 1; other < n_sg; other++) sum += memory[other * fours + i];
            sum *= factor;
            if (ATTENTION_SPLIT) {
                partials[(head * a.n_splits + split) * fours + i] = sum;
            } else {
                for (uint c = 0; c < 4 && 4 * i + c < ATTENTION_HEAD_DIM; c++) out[head * ATTENTION_HEAD_DIM + 4 * i + c] = sum[c];
            }
        }
        if (ATTENTION_SPLIT && tid == 0) totals[head * a.n_splits + split] = float2(m, l);
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
}

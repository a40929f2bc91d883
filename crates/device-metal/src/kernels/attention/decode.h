// attention_decode_<kv>, cross_attention_decode_<kv>: flash attention for few rows. A threadgroup
// computes some query heads of one KV head, for one row and one split of the positions. <kv>: f32,
// f16, q8_0.
//
//     out = softmax(softcap(scale * q k^T)) v    over positions first .. last of the row's sequence
//
// `last` is the row's own position, or with ATTENTION_BOTH_WAYS that of its span's last row.
//
// q may be normalised and rotated first. With ATTENTION_FUSED the row's own k and v are not yet in
// the cache. The kernel then normalises and rotates k, stores k and v, and attends to them with the
// values that a later read would return. Every row must then belong to its own sequence. If values
// are keys, only k is stored, and v is not read.
//
// Host contract
//   buffers  0 AttentionArguments (attention/arguments.h)    1 Step
//            2 q (n, n_heads * head_dim) f32, aligned to 4 bytes
//            3 positions (n)     4 row_spans (n)     5 spans, ATTENTION_BOTH_WAYS     6 page_tables
//            8 sinks (n_heads) f32, ATTENTION_SINKS
//            9 out (n, n_heads * head_dim) f32; may be q without ATTENTION_SPLIT if group <=
//              ATTENTION_HEADS
//            10 partials (n, n_heads, n_splits, 4 * ceil(head_dim / 4)) f32, ATTENTION_SPLIT
//            11 totals (n, n_heads, n_splits) float2, ATTENTION_SPLIT
//            12 k, 13 v (n, n_kv_heads * head_dim) f32, ATTENTION_FUSED
//            14 norm weight of q, ATTENTION_Q_WEIGHT, 15 of k, ATTENTION_K_WEIGHT: (head_dim), with
//               ATTENTION_WHOLE_ROWS (all heads, head_dim)
//            16 turns of q, 17 of k (n, n_dims / 2) float2 (turns.h), if ATTENTION_Q_ROPE or
//               _K_ROPE is set
//            18 the layer's bias of keys (key_bias.h), ATTENTION_KEY_BIAS
//            Buffers that the constants leave unused may be bound to anything. A layer's part of a
//            page is aligned to 16 bytes.
//   threads  32 * S, S = 1 to 8 simdgroups
//   grid     (n_kv_heads * ceil(group / ATTENTION_HEADS), n_splits or 1, n),
//            group = n_heads / n_kv_heads
//   constants all of attention/constants.h; cross_attention_decode ignores _WINDOW, _CHUNKED,
//            _BOTH_WAYS, _FUSED, _KEY_BIAS, and those of norms and RoPE
//   threadgroup memory 0
//            4 * (max(ATTENTION_HEADS + 2, S) * D + S * ATTENTION_HEADS * 34) bytes, with
//            ATTENTION_KEY_BIAS 4 * ATTENTION_HEADS * (1 + head_dim) more, rounded up to 16;
//            D = 4 * ceil(head_dim / 4)
//   reads    K and V of the positions once for ATTENTION_HEADS heads; nothing of pages outside
//            first .. last
//
// A simdgroup computes every n-th tile of 32 positions. It first computes the scores
// (attention/scores.h), then an online softmax with one position per lane, then adds the values.
// For the values a lane holds a vector of four columns, and the remaining lanes work on further
// positions. Probabilities pass through 32 floats of threadgroup memory per head. A split is a run
// of neighbouring tiles.
//
// Order of accumulation: positions ascending in a simdgroup's tiles (the row's own position last),
// then simdgroups ascending, then splits ascending; the sink last.
#pragma once
#include "attention/scores.h"
#include "key_bias.h"
#include "rotate.h"

// Number of lanes that hold one vector of values together.
#define VALUE_LANES (HEAD_FOURS > 16 ? 32 : HEAD_FOURS > 8 ? 16 : HEAD_FOURS > 4 ? 8 : 4)

// Returns the factor of an RMS norm over `n` neighbouring columns. One simdgroup calls it.
template<class P> static inline float norm_factor(P values, uint n, float eps, ushort lane) {
    float sum = 0.0f;
    for (uint i = lane; i < n; i += 32) sum += values[i] * values[i];
    return 1.0f / precise::sqrt(simd_sum(sum) / float(n) + eps);
}

// Normalises and rotates a head in threadgroup memory. One simdgroup calls it. `row` holds all
// heads of the row, `weight` the norm weight of this head, `turns` the row's cosines and sines.
static inline void norm_and_turn(threadgroup float * head, device const float * row, uint n_heads, bool norm, bool weighted,
                                 uint rope, constant TurnArguments & turn, device const float * weight,
                                 device const float2 * turns, ushort lane) {
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
            const float2 t = turns[pair];
            const uint2 columns = pair_of(rope, pair, turn.n_dims);
            const float a = head[columns.x], b = head[columns.y];
            head[columns.x] = a * t.x - b * t.y;
            head[columns.y] = b * t.x + a * t.y;
        }
        simdgroup_barrier(mem_flags::mem_threadgroup);
    }
}

// Work of a threadgroup: a row, some query heads of one KV head, and a split of the positions.
struct DecodeWork {
    uint row;
    uint split;
    uint kv_head;
    uint first_in_group; // index of the first query head in the KV head's group
    uint first_head;     // index of the first query head in the row
    uint n_heads;        // query heads, at most ATTENTION_HEADS
    uint own;            // position of the row
    uint first;          // first position that the row sees
    uint last;           // last position that the row sees
    uint n_stored;       // vectors that a position stores: k and v, or k if values are keys
    bool fused;          // ATTENTION_FUSED, false for encoder states
    bool biased;         // ATTENTION_KEY_BIAS, false for encoder states
    uint n_terms;        // terms of a query head (key_bias.h)
    HeadPages pages;
    KeyBias known;       // set if biased
};

struct DecodeThread {
    ushort tid;
    ushort sg;
    ushort n_sg;
    ushort lane;
    uint key_group; // index among the 32 / VALUE_LANES groups of lanes, each with its own positions
    uint four;      // index of the lane's first vector of four columns
};

struct DecodeMemory {
    threadgroup float4 * fours;          // `vectors`, as vectors of four columns
    threadgroup float * vectors;         // (ATTENTION_HEADS + 2, D) heads of q, then k, v; later
                                         // (S, D) the simdgroups' sums of one head
    threadgroup float * probabilities;   // (ATTENTION_HEADS, 32), the simdgroup's own
    threadgroup float * totals;          // (S, ATTENTION_HEADS, 2): largest score, sum
    threadgroup float * terms;           // (ATTENTION_HEADS, n_terms), if biased
};

// The row's vectors in device memory, with norm weights, and its cosines and sines.
struct DecodeInputs {
    device const float * q;
    device const float * k;
    device const float * v;
    device const float * q_weight;
    device const float * k_weight;
    device const float2 * q_turns;
    device const float2 * k_turns;
};

// Running sums of the online softmax, by head. A lane has every VALUE_LANES-th vector of columns.
struct DecodeSums {
    float4 acc[8][5]; // sum of exp(score - most) * value
    float most[8];    // largest score so far
    float total[8];   // sum of exp(score - most)
};

template<class K, bool ENCODER>
static inline DecodeWork decode_work(constant AttentionArguments & a, device const Step * step, device const uint * positions,
                                     device const uint * row_spans, device const Span * spans, device const Page * page_tables,
                                     device const uint * bias_words, uint3 place) {
    DecodeWork w;
    w.fused = !ENCODER && ATTENTION_FUSED;
    w.biased = !ENCODER && ATTENTION_KEY_BIAS;
    w.row = place.z;
    w.split = place.y;
    const uint group = a.n_heads / a.pages.n_kv_heads;
    const uint chunks = (group + ATTENTION_HEADS - 1) / ATTENTION_HEADS;
    w.kv_head = place.x / chunks;
    w.first_in_group = place.x % chunks * ATTENTION_HEADS;
    w.first_head = w.kv_head * group + w.first_in_group;
    w.n_heads = min(uint(ATTENTION_HEADS), group - w.first_in_group);
    w.n_stored = a.pages.values_are_keys != 0 ? 1 : 2;
    if (w.biased) w.known = key_bias(bias_words, a.pages.n_kv_heads, w.kv_head);
    w.n_terms = w.biased ? 1 + 2 * w.known.n_pairs : 0;
    w.pages = head_pages(K::KIND, a, page_tables, step, row_spans[w.row], w.kv_head);
    w.own = ENCODER ? a.n_positions - 1 : positions[w.row];
    w.first = 0;
    w.last = w.own;
    if (!ENCODER) {
        if (ATTENTION_BOTH_WAYS) {
            device const Span & span = spans[row_spans[w.row]];
            w.last = span.first_position + span.n_rows - 1;
        }
        w.first = first_seen(a, w.own);
    }
    return w;
}

static inline DecodeMemory decode_memory(threadgroup float4 * memory, ushort sg, ushort n_sg) {
    DecodeMemory m;
    m.fours = memory;
    m.vectors = (threadgroup float *) memory;
    threadgroup float * after = m.vectors + max(uint(ATTENTION_HEADS) + 2, uint(n_sg)) * 4 * HEAD_FOURS;
    m.probabilities = after + sg * ATTENTION_HEADS * 32;
    m.totals = after + n_sg * ATTENTION_HEADS * 32;
    m.terms = m.totals + n_sg * ATTENTION_HEADS * 2;
    return m;
}

// Loads vector i of the row: query heads, then k, then v. Absent heads and columns are 0.
static inline void load_head(threadgroup float * head, constant AttentionArguments & a, DecodeWork w, DecodeInputs in, uint i,
                             ushort lane) {
    const bool is_q = i < ATTENTION_HEADS, is_k = i == ATTENTION_HEADS;
    for (uint c = lane; c < 4 * HEAD_FOURS; c += 32) {
        float value = 0.0f;
        if (c < ATTENTION_HEAD_DIM) {
            if (is_q && i < w.n_heads) value = in.q[(ulong(w.row) * a.n_heads + w.first_head + i) * ATTENTION_HEAD_DIM + c];
            if (is_k) value = in.k[(ulong(w.row) * a.pages.n_kv_heads + w.kv_head) * ATTENTION_HEAD_DIM + c];
            if (!is_q && !is_k) value = in.v[(ulong(w.row) * a.pages.n_kv_heads + w.kv_head) * ATTENTION_HEAD_DIM + c];
        }
        head[c] = value;
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
}

// Normalises, rotates and scales query head i, and computes its terms of the bias.
template<bool ENCODER>
static inline void prepare_query(threadgroup float * head, constant AttentionArguments & a, DecodeWork w, DecodeInputs in,
                                 DecodeMemory m, uint i, ushort lane) {
    if (!ENCODER) {
        // Absent heads use the norm weight of the last one.
        const uint weight_at = ATTENTION_WHOLE_ROWS ? (w.first_head + min(i, w.n_heads - 1)) * ATTENTION_HEAD_DIM : 0;
        norm_and_turn(head, in.q + ulong(w.row) * a.n_heads * ATTENTION_HEAD_DIM, a.n_heads, ATTENTION_Q_NORM, ATTENTION_Q_WEIGHT,
                      ATTENTION_Q_ROPE, a.q, in.q_weight + weight_at, in.q_turns, lane);
    }
    for (uint c = lane; c < 4 * HEAD_FOURS; c += 32) head[c] *= a.scale;
    if (w.biased) {
        simdgroup_barrier(mem_flags::mem_threadgroup);
        threadgroup float * terms = m.terms + i * w.n_terms;
        const float constant_term = w.known.constant_term(head, lane);
        if (lane == 0) terms[0] = constant_term;
        for (uint pair = lane; pair < w.known.n_pairs; pair += 32) {
            const float2 t = w.known.terms_of(pair, head);
            terms[1 + 2 * pair] = t.x;
            terms[2 + 2 * pair] = t.y;
        }
    }
}

// Normalises and rotates k, or normalises v, and stores it in the row's page. `head` is left with
// the values that a later read returns.
template<class K>
static inline void store_own(threadgroup float * head, constant AttentionArguments & a, DecodeWork w, DecodeInputs in, bool is_k,
                             ushort lane) {
    if (is_k) {
        const uint weight_at = ATTENTION_WHOLE_ROWS ? w.kv_head * ATTENTION_HEAD_DIM : 0;
        norm_and_turn(head, in.k + ulong(w.row) * a.pages.n_kv_heads * ATTENTION_HEAD_DIM, a.pages.n_kv_heads, ATTENTION_K_NORM,
                      ATTENTION_K_WEIGHT, ATTENTION_K_ROPE, a.k, in.k_weight + weight_at, in.k_turns, lane);
    }
    if (ATTENTION_V_NORM && !is_k) {
        const float factor = norm_factor((threadgroup const float *) head, ATTENTION_HEAD_DIM, a.v_eps, lane);
        for (uint c = lane; c < ATTENTION_HEAD_DIM; c += 32) head[c] *= factor;
        simdgroup_barrier(mem_flags::mem_threadgroup);
    }
    if (w.biased && is_k) {
        w.known.subtract(head, w.own, lane);
        simdgroup_barrier(mem_flags::mem_threadgroup);
    }
    // One threadgroup stores the vector; the others of this dispatch do not read it from the page.
    const bool stores = w.split == 0 && w.first_in_group == 0;
    const uint vector_head = is_k ? w.kv_head : a.pages.n_kv_heads + w.kv_head;
    device uchar * vector =
        w.pages.table[w.own >> w.pages.shift].bytes + vector_offset(K::KIND, a.pages, vector_head, w.own);
    for (uint begin = 0; begin < ATTENTION_HEAD_DIM; begin += 32) {
        const uint c = begin + lane;
        const bool inside = c < ATTENTION_HEAD_DIM;
        const float value = inside ? head[c] : 0.0f;
        const float stored = K::stored(value);
        if (inside) head[c] = stored;
        if (stores) store_column(K::KIND, vector, c, lane, inside, value);
    }
}

// Adds the bias's part of the scores of a position.
static inline void add_bias(thread TileScores & scores, DecodeWork w, DecodeMemory m, uint position) {
    #pragma clang loop unroll(full)
    for (uint h = 0; h < ATTENTION_HEADS; h++) scores.s[h] += m.terms[h * w.n_terms];
    for (uint pair = 0; pair < w.known.n_pairs; pair++) {
        const float2 t = w.known.turn(pair, position);
        #pragma clang loop unroll(full)
        for (uint h = 0; h < ATTENTION_HEADS; h++) {
            scores.s[h] += m.terms[h * w.n_terms + 1 + 2 * pair] * t.x + m.terms[h * w.n_terms + 2 + 2 * pair] * t.y;
        }
    }
}

// Online softmax of a tile: shrinks the sums, and writes the probabilities of the lane's position.
static inline void add_scores(thread DecodeSums & sums, TileScores scores, bool seen, float softcap, DecodeMemory m, ushort lane) {
    #pragma clang loop unroll(full)
    for (uint h = 0; h < ATTENTION_HEADS; h++) {
        const float s = seen ? capped(scores.s[h], softcap) : LEAST_SCORE;
        const float most = max(sums.most[h], simd_max(s));
        const float p = seen ? exp(s - most) : 0.0f, shrink = exp(sums.most[h] - most);
        sums.most[h] = most;
        sums.total[h] = fma(sums.total[h], shrink, p);
        #pragma clang loop unroll(full)
        for (uint i = 0; i * VALUE_LANES < HEAD_FOURS; i++) sums.acc[h][i] *= shrink;
        m.probabilities[h * 32 + lane] = p;
    }
}

// Adds probability times value of the tile's positions first .. end - 1.
template<class K>
static inline void add_values(thread DecodeSums & sums, DecodeWork w, DecodeMemory m, DecodeThread at, uint start, uint end) {
    for (uint part = 0; part < 2; part++) {
        // Sixteen neighbouring positions are in one page.
        const uint low = max(start + 16 * part, w.first), high = min(start + 16 * part + 15, end - 1);
        if (low > high) continue;
        device const uchar * page =
            w.pages.key(low) - (low & w.pages.mask) * w.pages.vector + (w.pages.values - w.pages.keys);
        for (uint n = at.key_group; n < 16; n += 32 / VALUE_LANES) {
            const uint position = clamp(start + 16 * part + n, low, high);
            device const uchar * vector = page + (position & w.pages.mask) * w.pages.vector;
            #pragma clang loop unroll(full)
            for (uint i = 0; i * VALUE_LANES < HEAD_FOURS; i++) {
                if (at.four + i * VALUE_LANES < HEAD_FOURS) {
                    const float4 v = K::four(vector, at.four + i * VALUE_LANES);
                    #pragma clang loop unroll(full)
                    for (uint h = 0; h < ATTENTION_HEADS; h++) {
                        sums.acc[h][i] = fma(float4(m.probabilities[h * 32 + 16 * part + n]), v, sums.acc[h][i]);
                    }
                }
            }
        }
    }
}

// Adds the cached positions of the split: every n_sg-th of its tiles.
template<class K>
static inline void add_tiles(thread DecodeSums & sums, constant AttentionArguments & a, DecodeWork w, DecodeMemory m,
                             DecodeThread at) {
    const uint end = w.fused ? w.own : w.last + 1; // end of the cached positions
    if (w.first >= end) return;
    const uint first_tile = w.first / 32, n_tiles = (end - 1) / 32 + 1 - first_tile;
    const uint per_split = ATTENTION_SPLIT ? (n_tiles + a.n_splits - 1) / a.n_splits : n_tiles;
    const uint last_tile = min((w.split + 1) * per_split, n_tiles);
    for (uint tile = w.split * per_split + at.sg; tile < last_tile; tile += at.n_sg) {
        const uint start = (first_tile + tile) * 32, position = start + at.lane;
        const bool seen = position >= w.first && position < end;
        TileScores scores = tile_scores<K>(m.fours, w.pages, start, w.first, end - 1, at.lane);
        if (w.biased) add_bias(scores, w, m, position);
        add_scores(sums, scores, seen, a.softcap, m, at.lane);
        simdgroup_barrier(mem_flags::mem_threadgroup);
        add_values<K>(sums, w, m, at, start, end);
        simdgroup_barrier(mem_flags::mem_threadgroup);
    }
}

// Adds the row's own position, whose k and v are in threadgroup memory. One simdgroup calls it.
static inline void add_own(thread DecodeSums & sums, constant AttentionArguments & a, DecodeWork w, DecodeMemory m,
                           DecodeThread at) {
    threadgroup const float4 * own_k = m.fours + ATTENTION_HEADS * HEAD_FOURS;
    threadgroup const float4 * own_v = w.n_stored == 1 ? own_k : own_k + HEAD_FOURS;
    #pragma clang loop unroll(full)
    for (uint h = 0; h < ATTENTION_HEADS; h++) {
        float s = 0.0f;
        for (uint i = at.lane; i < HEAD_FOURS; i += 32) s += dot(m.fours[h * HEAD_FOURS + i], own_k[i]);
        if (w.biased) {
            if (at.lane == 0) s += m.terms[h * w.n_terms];
            for (uint pair = at.lane; pair < w.known.n_pairs; pair += 32) {
                const float2 t = w.known.turn(pair, w.own);
                s += m.terms[h * w.n_terms + 1 + 2 * pair] * t.x + m.terms[h * w.n_terms + 2 + 2 * pair] * t.y;
            }
        }
        s = capped(simd_sum(s), a.softcap);
        const float most = max(sums.most[h], s);
        const float p = exp(s - most), shrink = exp(sums.most[h] - most);
        sums.most[h] = most;
        sums.total[h] = sums.total[h] * shrink + (at.lane == 0 ? p : 0.0f);
        #pragma clang loop unroll(full)
        for (uint i = 0; i * VALUE_LANES < HEAD_FOURS; i++) {
            sums.acc[h][i] *= shrink;
            const uint four = at.four + i * VALUE_LANES;
            if (at.key_group == 0 && four < HEAD_FOURS) sums.acc[h][i] += p * own_v[four];
        }
    }
}

// Adds the lanes that hold the same columns, and writes the simdgroup's largest scores and totals.
static inline void add_lanes(thread DecodeSums & sums, DecodeMemory m, DecodeThread at) {
    #pragma clang loop unroll(full)
    for (uint h = 0; h < ATTENTION_HEADS; h++) {
        sums.total[h] = simd_sum(sums.total[h]);
        #pragma clang loop unroll(full)
        for (uint other = VALUE_LANES; other < 32; other *= 2) {
            #pragma clang loop unroll(full)
            for (uint i = 0; i * VALUE_LANES < HEAD_FOURS; i++) {
                sums.acc[h][i] += simd_shuffle_xor(sums.acc[h][i], ushort(other));
            }
        }
        if (at.lane == 0) {
            m.totals[(at.sg * ATTENTION_HEADS + h) * 2] = sums.most[h];
            m.totals[(at.sg * ATTENTION_HEADS + h) * 2 + 1] = sums.total[h];
        }
    }
}

// Largest score of a head over all simdgroups, and the sum of exp(score - most).
static inline float2 merged_total(DecodeMemory m, uint h, uint n_sg) {
    float most = LEAST_SCORE, total = 0.0f;
    for (uint i = 0; i < n_sg; i++) most = max(most, m.totals[(i * ATTENTION_HEADS + h) * 2]);
    for (uint i = 0; i < n_sg; i++) {
        total += m.totals[(i * ATTENTION_HEADS + h) * 2 + 1] * exp(m.totals[(i * ATTENTION_HEADS + h) * 2] - most);
    }
    return float2(most, total);
}

// Adds the simdgroups, and writes the heads: results, or with ATTENTION_SPLIT parts for
// attention_merge.
static inline void write_heads(thread const DecodeSums & sums, constant AttentionArguments & a, DecodeWork w, DecodeMemory m,
                               DecodeThread at, device const float * sinks, device float * out, device float4 * partials,
                               device float2 * totals) {
    #pragma clang loop unroll(full)
    for (uint h = 0; h < ATTENTION_HEADS; h++) {
        // The index of a head is a constant in each unrolled pass, so that sums stay in registers.
        if (h >= w.n_heads) continue;
        const float2 total = merged_total(m, h, at.n_sg);
        const float part = exp(sums.most[h] - total.x);
        #pragma clang loop unroll(full)
        for (uint i = 0; i * VALUE_LANES < HEAD_FOURS; i++) {
            const uint four = at.four + i * VALUE_LANES;
            if (at.key_group == 0 && four < HEAD_FOURS) m.fours[at.sg * HEAD_FOURS + four] = sums.acc[h][i] * part;
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        const ulong head = ulong(w.row) * a.n_heads + w.first_head + h;
        float factor = 1.0f;
        if (!ATTENTION_SPLIT) {
            float sink = 0.0f;
            if (ATTENTION_SINKS) {
                const float all = max(total.x, sinks[w.first_head + h]);
                factor = exp(total.x - all);
                sink = exp(sinks[w.first_head + h] - all);
            }
            factor = factor / (total.y * factor + sink);
        }
        for (uint i = at.tid; i < HEAD_FOURS; i += 32 * at.n_sg) {
            float4 sum = m.fours[i];
            for (uint other = 1; other < at.n_sg; other++) sum += m.fours[other * HEAD_FOURS + i];
            sum *= factor;
            if (ATTENTION_SPLIT) {
                partials[(head * a.n_splits + w.split) * HEAD_FOURS + i] = sum;
            } else {
                for (uint c = 0; c < 4 && 4 * i + c < ATTENTION_HEAD_DIM; c++) out[head * ATTENTION_HEAD_DIM + 4 * i + c] = sum[c];
            }
        }
        if (ATTENTION_SPLIT && at.tid == 0) totals[head * a.n_splits + w.split] = total;
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
}

// ENCODER: a row sees all encoder states of the layer.
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
                             device const float2 * q_turns [[buffer(16)]],
                             device const float2 * k_turns [[buffer(17)]],
                             device const uint * bias_words [[buffer(18)]],
                             threadgroup float4 * memory [[threadgroup(0)]],
                             uint3 place [[threadgroup_position_in_grid]],
                             ushort tid [[thread_index_in_threadgroup]],
                             ushort sg [[simdgroup_index_in_threadgroup]],
                             ushort n_sg [[simdgroups_per_threadgroup]],
                             ushort lane [[thread_index_in_simdgroup]]) {
    if (place.z >= step->n_rows) return;
    const DecodeWork w = decode_work<K, ENCODER>(a, step, positions, row_spans, spans, page_tables, bias_words, place);
    const DecodeMemory m = decode_memory(memory, sg, n_sg);
    const DecodeThread at = {tid, sg, n_sg, lane, uint(lane) / VALUE_LANES, uint(lane) % VALUE_LANES};
    const DecodeInputs in = {q, k_row, v_row, q_weight, k_weight, q_turns + w.row * (a.q.n_dims / 2),
                             k_turns + w.row * (a.k.n_dims / 2)};

    // A simdgroup prepares one vector at a time: a head of q, or k, or v.
    for (uint i = sg; i < ATTENTION_HEADS + (w.fused ? w.n_stored : 0); i += n_sg) {
        threadgroup float * head = m.vectors + i * 4 * HEAD_FOURS;
        load_head(head, a, w, in, i, lane);
        if (i < ATTENTION_HEADS) prepare_query<ENCODER>(head, a, w, in, m, i, lane);
        else if (w.fused) store_own<K>(head, a, w, in, i == ATTENTION_HEADS, lane);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);

    DecodeSums sums;
    #pragma clang loop unroll(full)
    for (uint h = 0; h < ATTENTION_HEADS; h++) {
        #pragma clang loop unroll(full)
        for (uint i = 0; i < 5; i++) sums.acc[h][i] = float4(0.0f);
        sums.most[h] = LEAST_SCORE;
        sums.total[h] = 0.0f;
    }
    add_tiles<K>(sums, a, w, m, at);
    if (w.fused && w.split == 0 && sg == 0) add_own(sums, a, w, m, at);
    add_lanes(sums, m, at);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    write_heads(sums, a, w, m, at, sinks, out, partials, totals);
}

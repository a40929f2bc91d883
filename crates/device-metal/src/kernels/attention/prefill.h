// attention_prefill_<kv>_<D>, self_attention_<D>, cross_attention_prefill_<kv>_<D>: flash attention
// for many rows, by tiles.
// <kv>: f32, f16, q8_0; <D>: 64, 128, 256 or 512, for attention_prefill also 576. The host chooses
// the smallest D that is at least head_dim.
//
//     out = softmax(softcap(scale * q k^T)) v     over the positions that each row sees
//
// Scores are in units of ln 2: exp(s - m) = exp2((s - m) / ln 2). q is scaled by scale / ln 2, so
// that the exponentials need no product; softcap bounds scores before they are divided.
//
// Host contract
//   buffers  0 AttentionArguments (attention/arguments.h)    1 Step
//            2 q (n, n_heads * head_dim) f32, aligned to 4 bytes
//            4 row_spans (n)     5 spans (n_spans)     6 page_tables
//            8 sinks (n_heads) f32, ATTENTION_SINKS
//            9 out (n, n_heads * head_dim) f32; may be q if group <= H
//            12 k, 13 v (n, n_kv_heads * head_dim) f32, aligned to 16 bytes: self_attention
//            18 the layer's bias of keys (key_bias.h), ATTENTION_KEY_BIAS
//            Buffers that a kernel leaves unused may be bound to anything.
//   threads  128
//   grid     (ceil(n / R), n_kv_heads * ceil(group / H), 1): H = ATTENTION_HEADS, at most 8,
//            group = n_heads / n_kv_heads, R = floor(8 * B / H) rows, B from the table
//   constants ATTENTION_HEAD_DIM, _HEADS, _SOFTCAP; for attention_prefill also _SINKS, _WINDOW,
//            _CHUNKED, _BOTH_WAYS, _KEY_BIAS; for self_attention also _WINDOW;
//            _TENSOR: attention/tensor.h
//   threadgroup memory  none to be set
//   reads    K and V of the positions that a tile's rows see, once for R rows and H heads
//
//     D    B (f16, q8_0)   B (f32, self_attention)   B: blocks of eight pairs of a row and a head
//     64   4               4
//     128  4               2
//     256  2               1
//     512  1               1
//     576  1               1
//
// The rows of a tile are pairs of a row and a head, since all query heads of a KV head use the same
// keys. Rows of several spans may share a tile. The kernel then visits the spans one by one, with
// the rows of other spans masked. 32 positions by 64 columns of keys or values at a time are staged
// in threadgroup memory, as halves (as floats for F32 and self_attention). Columns after the last
// one of a head are 0. The four simdgroups divide a score tile by keys (8 each), the softmax by
// rows, and the values by columns (16 of 64 each). Sums of values stay in matrix registers.
//
// Order of accumulation: positions ascending, 32 at a time.
#pragma once
#include "attention/vectors.h"
#include "key_bias.h"

// Source of keys and values, and the positions that a row sees.
#define SOURCE_CACHE 0  // pages, positions up to the row's own
#define SOURCE_ENCODER 1 // pages, all positions
#define SOURCE_ROWS 2   // activations, rows of the span: all, or `window` rows to each side

// Operands between the starts of two rows of a staged tile.
#define STAGE_STRIDE 72
// Floats between the starts of two rows of scores, and operands between those of probabilities.
#define SCORE_STRIDE 36
#define PROBABILITY_STRIDE 40

// `probability(s)` is 2^s. One that is rounded to half needs no more than the fast function.
template<class T> struct AttentionOperand;
template<> struct AttentionOperand<float> {
    static float4 of(float4 v) { return v; }
    static float one(float v) { return v; }
    static float probability(float s) { return precise::exp2(s); }
};
template<> struct AttentionOperand<half> {
    static half4 of(float4 v) { return half4(clamp(v, float4(-65504.0f), float4(65504.0f))); }
    static half one(float v) { return half(clamp(v, -65504.0f, 65504.0f)); }
    static float probability(float s) { return fast::exp2(s); }
};

// Stages 64 columns of 32 vectors. Thread `tid` writes 16 columns of vector tid / 4, zeros if the
// vector is absent.
template<class K>
static inline void stage(threadgroup typename K::Operand * tile, device const uchar * vector, bool is_present, uint chunk, ushort tid) {
    typedef typename K::Operand T;
    for (uint i = 0; i < 4; i++) {
        const uint four = chunk * 16 + tid % 4 * 4 + i;
        float4 v = float4(0.0f);
        if (is_present && four < HEAD_FOURS) v = K::four(vector, four);
        *(threadgroup vec<T, 4> *) (tile + tid / 4 * STAGE_STRIDE + tid % 4 * 16 + 4 * i) = AttentionOperand<T>::of(v);
    }
}

// Work of a threadgroup: a tile of pairs, each a row and a query head of one KV head. Pair i is row
// first_row + i / ATTENTION_HEADS and head i % ATTENTION_HEADS.
struct PrefillWork {
    uint first_row;
    uint end_row;
    uint n_pairs;    // of a full tile: ATTENTION_HEADS for each row
    uint kv_head;
    uint first_head; // index of the first query head in a row
    uint n_heads;    // query heads, at most ATTENTION_HEADS
    bool biased;     // ATTENTION_KEY_BIAS, for SOURCE_CACHE
    KeyBias known;   // set if biased

    uint row(uint pair) const { return first_row + pair / ATTENTION_HEADS; }
    uint head(uint pair) const { return pair % ATTENTION_HEADS; }
    bool has(uint pair) const { return pair < n_pairs && row(pair) < end_row && head(pair) < n_heads; }
    // Index of a pair's first column in q and out.
    ulong start(uint row, uint head, uint row_heads) const {
        return (ulong(row) * row_heads + first_head + head) * ATTENTION_HEAD_DIM;
    }
};

// Rows of the tile that belong to one span, and the positions that they see.
struct PrefillSpan {
    uint row;      // first row of the span
    uint position; // position of that row
    uint low_row;  // first row of the tile in the span
    uint high_row; // end of these rows
    uint first;    // first position that any of these rows sees
    uint end;      // end of these positions
    HeadPages pages; // set unless SOURCE_ROWS
};

// Key and value that a thread stages: of position start + tid / 4. Null if the source is a page and
// none of the span's rows sees the position.
struct StagedVectors {
    bool is_present;
    device const uchar * key;
    device const uchar * value;
};

template<class T> struct PrefillMemory {
    threadgroup T * q;             // (8 B, CHUNKS * 64 + 8), scaled
    threadgroup T * staged;        // (32, STAGE_STRIDE), STAGE_OPERANDS of memory
    threadgroup float * scores;    // (8 B, SCORE_STRIDE)
    threadgroup T * probabilities; // (8 B, stride); floats overwrite the scores that they come from
    threadgroup float * shrinks;   // (B, 8, 8), diagonal matrices
    threadgroup float * factors;   // (8 B), factors of the pairs' sums at the end
    threadgroup uint * shrunk;     // (4), by simdgroup: 1 if the sums of one of its pairs must shrink

    // Returns true if the sums of a pair must shrink.
    bool must_shrink() const { return shrunk[0] + shrunk[1] + shrunk[2] + shrunk[3] != 0; }
    // Operands between the starts of two pairs' probabilities.
    static short stride() { return sizeof(T) == 4 ? SCORE_STRIDE : PROBABILITY_STRIDE; }
};

// Running sums of the online softmax. Matrices are (pair, column): block b, chunk i / 2, columns
// 8 * (sg + 4 * (i % 2)) of the chunk. `most` and `total` are of pairs sg, sg + 4, ...
template<short B, short CHUNKS> struct PrefillSums {
    simdgroup_float8x8 m[B * CHUNKS * 2];
    float most[B * 2];  // largest score so far
    float total[B * 2]; // sum of 2^(score - most)
};

// Scores are natural ones times this.
#define SCORE_UNIT M_LOG2E_F

// Factor on the products of queries and keys.
static inline float product_scale(constant AttentionArguments & a) { return ATTENTION_SOFTCAP ? a.scale : a.scale * SCORE_UNIT; }

// Groups of eight columns in a head.
#define HEAD_EIGHTS ((ATTENTION_HEAD_DIM + 7) / 8)

template<short B, short SOURCE>
static inline PrefillWork prefill_work(constant AttentionArguments & a, device const Step * step, uint2 place) {
    PrefillWork w;
    const uint group = a.n_heads / a.pages.n_kv_heads;
    const uint chunks = (group + ATTENTION_HEADS - 1) / ATTENTION_HEADS;
    const uint first_in_group = place.y % chunks * ATTENTION_HEADS;
    w.kv_head = place.y / chunks;
    w.first_head = w.kv_head * group + first_in_group;
    w.n_heads = min(uint(ATTENTION_HEADS), group - first_in_group);
    const uint rows = B * 8 / ATTENTION_HEADS;
    w.n_pairs = rows * ATTENTION_HEADS;
    w.first_row = place.x * rows;
    w.end_row = min(w.first_row + rows, step->n_rows);
    w.biased = SOURCE == SOURCE_CACHE && ATTENTION_KEY_BIAS;
    return w;
}

// Stages q, scaled, with zeros for absent pairs, and clears the matrices of `shrinks`.
template<class T, short B, short CHUNKS>
static inline void stage_queries(PrefillMemory<T> m, PrefillWork w, constant AttentionArguments & a, device const float * q,
                                 ushort tid) {
    const float scale = product_scale(a);
    for (uint i = tid; i < B * 8 * CHUNKS * 64; i += 128) {
        const uint pair = i / (CHUNKS * 64), column = i % (CHUNKS * 64);
        float value = 0.0f;
        if (w.has(pair) && column < ATTENTION_HEAD_DIM) value = scale * q[w.start(w.row(pair), w.head(pair), a.n_heads) + column];
        m.q[pair * (CHUNKS * 64 + 8) + column] = AttentionOperand<T>::one(value);
    }
    for (uint i = tid; i < B * 64; i += 128) m.shrinks[i] = 0.0f;
}

// Finds the tile's rows in a span. Without any, low_row >= high_row and the rest is not set.
template<class K, short SOURCE>
static inline PrefillSpan prefill_span(PrefillWork w, constant AttentionArguments & a, device const Step * step,
                                       device const Span * spans, device const Page * page_tables, uint index) {
    PrefillSpan s;
    const uint n_rows = spans[index].n_rows;
    s.row = spans[index].first_row;
    s.position = spans[index].first_position;
    s.low_row = max(w.first_row, s.row);
    s.high_row = min(w.end_row, s.row + n_rows);
    if (s.low_row >= s.high_row) return s;
    const uint low = s.low_row - s.row, high = s.high_row - s.row;
    s.first = 0;
    s.end = SOURCE == SOURCE_ENCODER ? a.n_positions : n_rows;
    if (SOURCE == SOURCE_CACHE) {
        s.first = first_seen(a, s.position + low);
        s.end = s.position + (ATTENTION_BOTH_WAYS ? n_rows : high);
    }
    if (SOURCE == SOURCE_ROWS && ATTENTION_WINDOW) {
        s.first = low > a.window ? low - a.window : 0;
        s.end = min(high + a.window, n_rows);
    }
    if (SOURCE != SOURCE_ROWS) s.pages = head_pages(K::KIND, a, page_tables, step, index, w.kv_head);
    return s;
}

template<short SOURCE>
static inline StagedVectors staged_vectors(PrefillWork w, PrefillSpan s, constant AttentionArguments & a, device const float * k_rows,
                                           device const float * v_rows, uint start, ushort tid) {
    const uint position = start + tid / 4;
    StagedVectors v;
    v.is_present = position >= s.first && position < s.end;
    v.key = nullptr;
    v.value = nullptr;
    if (SOURCE == SOURCE_ROWS) {
        const ulong at = (ulong(s.row + min(position, s.end - 1)) * a.pages.n_kv_heads + w.kv_head) * ATTENTION_HEAD_DIM;
        v.key = (device const uchar *) (k_rows + at);
        v.value = (device const uchar *) (v_rows + at);
    } else if (v.is_present) {
        v.key = s.pages.key(position);
        v.value = v.key + (s.pages.values - s.pages.keys);
    }
    return v;
}

// Scores of 32 positions, 8 for each simdgroup.
template<class K, short B, short CHUNKS>
static inline void write_scores(PrefillMemory<typename K::Operand> m, StagedVectors v, ushort tid, ushort sg) {
    typedef typename K::Operand T;
    const short q_stride = CHUNKS * 64 + 8;
    simdgroup_float8x8 products[B];
    #pragma clang loop unroll(full)
    for (short b = 0; b < B; b++) products[b] = make_filled_simdgroup_matrix<float, 8>(0.0f);
    for (short chunk = 0; chunk < CHUNKS; chunk++) {
        threadgroup_barrier(mem_flags::mem_threadgroup);
        stage<K>(m.staged, v.key, v.is_present, chunk, tid);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        #pragma clang loop unroll(full)
        for (short c = 0; c < 8; c++) {
            if (uint(8 * chunk + c) < HEAD_EIGHTS) {
                simdgroup_matrix<T, 8, 8> mk, mq[B];
                simdgroup_load(mk, m.staged + 8 * sg * STAGE_STRIDE + 8 * c, STAGE_STRIDE, ulong2(0, 0), true);
                #pragma clang loop unroll(full)
                for (short b = 0; b < B; b++) {
                    simdgroup_load(mq[b], m.q + 8 * b * q_stride + 64 * chunk + 8 * c, q_stride, ulong2(0, 0), false);
                }
                #pragma clang loop unroll(full)
                for (short b = 0; b < B; b++) simdgroup_multiply_accumulate(products[b], mq[b], mk, products[b]);
            }
        }
    }
    #pragma clang loop unroll(full)
    for (short b = 0; b < B; b++) {
        simdgroup_store(products[b], m.scores + 8 * b * SCORE_STRIDE + 8 * sg, SCORE_STRIDE, ulong2(0, 0), false);
    }
}

// Adds the bias of position `at` to the scores of the simdgroup's own pairs, so that no other
// simdgroup waits. A lane computes the terms of one pair of columns for each pair of the tile.
// Terms are f32, from q itself, because biases are large.
template<class T, short B>
static inline void add_tile_bias(PrefillMemory<T> m, PrefillWork w, constant AttentionArguments & a, device const float * q, uint at,
                            ushort sg, ushort lane) {
    float missing[B * 2];
    device const float * q_of[B * 2];
    #pragma clang loop unroll(full)
    for (short i = 0; i < B * 2; i++) {
        const uint pair = sg + 4 * i;
        q_of[i] = q + w.start(min(w.row(pair), w.end_row - 1), min(w.head(pair), w.n_heads - 1), a.n_heads);
        missing[i] = w.known.constant_term(q_of[i], lane);
    }
    for (uint begin = 0; begin < w.known.n_pairs; begin += 32) {
        float2 terms[B * 2];
        #pragma clang loop unroll(full)
        for (short i = 0; i < B * 2; i++) {
            terms[i] = begin + lane < w.known.n_pairs ? w.known.terms_of(begin + lane, q_of[i]) : float2(0.0f);
        }
        for (uint c = 0; c < min(w.known.n_pairs - begin, 32u); c++) {
            const float2 t = w.known.turn(begin + c, at);
            #pragma clang loop unroll(full)
            for (short i = 0; i < B * 2; i++) {
                missing[i] += simd_shuffle(terms[i].x, ushort(c)) * t.x + simd_shuffle(terms[i].y, ushort(c)) * t.y;
            }
        }
    }
    #pragma clang loop unroll(full)
    for (short i = 0; i < B * 2; i++) m.scores[(sg + 4 * i) * SCORE_STRIDE + lane] += product_scale(a) * missing[i];
    simdgroup_barrier(mem_flags::mem_threadgroup);
}

// The softmax of no positions.
template<short B, short CHUNKS> static inline void reset_softmax(thread PrefillSums<B, CHUNKS> & sums) {
    #pragma clang loop unroll(full)
    for (short i = 0; i < B * 2; i++) {
        sums.most[i] = LEAST_SCORE;
        sums.total[i] = 0.0f;
    }
}

// Returns true if row `row` of the tile sees position `at`.
template<short SOURCE>
static inline bool sees(PrefillSpan s, constant AttentionArguments & a, uint row, uint at) {
    bool seen = row >= s.low_row && row < s.high_row && at >= s.first && at < s.end;
    if (SOURCE == SOURCE_CACHE) {
        const uint own = s.position + row - s.row;
        seen = seen && at >= first_seen(a, own);
        if (!ATTENTION_BOTH_WAYS) seen = seen && at <= own;
    }
    if (SOURCE == SOURCE_ROWS && ATTENTION_WINDOW) {
        const uint own = row - s.row;
        seen = seen && at + a.window >= own && at <= own + a.window;
    }
    return seen;
}

// Online softmax of a tile of scores: a simdgroup has every fourth pair, a lane position `at`.
// Writes probabilities, and the factors by which the sums before shrink.
template<class T, short B, short CHUNKS, short SOURCE>
static inline void write_probabilities(thread PrefillSums<B, CHUNKS> & sums, PrefillMemory<T> m, PrefillWork w, PrefillSpan s,
                                       constant AttentionArguments & a, uint at, ushort sg, ushort lane) {
    bool shrinking = false;
    #pragma clang loop unroll(full)
    for (short i = 0; i < B * 2; i++) {
        const uint pair = sg + 4 * i;
        const bool seen = pair < w.n_pairs && sees<SOURCE>(s, a, w.row(pair), at);
        float score = LEAST_SCORE;
        if (seen) score = m.scores[pair * SCORE_STRIDE + lane];
        if (seen && ATTENTION_SOFTCAP) score = SCORE_UNIT * capped(score, a.softcap);
        const float most = max(sums.most[i], simd_max(score));
        const float p = seen ? AttentionOperand<T>::probability(score - most) : 0.0f;
        const bool grows = most > sums.most[i];
        const float shrink = grows ? AttentionOperand<T>::probability(sums.most[i] - most) : 1.0f;
        sums.total[i] = sums.total[i] * shrink + simd_sum(p);
        sums.most[i] = most;
        m.probabilities[pair * m.stride() + lane] = T(p);
        if (lane == 0) m.shrinks[pair / 8 * 64 + pair % 8 * 9] = shrink;
        shrinking = shrinking || grows;
    }
    if (lane == 0) m.shrunk[sg] = shrinking ? 1 : 0;
}

// Shrinks the sums of values, if any pair's largest score grew.
template<class T, short B, short CHUNKS>
static inline void shrink_sums(thread PrefillSums<B, CHUNKS> & sums, PrefillMemory<T> m) {
    if (!m.must_shrink()) return;
    #pragma clang loop unroll(full)
    for (short b = 0; b < B; b++) {
        simdgroup_float8x8 diagonal;
        simdgroup_load(diagonal, m.shrinks + 64 * b, 8, ulong2(0, 0), false);
        #pragma clang loop unroll(full)
        for (short i = 0; i < CHUNKS * 2; i++) simdgroup_multiply(sums.m[b * CHUNKS * 2 + i], diagonal, sums.m[b * CHUNKS * 2 + i]);
    }
}

// Adds probabilities times values: a simdgroup has columns 8 sg and 8 (sg + 4) of each chunk.
template<class K, short B, short CHUNKS>
static inline void add_tile_values(thread PrefillSums<B, CHUNKS> & sums, PrefillMemory<typename K::Operand> m, StagedVectors v,
                              ushort tid, ushort sg) {
    typedef typename K::Operand T;
    #pragma clang loop unroll(full)
    for (short chunk = 0; chunk < CHUNKS; chunk++) {
        threadgroup_barrier(mem_flags::mem_threadgroup);
        stage<K>(m.staged, v.value, v.is_present, chunk, tid);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        #pragma clang loop unroll(full)
        for (short n = 0; n < 4; n++) {
            simdgroup_matrix<T, 8, 8> mp[B], mv;
            #pragma clang loop unroll(full)
            for (short b = 0; b < B; b++) {
                simdgroup_load(mp[b], m.probabilities + 8 * b * m.stride() + 8 * n, m.stride(), ulong2(0, 0), false);
            }
            #pragma clang loop unroll(full)
            for (short f = 0; f < 2; f++) {
                if (uint(8 * chunk + sg + 4 * f) < HEAD_EIGHTS) {
                    simdgroup_load(mv, m.staged + 8 * n * STAGE_STRIDE + 8 * (sg + 4 * f), STAGE_STRIDE, ulong2(0, 0), false);
                    #pragma clang loop unroll(full)
                    for (short b = 0; b < B; b++) {
                        const short to = b * CHUNKS * 2 + 2 * chunk + f;
                        simdgroup_multiply_accumulate(sums.m[to], mp[b], mv, sums.m[to]);
                    }
                }
            }
        }
    }
}

// Writes the factor 1 / total of each pair, with the sink's part of the total.
template<class T, short B, short CHUNKS, short SOURCE>
static inline void write_factors(thread const PrefillSums<B, CHUNKS> & sums, PrefillMemory<T> m, PrefillWork w,
                                 device const float * sinks, ushort sg, ushort lane) {
    #pragma clang loop unroll(full)
    for (short i = 0; i < B * 2; i++) {
        const uint pair = sg + 4 * i;
        float factor = sums.total[i] > 0.0f ? 1.0f / sums.total[i] : 0.0f;
        if (SOURCE == SOURCE_CACHE && ATTENTION_SINKS && w.head(pair) < w.n_heads) {
            const float sink = SCORE_UNIT * sinks[w.first_head + w.head(pair)];
            const float most = max(sums.most[i], sink), shrink = precise::exp2(sums.most[i] - most);
            factor = shrink / (sums.total[i] * shrink + precise::exp2(sink - most));
        }
        if (lane == 0) m.factors[pair] = factor;
    }
}

// Writes the results, 8 by 8 through `block` of threadgroup memory, the simdgroup's own 64 floats.
template<class T, short B, short CHUNKS>
static inline void write_rows(thread const PrefillSums<B, CHUNKS> & sums, PrefillMemory<T> m, PrefillWork w,
                              constant AttentionArguments & a, device float * out, threadgroup float * block, ushort sg, ushort lane) {
    #pragma clang loop unroll(full)
    for (short b = 0; b < B; b++) {
        #pragma clang loop unroll(full)
        for (short i = 0; i < CHUNKS * 2; i++) {
            simdgroup_store(sums.m[b * CHUNKS * 2 + i], block, 8, ulong2(0, 0), false);
            simdgroup_barrier(mem_flags::mem_threadgroup);
            for (uint e = lane; e < 64; e += 32) {
                const uint pair = 8 * b + e / 8, column = 64 * (i / 2) + 8 * (sg + 4 * (i % 2)) + e % 8;
                if (w.has(pair) && column < ATTENTION_HEAD_DIM) {
                    out[w.start(w.row(pair), w.head(pair), a.n_heads) + column] = block[e] * m.factors[pair];
                }
            }
            simdgroup_barrier(mem_flags::mem_threadgroup);
        }
    }
}

#include "attention/tensor.h"

// B: blocks of eight pairs. CHUNKS: chunks of 64 columns.
template<class K, short B, short CHUNKS, short SOURCE>
kernel void attention_prefill(constant AttentionArguments & a [[buffer(0)]],
                              device const Step * step [[buffer(1)]],
                              device const float * q [[buffer(2)]],
                              device const uint * row_spans [[buffer(4)]],
                              device const Span * spans [[buffer(5)]],
                              device const Page * page_tables [[buffer(6)]],
                              device const float * sinks [[buffer(8)]],
                              device float * out [[buffer(9)]],
                              device const float * k_rows [[buffer(12)]],
                              device const float * v_rows [[buffer(13)]],
                              device const uint * bias_words [[buffer(18)]],
                              uint2 place [[threadgroup_position_in_grid]],
                              ushort tid [[thread_index_in_threadgroup]],
                              ushort sg [[simdgroup_index_in_threadgroup]],
                              ushort lane [[thread_index_in_simdgroup]]) {
    typedef typename K::Operand T;
    threadgroup float4 q_memory[B * 8 * (CHUNKS * 64 + 8) * sizeof(T) / 16];
    threadgroup float4 stage_memory[STAGE_OPERANDS(B, CHUNKS) * sizeof(T) / 16];
    threadgroup float4 score_memory[B * 8 * SCORE_STRIDE / 4];
    threadgroup float4 probability_memory[sizeof(T) == 4 ? 1 : B * 8 * PROBABILITY_STRIDE * sizeof(T) / 16];
    threadgroup float shrinks[B * 64];
    threadgroup float factors[B * 8];
    threadgroup uint shrunk[4];
    const PrefillMemory<T> m = {
        (threadgroup T *) q_memory, (threadgroup T *) stage_memory, (threadgroup float *) score_memory,
        sizeof(T) == 4 ? (threadgroup T *) score_memory : (threadgroup T *) probability_memory, shrinks, factors, shrunk};

    PrefillWork w = prefill_work<B, SOURCE>(a, step, place);
    if (w.first_row >= step->n_rows) return;
    if (w.biased) w.known = key_bias(bias_words, a.pages.n_kv_heads, w.kv_head);
    stage_queries<T, B, CHUNKS>(m, w, a, q, tid);

#ifdef WITH_TENSORS
    if constexpr (HAS_TENSOR_TILES(B)) {
        if (ATTENTION_TENSOR) {
            attend_by_tensors<K, B, CHUNKS, SOURCE>(m, w, a, step, q, row_spans, spans, page_tables, sinks, out, k_rows, v_rows, tid, sg, lane);
            return;
        }
    }
#endif
    PrefillSums<B, CHUNKS> sums;
    #pragma clang loop unroll(full)
    for (short i = 0; i < B * CHUNKS * 2; i++) sums.m[i] = make_filled_simdgroup_matrix<float, 8>(0.0f);
    reset_softmax(sums);
    const uint last_span = row_spans[w.end_row - 1];
    for (uint index = row_spans[w.first_row]; index <= last_span; index++) {
        const PrefillSpan s = prefill_span<K, SOURCE>(w, a, step, spans, page_tables, index);
        if (s.low_row >= s.high_row) continue;
        for (uint start = s.first / 32 * 32; start < s.end; start += 32) {
            const StagedVectors v = staged_vectors<SOURCE>(w, s, a, k_rows, v_rows, start, tid);
            write_scores<K, B, CHUNKS>(m, v, tid, sg);
            threadgroup_barrier(mem_flags::mem_threadgroup);
            if (w.biased) add_tile_bias<T, B>(m, w, a, q, start + lane, sg, lane);
            write_probabilities<T, B, CHUNKS, SOURCE>(sums, m, w, s, a, start + lane, sg, lane);
            threadgroup_barrier(mem_flags::mem_threadgroup);
            shrink_sums<T, B, CHUNKS>(sums, m);
            add_tile_values<K, B, CHUNKS>(sums, m, v, tid, sg);
        }
    }
    write_factors<T, B, CHUNKS, SOURCE>(sums, m, w, sinks, sg, lane);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    write_rows<T, B, CHUNKS>(sums, m, w, a, out, (threadgroup float *) stage_memory + 64 * sg, sg, lane);
}

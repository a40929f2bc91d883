// attention_prefill_<kv>_<D>, self_attention_<D>, cross_attention_prefill_<kv>_<D>: flash attention
// of many rows by tiles.
// <kv>: f32, f16, q8_0; <D>: 64, 128, 256, 512, and of attention_prefill 576, the least that head_dim does not exceed.
//
//     out = softmax(softcap(scale * q k^T)) v     over the positions that each row sees
//
// Host contract
//   buffers 0 AttentionArguments (attention/arguments.h) 1 Step 2 q (n, n_heads * head_dim) f32,
//   multiple of 4 bytes
//            4 row_spans (n)     5 spans (n_spans)     6 page_tables
//            8 sinks (n_heads) f32, ATTENTION_SINKS    9 out (n, n_heads * head_dim) f32, may be q
//            12 k, 13 v (n, n_kv_heads * head_dim) f32, multiples of 16 bytes: self_attention
//            18 the layer's bias of keys (key_bias.h), ATTENTION_KEY_BIAS
//            What a kernel leaves unused is bound all the same, to anything.
//   threads  128
//   grid (ceil(n / R), n_kv_heads * ceil(group / H), 1): H = ATTENTION_HEADS, at most 8, group =
//   n_heads / n_kv_heads,
//            R = floor(8 * B / H) rows, B from the table
//   constants ATTENTION_HEAD_DIM, _HEADS, _SOFTCAP, _SINKS, _WINDOW, _CHUNKED, _BOTH_WAYS,
//   _KEY_BIAS; the last five mean nothing to
//            cross_attention, and of these only _WINDOW to self_attention
//   threadgroup memory  none to be set
//   reads    K and V of the positions that a tile's rows see once for R rows and H heads
//   out may be q if group <= H
//
//     D    B (f16, q8_0)   B (f32, self_attention)   blocks of eight pairs of a row and a head
//     64   4               4
//     128  4               2
//     256  2               1
//     512  1               1
//     576  1               1
//
// A tile's rows are pairs: all query heads of a KV head meet the same keys. Rows of several spans
// may share a tile; each span's positions are gone through in turn, and rows of others see none of
// them. Keys and values come 32 positions by 64 columns at a time through threadgroup memory, as
// halves (floats for F32 and self_attention); what a row's head has no column for is 0. Four
// simdgroups share the keys of a score tile (8 each), then its rows (for the softmax), then the
// columns of the values (16 of 64 each), whose sums stay in their matrices.
//
// Order of accumulation: positions ascending, 32 at a time.
#pragma once
#include "attention/vectors.h"
#include "key_bias.h"

// Where keys and values come from, and what a row sees.
#define SOURCE_CACHE 0  // pages, positions up to the row's own
#define SOURCE_ENCODER 1 // pages, all positions
#define SOURCE_ROWS 2   // activations, rows of the span: all, or those within the window to each side

// Operands from one row of a staged tile to the next.
#define STAGE_STRIDE 72
// Floats from one row of scores to the next, operands from one row of probabilities to the next.
#define SCORE_STRIDE 36
#define PROBABILITY_STRIDE 40

template<class T> struct AttentionOperand;
template<> struct AttentionOperand<float> {
    static float4 of(float4 v) { return v; }
    static float one(float v) { return v; }
};
template<> struct AttentionOperand<half> {
    static half4 of(float4 v) { return half4(clamp(v, float4(-65504.0f), float4(65504.0f))); }
    static half one(float v) { return half(clamp(v, -65504.0f, 65504.0f)); }
};

// Stage 64 columns of 32 vectors: thread `tid` brings 16 columns of vector tid / 4, zeros if it is
// not there.
template<class K>
static inline void stage(threadgroup typename K::Operand * tile, device const uchar * vector, bool there, uint chunk, ushort tid) {
    typedef typename K::Operand T;
    for (uint i = 0; i < 4; i++) {
        const uint four = chunk * 16 + tid % 4 * 4 + i;
        float4 v = float4(0.0f);
        if (there && four < HEAD_FOURS) v = K::four(vector, four);
        *(threadgroup vec<T, 4> *) (tile + tid / 4 * STAGE_STRIDE + tid % 4 * 16 + 4 * i) = AttentionOperand<T>::of(v);
    }
}

// B blocks of eight pairs, CHUNKS chunks of 64 columns.
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
    // Operands from one pair's q to the next.
    const short q_stride = CHUNKS * 64 + 8;
    threadgroup float4 q_memory[B * 8 * (CHUNKS * 64 + 8) * sizeof(T) / 16];
    threadgroup float4 stage_memory[32 * STAGE_STRIDE * sizeof(T) / 16];
    threadgroup float4 score_memory[B * 8 * SCORE_STRIDE / 4];
    threadgroup float4 probability_memory[sizeof(T) == 4 ? 1 : B * 8 * PROBABILITY_STRIDE * sizeof(T) / 16];
    threadgroup float shrinks[B * 64]; // B diagonal matrices
    threadgroup float factors[B * 8];  // of each pair's sums, at the end
    threadgroup uint shrunk[4];        // by simdgroup: whether one of its pairs' sums must shrink
    threadgroup T * q_tile = (threadgroup T *) q_memory;
    threadgroup T * staged = (threadgroup T *) stage_memory;
    threadgroup float * scores = (threadgroup float *) score_memory;
    // Floats lie over the scores that they come from.
    const short p_stride = sizeof(T) == 4 ? SCORE_STRIDE : PROBABILITY_STRIDE;
    threadgroup T * probabilities = sizeof(T) == 4 ? (threadgroup T *) score_memory : (threadgroup T *) probability_memory;

    const uint heads = ATTENTION_HEADS;
    const uint group = a.n_heads / a.pages.n_kv_heads;
    const uint head_chunks = (group + heads - 1) / heads;
    const uint kv_head = place.y / head_chunks, first_in_group = place.y % head_chunks * heads;
    const uint first_head = kv_head * group + first_in_group;
    const uint n_heads = min(heads, group - first_in_group);
    const uint rows = B * 8 / heads, first_row = place.x * rows;
    if (first_row >= step->n_rows) return;
    const uint end_row = min(first_row + rows, step->n_rows);
    const bool biased = SOURCE == SOURCE_CACHE && ATTENTION_KEY_BIAS;
    KeyBias known;
    if (biased) known = key_bias(bias_words, a.pages.n_kv_heads, kv_head);

    // q, scaled; 0 for pairs that are not there.
    for (uint i = tid; i < B * 8 * CHUNKS * 64; i += 128) {
        const uint pair = i / (CHUNKS * 64), column = i % (CHUNKS * 64);
        const uint row = first_row + pair / heads, head = pair % heads;
        float value = 0.0f;
        if (pair < rows * heads && row < end_row && head < n_heads && column < ATTENTION_HEAD_DIM) {
            value = a.scale * q[(ulong(row) * a.n_heads + first_head + head) * ATTENTION_HEAD_DIM + column];
        }
        q_tile[pair * q_stride + column] = AttentionOperand<T>::one(value);
    }
    for (uint i = tid; i < B * 64; i += 128) shrinks[i] = 0.0f;

    // Columns by 8 that a chunk has.
    const uint eights = (ATTENTION_HEAD_DIM + 7) / 8;
    simdgroup_float8x8 sums[B * CHUNKS * 2];
    #pragma clang loop unroll(full)
    for (short i = 0; i < B * CHUNKS * 2; i++) sums[i] = make_filled_simdgroup_matrix<float, 8>(0.0f);
    // Of pairs sg, sg + 4, ...
    float most[B * 2], total[B * 2];
    #pragma clang loop unroll(full)
    for (short i = 0; i < B * 2; i++) {
        most[i] = LEAST_SCORE;
        total[i] = 0.0f;
    }

    const uint last_span = row_spans[end_row - 1];
    for (uint s = row_spans[first_row]; s <= last_span; s++) {
        const uint span_row = spans[s].first_row, span_rows = spans[s].n_rows, span_position = spans[s].first_position;
        // of the tile, in the span
        const uint low_row = max(first_row, span_row), high_row = min(end_row, span_row + span_rows);
        if (low_row >= high_row) continue;
        // What some row of the tile sees.
        uint first = 0, end = SOURCE == SOURCE_ENCODER ? a.n_positions : span_rows;
        const uint low = low_row - span_row, high = high_row - span_row;
        if (SOURCE == SOURCE_CACHE) {
            first = first_seen(a, span_position + low);
            end = span_position + (ATTENTION_BOTH_WAYS ? span_rows : high);
        }
        if (SOURCE == SOURCE_ROWS && ATTENTION_WINDOW) {
            first = low > a.window ? low - a.window : 0;
            end = min(high + a.window, span_rows);
        }
        HeadPages pages;
        if (SOURCE != SOURCE_ROWS) pages = head_pages(K::KIND, a, page_tables, step, s, kv_head);

        for (uint start = first / 32 * 32; start < end; start += 32) {
            // The thread's vector of this tile.
            const uint position = start + tid / 4;
            const bool there = position >= first && position < end;
            device const uchar * key = nullptr; // where nothing is there, and nothing is read
            device const uchar * value = nullptr;
            if (SOURCE == SOURCE_ROWS) {
                const ulong at = (ulong(span_row + min(position, end - 1)) * a.pages.n_kv_heads + kv_head) * ATTENTION_HEAD_DIM;
                key = (device const uchar *) (k_rows + at);
                value = (device const uchar *) (v_rows + at);
            } else if (there) {
                key = pages.key(position);
                value = key + (pages.values - pages.keys);
            }

            // Scores of 8 keys a simdgroup.
            simdgroup_float8x8 products[B];
            #pragma clang loop unroll(full)
            for (short b = 0; b < B; b++) products[b] = make_filled_simdgroup_matrix<float, 8>(0.0f);
            for (short chunk = 0; chunk < CHUNKS; chunk++) {
                threadgroup_barrier(mem_flags::mem_threadgroup);
                stage<K>(staged, key, there, chunk, tid);
                threadgroup_barrier(mem_flags::mem_threadgroup);
                #pragma clang loop unroll(full)
                for (short c = 0; c < 8; c++) {
                    if (uint(8 * chunk + c) < eights) {
                        simdgroup_matrix<T, 8, 8> mk, mq[B];
                        simdgroup_load(mk, staged + 8 * sg * STAGE_STRIDE + 8 * c, STAGE_STRIDE, ulong2(0, 0), true);
                        #pragma clang loop unroll(full)
                        for (short b = 0; b < B; b++) {
                            simdgroup_load(mq[b], q_tile + 8 * b * q_stride + 64 * chunk + 8 * c, q_stride, ulong2(0, 0), false);
                        }
                        #pragma clang loop unroll(full)
                        for (short b = 0; b < B; b++) simdgroup_multiply_accumulate(products[b], mq[b], mk, products[b]);
                    }
                }
            }
            #pragma clang loop unroll(full)
            for (short b = 0; b < B; b++) {
                simdgroup_store(products[b], scores + 8 * b * SCORE_STRIDE + 8 * sg, SCORE_STRIDE, ulong2(0, 0), false);
            }
            threadgroup_barrier(mem_flags::mem_threadgroup);

            // Softmax: a simdgroup has every fourth pair, a lane a position.
            bool shrinking = false;
            const uint at = start + lane;
            if (biased) {
                // Of the simdgroup's own pairs, so that no others wait for it. A lane has the terms
                // of a pair of columns of each, in f32 from q itself, for biases are large.
                float missing[B * 2];
                device const float * q_of[B * 2];
                #pragma clang loop unroll(full)
                for (short i = 0; i < B * 2; i++) {
                    const uint pair = sg + 4 * i, row = min(first_row + pair / heads, end_row - 1), head = min(pair % heads, n_heads - 1);
                    q_of[i] = q + (ulong(row) * a.n_heads + first_head + head) * ATTENTION_HEAD_DIM;
                    missing[i] = known.constant_term(q_of[i], lane);
                }
                for (uint begin = 0; begin < known.n_pairs; begin += 32) {
                    float2 terms[B * 2];
                    #pragma clang loop unroll(full)
                    for (short i = 0; i < B * 2; i++) {
                        terms[i] = begin + lane < known.n_pairs ? known.terms_of(begin + lane, q_of[i]) : float2(0.0f);
                    }
                    for (uint c = 0; c < min(known.n_pairs - begin, 32u); c++) {
                        const float2 t = known.turn(begin + c, at);
                        #pragma clang loop unroll(full)
                        for (short i = 0; i < B * 2; i++) {
                            missing[i] += simd_shuffle(terms[i].x, ushort(c)) * t.x + simd_shuffle(terms[i].y, ushort(c)) * t.y;
                        }
                    }
                }
                #pragma clang loop unroll(full)
                for (short i = 0; i < B * 2; i++) scores[(sg + 4 * i) * SCORE_STRIDE + lane] += a.scale * missing[i];
                simdgroup_barrier(mem_flags::mem_threadgroup);
            }
            #pragma clang loop unroll(full)
            for (short i = 0; i < B * 2; i++) {
                const uint pair = sg + 4 * i, row = first_row + pair / heads;
                bool seen = pair < rows * heads && row >= low_row && row < high_row && at >= first && at < end;
                if (SOURCE == SOURCE_CACHE) {
                    const uint own = span_position + row - span_row;
                    seen = seen && at >= first_seen(a, own);
                    if (!ATTENTION_BOTH_WAYS) seen = seen && at <= own;
                }
                if (SOURCE == SOURCE_ROWS && ATTENTION_WINDOW) {
                    const uint own = row - span_row;
                    seen = seen && at + a.window >= own && at <= own + a.window;
                }
                const float score = seen ? capped(scores[pair * SCORE_STRIDE + lane], a.softcap) : LEAST_SCORE;
                const float m = max(most[i], simd_max(score));
                const float p = seen ? exp(score - m) : 0.0f, shrink = exp(most[i] - m);
                total[i] = total[i] * shrink + simd_sum(p);
                most[i] = m;
                probabilities[pair * p_stride + lane] = T(p);
                if (lane == 0) shrinks[pair / 8 * 64 + pair % 8 * 9] = shrink;
                shrinking = shrinking || shrink != 1.0f;
            }
            if (lane == 0) shrunk[sg] = shrinking ? 1 : 0;
            threadgroup_barrier(mem_flags::mem_threadgroup);
            if (shrunk[0] + shrunk[1] + shrunk[2] + shrunk[3] > 0) {
                #pragma clang loop unroll(full)
                for (short b = 0; b < B; b++) {
                    simdgroup_float8x8 diagonal;
                    simdgroup_load(diagonal, shrinks + 64 * b, 8, ulong2(0, 0), false);
                    #pragma clang loop unroll(full)
                    for (short i = 0; i < CHUNKS * 2; i++) {
                        simdgroup_multiply(sums[b * CHUNKS * 2 + i], diagonal, sums[b * CHUNKS * 2 + i]);
                    }
                }
            }

            // Values: columns 8 sg and 8 (sg + 4) of each chunk.
            #pragma clang loop unroll(full)
            for (short chunk = 0; chunk < CHUNKS; chunk++) {
                threadgroup_barrier(mem_flags::mem_threadgroup);
                stage<K>(staged, value, there, chunk, tid);
                threadgroup_barrier(mem_flags::mem_threadgroup);
                #pragma clang loop unroll(full)
                for (short n = 0; n < 4; n++) {
                    simdgroup_matrix<T, 8, 8> mp[B], mv;
                    #pragma clang loop unroll(full)
                    for (short b = 0; b < B; b++) {
                        simdgroup_load(mp[b], probabilities + 8 * b * p_stride + 8 * n, p_stride, ulong2(0, 0), false);
                    }
                    #pragma clang loop unroll(full)
                    for (short f = 0; f < 2; f++) {
                        if (uint(8 * chunk + sg + 4 * f) < eights) {
                            simdgroup_load(mv, staged + 8 * n * STAGE_STRIDE + 8 * (sg + 4 * f), STAGE_STRIDE, ulong2(0, 0), false);
                            #pragma clang loop unroll(full)
                            for (short b = 0; b < B; b++) {
                                const short to = b * CHUNKS * 2 + 2 * chunk + f;
                                simdgroup_multiply_accumulate(sums[to], mp[b], mv, sums[to]);
                            }
                        }
                    }
                }
            }
        }
    }

    // The factor of each pair, then blocks of 8 by 8 through threadgroup memory.
    #pragma clang loop unroll(full)
    for (short i = 0; i < B * 2; i++) {
        const uint pair = sg + 4 * i;
        float factor = total[i] > 0.0f ? 1.0f / total[i] : 0.0f;
        if (SOURCE == SOURCE_CACHE && ATTENTION_SINKS && pair % heads < n_heads) {
            const float sink = sinks[first_head + pair % heads];
            const float m = max(most[i], sink), shrink = exp(most[i] - m);
            factor = shrink / (total[i] * shrink + exp(sink - m));
        }
        if (lane == 0) factors[pair] = factor;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    threadgroup float * block = (threadgroup float *) stage_memory + 64 * sg;
    #pragma clang loop unroll(full)
    for (short b = 0; b < B; b++) {
        #pragma clang loop unroll(full)
        for (short i = 0; i < CHUNKS * 2; i++) {
            simdgroup_store(sums[b * CHUNKS * 2 + i], block, 8, ulong2(0, 0), false);
            simdgroup_barrier(mem_flags::mem_threadgroup);
            for (uint e = lane; e < 64; e += 32) {
                const uint pair = 8 * b + e / 8, row = first_row + pair / heads, head = pair % heads;
                const uint column = 64 * (i / 2) + 8 * (sg + 4 * (i % 2)) + e % 8;
                if (pair < rows * heads && row < end_row && head < n_heads && column < ATTENTION_HEAD_DIM) {
                    out[(ulong(row) * a.n_heads + first_head + head) * ATTENTION_HEAD_DIM + column] = block[e] * factors[pair];
                }
            }
            simdgroup_barrier(mem_flags::mem_threadgroup);
        }
    }
}

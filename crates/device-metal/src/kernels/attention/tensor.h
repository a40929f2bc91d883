// The tiles of attention/prefill.h on tensor units (tensor_units.h): ATTENTION_TENSOR, for tiles of
// at least 16 pairs.
//
// Whole heads of 32 keys, then of their values, are staged at a time, in rows of STAGE_OPERANDS.
// The four simdgroups multiply them together. Scores pass through threadgroup memory, as in
// attention/prefill.h, which computes the softmax. Sums of values stay in one result of all pairs
// by all columns; a thread shrinks its own elements.
#pragma once
#include "tensor_units.h"

#ifdef WITH_TENSORS
// Tiles that the units multiply: their rows are a multiple of 16.
#define HAS_TENSOR_TILES(B) ((B) % 2 == 0)
// Operands of memory for staged keys or values.
#define STAGE_OPERANDS(B, CHUNKS) (32 * (HAS_TENSOR_TILES(B) ? (CHUNKS) * 64 + 8 : STAGE_STRIDE))

// Stages 32 whole vectors. A thread writes a quarter of vector tid / 4, zeros if it is absent.
template<class K, short CHUNKS>
static inline void stage_whole(threadgroup typename K::Operand * tile, device const uchar * vector, bool is_present, ushort tid) {
    typedef typename K::Operand T;
    threadgroup vec<T, 4> * to = (threadgroup vec<T, 4> *) (tile + tid / 4 * (CHUNKS * 64 + 8));
    for (uint four = tid % 4; four < CHUNKS * 16; four += 4) {
        float4 v = float4(0.0f);
        if (is_present && four < HEAD_FOURS) v = K::four(vector, four);
        to[four] = AttentionOperand<T>::of(v);
    }
}

// Attends to all positions that the tile's rows see, and writes the rows.
template<class K, short B, short CHUNKS, short SOURCE>
static inline void attend_by_tensors(PrefillMemory<typename K::Operand> m, PrefillWork w, constant AttentionArguments & a,
                                     device const Step * step, device const float * q, device const uint * row_spans,
                                     device const Span * spans, device const Page * page_tables, device const float * sinks,
                                     device float * out, device const float * k_rows, device const float * v_rows, ushort tid,
                                     ushort sg, ushort lane) {
    typedef typename K::Operand T;
    typedef ThreadgroupTile<T> Tile;
    const int stride = CHUNKS * 64 + 8;
    TensorProduct<B * 8, 32, true, is_same<T, half>::value> by_keys;
    TensorProduct<B * 8, CHUNKS * 64, false, is_same<T, half>::value> by_values;
    auto values = by_values.template get_destination_cooperative_tensor<Tile, Tile, float>();
    clear_sums(values);
    PrefillSums<B, CHUNKS> sums;
    reset_softmax(sums);

    Tile queries(m.q, dextents<int, 2>(ATTENTION_HEAD_DIM, B * 8), array<int, 2>({1, stride}));
    Tile keys(m.staged, dextents<int, 2>(ATTENTION_HEAD_DIM, 32), array<int, 2>({1, stride}));
    Tile probabilities(m.probabilities, dextents<int, 2>(32, B * 8), array<int, 2>({1, m.stride()}));
    Tile staged_values(m.staged, dextents<int, 2>(CHUNKS * 64, 32), array<int, 2>({1, stride}));
    ThreadgroupTile<float> scores(m.scores, dextents<int, 2>(32, B * 8), array<int, 2>({1, SCORE_STRIDE}));
    const uint last_span = row_spans[w.end_row - 1];
    for (uint index = row_spans[w.first_row]; index <= last_span; index++) {
        const PrefillSpan s = prefill_span<K, SOURCE>(w, a, step, spans, page_tables, index);
        if (s.low_row >= s.high_row) continue;
        for (uint start = s.first / 32 * 32; start < s.end; start += 32) {
            const StagedVectors v = staged_vectors<SOURCE>(w, s, a, k_rows, v_rows, start, tid);
            threadgroup_barrier(mem_flags::mem_threadgroup);
            stage_whole<K, CHUNKS>(m.staged, v.key, v.is_present, tid);
            threadgroup_barrier(mem_flags::mem_threadgroup);
            auto products = by_keys.template get_destination_cooperative_tensor<Tile, Tile, float>();
            clear_sums(products);
            by_keys.run(queries, keys, products);
            products.store(scores);
            threadgroup_barrier(mem_flags::mem_threadgroup);
            stage_whole<K, CHUNKS>(m.staged, v.value, v.is_present, tid);
            if (w.biased) add_tile_bias<T, B>(m, w, a, q, start + lane, sg, lane);
            write_probabilities<T, B, CHUNKS, SOURCE>(sums, m, w, s, a, start + lane, sg, lane);
            threadgroup_barrier(mem_flags::mem_threadgroup);
            if (m.must_shrink()) {
                #pragma clang loop unroll(full)
                for (ushort i = 0; i < values.get_capacity(); i++) {
                    if (!values.is_valid_element(i)) continue;
                    const auto at = values.get_multidimensional_index(i);
                    const uint pair = at[1];
                    values[i] *= m.shrinks[pair / 8 * 64 + pair % 8 * 9];
                }
            }
            by_values.run(probabilities, staged_values, values);
        }
    }
    write_factors<T, B, CHUNKS, SOURCE>(sums, m, w, sinks, sg, lane);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    #pragma clang loop unroll(full)
    for (ushort i = 0; i < values.get_capacity(); i++) {
        if (!values.is_valid_element(i)) continue;
        const auto at = values.get_multidimensional_index(i);
        const uint column = at[0], pair = at[1];
        if (!w.has(pair) || column >= ATTENTION_HEAD_DIM) continue;
        out[w.start(w.row(pair), w.head(pair), a.n_heads) + column] = values[i] * m.factors[pair];
    }
}
#else
#define STAGE_OPERANDS(B, CHUNKS) (32 * STAGE_STRIDE)
#endif

// cross_scores_<kv>: out[row, i * n_positions + p] = scale * q_h . k_p with h = heads[i], without a
// softmax. <kv>: f32, f16, q8_0.
//
// Host contract
//   buffers  0 AttentionArguments (pages, n_heads, n_positions, n_chosen, scale)    1 Step
//            2 q (n, n_heads * head_dim) f32
//            4 row_spans (n)    6 page_tables    8 heads (n_chosen) u32
//            9 out (n, n_chosen * n_positions) f32
//   threads  32
//   grid     (ceil(n_positions / 32), n_chosen, n)
//   constants ATTENTION_HEAD_DIM, ATTENTION_HEADS = 1, ATTENTION_SOFTCAP = false
//   threadgroup memory 0  16 * ceil(head_dim / 4) bytes
//   reads    the keys of 32 positions once
#include <metal_stdlib>
using namespace metal;
#include "attention/scores.h"
#include "instantiate.h"

template<class K>
kernel void cross_scores(constant AttentionArguments & a [[buffer(0)]],
                         device const Step * step [[buffer(1)]],
                         device const float * q [[buffer(2)]],
                         device const uint * row_spans [[buffer(4)]],
                         device const Page * page_tables [[buffer(6)]],
                         device const uint * heads [[buffer(8)]],
                         device float * out [[buffer(9)]],
                         threadgroup float4 * memory [[threadgroup(0)]],
                         uint3 place [[threadgroup_position_in_grid]],
                         ushort lane [[thread_index_in_simdgroup]]) {
    const uint row = place.z, start = place.x * 32;
    if (row >= step->n_rows) return;
    const uint head = heads[place.y], kv_head = head / (a.n_heads / a.pages.n_kv_heads);
    threadgroup float * vector = (threadgroup float *) memory;
    for (uint c = lane; c < 4 * HEAD_FOURS; c += 32) {
        vector[c] = 0.0f;
        if (c < ATTENTION_HEAD_DIM) vector[c] = a.scale * q[(ulong(row) * a.n_heads + head) * ATTENTION_HEAD_DIM + c];
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
    const HeadPages pages = head_pages(K::KIND, a, page_tables, step, row_spans[row], kv_head);
    const TileScores scores = tile_scores<K>(memory, pages, start, start, a.n_positions - 1, lane);
    if (start + lane < a.n_positions) {
        out[(ulong(row) * a.n_chosen + place.y) * a.n_positions + start + lane] = scores.s[0];
    }
}

INSTANTIATE(cross_scores_f32, cross_scores<KvF32>)
INSTANTIATE(cross_scores_f16, cross_scores<KvF16>)
INSTANTIATE(cross_scores_q8_0, cross_scores<KvQ8_0>)

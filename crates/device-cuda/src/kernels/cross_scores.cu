// Scores of some heads with all encoder states of a layer, without softmax: out[:, i * n_states +
// p] = scale * q_h . k_p. RoPE is not applied to these keys. A thread computes one score. Grid:
// (states / 128, heads, rows).
#include "kernels.cuh"
#include "key_bias.cuh"
#include "pages.cuh"

template <class Kv> __device__ __forceinline__ void scores(const ScoresArguments &a) {
    begin();
    const uint p = blockIdx.x * 128 + threadIdx.x, index = blockIdx.y, row = blockIdx.z, dim = a.pages.head_dim;
    if (p >= a.n_states) return;
    const uint head = a.heads[index], kv_head = head / (a.n_heads / a.pages.n_kv_heads);
    const uint *table = a.pages.tables + ulong(a.row_spans[row]) * a.pages.table_stride;
    const uchar *key = vector_of<Kv>(a.pages, table, p, kv_head, false);
    const float *q = a.q + (ulong(row) * a.n_heads + head) * dim;
    float sum = 0.0f;
    for (uint i = 0; i < dim; i++) sum = __fmaf_rn(q[i], Kv::load(key, dim, i), sum);
    if (Kv::BYTES && a.pages.known != nullptr) {
        const KeyBias known(a.pages.known, a.pages.n_kv_heads, kv_head);
        for (uint i = 0; i < known.n_constant; i++) sum = __fmaf_rn(q[known.columns[i]], known.values[i], sum);
    }
    a.out[(ulong(row) * a.n_chosen + index) * a.n_states + p] = a.scale * sum;
}

KERNEL(128) cross_scores_f32(const __grid_constant__ ScoresArguments a) { scores<KvF32>(a); }
KERNEL(128) cross_scores_f16(const __grid_constant__ ScoresArguments a) { scores<KvF16>(a); }
KERNEL(128) cross_scores_q8_0(const __grid_constant__ ScoresArguments a) { scores<KvQ8_0>(a); }
KERNEL(128) cross_scores_fp8(const __grid_constant__ ScoresArguments a) { scores<KvFp8>(a); }

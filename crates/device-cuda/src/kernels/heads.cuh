// Norm and RoPE of query and key heads, norm of values. Keys and values are stored in the KV pages
// of the step's rows. A warp has one head. Grid: ((query heads + 2 KV heads) / 4, rows).
#pragma once
#include "kernels.cuh"
#include "key_bias.cuh"
#include "pages.cuh"
#include "rotate.cuh"

// Most columns of a head that a lane has, for heads of up to 640 columns.
#define MOST 20

template <class Kv> __device__ __forceinline__ void write_heads(const HeadsArguments &a) {
    __shared__ float heads[4][32 * MOST];
    // Keys with a known bias, or vectors whose scale depends on their largest value.
    __shared__ float turned[4][Kv::ONE_SCALE ? 32 * MOST : Kv::BYTES ? MOST_BIASED_COLUMNS : 1];
    __shared__ float2 rotations[16 * MOST]; // cosines and sines of the row's position
    announce();
    const uint lane = threadIdx.x & 31, warp = threadIdx.x >> 5, row = blockIdx.y;
    const uint index = blockIdx.x * 4 + warp, n_kv = a.pages.n_kv_heads, dim = a.pages.head_dim;
    const uint position = a.positions[row];
    if (blockIdx.x * 4 < a.n_q_heads + n_kv) {
        for (uint pair = threadIdx.x; pair < a.n_dims / 2; pair += 128)
            rotations[pair] = turn_of(position, a.frequencies[pair], a.scale);
    }
    __syncthreads();
    if (index >= a.n_q_heads + 2 * n_kv) return;
    const bool is_q = index < a.n_q_heads, is_k = !is_q && index < a.n_q_heads + n_kv;
    if (!is_q && !is_k && a.pages.values_are_keys) return;
    const uint head = is_q ? index : (index - a.n_q_heads) % n_kv;
    uchar *vector = nullptr;
    if (!is_q) {
        const uint *table = a.pages.tables + ulong(a.row_spans[row]) * a.pages.table_stride;
        vector = vector_of<Kv>(a.pages, table, position, head, !is_k);
    }
    await();
    const float *x = is_q ? a.q : is_k ? a.k : a.v;
    const uint n_heads = is_q ? a.n_q_heads : n_kv;
    x += (ulong(row) * n_heads + head) * dim;
    const bool norm = is_q ? a.q_norm : is_k ? a.k_norm : a.v_norm;
    const float *weight = is_q ? a.q_weight : is_k ? a.k_weight : nullptr;
    float *mine = heads[warp];
    float sum = 0.0f;
    // Four columns are loaded before any is stored. The compiler does not move a load above a store
    // that may alias it.
    for (uint first = lane; first < dim; first += 128) {
        float columns[4];
#pragma unroll
        for (uint c = 0; c < 4; c++) columns[c] = first + 32 * c < dim ? x[first + 32 * c] : 0.0f;
#pragma unroll
        for (uint c = 0; c < 4; c++) {
            if (first + 32 * c < dim) mine[first + 32 * c] = columns[c];
            sum = __fmaf_rn(columns[c], columns[c], sum);
        }
    }
    if (norm) {
        const float eps = is_q ? a.q_eps : is_k ? a.k_eps : a.v_eps;
        const float inverse = rsqrtf(warp_sum(sum) / float(dim) + eps);
        for (uint i = lane; i < dim; i += 32) {
            mine[i] *= inverse;
            if (weight != nullptr) mine[i] *= weight[i];
        }
    }
    __syncwarp();
    const bool turns = a.n_dims > 0 && (is_q || (is_k && a.k_turns != 0));
    const uint n_dims = turns ? a.n_dims : 0;
    const auto at = [&](uint i) { return mine[i]; };
    const auto turn = [&](uint pair) { return rotations[pair]; };
    const uint *known = Kv::BYTES && is_k ? a.pages.known : nullptr;
    float *out = is_q ? a.q_out : is_k ? a.k_out : nullptr;
    if (out != nullptr) out += (ulong(row) * n_heads + head) * dim;
    for (uint i = lane; i < dim; i += 32) {
        const float value = rotated(at, i, n_dims, a.interleaved != 0, turn);
        if (out != nullptr) out[i] = value;
        if constexpr (!Kv::ONE_SCALE) {
            if (vector != nullptr && known == nullptr) Kv::store(vector, dim, i, value);
        }
        if (Kv::ONE_SCALE || known != nullptr) turned[warp][i] = value;
    }
    if (Kv::ONE_SCALE ? vector == nullptr : known == nullptr) return;
    __syncwarp();
    if (known != nullptr) {
        KeyBias(known, n_kv, head).subtract(turned[warp], position, lane);
        __syncwarp();
    }
    if constexpr (Kv::ONE_SCALE) {
        Kv::store_all(vector, dim, lane, turned[warp]);
    } else {
        for (uint i = lane; i < dim; i += 32) Kv::store(vector, dim, i, turned[warp][i]);
    }
}

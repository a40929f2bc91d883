// One row of one sequence in one launch, over F16 pages: the work of qk_rope_kv and then attention.
// It computes norms and RoPE of heads, stores key and value in their page, and computes out =
// softmax(softcap(scale * q k^T)) v.
//
// A block has one query head. LANES lanes have one position, 8 columns each, so a warp has 32 /
// LANES positions at a time. Each group of LANES lanes has its own softmax in f32, and all are
// merged at the end.
//
// Keys and values of earlier positions are loaded before `await`, and sines and cosines computed.
// No kernel of this step writes their inputs: step_load and the kernel after it start only when all
// earlier work is done. The last warp of each block computes the new key, and the first block of a
// KV head stores it. The new key and value are rounded to halves before use, like those in the
// cache.
//
// Host contract
//   parameter RowArguments: n_rows 1; head_dim a multiple of 8, at most 8 LANES; n_q_heads of
//     `heads` equal to n_heads of `attention`
//   threads 512; grid (query heads)
// Order of accumulation: positions of a group of lanes ascending, groups of a warp by a butterfly,
// warps ascending.
// Bytes moved: keys and values once for each query head; only the first of a group reads them from
// memory, the others from L2.
// Measured, 25 November 2026, H100: 3.7 us at position 64 with 32 query heads of 64 columns, 4.2 us
// with 16 heads of 128; linear/NOTES.md.
#pragma once
#include "kernels.cuh"
#include "pages.cuh"

#define ROW_WARPS 16
#define ROW_THREADS 512

// Loads 8 floats from an address that is a multiple of 16 bytes.
__device__ __forceinline__ void load_eight(const float *x, float (&v)[8]) {
    const Vec4 low = *(const Vec4 *)x, high = *(const Vec4 *)(x + 4);
    v[0] = low.x, v[1] = low.y, v[2] = low.z, v[3] = low.w;
    v[4] = high.x, v[5] = high.y, v[6] = high.z, v[7] = high.w;
}

// Columns 8 * chunk to 8 * chunk + 7 of a head, and the columns that RoPE pairs with them.
struct Columns {
    float own[8], other[8];
};

__device__ __forceinline__ void load_columns(const HeadsArguments &h, const float *x, uint chunk, Columns &c) {
    const uint first = 8 * chunk, half = h.n_dims / 2;
#pragma unroll
    for (int i = 0; i < 8; i++) c.own[i] = c.other[i] = 0.0f;
    if (first >= h.pages.head_dim) return;
    load_eight(x + first, c.own);
    if (first >= h.n_dims) return;
    if (h.interleaved != 0) {
#pragma unroll
        for (int i = 0; i < 8; i++) c.other[i] = c.own[i ^ 1];
    } else if ((half & 7) == 0) {
        load_eight(x + (first < half ? first + half : first - half), c.other);
    } else {
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const uint at = first + i;
            if (at < h.n_dims) c.other[i] = x[at < half ? at + half : at - half];
        }
    }
}

// Normalises the columns and applies RoPE. `sine` and `cosine` are those of the columns' pairs.
// `weight` is the norm's, or 1.
template <int LANES>
__device__ __forceinline__ void turn(const HeadsArguments &h, const Columns &c, bool norm, const Columns &weight, float eps, uint chunk,
                                     const float (&sine)[8], const float (&cosine)[8], float (&out)[8]) {
    float by = 1.0f;
    if (norm) {
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i < 8; i++) sum = __fmaf_rn(c.own[i], c.own[i], sum);
#pragma unroll
        for (int step = 1; step < LANES; step *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
        by = rsqrtf(sum / float(h.pages.head_dim) + eps);
    }
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const uint at = 8 * chunk + i;
        const bool second = h.interleaved != 0 ? (at & 1) != 0 : at >= h.n_dims / 2;
        const float own = by * c.own[i] * weight.own[i], other = by * c.other[i] * weight.other[i];
        const float turned = second ? own * cosine[i] + other * sine[i] : own * cosine[i] - other * sine[i];
        out[i] = at < h.n_dims ? turned : own;
    }
}

__device__ __forceinline__ void weight_columns(const HeadsArguments &h, bool norm, const float *weight, uint chunk, Columns &c) {
    if (norm && weight != nullptr) {
        load_columns(h, weight, chunk, c);
        return;
    }
#pragma unroll
    for (int i = 0; i < 8; i++) c.own[i] = c.other[i] = 1.0f;
}

__device__ __forceinline__ Word4 words_of(const float *x) {
    return {f16x2_of_f32(x[0], x[1]), f16x2_of_f32(x[2], x[3]), f16x2_of_f32(x[4], x[5]), f16x2_of_f32(x[6], x[7])};
}

__device__ __forceinline__ void halves_of(const Word4 &w, float (&x)[8]) {
    x[0] = low_f16(w.x), x[1] = high_f16(w.x), x[2] = low_f16(w.y), x[3] = high_f16(w.y);
    x[4] = low_f16(w.z), x[5] = high_f16(w.z), x[6] = low_f16(w.w), x[7] = high_f16(w.w);
}

// Sines and cosines of a lane's 8 columns at a position, times the scale of RoPE.
__device__ __forceinline__ void rotation_of(const HeadsArguments &h, uint position, uint chunk, float (&sine)[8], float (&cosine)[8]) {
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const uint c = 8 * chunk + i, half = h.n_dims / 2;
        sine[i] = 0.0f, cosine[i] = 1.0f;
        if (c >= h.n_dims) continue;
        sincosf(float(position) * h.frequencies[h.interleaved != 0 ? c / 2 : c % half], &sine[i], &cosine[i]);
        sine[i] *= h.scale, cosine[i] *= h.scale;
    }
}

// The online softmax of a group of LANES lanes, each with 8 columns of `out`.
template <int LANES> struct RowSoftmax {
    float high = -INFINITY_F, sum = 0.0f, out[8] = {};

    // Adds a position if `there`. All lanes of a warp call it.
    __device__ __forceinline__ void add(const AttentionArguments &a, const float (&q)[8], const float (&k)[8], const float (&v)[8], bool there) {
        float score = 0.0f;
#pragma unroll
        for (int i = 0; i < 8; i++) score = __fmaf_rn(q[i], k[i], score);
#pragma unroll
        for (int step = 1; step < LANES; step *= 2) score += __shfl_xor_sync(0xffffffffu, score, step);
        score *= a.scale;
        if (a.softcap != 0.0f) score = a.softcap * tanhf(score / a.softcap);
        if (!there) return;
        const float now = fmaxf(high, score);
        const float by = now == -INFINITY_F ? 1.0f : __expf(high - now);
        const float weight = now == -INFINITY_F ? (score != score ? score : 0.0f) : __expf(score - now);
        high = now;
        sum = sum * by + weight;
#pragma unroll
        for (int i = 0; i < 8; i++) out[i] = out[i] * by + weight * v[i];
    }

    // Merges the groups of a warp: afterwards each group has the sums of all.
    __device__ __forceinline__ void join_groups() {
        float all = high;
#pragma unroll
        for (int step = LANES; step < 32; step *= 2) all = fmaxf(all, __shfl_xor_sync(0xffffffffu, all, step));
        const float by = all == -INFINITY_F ? 1.0f : __expf(high - all);
        sum *= by;
#pragma unroll
        for (int i = 0; i < 8; i++) out[i] *= by;
#pragma unroll
        for (int step = LANES; step < 32; step *= 2) {
            sum += __shfl_xor_sync(0xffffffffu, sum, step);
#pragma unroll
            for (int i = 0; i < 8; i++) out[i] += __shfl_xor_sync(0xffffffffu, out[i], step);
        }
        high = all;
    }
};

// Merges the warps of a block and stores the row. A lane first has a warp's sums, then a column.
template <int LANES>
__device__ __forceinline__ void store_row(const AttentionArguments &a, const float (&outputs)[ROW_WARPS][8 * LANES], const float (&most)[ROW_WARPS],
                                          const float (&total)[ROW_WARPS], uint head, uint warp, uint lane) {
    const uint dim = a.pages.head_dim;
    float mine = lane < ROW_WARPS ? most[lane] : -INFINITY_F;
    float top = warp_max(mine);
    if (a.sinks != nullptr) top = fmaxf(top, a.sinks[head]);
    mine = top == -INFINITY_F ? 1.0f : __expf(mine - top);
    float weights = warp_sum(lane < ROW_WARPS ? mine * total[lane] : 0.0f);
    if (a.sinks != nullptr) weights += __expf(a.sinks[head] - top);
    const uint c = warp * 32 + lane;
    float result = 0.0f;
#pragma unroll
    for (int w = 0; w < ROW_WARPS; w++) {
        result = __fmaf_rn(__shfl_sync(0xffffffffu, mine, w), outputs[w][c % (8 * LANES)], result);
    }
    if (c < dim) a.out[ulong(head) * dim + c] = __fdividef(result, weights);
}

template <int LANES> __device__ __forceinline__ void attend_row(const RowArguments &args) {
    const AttentionArguments &a = args.attention;
    const HeadsArguments &h = args.heads;
    constexpr int AT_ONCE = 32 / LANES, STEP = ROW_WARPS * AT_ONCE, BATCH = 4;
    __shared__ float outputs[ROW_WARPS][8 * LANES];
    __shared__ float most[ROW_WARPS], total[ROW_WARPS];
    __shared__ float fresh[2][32][8]; // the new key and value, by lane of the last warp
    announce();
    const uint lane = threadIdx.x & 31, warp = threadIdx.x >> 5, chunk = lane % LANES, of_warp = lane / LANES;
    const uint dim = a.pages.head_dim, head = blockIdx.x, group = a.n_heads / a.pages.n_kv_heads, kv_head = head / group;
    const bool has = 8 * chunk < dim;
    const uint *table = a.pages.tables + ulong(a.row_spans[0]) * a.pages.table_stride;
    const uint position = a.positions[0];
    uint start = a.window > 0 && position + 1 > a.window ? position + 1 - a.window : 0;
    if (a.chunked) start = position / a.window * a.window;
    const ulong to_value = a.pages.values_are_keys ? 0 : ulong(a.pages.n_kv_heads) * a.pages.page_len * dim * 2;
    // Keys and values of a batch of earlier positions.
    Word4 key[BATCH], value[BATCH];
    const auto load = [&](uint from) {
#pragma unroll
        for (int b = 0; b < BATCH; b++) {
            const uint at = from + b * STEP + warp * AT_ONCE + of_warp;
            if (at < position && has) {
                const uchar *vector = vector_of<KvF16>(a.pages, table, at, kv_head, false) + 16 * chunk;
                key[b] = *(const Word4 *)vector;
                value[b] = *(const Word4 *)(vector + to_value);
            }
        }
    };
    load(start);
    float sine[8], cosine[8];
    rotation_of(h, position, chunk, sine, cosine);
    // The last warp computes the new key as well as the query.
    const bool newest = warp == ROW_WARPS - 1;
    Columns weight;
    weight_columns(h, h.q_norm != 0, h.q_weight, chunk, weight);
    await();
    Columns raw;
    float q[8];
    load_columns(h, h.q + ulong(head) * dim, chunk, raw);
    if (newest) {
        const float *k = h.k + ulong(kv_head) * dim, *v = a.pages.values_are_keys ? k : h.v + ulong(kv_head) * dim;
        Columns of_key, of_weight;
        float new_key[8], new_value[8];
        load_columns(h, k, chunk, of_key);
#pragma unroll
        for (int i = 0; i < 8; i++) new_value[i] = 0.0f;
        if (has) load_eight(v + 8 * chunk, new_value);
        weight_columns(h, h.k_norm != 0, h.k_weight, chunk, of_weight);
        turn<LANES>(h, of_key, h.k_norm != 0, of_weight, h.k_eps, chunk, sine, cosine, new_key);
#pragma unroll
        for (int i = 0; i < 8; i++) fresh[0][lane][i] = new_key[i], fresh[1][lane][i] = new_value[i];
    }
    turn<LANES>(h, raw, h.q_norm != 0, weight, h.q_eps, chunk, sine, cosine, q);
    RowSoftmax<LANES> softmax;
    // All lanes of a warp run the same iterations, since they call shuffles.
    for (uint from = start; from < position; from += BATCH * STEP) {
#pragma unroll
        for (int b = 0; b < BATCH; b++) {
            const uint first = from + b * STEP + warp * AT_ONCE;
            if (first >= position) continue;
            const bool there = first + of_warp < position;
            float k[8], v[8];
            halves_of(key[b], k), halves_of(value[b], v);
            if (!there || !has) {
#pragma unroll
                for (int i = 0; i < 8; i++) k[i] = v[i] = 0.0f;
            }
            softmax.add(a, q, k, v, there);
        }
        if (from + BATCH * STEP < position) load(from + BATCH * STEP);
    }
    if (newest) {
        float k[8], v[8];
        Word4 words[2];
        const float *new_key = fresh[0][lane], *new_value = fresh[1][lane];
        words[0] = words_of(new_key), words[1] = words_of(new_value);
        if (a.pages.values_are_keys) words[1] = words[0];
        if (head % group == 0 && of_warp == 0 && has) {
            uchar *vector = vector_of<KvF16>(a.pages, table, position, kv_head, false) + 16 * chunk;
            *(Word4 *)vector = words[0];
            if (!a.pages.values_are_keys) *(Word4 *)(vector + to_value) = words[1];
            if (h.k_out != nullptr) {
#pragma unroll
                for (int i = 0; i < 8; i++) h.k_out[ulong(kv_head) * dim + 8 * chunk + i] = new_key[i];
            }
        }
        halves_of(words[0], k), halves_of(words[1], v);
        softmax.add(a, q, k, v, of_warp == 0);
    }
    softmax.join_groups();
    if (of_warp == 0) {
#pragma unroll
        for (int i = 0; i < 8; i++) outputs[warp][8 * chunk + i] = softmax.out[i];
        if (chunk == 0) most[warp] = softmax.high, total[warp] = softmax.sum;
    }
    __syncthreads();
    if (warp * 32 >= dim) return;
    store_row<LANES>(a, outputs, most, total, head, warp, lane);
}

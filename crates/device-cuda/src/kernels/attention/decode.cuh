// out = softmax(softcap(scale * q k^T)) v of one row over its positions, for G query heads that
// share a KV head.
//
// A block of 4 warps has a row, G heads and a part of the positions. A warp has 32 positions at a
// time. Each lane computes the scores of one position with all G heads, then all lanes together add
// the weighted values of the 32 positions. The softmax is online, in f32. Warps are merged through
// shared memory. If positions are split over blocks, each block stores its sums, and merge.cu
// merges them. The split depends only on the row's own position, so a row's result does not depend
// on other rows.
//
// Bytes moved: keys and values of the row's positions once for G heads. Grid: (KV heads *
// ceil(group / G), splits, rows).
#pragma once
#include "kernels.cuh"
#include "key_bias.cuh"
#include "pages.cuh"

#define ATTENTION_WARPS 4

// Keys and values in pages of the cache.
template <class Kv_> struct Paged {
    typedef Kv_ Kv;
    static constexpr bool HALVES = Kv::HALVES, BYTES = Kv::BYTES, ONE_SCALE = Kv::ONE_SCALE;
    const AttentionArguments &a;
    const uint *table;
    uint head;
    __device__ __forceinline__ Paged(const AttentionArguments &a, uint row, uint kv_head)
        : a(a), table(a.pages.tables + ulong(a.row_spans[row]) * a.pages.table_stride), head(kv_head) {}
    __device__ __forceinline__ void range(uint row, uint &start, uint &end) const {
        if (a.n_states > 0) {
            start = 0, end = a.n_states;
            return;
        }
        end = a.positions[row] + 1;
        start = a.window > 0 && end > a.window ? end - a.window : 0;
        if (a.chunked) start = (end - 1) / a.window * a.window;
        if (a.both_ways) {
            const Span span = a.spans[a.row_spans[row]];
            end = span.first_position + span.n_rows;
        }
    }
    __device__ __forceinline__ const uchar *key(uint position) const {
        return vector_of<Kv>(a.pages, table, position, head, false);
    }
    __device__ __forceinline__ uint bytes() const { return Kv::bytes(a.pages.head_dim); }
    // Distance in bytes from a key to its value.
    __device__ __forceinline__ ulong to_value() const {
        return a.pages.values_are_keys ? 0 : ulong(a.pages.n_kv_heads) * a.pages.page_len * Kv::bytes(a.pages.head_dim);
    }
    __device__ __forceinline__ float load(const uchar *v, uint i) const { return Kv::load(v, a.pages.head_dim, i); }
    __device__ __forceinline__ void four(const uchar *v, uint i, float (&x)[4]) const { Kv::four(v, a.pages.head_dim, i, x); }
};

// Keys and values that are rows of this step. A row sees its own span, or only rows of it within a
// window to both sides.
struct OfStep {
    static constexpr bool HALVES = false, BYTES = false, ONE_SCALE = false;
    const AttentionArguments &a;
    uint head;
    __device__ __forceinline__ OfStep(const AttentionArguments &a, uint, uint kv_head) : a(a), head(kv_head) {}
    __device__ __forceinline__ void range(uint row, uint &start, uint &end) const {
        const Span span = a.spans[a.row_spans[row]];
        start = span.first_row, end = span.first_row + span.n_rows;
        if (a.window > 0) {
            start = max(start, row + 1 - min(row + 1, a.window));
            end = min(end, row + a.window);
        }
    }
    __device__ __forceinline__ const uchar *key(uint position) const {
        return (const uchar *)(a.k + (ulong(position) * a.pages.n_kv_heads + head) * a.pages.head_dim);
    }
    __device__ __forceinline__ uint bytes() const { return 4 * a.pages.head_dim; }
    __device__ __forceinline__ ulong to_value() const { return ulong((const uchar *)a.v - (const uchar *)a.k); }
    __device__ __forceinline__ float load(const uchar *v, uint i) const { return KvF32::load(v, 0, i); }
    __device__ __forceinline__ void four(const uchar *v, uint i, float (&x)[4]) const { KvF32::four(v, 0, i, x); }
};

// Functions for pages whose columns are bytes: four columns without their scale, and the scale of a
// block of 32 columns.
template <class Source> __device__ __forceinline__ void numbers_of(uint word, float (&x)[4]) {
    if constexpr (Source::BYTES) Source::Kv::numbers(word, x);
}
template <class Source> __device__ __forceinline__ float scale_of(const uchar *vector, uint dim, uint block) {
    if constexpr (Source::BYTES) return Source::Kv::scale(vector, dim, block);
    return 1.0f;
}

// Loads N words from an address that is a multiple of 4 N, at most 16.
template <int N> __device__ __forceinline__ void load_words(uint (&to)[N], const uchar *from) {
    if constexpr (N == 1) {
        to[0] = *(const uint *)from;
    } else if constexpr (N % 4 == 0) {
#pragma unroll
        for (int i = 0; i < N; i += 4) {
            const Word4 w = *(const Word4 *)(from + 4 * i);
            to[i] = w.x, to[i + 1] = w.y, to[i + 2] = w.z, to[i + 3] = w.w;
        }
    } else {
#pragma unroll
        for (int i = 0; i < N; i += 2) {
            const Word2 w = *(const Word2 *)(from + 4 * i);
            to[i] = w.x, to[i + 1] = w.y;
        }
    }
}

template <class Source, int G, int COLUMNS> __device__ __forceinline__ void attend(const AttentionArguments &a) {
    // One function: cut into phases, it needs more registers. For f16 on sm_90a, four heads and two
    // columns spilled 4 bytes (0 now), and eight heads and four columns took 166 registers (162).
    __shared__ float queries[G][32 * COLUMNS];
    __shared__ float totals[ATTENTION_WARPS][G][2];
    constexpr int MOST_TERMS = 1 + (COLUMNS > 8 ? MOST_BIASED_COLUMNS : 32 * COLUMNS);
    // terms of the scores that keys are stored without (key_bias.cuh)
    __shared__ float terms[Source::BYTES ? G : 1][Source::BYTES ? MOST_TERMS : 1];
    __shared__ float others[ATTENTION_WARPS - 1][G][32 * COLUMNS];
    announce();
    const uint lane = threadIdx.x & 31, warp = threadIdx.x >> 5, row = blockIdx.z, split = blockIdx.y;
    const uint n_kv = a.pages.n_kv_heads, dim = a.pages.head_dim, group = a.n_heads / n_kv;
    const uint n_parts = (group + G - 1) / G, kv_head = blockIdx.x / n_parts;
    const uint first_head = kv_head * group + blockIdx.x % n_parts * G;
    const uint n_mine = min(uint(G), (kv_head + 1) * group - first_head);
    const Source source(a, row, kv_head);
    uint start, end;
    source.range(row, start, end);
    uint per = (end - start + a.n_splits - 1) / a.n_splits;
    per = max((per + 31) / 32 * 32, a.split_len);
    const uint from = start + split * per, to = min(end, from + per);
    const ulong to_value = source.to_value();
    const auto key_of = [&](uint first) { return source.key(first + min(lane, min(32u, to - first) - 1)); };
    // The addresses of the first keys and values follow from the step's arguments. Most of these
    // vectors are older than this step, so they are prefetched before `await`.
    const uchar *key = nullptr;
    if (from + warp * 32 < to) {
        key = key_of(from + warp * 32);
        for (uint i = 0; i < source.bytes(); i += 128) prefetch(key + i), prefetch(key + to_value + i);
    }
    await();
    if (from >= to && split > 0) {
        if (threadIdx.x < n_mine) {
            float *total = a.totals + ((ulong(row) * a.n_heads + first_head + threadIdx.x) * a.n_splits + split) * 2;
            total[0] = -INFINITY_F;
            total[1] = 0.0f;
        }
        return;
    }
    const float *q = a.q + (ulong(row) * a.n_heads + first_head) * dim;
    for (uint i = threadIdx.x; i < G * 32 * COLUMNS; i += 32 * ATTENTION_WARPS) {
        const uint g = i / (32 * COLUMNS), c = i % (32 * COLUMNS);
        queries[g][c] = g < n_mine && c < dim ? q[g * dim + c] : 0.0f;
    }
    __syncthreads();
    const uint *known = Source::BYTES ? a.pages.known : nullptr;
    if (known != nullptr) {
        for (uint g = warp; g < G; g += ATTENTION_WARPS) KeyBias(known, n_kv, kv_head).terms_of(queries[g], lane, terms[g]);
        __syncthreads();
    }
    float most[G], total[G], sums[G][COLUMNS];
#pragma unroll
    for (int g = 0; g < G; g++) {
        most[g] = -INFINITY_F;
        total[g] = 0.0f;
#pragma unroll
        for (int d = 0; d < COLUMNS; d++) sums[g][d] = 0.0f;
    }
    const bool aligned = (dim & 3) == 0;
    // With `wide` loads a lane has neighbouring columns, 16 bytes at a time for halves and a word
    // at a time for bytes. It loads all that it needs of a few positions before it uses any of it,
    // since latency is what costs.
    const bool wide = (Source::HALVES && (dim & 7) == 0 && dim % COLUMNS == 0) || (Source::BYTES && (dim & 63) == 0 && dim % COLUMNS == 0);
    constexpr int BATCH = COLUMNS <= 4 ? 8 : COLUMNS <= 8 ? 4 : 2;
    const auto column = [&](int d) { return wide ? lane * COLUMNS + d : lane + 32 * d; };
    for (uint first = from + warp * 32; first < to; first += 32 * ATTENTION_WARPS) {
        const uint n = min(32u, to - first), next = first + 32 * ATTENTION_WARPS;
        float weights[G];
#pragma unroll
        for (int g = 0; g < G; g++) weights[g] = 0.0f;
        if (Source::BYTES && wide) {
            for (uint first_column = 0; first_column < dim; first_column += 64) {
                uint k[16];
#pragma unroll
                for (int u = 0; u < 16; u++) k[u] = ((const uint *)(key + first_column))[u];
                const float scales[2] = {scale_of<Source>(key, dim, first_column / 32), scale_of<Source>(key, dim, first_column / 32 + 1)};
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    float part[G];
#pragma unroll
                    for (int g = 0; g < G; g++) part[g] = 0.0f;
#pragma unroll
                    for (int u = 8 * half; u < 8 * half + 8; u++) {
                        float four[4];
                        numbers_of<Source>(k[u], four);
#pragma unroll
                        for (int g = 0; g < G; g++) {
                            const Vec4 x = *(const Vec4 *)&queries[g][first_column + 4 * u];
                            float sum = __fmaf_rn(x.x, four[0], part[g]);
                            sum = __fmaf_rn(x.y, four[1], sum);
                            sum = __fmaf_rn(x.z, four[2], sum);
                            part[g] = __fmaf_rn(x.w, four[3], sum);
                        }
                    }
#pragma unroll
                    for (int g = 0; g < G; g++) weights[g] = __fmaf_rn(scales[half], part[g], weights[g]);
                }
            }
        } else if (wide) {
            for (uint first_chunk = 0; first_chunk < dim / 8; first_chunk += 8) {
                Word4 k[8];
#pragma unroll
                for (int u = 0; u < 8; u++) {
                    if (first_chunk + u < dim / 8) k[u] = ((const Word4 *)key)[first_chunk + u];
                }
#pragma unroll
                for (int u = 0; u < 8; u++) {
                    if (first_chunk + u >= dim / 8) break;
                    const uint words[4] = {k[u].x, k[u].y, k[u].z, k[u].w};
#pragma unroll
                    for (int h = 0; h < 2; h++) {
                        const float k0 = low_f16(words[2 * h]), k1 = high_f16(words[2 * h]);
                        const float k2 = low_f16(words[2 * h + 1]), k3 = high_f16(words[2 * h + 1]);
#pragma unroll
                        for (int g = 0; g < G; g++) {
                            const Vec4 x = *(const Vec4 *)&queries[g][8 * (first_chunk + u) + 4 * h];
                            float sum = __fmaf_rn(x.x, k0, weights[g]);
                            sum = __fmaf_rn(x.y, k1, sum);
                            sum = __fmaf_rn(x.z, k2, sum);
                            weights[g] = __fmaf_rn(x.w, k3, sum);
                        }
                    }
                }
            }
        } else if (aligned) {
            for (uint i = 0; i < dim / 4; i++) {
                float k[4];
                source.four(key, i, k);
#pragma unroll
                for (int g = 0; g < G; g++) {
                    const Vec4 x = *(const Vec4 *)&queries[g][4 * i];
                    float sum = __fmaf_rn(x.x, k[0], weights[g]);
                    sum = __fmaf_rn(x.y, k[1], sum);
                    sum = __fmaf_rn(x.z, k[2], sum);
                    weights[g] = __fmaf_rn(x.w, k[3], sum);
                }
            }
        } else {
            for (uint i = 0; i < dim; i++) {
                const float k = source.load(key, i);
#pragma unroll
                for (int g = 0; g < G; g++) weights[g] = __fmaf_rn(queries[g][i], k, weights[g]);
            }
        }
        if (known != nullptr) {
            const KeyBias bias(known, n_kv, kv_head);
#pragma unroll
            for (int g = 0; g < G; g++) weights[g] += terms[g][0];
            for (uint pair = 0; pair < bias.n_pairs; pair++) {
                float cosine, sine;
                bias.turn(pair, first + min(lane, n - 1), cosine, sine);
#pragma unroll
                for (int g = 0; g < G; g++) {
                    weights[g] = __fmaf_rn(terms[g][1 + 2 * pair], cosine, __fmaf_rn(terms[g][2 + 2 * pair], sine, weights[g]));
                }
            }
        }
#pragma unroll
        for (int g = 0; g < G; g++) {
            float score = weights[g] * a.scale;
            if (a.softcap != 0.0f) score = a.softcap * tanhf(score / a.softcap);
            if (lane >= n) score = -INFINITY_F;
            const float now = fmaxf(most[g], warp_max(score));
            // If every score so far is -infinity, `most - now` would be NaN.
            const float by = now == -INFINITY_F ? 1.0f : expf(most[g] - now);
            weights[g] = now == -INFINITY_F ? (score != score ? score : 0.0f) : expf(score - now);
            most[g] = now;
            total[g] = total[g] * by + weights[g];
#pragma unroll
            for (int d = 0; d < COLUMNS; d++) sums[g][d] *= by;
        }
        const ulong mine = ulong(key);
        if (next < to) key = key_of(next);
        if (Source::BYTES && wide) {
            // A word has four columns of one block of 32; two columns, if a lane has no more.
            constexpr int WORDS = COLUMNS < 4 ? 1 : COLUMNS / 4, EACH = COLUMNS < 4 ? COLUMNS : 4;
            constexpr bool ONE_SCALE = Source::ONE_SCALE || 32 % COLUMNS == 0;
            const bool has = lane * COLUMNS < dim;
            for (uint first_value = 0; first_value < n; first_value += BATCH) {
                uint words[BATCH][WORDS];
                float scales[BATCH][ONE_SCALE ? 1 : WORDS];
#pragma unroll
                for (int b = 0; b < BATCH; b++) {
                    const uchar *value = (const uchar *)__shfl_sync(0xffffffffu, mine, first_value + b) + to_value;
                    if (has) {
                        const uchar *codes = value + lane * COLUMNS;
                        if constexpr (COLUMNS < 4) {
                            words[b][0] = *(const ushort *)codes;
                        } else {
#pragma unroll
                            for (int w = 0; w < WORDS; w++) words[b][w] = ((const uint *)codes)[w];
                        }
#pragma unroll
                        for (int w = 0; w < (ONE_SCALE ? 1 : WORDS); w++) {
                            scales[b][w] = scale_of<Source>(value, dim, (lane * COLUMNS + 4 * w) / 32);
                        }
                    } else {
#pragma unroll
                        for (int w = 0; w < WORDS; w++) words[b][w] = 0;
#pragma unroll
                        for (int w = 0; w < (ONE_SCALE ? 1 : WORDS); w++) scales[b][w] = 0.0f;
                    }
                }
#pragma unroll
                for (int b = 0; b < BATCH; b++) {
                    float values[WORDS][4];
#pragma unroll
                    for (int w = 0; w < WORDS; w++) numbers_of<Source>(words[b][w], values[w]);
#pragma unroll
                    for (int g = 0; g < G; g++) {
                        const float weight = __shfl_sync(0xffffffffu, weights[g], first_value + b);
#pragma unroll
                        for (int w = 0; w < WORDS; w++) {
                            const float by = weight * scales[b][ONE_SCALE ? 0 : w];
#pragma unroll
                            for (int c = 0; c < EACH; c++) {
                                sums[g][4 * w + c] = __fmaf_rn(by, values[w][c], sums[g][4 * w + c]);
                            }
                        }
                    }
                }
            }
            continue;
        }
        if (wide) {
            const bool has = lane * COLUMNS < dim;
            for (uint first_value = 0; first_value < n; first_value += BATCH) {
                uint words[BATCH][COLUMNS / 2];
#pragma unroll
                for (int b = 0; b < BATCH; b++) {
                    const uchar *value = (const uchar *)__shfl_sync(0xffffffffu, mine, first_value + b) + to_value;
                    if (has) {
                        load_words(words[b], value + lane * COLUMNS * 2);
                    } else {
#pragma unroll
                        for (int d = 0; d < COLUMNS / 2; d++) words[b][d] = 0;
                    }
                }
#pragma unroll
                for (int b = 0; b < BATCH; b++) {
#pragma unroll
                    for (int g = 0; g < G; g++) {
                        // Past the end the weight is 0, and the value is that of the last position.
                        const float weight = __shfl_sync(0xffffffffu, weights[g], first_value + b);
#pragma unroll
                        for (int d = 0; d < COLUMNS; d += 2) {
                            sums[g][d] = __fmaf_rn(weight, low_f16(words[b][d / 2]), sums[g][d]);
                            sums[g][d + 1] = __fmaf_rn(weight, high_f16(words[b][d / 2]), sums[g][d + 1]);
                        }
                    }
                }
            }
            continue;
        }
#pragma unroll 4
        for (uint j = 0; j < n; j++) {
            const uchar *value = (const uchar *)__shfl_sync(0xffffffffu, mine, j) + to_value;
            float v[COLUMNS];
#pragma unroll
            for (int d = 0; d < COLUMNS; d++) v[d] = lane + 32 * d < dim ? source.load(value, lane + 32 * d) : 0.0f;
#pragma unroll
            for (int g = 0; g < G; g++) {
                const float weight = __shfl_sync(0xffffffffu, weights[g], j);
#pragma unroll
                for (int d = 0; d < COLUMNS; d++) sums[g][d] = __fmaf_rn(weight, v[d], sums[g][d]);
            }
        }
    }
#pragma unroll
    for (int g = 0; g < G; g++) {
        total[g] = warp_sum(total[g]);
        if (lane == 0) {
            totals[warp][g][0] = most[g];
            totals[warp][g][1] = total[g];
        }
        if (warp > 0) {
#pragma unroll
            for (int d = 0; d < COLUMNS; d++) others[warp - 1][g][lane + 32 * d] = sums[g][d];
        }
    }
    __syncthreads();
    if (warp > 0) return;
#pragma unroll
    for (int g = 0; g < G; g++) {
        if (g >= n_mine) break;
        const uint head = first_head + g;
        float all = totals[0][g][0];
#pragma unroll
        for (int w = 1; w < ATTENTION_WARPS; w++) all = fmaxf(all, totals[w][g][0]);
        const bool whole = a.n_splits == 1;
        if (whole && a.sinks != nullptr) all = fmaxf(all, a.sinks[head]);
        float sum = 0.0f, out[COLUMNS];
#pragma unroll
        for (int d = 0; d < COLUMNS; d++) out[d] = 0.0f;
#pragma unroll
        for (int w = 0; w < ATTENTION_WARPS; w++) {
            const float by = all == -INFINITY_F ? 1.0f : expf(totals[w][g][0] - all);
            sum = __fmaf_rn(by, totals[w][g][1], sum);
#pragma unroll
            for (int d = 0; d < COLUMNS; d++) {
                out[d] = __fmaf_rn(by, w == 0 ? sums[g][d] : others[w == 0 ? 0 : w - 1][g][lane + 32 * d], out[d]);
            }
        }
        if (whole) {
            if (a.sinks != nullptr) sum += expf(a.sinks[head] - all);
            float *to_row = a.out + (ulong(row) * a.n_heads + head) * dim;
#pragma unroll
            for (int d = 0; d < COLUMNS; d++) {
                if (column(d) < dim) to_row[column(d)] = out[d] / sum;
            }
        } else {
            const ulong part = (ulong(row) * a.n_heads + head) * a.n_splits + split;
#pragma unroll
            for (int d = 0; d < COLUMNS; d++) {
                if (column(d) < dim) a.partials[part * dim + column(d)] = out[d];
            }
            if (lane == 0) {
                a.totals[2 * part] = all;
                a.totals[2 * part + 1] = sum;
            }
        }
    }
}

#define ATTENTION(name, Source, G, COLUMNS) \
    KERNEL(32 * ATTENTION_WARPS) name(const __grid_constant__ AttentionArguments a) { attend<Source, G, COLUMNS>(a); }

// Code that the kernels of attention by tiles share: prefill.cuh (mma) and warpgroups.cuh (wgmma).
#pragma once
#include "e4m3.cuh"
#include "gemm/ptx.h"
#include "step.h"
#include "linear/arguments.h"
#include "arguments.h"
#include "vector_bytes.h"

// Types of pages (pages.cuh).
enum FlashPages { FLASH_F16, FLASH_Q8_0, FLASH_FP8 };

// The queries of one span that a block computes: `n_queries` of them, from the `first`-th on. A
// span has `heads` queries for each of its rows, and those of a row are neighbours.
struct FlashTile {
    // The span's index in the step, its first row, its number of rows, and the position of its
    // first row.
    u32 span, span_first, span_rows, span_position;
    u32 first, n_queries;                           // n_queries 0: there is no such tile
};

// The `wanted`-th tile of at most `most` queries, counted over all spans. All lanes of a warp call
// it.
INLINE FlashTile flash_tile(const AttentionArguments &a, u32 wanted, u32 most, u32 heads) {
    const u32 lane = threadIdx.x & 31, n_spans = a.row_spans[a.n_rows - 1] + 1;
    FlashTile tile = {};
    u32 before = 0;
    for (u32 s0 = 0; s0 < n_spans; s0 += 32) {
        const u32 tiles = s0 + lane < n_spans ? (a.spans[s0 + lane].n_rows * heads + most - 1) / most : 0;
        u32 sum = tiles;
#pragma unroll
        for (int m = 1; m < 32; m *= 2) {
            const u32 other = __shfl_up_sync(~0u, sum, m);
            if (lane >= m) sum += other;
        }
        const u32 mask = __ballot_sync(~0u, before + sum > wanted);
        if (mask) {
            const int l = __ffs(mask) - 1;
            const Span span = a.spans[s0 + l];
            tile.span = s0 + l, tile.span_first = span.first_row, tile.span_rows = span.n_rows, tile.span_position = span.first_position;
            tile.first = (wanted - before - (__shfl_sync(~0u, sum, l) - __shfl_sync(~0u, tiles, l))) * most;
            tile.n_queries = min(most, span.n_rows * heads - tile.first);
            return tile;
        }
        before += __shfl_sync(~0u, sum, 31);
    }
    return tile;
}

// Positions from `first` to before `end`.
struct FlashRange {
    u32 first, end;
};
// Positions that the `row`-th row of the span sees.
INLINE FlashRange flash_seen(const AttentionArguments &a, const FlashTile &tile, u32 row) {
    if (a.n_states) return {0, a.n_states};
    const u32 own = tile.span_position + row;
    return {a.window && own >= a.window ? own - a.window + 1 : 0, a.both_ways ? tile.span_position + tile.span_rows : own + 1};
}

// A signed byte of a word, as f32.
INLINE float flash_byte(u32 word, int index) {
    return __uint_as_float(__byte_perm(word ^ 0x80808080u, 0x4b000000u, 0x7440 + index)) - 8388736.0f;
}

// Keys or values of one KV head of a span.
template <int D, FlashPages KIND> struct FlashVectors {
    static constexpr u32 CHUNKS = D / 8; // chunks of 8 columns
    const AttentionArguments &a;
    const u32 *table;
    u32 shift, vector;
    u64 head_at, to_values;

    INLINE FlashVectors(const AttentionArguments &a, const FlashTile &tile, u32 kv_head)
        : a(a), table(a.pages.tables + (u64)tile.span * a.pages.table_stride), shift(31 - __clz(a.pages.page_len)),
          vector(KIND == FLASH_Q8_0 ? vector_bytes_q8_0(D) : KIND == FLASH_FP8 ? vector_bytes_fp8(D) : vector_bytes_f16(D)),
          head_at(a.pages.layer_offset + (u64)kv_head * a.pages.page_len * vector),
          to_values(a.pages.values_are_keys ? 0 : (u64)a.pages.n_kv_heads * a.pages.page_len * vector) {}

    // Page numbers of the N positions from `position` on, which is a multiple of N. There are at
    // most N / 16 pages, one in each lane.
    template <u32 N> INLINE u32 pages(u32 position, FlashRange range) const {
        position += (threadIdx.x & 31 & mask<N>()) << shift;
        return position < range.end && (position | (a.pages.page_len - 1)) >= range.first ? table[position >> shift] : 0u;
    }
    template <u32 N> INLINE u32 mask() const { return (1u << shift) < N ? (N >> shift) - 1 : 0; }

    // Loads N positions to shared memory as halves, with THREADS threads. at(position in the tile,
    // chunk) is the offset of a chunk. Positions outside `range` become zeros.
    template <u32 N, u32 THREADS, class At> INLINE void load(u32 position_0, FlashRange range, u32 pages, bool values, u8 *shared, At at) const {
        const u8 *from_head = a.pages.pool + head_at + (values ? to_values : 0);
        // The whole tile is in one page.
        const bool whole = mask<N>() == 0 && position_0 >= range.first && position_0 + N <= range.end;
        const u8 *from_page = from_head + __shfl_sync(~0u, pages, 0) * a.pages.page_bytes + (position_0 & (a.pages.page_len - 1)) * vector;
#pragma unroll
        for (u32 i0 = 0; i0 < N * CHUNKS; i0 += THREADS) {
            // A thread loads the same chunk each time if THREADS is a multiple of CHUNKS.
            const bool same = THREADS % CHUNKS == 0;
            const u32 i = same ? threadIdx.x : threadIdx.x + i0, r = i / CHUNKS + (same ? i0 / CHUNKS : 0), c = i % CHUNKS, position = position_0 + r;
            if (i0 + THREADS > N * CHUNKS && r >= N) continue;
            if (whole) {
                copy(from_page + r * vector, c, true, shared, at(r, c));
            } else {
                const u64 page = __shfl_sync(~0u, pages, (r >> shift) & mask<N>());
                const bool inside = position >= range.first && position < range.end;
                copy(from_head + page * a.pages.page_bytes + (position & (a.pages.page_len - 1)) * vector, c, inside, shared, at(r, c));
            }
        }
    }
    // Copies the c-th chunk of a vector.
    INLINE void copy(const u8 *from, u32 c, bool inside, u8 *shared, u32 to) const {
        if constexpr (KIND == FLASH_F16) {
            copy_16(shared_address(shared) + to, inside ? from + c * 16 : a.pages.pool, inside);
        } else {
            u32 words[2] = {0, 0}, halves[4];
            if (inside) words[0] = ((const u32 *)(from + c * 8))[0], words[1] = ((const u32 *)(from + c * 8))[1];
            if constexpr (KIND == FLASH_FP8) {
                const float by = inside ? half_scale_of_e4m3(*(const float *)(from + D)) : 0.0f;
                const u32 scale = pack_half2(by, by);
#pragma unroll
                for (int h = 0; h < 4; h++) halves[h] = half2_mul(halves_of_e4m3(words[h / 2], h & 1), scale);
            } else {
                const float scale = inside ? from_half(((const u16 *)(from + D))[c / 4]) : 0.0f;
#pragma unroll
                for (int h = 0; h < 4; h++)
                    halves[h] = pack_half2_clamped(scale * flash_byte(words[h / 2], 2 * (h & 1)), scale * flash_byte(words[h / 2], 2 * (h & 1) + 1));
            }
            *(uint4 *)(shared + to) = make_uint4(halves[0], halves[1], halves[2], halves[3]);
        }
    }
};

// 8 columns of a query, as halves.
INLINE uint4 flash_query(const float *q) {
    const float4 x = ((const float4 *)q)[0], y = ((const float4 *)q)[1];
    return make_uint4(pack_half2_clamped(x.x, x.y), pack_half2_clamped(x.z, x.w), pack_half2_clamped(y.x, y.y), pack_half2_clamped(y.z, y.w));
}

// The online softmax of a lane's two rows, g and g + 8 of a warp's 16. Weights are 2^(score -
// most). `most` is raised to the largest score only if that has grown by more than 8. So sums are
// seldom rescaled, and no weight exceeds 2^8.
struct FlashSoftmax {
    float most[2] = {-1e30f, -1e30f}, total[2] = {0, 0};

    // Replaces products of queries and keys by weights, in place. Of every 8 positions from
    // `position` on, a lane has positions 2 (lane % 4) and 2 (lane % 4) + 1, for both rows.
    // `inner`: both rows see all of the positions. Returns true if earlier sums must be multiplied
    // by `factor`. The result is equal in all lanes of a warp, and all of them call it.
    template <int N> INLINE bool weigh(const AttentionArguments &a, float (&score)[N], u32 position, bool inner, const FlashRange (&seen)[2], float (&factor)[2]) {
        const float LOG2E = 1.4426950408889634f, NONE = -__int_as_float(0x7f800000), GROWTH = 8.0f;
        float factor_log2 = a.scale * LOG2E;
        if (a.softcap > 0) {
            // tanh(y) = 1 - 2 / (exp(2 y) + 1)
            const float inner_factor = 2.0f * LOG2E * a.scale / a.softcap;
            factor_log2 = LOG2E * a.softcap;
#pragma unroll
            for (int i = 0; i < N; i++) score[i] = 1.0f - 2.0f * reciprocal_fast(exp2_fast(inner_factor * score[i]) + 1.0f);
        }
        if (!inner) {
#pragma unroll
            for (int i = 0; i < N; i++) {
                const u32 p = position + i / 4 * 8 + 2 * (threadIdx.x & 3) + (i & 1);
                const FlashRange &of = seen[i >> 1 & 1];
                if (p < of.first || p >= of.end) score[i] = NONE;
            }
        }
        float high[2] = {NONE, NONE};
#pragma unroll
        for (int i = 0; i < N; i++) high[i >> 1 & 1] = fmaxf(high[i >> 1 & 1], score[i]);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            high[h] = fmaxf(high[h], __shfl_xor_sync(~0u, high[h], 1));
            high[h] = fmaxf(high[h], __shfl_xor_sync(~0u, high[h], 2)) * factor_log2;
        }
        const bool grows = __ballot_sync(~0u, high[0] > most[0] + GROWTH || high[1] > most[1] + GROWTH);
        if (grows) {
#pragma unroll
            for (int h = 0; h < 2; h++) {
                high[h] = fmaxf(most[h], high[h]);
                factor[h] = exp2_fast(most[h] - high[h]);
                most[h] = high[h];
                total[h] *= factor[h];
            }
        }
#pragma unroll
        for (int i = 0; i < N; i++) {
            score[i] = exp2_fast(fmaf(score[i], factor_log2, -most[i >> 1 & 1]));
            total[i >> 1 & 1] += score[i];
        }
        return grows;
    }
    // Weights as the first operand of a product with values.
    template <int N> static INLINE void pack(const float (&score)[N], u32 (&weight)[N / 8][4]) {
#pragma unroll
        for (int i = 0; i < N / 4; i++) {
            weight[i / 2][(i & 1) * 2] = pack_half2(score[4 * i], score[4 * i + 1]);
            weight[i / 2][(i & 1) * 2 + 1] = pack_half2(score[4 * i + 2], score[4 * i + 3]);
        }
    }
    // Factor of the sums of row h after the last tile. All lanes of a warp call it.
    INLINE float end(const AttentionArguments &a, int h, u32 head) {
        const float LOG2E = 1.4426950408889634f;
        total[h] += __shfl_xor_sync(~0u, total[h], 1);
        total[h] += __shfl_xor_sync(~0u, total[h], 2);
        if (!a.sinks) return 1.0f / total[h];
        const float sink = a.sinks[head] * LOG2E, high = fmaxf(most[h], sink), factor = exp2_fast(most[h] - high);
        return factor / (total[h] * factor + exp2_fast(sink - high));
    }
};

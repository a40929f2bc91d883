// attention_flash<D, KIND>: attention of many rows over F16, Q8_0 or FP8 pages by tiles, on tensor
// cores (mma.m16n8k16, sm_80 and later).
//
//     out = softmax(softcap(scale * q k^T)) v     over the positions that each row sees
//
// Host contract
//   parameter AttentionArguments (arguments.h): n_rows, n_heads, window, both_ways, n_states,
//     scale, softcap, q, sinks, row_spans, spans, out, pages. Not used: n_splits, split_len,
//     positions, k, v, partials, totals. head_dim must be D
//   threads 128
//   grid (n_heads, ceil(n_rows / 64) + number of spans - 1): blocks without a tile return at once
//   dynamic shared memory FlashShape<D>::SHARED bytes
//   layout q, out (n_rows, n_heads * D) f32; K and V as in pages.cuh. A vector starts at a multiple
//     of 16 bytes
//
// A block has 64 rows of one span and one query head; a warp has 16 of the rows. Up to three blocks
// share a multiprocessor. Keys and values are loaded TILE positions at a time by cp.async, double
// buffered: the next tile's keys are loaded while this tile's values are used. Scores, sums and the
// softmax are f32; q, k, v and the weights are f16 (q clamped to 65504). Tiles with the most
// positions start first.
//
// Order of accumulation: positions ascending, TILE at a time (64; 32 if D > 128).
// Bytes: the K and V that a tile sees, once for each query head and 64 rows, from L2.
// Measured: NOTES.md.
#pragma once
#include "attention_flash/tiles.cuh"

template <int D> struct FlashShape {
    static constexpr int ROWS = 64, THREADS = 128;
    static constexpr int TILE = D > 128 ? 32 : 64;
    // Bytes from one row to the next: an odd multiple of 16, so that ldmatrix has no bank
    // conflicts.
    static constexpr int STRIDE = D * 2 + 16;
    static constexpr int KV = TILE * STRIDE;
    static constexpr bool Q_IN_REGISTERS = D <= 128;
    static constexpr int Q = ROWS * STRIDE;
    // Queries that are kept in registers use the space of the second tile of values, which is
    // loaded later.
    static constexpr int Q_AT = Q_IN_REGISTERS && Q <= KV ? 3 * KV : 4 * KV;
    static constexpr int SHARED = Q_AT == 3 * KV ? 4 * KV : 4 * KV + Q;
    // Blocks that share a multiprocessor.
    static constexpr int BLOCKS = D > 128 ? 2 : 3;
    static INLINE u32 at(u32 row, u32 c) { return row * STRIDE + c * 16; }
};

// score += q k^T of a warp's 16 queries and a tile of keys. `q_row` and `key` are the lane's
// addresses of queries and keys in shared memory; `q` has the queries if they are in registers.
template <int D, int N, int S> INLINE void flash_multiply_keys(float (&score)[N], const u32 (&q)[S][4], u32 q_row, u32 key) {
    typedef FlashShape<D> Shape;
    constexpr int TILE = Shape::TILE, STRIDE = Shape::STRIDE;
#pragma unroll
    for (int s = 0; s < D / 16; s++) {
        u32 fresh[4];
        if constexpr (!Shape::Q_IN_REGISTERS) load_matrices(fresh, q_row + s * 32);
        const u32 *qs = Shape::Q_IN_REGISTERS ? q[Shape::Q_IN_REGISTERS ? s : 0] : fresh;
#pragma unroll
        for (int n = 0; n < TILE / 8; n += 2) {
            u32 k[4];
            load_matrices(k, key + n * 8 * STRIDE + s * 32);
            mma_16x8x16(score + 4 * n, qs, k[0], k[1]);
            mma_16x8x16(score + 4 * n + 4, qs, k[2], k[3]);
        }
    }
}

// out += weight v of a warp's 16 queries and a tile of values, at the lane's address `value`.
template <int D, int N, int S> INLINE void flash_multiply_values(float (&out)[N], const u32 (&weight)[S][4], u32 value) {
    constexpr int TILE = FlashShape<D>::TILE, STRIDE = FlashShape<D>::STRIDE;
#pragma unroll
    for (int s = 0; s < TILE / 16; s++)
#pragma unroll
        for (int i = 0; i < D / 8; i += 2) {
            u32 v[4];
            load_matrices_transposed(v, value + s * 16 * STRIDE + i * 16);
            mma_16x8x16(out + 4 * i, weight[s], v[0], v[1]);
            mma_16x8x16(out + 4 * i + 4, weight[s], v[2], v[3]);
        }
}

template <int D, FlashPages KIND> INLINE void attention_flash(const AttentionArguments &a) {
    typedef FlashShape<D> Shape;
    constexpr int TILE = Shape::TILE, STRIDE = Shape::STRIDE, CHUNKS = D / 8;
    extern __shared__ __align__(16) u8 flash_shared[];
    const u32 base = shared_address(flash_shared);
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    const u32 head = blockIdx.x;
    const FlashTile tile = flash_tile(a, gridDim.y - 1 - blockIdx.y, Shape::ROWS, 1);
    if (tile.n_queries == 0) return;

    // Positions that any of the tile's rows sees.
    const FlashRange range = {flash_seen(a, tile, tile.first).first, flash_seen(a, tile, tile.first + tile.n_queries - 1).end};
    const u32 tile_0 = range.first / TILE, n_tiles = (range.end + TILE - 1) / TILE - tile_0;
    const FlashVectors<D, KIND> vectors(a, tile, head / (a.n_heads / a.pages.n_kv_heads));
    // Page numbers are loaded one tile ahead.
    const auto pages_of = [&](u32 index) { return vectors.template pages<TILE>((tile_0 + index) * TILE, range); };
    const auto load = [&](u32 index, u32 pages, bool values) {
        u8 *to = flash_shared + ((index & 1) * 2 + values) * Shape::KV;
        vectors.template load<TILE, Shape::THREADS>((tile_0 + index) * TILE, range, pages, values, to, Shape::at);
    };
    const u32 pages = pages_of(0);
    load(0, pages, false);
    copy_commit();
    load(0, pages, true);
    copy_commit();

    // Queries without scale and log2(e), which are applied to scores in f32.
    for (u32 i = threadIdx.x; i < 64 * CHUNKS; i += 128) {
        const u32 r = i / CHUNKS, c = i % CHUNKS;
        const float *q = a.q + ((u64)(tile.span_first + tile.first + r) * a.n_heads + head) * D + c * 8;
        *(uint4 *)(flash_shared + Shape::Q_AT + Shape::at(r, c)) = r < tile.n_queries ? flash_query(q) : make_uint4(0, 0, 0, 0);
    }
    __syncthreads();
    // Rows 0..7 and 8..15 of the warp by columns 0..7 and 8..15 of a slice are matrices 0..3, in
    // the order of the first operand.
    const u32 q_row = base + Shape::Q_AT + (warp * 16 + (lane & 15)) * STRIDE + (lane >> 4) * 16;
    u32 q[Shape::Q_IN_REGISTERS ? D / 16 : 1][4];
    if constexpr (Shape::Q_IN_REGISTERS) {
#pragma unroll
        for (int s = 0; s < D / 16; s++) load_matrices(q[s], q_row + s * 32);
    }

    float out[D / 2]; // 2 of every 8 columns, of both rows
#pragma unroll
    for (int i = 0; i < D / 2; i++) out[i] = 0;
    FlashSoftmax softmax;
    // `idle`: this warp has no rows. `all_see` and `any_sees`: positions that all of its rows see,
    // and that any of them sees. The first warps of a causal tile see fewer positions.
    const bool idle = warp * 16 >= tile.n_queries;
    const u32 first_row = tile.first + warp * 16, last_row = first_row + 15;
    const FlashRange all_see = {flash_seen(a, tile, last_row).first, flash_seen(a, tile, first_row).end};
    const FlashRange any_sees = {flash_seen(a, tile, first_row).first, min(flash_seen(a, tile, last_row).end, range.end)};
    const FlashRange seen[2] = {flash_seen(a, tile, first_row + g), flash_seen(a, tile, first_row + g + 8)};

    for (u32 index = 0; index < n_tiles; index++) {
        const u32 next_pages = index + 1 < n_tiles ? pages_of(index + 1) : 0;
        copy_wait<1>();
        __syncthreads(); // this tile's keys have arrived, the other buffer is free
        if (index + 1 < n_tiles) load(index + 1, next_pages, false);
        copy_commit();
        const u32 position = (tile_0 + index) * TILE;
        const bool needed = !idle && position < any_sees.end && position + TILE > any_sees.first;
        u32 weight[TILE / 16][4];
        if (needed) {
            float score[TILE / 2];
#pragma unroll
            for (int i = 0; i < TILE / 2; i++) score[i] = 0;
            // Matrices: positions 0..7 by columns 0..7 and 8..15, then positions 8..15 by the same
            // columns.
            const u32 key = base + (index & 1) * 2 * Shape::KV + ((lane & 7) + (lane >> 4) * 8) * STRIDE + ((lane >> 3) & 1) * 16;
            flash_multiply_keys<D>(score, q, q_row, key);
            float factor[2];
            if (softmax.weigh(a, score, position, position >= all_see.first && position + TILE <= all_see.end, seen, factor)) {
#pragma unroll
                for (int i = 0; i < D / 2; i++) out[i] *= factor[i >> 1 & 1];
            }
            FlashSoftmax::pack(score, weight);
        }
        copy_wait<1>();
        __syncthreads(); // this tile's values have arrived
        if (index + 1 < n_tiles) load(index + 1, next_pages, true);
        copy_commit();
        if (needed) {
            // Matrices: positions 0..7 and 8..15 by columns 0..7, then by columns 8..15. They are
            // transposed by the load.
            const u32 value = base + ((index & 1) * 2 + 1) * Shape::KV + (lane & 15) * STRIDE + (lane >> 4) * 16;
            flash_multiply_values<D>(out, weight, value);
        }
    }
    if (idle) return;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const float by = softmax.end(a, h, head);
        const u32 row = warp * 16 + g + 8 * h;
        if (row >= tile.n_queries) continue;
        float *o = a.out + ((u64)(tile.span_first + tile.first + row) * a.n_heads + head) * D + 2 * t;
#pragma unroll
        for (int i = 0; i < D / 8; i++) *(float2 *)(o + 8 * i) = make_float2(out[4 * i + 2 * h] * by, out[4 * i + 2 * h + 1] * by);
    }
}

// Defines the kernel NAME_D. SHARED_BYTES is its shared memory, as the host has it
// (compile/attention.rs).
#define FLASH(NAME, PAGES, D, SHARED_BYTES)                                                                       \
    static_assert(FlashShape<D>::SHARED == SHARED_BYTES, "shared memory");                                                \
    extern "C" __global__ void __launch_bounds__(128, FlashShape<D>::BLOCKS) NAME##_##D(const __grid_constant__ AttentionArguments a) { \
        begin();                                                                                                          \
        attention_flash<D, PAGES>(a);                                                                                     \
    }

// attention_warpgroups<D, KIND>: attention of many rows over F16, Q8_0 or FP8 pages by tiles,
// products by wgmma (sm_90a), for heads of 64, 128 and 256 columns.
//
//     out = softmax(softcap(scale * q k^T)) v     over the positions that each row sees
//
// Host contract
//   parameter AttentionArguments (arguments.h), as in prefill.cuh
//   threads 256
//   grid (n_kv_heads, ceil(n_rows * group / 128) + number of spans - 1), group = n_heads /
//     n_kv_heads: blocks without a tile return at once
//   dynamic shared memory FlashWarpgroups<D>::SHARED bytes
//   layout as in prefill.cuh
//
// A block has 128 queries of one KV head and span. All query heads of a row are neighbours, so the
// block has few rows, which see nearly the same positions. A warpgroup has 64 of the queries, a
// warp 16. Keys and values are loaded TILE positions at a time by cp.async, two tiles ahead (one if
// D is 256), keys a tile before values. An iteration of the loop starts the products of the next
// tile's keys and of this tile's values together. It computes the next tile's weights as soon as
// the products of the keys are done. Queries are read from shared memory, not kept in registers:
// NVRTC 12.9 overwrote such registers within the loop. Tiles with the most positions start first.
//
// Order of accumulation: positions ascending, TILE at a time.
// Bytes: the K and V that a tile sees, once for each 128 queries, from L2.
// Measured: NOTES.md.
#pragma once
#include "attention_flash/tiles.cuh"
#include "gemm/wgmma.h"

template <int D> struct FlashWarpgroups {
    static constexpr int WARPGROUPS = 2, THREADS = 128 * WARPGROUPS, QUERIES = 64 * WARPGROUPS;
    static constexpr int TILE = 64, STAGES = D > 128 ? 2 : 3;
    static constexpr int KV = TILE * D * 2; // bytes
    static constexpr int Q = 64 * D * 2;    // bytes of a warpgroup
    static constexpr int SHARED = 2 * STAGES * KV + WARPGROUPS * Q;
    static constexpr int BLOCKS = D == 64 ? 2 : 1; // blocks that share a multiprocessor
    // Offset of the c-th 8 columns of a row in a tile of N rows. 64 columns of all rows are
    // neighbours, 128 bytes a row. The eight pieces of 16 bytes of such a row are swizzled.
    template <int N> static INLINE u32 at(u32 row, u32 c) { return c / 8 * (N * 128) + row * 128 + ((c ^ row) & 7) * 16; }
};

// A block's queries, as halves in shared memory.
template <int D> INLINE void warpgroups_load_queries(const AttentionArguments &a, const FlashTile &tile, u32 kv_head, u32 group, u8 *queries) {
    typedef FlashWarpgroups<D> Shape;
    for (u32 i = threadIdx.x; i < Shape::QUERIES * D / 8; i += Shape::THREADS) {
        const u32 r = i / (D / 8), c = i % (D / 8), query = tile.first + r;
        const float *q = a.q + ((u64)(tile.span_first + query / group) * a.n_heads + kv_head * group + query % group) * D + c * 8;
        *(uint4 *)(queries + r / 64 * Shape::Q + Shape::template at<64>(r % 64, c)) = r < tile.n_queries ? flash_query(q) : make_uint4(0, 0, 0, 0);
    }
}

// score = q k^T of a warpgroup's 64 queries and a tile of keys, both in shared memory.
template <int D, int N> INLINE void warpgroups_multiply_keys(float (&score)[N], u32 queries, u32 keys) {
    constexpr int TILE = FlashWarpgroups<D>::TILE;
#pragma unroll
    for (int s = 0; s < D / 16; s++) {
        const u64 q = wgmma_operand(queries + s / 4 * (64 * 128)) + 2 * (s % 4), k = wgmma_operand(keys + s / 4 * (TILE * 128)) + 2 * (s % 4);
        Wgmma<TILE>::multiply_shared(score, q, k, s > 0);
    }
    wgmma_commit();
}

// out += weight v of a warpgroup's 64 queries and a tile of values in shared memory.
template <int D, int N, int S> INLINE void warpgroups_multiply_values(float (&out)[N], u32 (&weight)[S][4], u32 values) {
    constexpr int TILE = FlashWarpgroups<D>::TILE;
#pragma unroll
    for (int s = 0; s < TILE / 16; s++) Wgmma<D>::template multiply<1>(out, weight[s], wgmma_transposed(values + s * 2048, TILE * 128), 1);
    wgmma_commit();
}

// Stores the lane's two queries, `mine` and `mine + 8` of the tile.
template <int D, int N>
INLINE void warpgroups_store(const AttentionArguments &a, const FlashTile &tile, u32 kv_head, u32 group, u32 mine, const float (&out)[N], FlashSoftmax &softmax) {
    const int lane = threadIdx.x & 31;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const u32 query = mine + 8 * h, row = (tile.first + query) / group, head = kv_head * group + (tile.first + query) % group;
        const float by = softmax.end(a, h, head);
        if (query >= tile.n_queries) continue;
        float *o = a.out + ((u64)(tile.span_first + row) * a.n_heads + head) * D + 2 * (lane & 3);
#pragma unroll
        for (int i = 0; i < D / 8; i++) *(float2 *)(o + 8 * i) = make_float2(out[4 * i + 2 * h] * by, out[4 * i + 2 * h + 1] * by);
    }}

template <int D, FlashPages KIND> INLINE void attention_warpgroups(const AttentionArguments &a) {
    typedef FlashWarpgroups<D> Shape;
    constexpr int TILE = Shape::TILE, STAGES = Shape::STAGES, KV = Shape::KV;
    extern __shared__ __align__(1024) u8 flash_shared[];
    u8 *const queries = flash_shared + 2 * STAGES * KV;
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    const u32 kv_head = blockIdx.x, group = a.n_heads / a.pages.n_kv_heads;
    const FlashTile tile = flash_tile(a, gridDim.y - 1 - blockIdx.y, Shape::QUERIES, group);
    if (tile.n_queries == 0) return;

    // Positions that any of the tile's queries sees.
    const FlashRange range = {flash_seen(a, tile, tile.first / group).first, flash_seen(a, tile, (tile.first + tile.n_queries - 1) / group).end};
    const u32 tile_0 = range.first / TILE, n_tiles = (range.end + TILE - 1) / TILE - tile_0;
    const FlashVectors<D, KIND> vectors(a, tile, kv_head);
    const auto pages_of = [&](u32 index) { return vectors.template pages<TILE>((tile_0 + index) * TILE, range); };
    const auto load = [&](u32 index, u32 pages, bool values) {
        u8 *to = flash_shared + (index % STAGES * 2 + values) * KV;
        vectors.template load<TILE, Shape::THREADS>((tile_0 + index) * TILE, range, pages, values, to, Shape::template at<TILE>);
    };
    // Keys are loaded one tile before values. The copy group before tile `index` has the values of
    // the tile before it and its own keys.
    u32 pages = pages_of(0), later_pages = pages_of(1);
    load(0, pages, false);
    copy_commit();
    const auto load_next = [&](u32 index) {
        if (index <= n_tiles) load(index - 1, pages, true);
        if (index < n_tiles) load(index, later_pages, false);
        copy_commit();
        pages = later_pages, later_pages = pages_of(index + 1);
    };
    for (u32 index = 1; index < STAGES; index++) load_next(index);

    warpgroups_load_queries<D>(a, tile, kv_head, group, queries);
    const u32 q_at = shared_address(queries) + warp / 4 * Shape::Q;

    // The warp's first and last query, then the lane's two queries.
    const u32 warp_first = min(tile.first + warp * 16, tile.first + tile.n_queries - 1), warp_last = min(warp_first + 15, tile.first + tile.n_queries - 1);
    const FlashRange all_see = {flash_seen(a, tile, warp_last / group).first, flash_seen(a, tile, warp_first / group).end};
    const u32 mine = warp * 16 + (lane >> 2);
    const FlashRange seen[2] = {flash_seen(a, tile, (tile.first + mine) / group), flash_seen(a, tile, (tile.first + mine + 8) / group)};

    float out[D / 2], score[TILE / 2], factor[2]; // 2 of every 8 columns or positions, of both rows
    u32 weight[TILE / 16][4];
    FlashSoftmax softmax;
#pragma unroll
    for (int i = 0; i < D / 2; i++) out[i] = 0;
    const auto arrived = [&] { // a copy group, for all threads; the previous iteration's buffers are free
        copy_wait<STAGES - 2>();
        wgmma_written();
        __syncthreads();
    };
    const auto multiply_keys = [&](u32 index) {
        warpgroups_multiply_keys<D>(score, q_at, shared_address(flash_shared) + index % STAGES * 2 * KV);
    };
    const auto multiply_values = [&](u32 index) {
        warpgroups_multiply_values<D>(out, weight, shared_address(flash_shared) + (index % STAGES * 2 + 1) * KV);
    };
    const auto weigh = [&](u32 index) {
        const u32 position = (tile_0 + index) * TILE;
        return softmax.weigh(a, score, position, position >= all_see.first && position + TILE <= all_see.end, seen, factor);
    };

    copy_wait<STAGES - 1>();
    wgmma_written();
    __syncthreads();
    wgmma_fence();
    multiply_keys(0);
    wgmma_wait<0>();
    wgmma_settle(score);
    weigh(0);
    FlashSoftmax::pack(score, weight);
    for (u32 index = 0; index + 1 < n_tiles; index++) {
        arrived();
        wgmma_fence();
        multiply_keys(index + 1);
        multiply_values(index);
        load_next(index + STAGES);
        wgmma_wait<1>();
        wgmma_settle(score);
        const bool grows = weigh(index + 1);
        wgmma_wait<0>();
        wgmma_settle(out);
        wgmma_settle(score);
        if (grows) {
#pragma unroll
            for (int i = 0; i < D / 2; i++) out[i] *= factor[i >> 1 & 1];
        }
        FlashSoftmax::pack(score, weight);
    }
    arrived();
    wgmma_fence();
    multiply_values(n_tiles - 1);
    wgmma_wait<0>();
    wgmma_settle(out);

    warpgroups_store<D>(a, tile, kv_head, group, mine, out, softmax);
}

// Defines the kernel NAME_D. SHARED_BYTES is its shared memory, as the host has it
// (compile/attention.rs).
#define FLASH_WARPGROUPS(NAME, PAGES, D, SHARED_BYTES)                                                                                                               \
    static_assert(FlashWarpgroups<D>::SHARED == SHARED_BYTES, "shared memory");                                                                                      \
    extern "C" __global__ void __launch_bounds__(FlashWarpgroups<D>::THREADS, FlashWarpgroups<D>::BLOCKS) NAME##_##D(const __grid_constant__ AttentionArguments a) { \
        begin();                                                                                                                                                     \
        attention_warpgroups<D, PAGES>(a);                                                                                                                           \
    }

// gemm_wgmma_<codec>_<WIDTH>: products of many rows on sm_90a. y[m][n] = sum over k of x[m][k] *
// w[n][k], by tiles of 128 rows of the weights and WIDTH tokens.
//
// Host contract
//   parameter GemmArguments
//   threads 384, one block a multiprocessor: one producer warp (warpgroup 0), two consumer
//     warpgroups of 64 weight rows each
//   grid min(multiprocessors, tiles * n_splits), with tiles = ceil(n_rows / WIDTH) * ceil(n_out /
//     128), or enough for the grouped tiles. Any number of blocks computes everything
//   dynamic shared memory GEMM_WGMMA_SHARED(codec, WIDTH) bytes, the constant
//     gemm_wgmma_shared_<codec>_<WIDTH>
//   attribute programmatic stream serialization may be on: the kernel waits before it reads x
//
// How it works: W is the register operand of wgmma, and the warps that multiply dequantise it.
// While the tensor cores multiply k tile i, the warps dequantise tile i + 1 into the other set of
// fragments and load the packed words of tile i + 2. The stream of k tiles continues from one
// output tile to the next. X and W are loaded by plain bulk copies, since both are stored in the
// order of use.
//
// Order of accumulation: k ascending, 16 at a time, f32. The block that ends last adds the parts of
// K (n_splits) in ascending order, so a result depends only on the width and the number of parts.
// Bytes: W once for each group of token tiles that runs at the same time (about once), x once for
// each 128 weight rows, from L2.
// Measured: NOTES.md.
#pragma once
#include "gemm/codec.h"
#include "gemm/epilogue.h"
#include "gemm/wgmma.h"

#define GEMM_SHARED_LIMIT 232448
template <class C, int WIDTH> struct GemmStages {
    static constexpr int TILE = Packed<C>::TILE;
    static constexpr int BYTES = (WIDTH * 128 + 2 * TILE + 1023) / 1024 * 1024;
    static constexpr int REST = 2048 + 2 * STAGING_BYTES;
    static constexpr int FIT = (GEMM_SHARED_LIMIT - REST) / BYTES;
    static constexpr int COUNT = FIT > 12 ? 12 : FIT;
    static constexpr int SHARED = COUNT * BYTES + REST;
};

// One output tile, or one part of K of it.
struct GemmWork {
    const u8 *weights; // weights of the first 64 of its 128 rows
    u32 tile, split, first_row, end_row, row_128, k_begin, k_end;
    bool second; // the second 64 rows exist
};

template <class C> INLINE GemmWork gemm_work(const GemmArguments &a, u32 unit, u32 n_token_tiles, int width) {
    GemmWork w;
    w.tile = unit / a.n_splits, w.split = unit % a.n_splits;
    const u32 token_tile = w.tile % n_token_tiles;
    w.row_128 = w.tile / n_token_tiles;
    w.weights = a.weights;
    if (a.tiles) {
        const uint4 tile = a.tiles[token_tile];
        w.weights += tile.x * a.expert_bytes;
        w.first_row = tile.y, w.end_row = tile.y + tile.z;
    } else {
        w.first_row = token_tile * width;
        w.end_row = min(a.n_rows, w.first_row + width);
    }
    const u64 row_bytes = (u64)a.k_tiles * Packed<C>::TILE; // bytes of 64 rows
    w.weights += 2 * w.row_128 * row_bytes;
    w.second = w.row_128 * 128 + 64 < a.n_out;
    const u32 pairs = a.k_tiles / 2;
    w.k_begin = 2 * (pairs * w.split / a.n_splits), w.k_end = 2 * (pairs * (w.split + 1) / a.n_splits);
    return w;
}

// The producer: one warp copies the k tiles of all units of this block to the ring of stages.
template <class C, int WIDTH> INLINE void wgmma_produce(const GemmArguments &a, u32 base, u32 n_token_tiles, u32 n_units, int lane) {
    typedef GemmStages<C, WIDTH> Stages;
    constexpr int STAGES = Stages::COUNT, TILE = Stages::TILE;
    const u32 full = base + STAGES * Stages::BYTES, empty = full + 8 * STAGES;
    int stage = 0;
    u32 parity = 1;
    for (u32 unit = blockIdx.x; unit < n_units; unit += gridDim.x) {
        const GemmWork w = gemm_work<C>(a, unit, n_token_tiles, WIDTH);
        // The last group of 8 rows is copied whole.
        const u32 x_bytes = (w.end_row - w.first_row + 7) / 8 * 1024;
        const u32 bytes = x_bytes + (w.second ? 2 : 1) * TILE;
        const u8 *x = a.x + ((u64)w.k_begin * a.row_groups + w.first_row / 8) * 1024;
        const u8 *weights = w.weights + (u64)w.k_begin * TILE;
        const u64 row_bytes = (u64)a.k_tiles * TILE;
        for (u32 k = w.k_begin; k < w.k_end; k++) {
            mbarrier_wait(empty + 8 * stage, parity);
#ifdef GEMM_VALIDATE
            const u8 *x_end = a.x + (u64)a.k_tiles * a.row_groups * 1024, *w_end = a.weights + (u64)((a.n_out + 63) / 64) * row_bytes;
            if (x < a.x || x + x_bytes > x_end || weights < a.weights || weights + (w.second ? row_bytes : 0) + TILE > w_end) {
                printf("block %d unit %u k %u: x %p of %p..%p, weights %p of %p..%p, first_row %u\n", (int)blockIdx.x, unit, k, x, a.x, x_end, weights, a.weights, w_end, w.first_row);
                asm volatile("trap;");
            }
#endif
            const u32 to = base + stage * Stages::BYTES, done = full + 8 * stage;
            if (lane == 0) {
                mbarrier_expect(done, bytes);
                bulk_copy(to + WIDTH * 128, weights, TILE, done);
                if (w.second) bulk_copy(to + WIDTH * 128 + TILE, weights + row_bytes, TILE, done);
                bulk_copy(to, x, x_bytes, done);
            }
            __syncwarp();
            weights += TILE, x += (u64)a.row_groups * 1024;
            if (++stage == STAGES) stage = 0, parity ^= 1;
        }
    }
}

template <class C, int WIDTH> INLINE void gemm_wgmma(const GemmArguments &a) {
    typedef GemmStages<C, WIDTH> Stages;
    constexpr int STAGES = Stages::COUNT, TILE = Stages::TILE;
    extern __shared__ u8 raw_shared[];
    const u32 base = (shared_address(raw_shared) + 1023) & ~1023u;
    const u32 full = base + STAGES * Stages::BYTES, empty = full + 8 * STAGES;
    u8 *after = raw_shared + (base - shared_address(raw_shared)) + STAGES * Stages::BYTES;
    u32 *flag = (u32 *)(after + 16 * STAGES); // at most 12 stages, so within 256 bytes
    const int warpgroup = threadIdx.x >> 7, tid = threadIdx.x & 127, lane = threadIdx.x & 31;
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) mbarrier_init(full + 8 * i, 1), mbarrier_init(empty + 8 * i, 8);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    }
    __syncthreads();
    dependency_wait();
    const u32 n_token_tiles = a.tiles ? *a.n_tiles : (a.n_rows + WIDTH - 1) / WIDTH;
    const u32 n_units = n_token_tiles * ((a.n_out + 127) / 128) * a.n_splits;
    if (warpgroup == 0) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        // The whole warp runs the loop, and one of its lanes copies. With one thread in the loop
        // and the rest of its warp exited, a quarter of all processes failed with an illegal
        // address. The cause is not known (NOTES.md).
        if (threadIdx.x < 32) {
            wgmma_produce<C, WIDTH>(a, base, n_token_tiles, n_units, lane);
            dependency_launch();
        }
        return;
    }
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    const int wg = warpgroup - 1, warp = tid >> 5;
    u32 n_tiles_left = 0; // k tiles that this block has not loaded yet
    for (u32 unit = blockIdx.x; unit < n_units; unit += gridDim.x) {
        const u32 pairs = a.k_tiles / 2, split = unit % a.n_splits;
        n_tiles_left += 2 * (pairs * (split + 1) / a.n_splits - pairs * split / a.n_splits);
    }
    float sum[WIDTH / 2];
    u32 even[4][4], odd[4][4];
    Packed<C> packed;
    int stage = 0, load_stage = 0, previous = -1;
    u32 load_parity = 0;
    auto load = [&] {
        if (n_tiles_left == 0) return;
        n_tiles_left--;
        mbarrier_wait(full + 8 * load_stage, load_parity);
        packed.load(base + load_stage * Stages::BYTES + WIDTH * 128 + wg * TILE, tid);
        if (++load_stage == STAGES) load_stage = 0, load_parity ^= 1;
    };
    auto release = [&](int s) {
        __syncwarp();
        if (lane == 0) mbarrier_arrive(empty + 8 * s);
    };
    load();
    packed.template slice<0>(even[0]), packed.template slice<1>(even[1]);
    packed.template slice<2>(even[2]), packed.template slice<3>(even[3]);
    load();
    for (u32 unit = blockIdx.x; unit < n_units; unit += gridDim.x) {
        const GemmWork w = gemm_work<C>(a, unit, n_token_tiles, WIDTH);
        auto step = [&](u32(&now)[4][4], u32(&next)[4][4], bool accumulate) {
            const u64 x = wgmma_operand(base + stage * Stages::BYTES);
            wgmma_fence();
            Wgmma<WIDTH>::multiply(sum, now[0], x, accumulate);
            wgmma_commit();
            Wgmma<WIDTH>::multiply(sum, now[1], x + 2, 1);
            wgmma_commit();
            wgmma_wait<2>(); // all of the previous k tile has been read
            if (previous >= 0) release(previous);
            packed.template slice<0>(next[0]), packed.template slice<1>(next[1]);
            wgmma_fence();
            Wgmma<WIDTH>::multiply(sum, now[2], x + 4, 1);
            wgmma_commit();
            Wgmma<WIDTH>::multiply(sum, now[3], x + 6, 1);
            wgmma_commit();
            packed.template slice<2>(next[2]), packed.template slice<3>(next[3]);
            load();
            previous = stage;
            if (++stage == STAGES) stage = 0;
        };
        for (u32 k = w.k_begin; k < w.k_end; k += 2) {
            step(even, odd, k > w.k_begin);
            step(odd, even, true);
        }
        wgmma_wait<0>();
        wgmma_settle(sum);
        release(previous);
        previous = -1;
        if (a.n_splits > 1 &&
            !join_splits<WIDTH>(a, sum, w.tile, w.split, wg * 4 + warp, lane, flag, [] { barrier(1, 256); }))
            continue;
        store_sums<WIDTH>(a, sum, w.row_128 * 128 + wg * 64 + warp * 16, w.first_row, w.end_row, warp, lane,
                          (float *)(after + 256 + wg * STAGING_BYTES), 2 + wg);
    }
}

#define GEMM_WGMMA(codec, WIDTH)                                                                                              \
    extern "C" __constant__ int gemm_wgmma_shared_##codec##_##WIDTH = GemmStages<Codec_##codec, WIDTH>::SHARED;               \
    extern "C" __global__ void __launch_bounds__(384, 1) gemm_wgmma_##codec##_##WIDTH(const __grid_constant__ GemmArguments a) { \
        gemm_wgmma<Codec_##codec, WIDTH>(a);                                                                                  \
    }

// gemm_mma_<codec>_<WIDTH>: the products of gemm_wgmma.h with mma.sync (sm_80 and later), from the
// same packed weights and inputs, on GPUs without wgmma. Few rows have kernels of their own
// (gemm_few.h).
//
// Host contract
//   parameter GemmArguments
//   threads 256; grid: tiles * n_splits as in gemm_wgmma.h, or fewer; a block then computes several
//     tiles
//   dynamic shared memory: the constant gemm_mma_shared_<codec>_<WIDTH>
//
// A warp has 16 of the block's 128 weight rows and all WIDTH tokens. k tiles of 64 columns are
// loaded by cp.async, in four stages. Order of accumulation: as in gemm_wgmma.h.
#pragma once
#include "gemm/codec.h"
#include "gemm/epilogue.h"

template <class C, int WIDTH> struct GemmMmaStages {
    static constexpr int TILE = Packed<C>::TILE;
    static constexpr int BYTES = WIDTH * 128 + 2 * TILE;
    static constexpr int COUNT = BYTES * 4 <= 98304 ? 4 : 3;
    static constexpr int SHARED = COUNT * BYTES + 16;
};

template <class C, int WIDTH> INLINE void gemm_mma(const GemmArguments &a) {
    typedef GemmMmaStages<C, WIDTH> Stages;
    constexpr int STAGES = Stages::COUNT, TILE = Stages::TILE;
    extern __shared__ __align__(128) u8 mma_shared[];
    const u32 base = shared_address(mma_shared);
    u32 *flag = (u32 *)(mma_shared + STAGES * Stages::BYTES);
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    dependency_wait();
    const u32 n_token_tiles = a.tiles ? *a.n_tiles : (a.n_rows + WIDTH - 1) / WIDTH;
    const u32 n_units = n_token_tiles * ((a.n_out + 127) / 128) * a.n_splits;
    for (u32 unit = blockIdx.x; unit < n_units; unit += gridDim.x) {
        const u32 tile = unit / a.n_splits, split = unit % a.n_splits;
        const u32 token_tile = tile % n_token_tiles, row_128 = tile / n_token_tiles;
        const u8 *weights = a.weights;
        u32 first_row = token_tile * WIDTH, end_row = min(a.n_rows, first_row + WIDTH);
        if (a.tiles) {
            const uint4 t = a.tiles[token_tile];
            weights += t.x * a.expert_bytes;
            first_row = t.y, end_row = t.y + t.z;
        }
        const u64 row_bytes = (u64)a.k_tiles * TILE;
        weights += 2 * row_128 * row_bytes;
        const bool second = row_128 * 128 + 64 < a.n_out;
        const u32 pairs = a.k_tiles / 2, k_begin = 2 * (pairs * split / a.n_splits), k_end = 2 * (pairs * (split + 1) / a.n_splits);
        const u32 x_bytes = (end_row - first_row + 7) / 8 * 1024;
        auto load = [&](u32 k) {
            if (k < k_end) {
                const u32 to = base + (k - k_begin) % STAGES * Stages::BYTES;
                const u8 *x = a.x + ((u64)k * a.row_groups + first_row / 8) * 1024;
                for (u32 i = threadIdx.x * 16; i < WIDTH * 128; i += 4096) copy_16(to + i, x + (i < x_bytes ? i : 0), i < x_bytes);
                const u8 *w = weights + (u64)k * TILE;
                for (u32 i = threadIdx.x * 16; i < TILE; i += 4096) {
                    copy_16(to + WIDTH * 128 + i, w + i, true);
                    copy_16(to + WIDTH * 128 + TILE + i, second ? w + row_bytes + i : w, second);
                }
            }
            copy_commit();
        };
        float sum[WIDTH / 2];
#pragma unroll
        for (int i = 0; i < WIDTH / 2; i++) sum[i] = 0;
        for (int s = 0; s < STAGES - 1; s++) load(k_begin + s);
        for (u32 k = k_begin; k < k_end; k++) {
            copy_wait<STAGES - 2>();
            __syncthreads();
            load(k + STAGES - 1);
            const u32 at = base + (k - k_begin) % STAGES * Stages::BYTES;
            Packed<C> packed;
            packed.load(at + WIDTH * 128 + (warp >> 2) * TILE, (warp & 3) * 32 + lane);
            u32 w[4][4];
            packed.template slice<0>(w[0]), packed.template slice<1>(w[1]);
            packed.template slice<2>(w[2]), packed.template slice<3>(w[3]);
#pragma unroll
            for (int j = 0; j < 4; j++) {
#pragma unroll
                for (int m = 0; m < WIDTH / 8; m += 2) {
                    u32 x[4];
                    load_matrices(x, at + (m + (lane >> 4)) * 1024 + (lane & 7) * 128 +
                                         (((2 * j + ((lane >> 3) & 1)) ^ (lane & 7)) * 16));
                    mma_16x8x16(sum + 4 * m, w[j], x[0], x[1]);
                    mma_16x8x16(sum + 4 * m + 4, w[j], x[2], x[3]);
                }
            }
        }
        copy_wait<0>();
        __syncthreads(); // the stages may be loaded again
        if (a.n_splits > 1 && !join_splits<WIDTH>(a, sum, tile, split, warp, lane, flag, [] { __syncthreads(); })) continue;
        store_sums<WIDTH>(a, sum, row_128 * 128 + warp * 16, first_row, end_row, warp, lane,
                          (float *)(mma_shared + (warp >> 2) * STAGING_BYTES), 1 + (warp >> 2));
        __syncthreads();
    }
    dependency_launch();
}

#define GEMM_MMA(codec, WIDTH)                                                                                               \
    extern "C" __constant__ int gemm_mma_shared_##codec##_##WIDTH = GemmMmaStages<Codec_##codec, WIDTH>::SHARED;             \
    extern "C" __global__ void __launch_bounds__(256, WIDTH <= 32 ? 2 : 1)                                                   \
        gemm_mma_##codec##_##WIDTH(const __grid_constant__ GemmArguments a) {                                                \
        gemm_mma<Codec_##codec, WIDTH>(a);                                                                                   \
    }

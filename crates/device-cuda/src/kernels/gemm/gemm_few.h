// gemm_few_<codec>_<WIDTH>_<SLABS>: the products of gemm_wgmma.h for 2 to 16 rows, with mma.sync
// (sm_80 and later), from the same packed weights and inputs. Loading the weights takes most of the
// time. So many loads are in flight, and the first ones start before the previous kernel has ended.
//
// Host contract
//   parameter GemmArguments; n_splits 1
//   threads 256; grid: tiles of tokens * ceil(n_out / (16 * SLABS)), or fewer; a block then
//     computes several units
//   dynamic shared memory: the constant gemm_few_shared_<codec>_<WIDTH>_<SLABS>
//
// A unit is SLABS slabs of 16 weight rows by WIDTH tokens. Its k tiles have 64 columns. Warp w
// loads every eighth k tile, from w on, by cp.async through its own ring. No warp waits for another
// before the sums are added. Order of accumulation: k tiles of a warp ascending, then the warps'
// sums ascending.
#pragma once
#include "gemm/codec.h"
#include "gemm/epilogue.h"

template <class C, int WIDTH, int SLABS> struct GemmFew {
    static constexpr int ROWS = 16 * SLABS;
    static constexpr int WEIGHTS = SLABS * (Packed<C>::TILE / 4);
    static constexpr int SLOT = WEIGHTS + WIDTH * 128; // bytes of a k tile of a warp
    static constexpr int STRIDE = ROWS + 4;            // floats of a token, 4 of them against bank conflicts
    static constexpr int SUMS = WIDTH * STRIDE;        // floats of a warp
    static constexpr int FITTING = (98304 - 32 * SUMS) / (8 * SLOT);
    static constexpr int DEPTH = FITTING < 8 ? FITTING : 8;
    static constexpr int SHARED = 8 * (DEPTH * SLOT + 4 * SUMS);
};

// The weight rows and tokens that a block multiplies at a time. `weights` and `x` are addresses of
// the warp's first k tile; `row` is the first weight row, `first_row` the first token.
struct FewUnit {
    const u8 *weights, *x;
    u32 first_row, end_row, row, x_bytes;
};

template <class C, int WIDTH, int ROWS> INLINE FewUnit few_unit(const GemmArguments &a, u32 index, u32 n_token_tiles, int warp) {
    const u32 token_tile = index % n_token_tiles, row = index / n_token_tiles * ROWS;
    FewUnit u = {a.weights, a.x, token_tile * WIDTH, min(a.n_rows, token_tile * WIDTH + WIDTH), row, 0};
    if (a.tiles) {
        const uint4 of = a.tiles[token_tile];
        u.weights += of.x * a.expert_bytes;
        u.first_row = of.y, u.end_row = of.y + of.z;
    }
    u.weights += ((u64)(row / 64) * a.k_tiles + warp) * Packed<C>::TILE;
    u.x += ((u64)warp * a.row_groups + u.first_row / 8) * 1024;
    u.x_bytes = (u.end_row - u.first_row + 7) / 8 * 1024;
    return u;
}

// Adds the products of a k tile, whose weights and tokens are in the ring's slot at `at`.
template <class C, int WIDTH, int SLABS> INLINE void few_multiply(float (&sum)[SLABS][WIDTH / 2], u32 at, int lane) {
    Packed<C> packed[SLABS];
#pragma unroll
    for (int s = 0; s < SLABS; s++) packed[s].template load<SLABS>(at, 32 * s + lane);
#pragma unroll
    for (int j = 0; j < 4; j += 2) {
        u32 w[SLABS][2][4];
#pragma unroll
        for (int s = 0; s < SLABS; s++) {
            if (j == 0) packed[s].template slice<0>(w[s][0]), packed[s].template slice<1>(w[s][1]);
            else packed[s].template slice<2>(w[s][0]), packed[s].template slice<3>(w[s][1]);
        }
#pragma unroll
        for (int m = 0; m < WIDTH / 8; m++) {
            u32 x[4];
            load_matrices(x, at + GemmFew<C, WIDTH, SLABS>::WEIGHTS + m * 1024 + (lane & 7) * 128 + (((2 * j + (lane >> 3)) ^ (lane & 7)) * 16));
#pragma unroll
            for (int s = 0; s < SLABS; s++) {
                mma_16x8x16(sum[s] + 4 * m, w[s][0], x[0], x[1]);
                mma_16x8x16(sum[s] + 4 * m, w[s][1], x[2], x[3]);
            }
        }
    }
}

// The sum of all warps for a token and a row of the unit.
template <class Few> INLINE float few_sum(const float *sums, u32 token, u32 n) {
    float v = 0;
#pragma unroll
    for (int w = 0; w < 8; w++) v += sums[w * Few::SUMS + token * Few::STRIDE + n];
    return v;
}

// Stores gate(x) * up(x). Slabs of 16 rows have 8 of the gate and then 8 of up.
template <class Few, int WIDTH> INLINE void few_store_gate(const GemmArguments &a, const FewUnit &unit, const float *sums) {
    constexpr u32 COLUMNS = Few::ROWS / 2;
    __syncthreads();
    for (u32 i = threadIdx.x; i < COLUMNS * WIDTH; i += 256) {
        const u32 token = i / COLUMNS, c = i % COLUMNS, column = unit.row / 2 + c, row = unit.first_row + token;
        if (row >= unit.end_row || column >= a.n_out / 2) continue;
        const float scale = scale_of(a, row);
        const u32 n = c / 8 * 16 + c % 8;
        a.y[(u64)row_of_y(a, row) * a.y_stride + column] = activate(a.activation, few_sum<Few>(sums, token, n) * scale) * (few_sum<Few>(sums, token, n + 8) * scale);
    }
}

// Stores the sums, with bias and residual. Neighbouring threads have neighbouring elements of a
// token's row.
template <class Few, int WIDTH> INLINE void few_store(const GemmArguments &a, const FewUnit &unit, const float *sums) {
    constexpr int ROWS = Few::ROWS;
    u32 before;
    const GemmOutput o = output_of(a, unit.row, before);
    constexpr int EACH = (ROWS * WIDTH + 255) / 256;
    float extra[EACH], scale[EACH];
    // Bias and residual are loaded while the warps wait for each other.
#pragma unroll
    for (int e = 0; e < EACH; e++) {
        const u32 i = e * 256 + threadIdx.x, token = i / ROWS, column = unit.row - before + i % ROWS, row = unit.first_row + token;
        extra[e] = scale[e] = 0.0f;
        if (i >= ROWS * WIDTH || row >= unit.end_row || column >= o.n_out) continue;
        scale[e] = scale_of(a, row);
        if (o.bias) extra[e] = o.bias[column];
        if (a.epilogue == EPILOGUE_ADD) extra[e] += o.residual[(u64)row * o.stride + column];
    }
    __syncthreads();
#pragma unroll
    for (int e = 0; e < EACH; e++) {
        const u32 i = e * 256 + threadIdx.x, token = i / ROWS, column = unit.row - before + i % ROWS, row = unit.first_row + token;
        if (i >= ROWS * WIDTH || row >= unit.end_row || column >= o.n_out) continue;
        o.y[(u64)row_of_y(a, row) * o.stride + column] = few_sum<Few>(sums, token, i % ROWS) * scale[e] + extra[e];
    }
}

template <class C, int WIDTH, int SLABS> INLINE void gemm_few(const GemmArguments &a) {
    typedef GemmFew<C, WIDTH, SLABS> Few;
    constexpr int DEPTH = Few::DEPTH, ROWS = Few::ROWS;
    extern __shared__ __align__(128) u8 few_shared[];
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    const u32 ring = shared_address(few_shared) + warp * DEPTH * Few::SLOT;
    float *sums = (float *)(few_shared + 8 * DEPTH * Few::SLOT);
    if (a.tiles) dependency_wait(); // the previous kernel writes them
    const u32 n_token_tiles = a.tiles ? *a.n_tiles : (a.n_rows + WIDTH - 1) / WIDTH;
    const u32 n_units = n_token_tiles * ((a.n_out + ROWS - 1) / ROWS);
    const u32 n_steps = (u32)warp < a.k_tiles ? (a.k_tiles - warp + 7) / 8 : 0; // k tiles of a warp in a unit
    auto unit_of = [&](u32 index) { return few_unit<C, WIDTH, ROWS>(a, index, n_token_tiles, warp); };
    auto load_weights = [&](const FewUnit &u, u32 step, u32 slot) {
        Packed<C>::template copy<SLABS>(ring + slot * Few::SLOT, u.weights + (u64)step * 8 * Packed<C>::TILE, u.row / 16 & 3, lane);
    };
    auto load_x = [&](const FewUnit &u, u32 step, u32 slot) {
        const u8 *from = u.x + (u64)step * 8 * a.row_groups * 1024;
        const u32 to = ring + slot * Few::SLOT + Few::WEIGHTS;
#pragma unroll
        for (int i = 0; i < WIDTH * 128; i += 512) {
            const u32 at = i + lane * 16;
            copy_16_cached(to + at, from + (at < u.x_bytes ? at : 0), at < u.x_bytes);
        }
    };
    if (blockIdx.x >= n_units) {
        dependency_launch();
        return;
    }
    // The next load: a step of a unit. At first come the weights of DEPTH steps, then their tokens;
    // later both together.
    u32 index = blockIdx.x, ahead_index = index, ahead_step = 0, ahead_slot = 0;
    FewUnit unit = unit_of(index), ahead = unit;
    auto next = [&] {
        if (++ahead_slot == DEPTH) ahead_slot = 0;
        if (++ahead_step < n_steps) return;
        ahead_step = 0, ahead_index += gridDim.x;
        if (ahead_index < n_units) ahead = unit_of(ahead_index);
    };
    const bool any = n_steps > 0;
    for (int d = 0; d < DEPTH; d++) {
        if (any && ahead_index < n_units) load_weights(ahead, ahead_step, ahead_slot);
        if (any) next();
    }
    dependency_launch();
    if (!a.tiles) dependency_wait();
    ahead_index = index, ahead = unit, ahead_step = ahead_slot = 0;
    for (int d = 0; d < DEPTH; d++) {
        if (any && ahead_index < n_units) load_x(ahead, ahead_step, ahead_slot);
        if (any) next();
        copy_commit();
    }
    u32 slot = 0;
    for (; index < n_units; index += gridDim.x) {
        if (index != blockIdx.x) unit = unit_of(index);
        float sum[SLABS][WIDTH / 2];
#pragma unroll
        for (int s = 0; s < SLABS; s++)
#pragma unroll
            for (int i = 0; i < WIDTH / 2; i++) sum[s][i] = 0;
        for (u32 step = 0; step < n_steps; step++) {
            copy_wait<DEPTH - 1>();
            __syncwarp();
            const u32 at = ring + slot * Few::SLOT;
            few_multiply<C, WIDTH, SLABS>(sum, at, lane);
            __syncwarp();
            if (++slot == DEPTH) slot = 0;
            // The slot that was just read is loaded again.
            if (ahead_index < n_units) load_weights(ahead, ahead_step, ahead_slot), load_x(ahead, ahead_step, ahead_slot);
            copy_commit();
            next();
        }
        float *mine = sums + warp * Few::SUMS;
        const int g = lane >> 2, t = lane & 3;
#pragma unroll
        for (int s = 0; s < SLABS; s++)
#pragma unroll
            for (int i = 0; i < WIDTH / 2; i++)
                mine[((i >> 2) * 8 + 2 * t + (i & 1)) * Few::STRIDE + 16 * s + g + 8 * ((i >> 1) & 1)] = sum[s][i];
        if (a.epilogue == EPILOGUE_GATE) few_store_gate<Few, WIDTH>(a, unit, sums);
        else few_store<Few, WIDTH>(a, unit, sums);
        __syncthreads(); // the sums may be written again
    }
    copy_wait<0>();
}

#define GEMM_FEW(codec, WIDTH, SLABS)                                                                                              \
    extern "C" __constant__ int gemm_few_shared_##codec##_##WIDTH##_##SLABS = GemmFew<Codec_##codec, WIDTH, SLABS>::SHARED;        \
    extern "C" __global__ void __launch_bounds__(256, 2) gemm_few_##codec##_##WIDTH##_##SLABS(const __grid_constant__ GemmArguments a) { \
        gemm_few<Codec_##codec, WIDTH, SLABS>(a);                                                                                  \
    }
#define GEMM_FEW_ALL(codec) \
    GEMM_FEW(codec, 8, 1)   \
    GEMM_FEW(codec, 8, 2)   \
    GEMM_FEW(codec, 16, 1)  \
    GEMM_FEW(codec, 16, 2)

// What happens to the sums of a tile: parts of K added, then bias, residual, gate, or rounding to the next product's input.
//
// A warp has 16 rows of the weights (n) and WIDTH tokens (m): sum[4 j + e] of lane l, g = l / 4, t = l % 4, is n = g + 8 (e / 2),
// m = 8 j + 2 t + e % 2, as wgmma and mma.m16n8k16 leave them. Stores of f32 fill sectors of 32 bytes.
#pragma once
#include "gemm/arguments.h"
#include "gemm/ptx.h"

INLINE float activate(u32 kind, float x) {
    if (kind == ACTIVATION_SILU) return x * reciprocal_fast(1.0f + exp2_fast(-1.4426950408889634f * x));
    if (kind == ACTIVATION_GELU_TANH) {
        // 0.5 (1 + tanh(y)) = 1 / (1 + exp(-2 y))
        const float y = 0.7978845608028654f * (x + 0.044715f * x * x * x);
        return x * reciprocal_fast(1.0f + exp2_fast(-2.8853900817779268f * y));
    }
    if (kind == ACTIVATION_GELU_ERF) return 0.5f * x * (1.0f + erff(x * 0.7071067811865476f));
    return fmaxf(x, 0.0f);
}

// Where 16 bytes, 8 columns from column 8 * chunk on, of a row of a tiled input lie.
INLINE u64 tiled_chunk(u32 chunk, u32 row, u32 row_groups) {
    return ((u64)(chunk >> 3) * row_groups + (row >> 3)) * 1024 + (row & 7) * 128 + (((chunk & 7) ^ (row & 7)) * 16);
}

// Sums of other parts of K. Every warp calls it with the same tile and split; true: this block was the last, and `sum` now
// holds the whole sum, added in the order of the parts. `sync` waits for all warps that share the tile.
template <int WIDTH, class Sync>
INLINE bool join_splits(const GemmArguments &a, float (&sum)[WIDTH / 2], u32 tile, u32 split, int warp, int lane, u32 *flag, Sync sync) {
    const u64 part = 8 * 32 * (WIDTH / 8); // float4s
    float4 *mine = (float4 *)a.partials + ((u64)tile * a.n_splits + split) * part + warp * 32 * (WIDTH / 8) + lane;
#pragma unroll
    for (int j = 0; j < WIDTH / 8; j++) mine[32 * j] = make_float4(sum[4 * j], sum[4 * j + 1], sum[4 * j + 2], sum[4 * j + 3]);
    __threadfence();
    sync();
    if (warp == 0 && lane == 0) {
        const u32 before = atomicAdd(a.counters + tile, 1);
        if (before == a.n_splits - 1) a.counters[tile] = 0;
        *flag = before == a.n_splits - 1;
    }
    sync();
    if (!*(volatile u32 *)flag) return false;
    __threadfence();
    const float4 *first = (const float4 *)a.partials + (u64)tile * a.n_splits * part + warp * 32 * (WIDTH / 8) + lane;
#pragma unroll
    for (int j = 0; j < WIDTH / 8; j++) {
        float4 v = __ldcg(first + 32 * j);
        for (u32 s = 1; s < a.n_splits; s++) {
            const float4 w = __ldcg(first + s * part + 32 * j);
            v.x += w.x, v.y += w.y, v.z += w.z, v.w += w.w;
        }
        sum[4 * j] = v.x, sum[4 * j + 1] = v.y, sum[4 * j + 2] = v.z, sum[4 * j + 3] = v.w;
    }
    return true;
}

// EPILOGUE_GATE. The activation is chosen outside the loop.
template <int WIDTH, bool SILU> INLINE void store_gated(const GemmArguments &a, float (&sum)[WIDTH / 2], u32 n, u32 m, u32 end, int lane) {
    const u32 g = lane >> 2, t = lane & 3;
    // Token 8 j + g after the transposition: groups of 8 rows are 1,024 bytes apart.
    u8 *y = (u8 *)a.y + tiled_chunk(n >> 4, m + g, a.y_stride) + 4 * t;
#pragma unroll
    for (int j = 0; j < WIDTH / 8; j++) {
        const float *s = sum + 4 * j;
        const float first = SILU ? s[0] * reciprocal_fast(1.0f + exp2_fast(-1.4426950408889634f * s[0])) : activate(a.activation, s[0]);
        const float second = SILU ? s[1] * reciprocal_fast(1.0f + exp2_fast(-1.4426950408889634f * s[1])) : activate(a.activation, s[1]);
        const u32 v = transpose_8x8(pack_half2_clamped(first * s[2], second * s[3]));
        if (m + 8 * j + g < end) *(u32 *)(y + 1024 * j) = v;
    }
}

// EPILOGUE_STORE and EPILOGUE_ADD, 64 weight rows by 32 tokens at a time through shared memory, so that rows of y are read and written
// in pieces of 256 bytes. Straight from the registers, 32 bytes at a time, the residual alone cost 45 us a tile of 256.
#define STAGING_STRIDE 68 // floats of a token: 64 and 4, against bank conflicts
#define STAGING_BYTES (32 * STAGING_STRIDE * 4)
template <int WIDTH>
INLINE void store_rows(const GemmArguments &a, float (&sum)[WIDTH / 2], u32 n, u32 m, u32 end, int tid, float *staging, int barrier_id) {
    constexpr int TOKENS = WIDTH < 32 ? WIDTH : 32;
    const int warp = tid >> 5, g = (tid & 31) >> 2, t = tid & 3;
    const u32 column = n + (tid & 15) * 4, n_here = column < a.n_out ? min(4u, a.n_out - column) : 0;
    const bool add = a.epilogue == EPILOGUE_ADD, vectors = (a.y_stride & 3) == 0 && n_here == 4;
    float4 bias = make_float4(0, 0, 0, 0);
    if (a.bias) {
        if (n_here > 0) bias.x = a.bias[column];
        if (n_here > 1) bias.y = a.bias[column + 1];
        if (n_here > 2) bias.z = a.bias[column + 2];
        if (n_here > 3) bias.w = a.bias[column + 3];
    }
#pragma unroll
    for (int c = 0; c < WIDTH / TOKENS; c++) {
        const u32 first = m + c * TOKENS + (tid >> 4);
        float4 extra[TOKENS / 8];
#pragma unroll
        for (int i = 0; i < TOKENS / 8; i++) {
            extra[i] = bias;
            if (add && vectors && first + 8 * i < end) extra[i] = *(const float4 *)(a.residual + (u64)(first + 8 * i) * a.y_stride + column);
        }
        barrier(barrier_id, 128); // the tokens before have been read
#pragma unroll
        for (int j = 0; j < TOKENS / 8; j++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                staging[(8 * j + 2 * t + (i & 1)) * STAGING_STRIDE + warp * 16 + g + 8 * (i >> 1)] = sum[(c * (TOKENS / 8) + j) * 4 + i];
        barrier(barrier_id, 128);
#pragma unroll
        for (int i = 0; i < TOKENS / 8; i++) {
            const u32 row = first + 8 * i;
            if (row >= end) continue;
            float4 v = *(const float4 *)(staging + (8 * i + (tid >> 4)) * STAGING_STRIDE + (tid & 15) * 4);
            v.x += extra[i].x, v.y += extra[i].y, v.z += extra[i].z, v.w += extra[i].w;
            float *y = (float *)a.y + (u64)row * a.y_stride + column;
            if (vectors) {
                if (add) v.x += bias.x, v.y += bias.y, v.z += bias.z, v.w += bias.w;
                *(float4 *)y = v;
                continue;
            }
            const float *r = a.residual + (u64)row * a.y_stride + column;
            if (n_here > 0) y[0] = v.x + (add ? r[0] : 0.0f);
            if (n_here > 1) y[1] = v.y + (add ? r[1] : 0.0f);
            if (n_here > 2) y[2] = v.z + (add ? r[2] : 0.0f);
            if (n_here > 3) y[3] = v.w + (add ? r[3] : 0.0f);
        }
    }
}

// `n`: first of the warp's 16 rows; `m`: first token; tokens from `end` on are not there. The four warps of 64 rows share `staging`,
// STAGING_BYTES, and the barrier.
template <int WIDTH>
INLINE void store_sums(const GemmArguments &a, float (&sum)[WIDTH / 2], u32 n, u32 m, u32 end, int warp, int lane, float *staging, int barrier_id) {
    const u32 g = lane >> 2, t = lane & 3;
    if (n - 16 * (warp & 3) >= a.n_out) return; // all four warps
    if (a.epilogue == EPILOGUE_GATE) {
        if (n >= a.n_out) return;
        if (a.activation == ACTIVATION_SILU) store_gated<WIDTH, true>(a, sum, n, m, end, lane);
        else store_gated<WIDTH, false>(a, sum, n, m, end, lane);
        return;
    }
    if (a.epilogue == EPILOGUE_HALF) {
        if (n >= a.n_out) return;
        const float bias_low = a.bias && n + g < a.n_out ? a.bias[n + g] : 0.0f;
        const float bias_high = a.bias && n + g + 8 < a.n_out ? a.bias[n + g + 8] : 0.0f;
        u8 *y = (u8 *)a.y;
#pragma unroll
        for (int j = 0; j < WIDTH / 8; j++) {
            const u32 row = m + 8 * j + g; // after the transposition
            const float *s = sum + 4 * j;
            const u32 low = transpose_8x8(pack_half2_clamped(s[0] + bias_low, s[1] + bias_low));
            const u32 high = transpose_8x8(pack_half2_clamped(s[2] + bias_high, s[3] + bias_high));
            if (row < end) {
                *(u32 *)(y + tiled_chunk(n >> 3, row, a.y_stride) + 4 * t) = low;
                *(u32 *)(y + tiled_chunk((n >> 3) + 1, row, a.y_stride) + 4 * t) = high;
            }
        }
        return;
    }
    store_rows<WIDTH>(a, sum, n - 16 * (warp & 3), m, end, (warp & 3) * 32 + lane, staging, barrier_id);
}

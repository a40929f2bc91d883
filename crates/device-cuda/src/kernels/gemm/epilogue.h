// The epilogue of a tile: it adds parts of K, multiplies by the scale of the input's row, and
// applies bias, residual or gate.
//
// A warp has 16 rows of the weights (n) and WIDTH tokens (m). With g = l / 4 and t = l % 4, sum[4 j
// + e] of lane l is n = g + 8 (e / 2), m = 8 j + 2 t + e % 2, as wgmma and mma.m16n8k16 leave it.
// Stores of f32 fill sectors of 32 bytes.
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

// Offset in bytes of 8 columns (16 bytes), from column 8 * chunk on, of a row of a tiled input.
INLINE u64 tiled_chunk(u32 chunk, u32 row, u32 row_groups) {
    return ((u64)(chunk >> 3) * row_groups + (row >> 3)) * 1024 + (row & 7) * 128 + (((chunk & 7) ^ (row & 7)) * 16);
}

// Adds the sums of other parts of K. Every warp calls it with the same tile and split. Returns true
// in the block that ends last; its `sum` then has the whole sum, added in the order of the parts.
// `sync` waits for all warps that share the tile.
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

// The sums of 64 weight rows by 32 tokens at a time go through shared memory. Rows of y are then
// read and written in pieces of 256 bytes (128 for a gate). Directly from registers, in pieces of
// 32 bytes, the residual alone cost 45 us for a tile of 256.
#define STAGING_STRIDE 68 // floats of a token: 64, and 4 against bank conflicts
#define STAGING_GATE 36   // floats of a token for a gate: 32, and 4
#define STAGING_BYTES (32 * STAGING_STRIDE * 4)

// The row of y that has the result of a row of x.
INLINE u32 row_of_y(const GemmArguments &a, u32 row) { return a.pairs ? a.pairs[row] : row; }

INLINE float scale_of(const GemmArguments &a, u32 row) { return a.x_scales ? a.x_scales[row] : 1.0f; }

// EPILOGUE_GATE: 32 columns from `column` on. The activation is selected outside the loop.
template <int WIDTH, bool SILU>
INLINE void store_gated(const GemmArguments &a, float (&sum)[WIDTH / 2], u32 column, u32 m, u32 end, int tid, float *staging, int barrier_id) {
    constexpr int TOKENS = WIDTH < 32 ? WIDTH : 32;
    const int warp = tid >> 5, g = (tid & 31) >> 2, t = tid & 3;
    const u32 n_columns = a.n_out / 2, mine = column + (tid & 7) * 4, n_here = mine < n_columns ? min(4u, n_columns - mine) : 0;
#pragma unroll
    for (int c = 0; c < WIDTH / TOKENS; c++) {
        const u32 first = m + c * TOKENS;
        barrier(barrier_id, 128); // the previous tokens have been read
#pragma unroll
        for (int j = 0; j < TOKENS / 8; j++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const u32 token = 8 * j + 2 * t + e;
                const float scale = first + token < end ? scale_of(a, first + token) : 0.0f;
                const float *s = sum + (c * (TOKENS / 8) + j) * 4 + e;
                const float gate = s[0] * scale, up = s[2] * scale;
                const float active = SILU ? gate * reciprocal_fast(1.0f + exp2_fast(-1.4426950408889634f * gate)) : activate(a.activation, gate);
                staging[token * STAGING_GATE + warp * 8 + g] = active * up;
            }
        barrier(barrier_id, 128);
#pragma unroll
        for (int i = 0; i < (TOKENS + 15) / 16; i++) {
            const u32 token = 16 * i + (tid >> 3);
            if (token >= TOKENS || first + token >= end) continue;
            const float4 v = *(const float4 *)(staging + token * STAGING_GATE + (tid & 7) * 4);
            float *y = a.y + (u64)row_of_y(a, first + token) * a.y_stride + mine;
            if (n_here == 4 && (a.y_stride & 3) == 0) {
                *(float4 *)y = v;
                continue;
            }
            if (n_here > 0) y[0] = v.x;
            if (n_here > 1) y[1] = v.y;
            if (n_here > 2) y[2] = v.z;
            if (n_here > 3) y[3] = v.w;
        }
    }
}

// One of the matrices of a product.
struct GemmOutput {
    float *y;
    const float *residual, *bias;
    u32 n_out, stride;
};
// The matrix of packed row `n`. `before` becomes the number of packed rows of the matrices before
// it.
INLINE GemmOutput output_of(const GemmArguments &a, u32 n, u32 &before) {
    GemmOutput o = {a.y, a.residual, a.bias, a.first1 ? a.y_stride : a.n_out, a.y_stride};
    before = 0;
    if (a.first1 && n >= a.first1) o = {a.y1, nullptr, a.bias1, a.y_stride1, a.y_stride1}, before = a.first1;
    if (a.first2 && n >= a.first2) o = {a.y2, nullptr, a.bias2, a.y_stride2, a.y_stride2}, before = a.first2;
    return o;
}

// EPILOGUE_STORE and EPILOGUE_ADD: 64 rows of the matrix, from row n on.
template <int WIDTH>
INLINE void store_rows(const GemmArguments &a, const GemmOutput &o, float (&sum)[WIDTH / 2], u32 n, u32 m, u32 end, int tid, float *staging,
                       int barrier_id) {
    constexpr int TOKENS = WIDTH < 32 ? WIDTH : 32;
    const int warp = tid >> 5, g = (tid & 31) >> 2, t = tid & 3;
    const u32 column = n + (tid & 15) * 4, n_here = column < o.n_out ? min(4u, o.n_out - column) : 0;
    const bool add = a.epilogue == EPILOGUE_ADD, vectors = (o.stride & 3) == 0 && n_here == 4;
    float4 bias = make_float4(0, 0, 0, 0);
    if (o.bias) {
        if (n_here > 0) bias.x = o.bias[column];
        if (n_here > 1) bias.y = o.bias[column + 1];
        if (n_here > 2) bias.z = o.bias[column + 2];
        if (n_here > 3) bias.w = o.bias[column + 3];
    }
#pragma unroll
    for (int c = 0; c < WIDTH / TOKENS; c++) {
        const u32 first = m + c * TOKENS + (tid >> 4);
        float4 extra[TOKENS / 8];
#pragma unroll
        for (int i = 0; i < TOKENS / 8; i++) {
            extra[i] = bias;
            if (add && vectors && first + 8 * i < end) extra[i] = *(const float4 *)(o.residual + (u64)(first + 8 * i) * o.stride + column);
        }
        barrier(barrier_id, 128); // the previous tokens have been read
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
            const float s = scale_of(a, row);
            v.x = v.x * s + extra[i].x, v.y = v.y * s + extra[i].y, v.z = v.z * s + extra[i].z, v.w = v.w * s + extra[i].w;
            float *y = o.y + (u64)row_of_y(a, row) * o.stride + column;
            if (vectors) {
                if (add) v.x += bias.x, v.y += bias.y, v.z += bias.z, v.w += bias.w;
                *(float4 *)y = v;
                continue;
            }
            const float *r = o.residual + (u64)row * o.stride + column;
            if (n_here > 0) y[0] = v.x + (add ? r[0] : 0.0f);
            if (n_here > 1) y[1] = v.y + (add ? r[1] : 0.0f);
            if (n_here > 2) y[2] = v.z + (add ? r[2] : 0.0f);
            if (n_here > 3) y[3] = v.w + (add ? r[3] : 0.0f);
        }
    }
}

// Stores the sums of a tile. `n` is the first of the warp's 16 rows and `m` the first token; tokens
// from `end` on do not exist. The four warps of 64 rows share `staging`, STAGING_BYTES, and the
// barrier.
template <int WIDTH>
INLINE void store_sums(const GemmArguments &a, float (&sum)[WIDTH / 2], u32 n, u32 m, u32 end, int warp, int lane, float *staging, int barrier_id) {
    const u32 first = n - 16 * (warp & 3);
    const int tid = (warp & 3) * 32 + lane;
    if (first >= a.n_out) return; // all four warps
    if (a.epilogue == EPILOGUE_GATE) {
        if (a.activation == ACTIVATION_SILU) store_gated<WIDTH, true>(a, sum, first / 2, m, end, tid, staging, barrier_id);
        else store_gated<WIDTH, false>(a, sum, first / 2, m, end, tid, staging, barrier_id);
        return;
    }
    u32 before;
    const GemmOutput o = output_of(a, first, before);
    store_rows<WIDTH>(a, o, sum, first - before, m, end, tid, staging, barrier_id);
}

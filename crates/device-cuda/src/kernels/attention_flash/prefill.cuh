// attention_flash<D, KIND>: attention of many rows over F16, Q8_0 or FP8 pages by tiles, on tensor cores: wgmma on sm_90a for heads of 128 columns, else
// mma.m16n8k16 (sm_80 and later).
//
//     out = softmax(softcap(scale * q k^T)) v     over the positions that each row sees
//
// Host contract
//   parameter  AttentionArguments (arguments.h): n_rows, n_heads, window, both_ways, n_states, scale, softcap, q, sinks, row_spans, spans, out,
//              pages. Not used: n_splits, split_len, positions, k, v, partials, totals. head_dim must be D.
//   threads    128
//   grid       (n_heads, ceil(n_rows / 64) + number of spans - 1): blocks without a tile end at once
//   dynamic shared memory  the constant attention_flash_shared_<D>
//   layout     q, out (n_rows, n_heads * D) f32; K and V as pages.cuh has them. A vector starts at a multiple of 16 bytes
//
// A block has 64 rows of one span and one query head, a warp 16 of the rows; two or three blocks share a multiprocessor. Keys and values come TILE positions at a time by
// cp.async, double buffered: of K for the next tile while this tile's values are used, and so on. Scores, sums and the softmax are
// f32; q, k, v and the weights are f16 (q clamped to 65504). Tiles with the most positions start first.
//
// Order of accumulation: positions ascending, TILE at a time (64; 32 where D > 128).
// Bytes: K and V of what a tile sees once for each query head and 64 rows, from L2.
// Measured: NOTES.md.
#pragma once
#include "e4m3.cuh"
#include "gemm/wgmma.h"
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define FLASH_WGMMA true
#else
#define FLASH_WGMMA false
#endif
#include "step.h"
#include "linear/arguments.h"
#include "arguments.h"
#include "vector_bytes.h"

template <int D> struct FlashShape {
    static constexpr int ROWS = 64, THREADS = 128;
    static constexpr int TILE = D > 128 ? 32 : 64;
    static constexpr int STRIDE = D * 2 + 16; // bytes; an odd number of 16: ldmatrix without bank conflicts
    static constexpr int KV = TILE * STRIDE;
    static constexpr bool Q_IN_REGISTERS = D <= 128;
    static constexpr int Q = ROWS * STRIDE;
    // Queries that go to registers lie where the second tile of values comes later.
    static constexpr int Q_AT = Q_IN_REGISTERS && Q <= KV ? 3 * KV : 4 * KV;
    static constexpr int SHARED = Q_AT == 3 * KV ? 4 * KV : 4 * KV + Q;
    // Products by wgmma: the block's 64 rows are those of one instruction. Heads of 64 columns have not been right on a GPU so far (NOTES.md).
    static constexpr bool WGMMA = FLASH_WGMMA && D == 128;
    // That share a multiprocessor: with three there are too few registers for wgmma, and for more than 128 columns.
    static constexpr int BLOCKS = WGMMA || D > 128 ? 2 : 3;
    // Where a tile has 8 columns, the c-th, of a position. For wgmma 64 columns of all positions lie together, 128 bytes a position, whose
    // eight pieces of 16 bytes are swizzled.
    static INLINE u32 at(u32 position, u32 c) {
        if constexpr (WGMMA) return c / 8 * (TILE * 128) + position * 128 + ((c ^ position) & 7) * 16;
        return position * STRIDE + c * 16;
    }
};

// A signed byte of a word, as f32.
INLINE float flash_byte(u32 word, int index) {
    return __uint_as_float(__byte_perm(word ^ 0x80808080u, 0x4b000000u, 0x7440 + index)) - 8388736.0f;
}

// What pages hold (pages.cuh).
enum FlashPages { FLASH_F16, FLASH_Q8_0, FLASH_FP8 };

template <int D, FlashPages KIND> INLINE void attention_flash(const AttentionArguments &a) {
    typedef FlashShape<D> Shape;
    constexpr int TILE = Shape::TILE, STRIDE = Shape::STRIDE, CHUNKS = D / 8;
    extern __shared__ __align__(1024) u8 flash_shared[];
    const u32 base = shared_address(flash_shared);
    const u32 q_at = base + Shape::Q_AT;
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;

    // Which span and which of its tiles: tiles are counted over all spans.
    const u32 wanted = gridDim.y - 1 - blockIdx.y, n_spans = a.row_spans[a.n_rows - 1] + 1;
    u32 before = 0, span_index = 0, tile = 0;
    bool found = false;
    for (u32 s0 = 0; s0 < n_spans && !found; s0 += 32) {
        const u32 tiles = s0 + lane < n_spans ? (a.spans[s0 + lane].n_rows + 63) / 64 : 0;
        u32 sum = tiles;
#pragma unroll
        for (int m = 1; m < 32; m *= 2) {
            const u32 other = __shfl_up_sync(~0u, sum, m);
            if (lane >= m) sum += other;
        }
        const u32 mask = __ballot_sync(~0u, before + sum > wanted);
        if (mask) {
            const int l = __ffs(mask) - 1;
            span_index = s0 + l;
            tile = wanted - before - (__shfl_sync(~0u, sum, l) - __shfl_sync(~0u, tiles, l));
            found = true;
        }
        before += __shfl_sync(~0u, sum, 31);
    }
    if (!found) return;
    const u32 span_first = a.spans[span_index].first_row, span_rows = a.spans[span_index].n_rows;
    const u32 span_position = a.spans[span_index].first_position;
    const u32 row_0 = tile * 64, n_rows = min(64u, span_rows - row_0); // within the span
    const u32 head = blockIdx.x, kv_head = head / (a.n_heads / a.pages.n_kv_heads);
    const u32 *table = a.pages.tables + (u64)span_index * a.pages.table_stride;

    // Positions that any of the tile's rows sees: first .. end - 1.
    const u32 last_position = span_position + row_0 + n_rows - 1;
    u32 first = 0, end = a.n_states ? a.n_states : last_position + 1;
    if (a.window && !a.n_states) {
        const u32 low = span_position + row_0 + 1;
        first = low > a.window ? low - a.window : 0;
    }
    if (a.both_ways) end = span_position + span_rows;
    const u32 tile_0 = first / TILE, n_tiles = (end + TILE - 1) / TILE - tile_0;

    const u32 vector = KIND == FLASH_Q8_0 ? vector_bytes_q8_0(D) : KIND == FLASH_FP8 ? vector_bytes_fp8(D) : vector_bytes_f16(D);
    const u32 shift = 31 - __clz(a.pages.page_len);
    const u64 head_at = a.pages.layer_offset + (u64)kv_head * a.pages.page_len * vector;
    const u64 to_values = a.pages.values_are_keys ? 0 : (u64)a.pages.n_kv_heads * a.pages.page_len * vector;
    // The pages of a tile: at most TILE / 16, one a lane, looked up a tile ahead.
    const u32 pages_mask = shift < 6 ? (TILE >> shift) - 1 : 0;
    auto look_up = [&](u32 index) {
        const u32 position = (tile_0 + index) * TILE + ((lane & pages_mask) << shift);
        return position < end && (position | (a.pages.page_len - 1)) >= first ? table[position >> shift] : 0u;
    };
    auto load = [&](u32 index, u32 pages, bool values) {
        const u32 to = base + ((index & 1) * 2 + values) * Shape::KV;
        const u8 *from_head = a.pages.pool + head_at + (values ? to_values : 0);
#pragma unroll
        for (u32 i0 = 0; i0 < TILE * CHUNKS; i0 += 128) {
            const u32 i = i0 + threadIdx.x, r = i / CHUNKS, c = i % CHUNKS, position = (tile_0 + index) * TILE + r;
            const u64 page = __shfl_sync(~0u, pages, (r >> shift) & pages_mask);
            const bool inside = position >= first && position < end;
            const u8 *from = from_head + page * a.pages.page_bytes + (position & (a.pages.page_len - 1)) * vector;
            if constexpr (KIND == FLASH_FP8) {
                u32 words[2] = {0, 0}, scale = 0;
                if (inside) {
                    words[0] = ((const u32 *)(from + c * 8))[0], words[1] = ((const u32 *)(from + c * 8))[1];
                    const float by = half_scale_of_e4m3(*(const float *)(from + D));
                    scale = pack_half2(by, by);
                }
                u32 halves[4];
#pragma unroll
                for (int h = 0; h < 4; h++) halves[h] = half2_mul(halves_of_e4m3(words[h / 2], h & 1), scale);
                *(uint4 *)(flash_shared + (to - base) + Shape::at(r, c)) = make_uint4(halves[0], halves[1], halves[2], halves[3]);
            } else if constexpr (KIND == FLASH_Q8_0) {
                u32 words[2] = {0, 0};
                float scale = 0.0f;
                if (inside) {
                    words[0] = ((const u32 *)(from + c * 8))[0], words[1] = ((const u32 *)(from + c * 8))[1];
                    scale = from_half(((const u16 *)(from + D))[c / 4]);
                }
                u32 halves[4];
#pragma unroll
                for (int h = 0; h < 4; h++) {
                    const u32 word = words[h / 2];
                    halves[h] = pack_half2_clamped(scale * flash_byte(word, 2 * (h & 1)), scale * flash_byte(word, 2 * (h & 1) + 1));
                }
                *(uint4 *)(flash_shared + (to - base) + Shape::at(r, c)) = make_uint4(halves[0], halves[1], halves[2], halves[3]);
            } else {
                copy_16(to + Shape::at(r, c), inside ? from + c * 16 : a.pages.pool, inside);
            }
        }
    };
    u32 pages = look_up(0);
    load(0, pages, false);
    copy_commit();
    load(0, pages, true);
    copy_commit();

    // Queries, with scale and log2(e) left out: both are applied to scores in f32.
    for (u32 i = threadIdx.x; i < 64 * CHUNKS; i += 128) {
        const u32 r = i / CHUNKS, c = i % CHUNKS;
        uint4 v = make_uint4(0, 0, 0, 0);
        if (r < n_rows) {
            const float4 *q = (const float4 *)(a.q + ((u64)(span_first + row_0 + r) * a.n_heads + head) * D + c * 8);
            const float4 x = q[0], y = q[1];
            v = make_uint4(pack_half2_clamped(x.x, x.y), pack_half2_clamped(x.z, x.w), pack_half2_clamped(y.x, y.y),
                           pack_half2_clamped(y.z, y.w));
        }
        *(uint4 *)(flash_shared + Shape::Q_AT + r * STRIDE + c * 16) = v;
    }
    __syncthreads();
    // Rows 0..7, 8..15 of the warp by columns 0..7, 8..15 of a slice: matrices 0..3 in the order of the first operand.
    const u32 q_row = q_at + (warp * 16 + (lane & 15)) * STRIDE + (lane >> 4) * 16;
    u32 q[Shape::Q_IN_REGISTERS ? D / 16 : 1][4];
    if constexpr (Shape::Q_IN_REGISTERS) {
#pragma unroll
        for (int s = 0; s < D / 16; s++) load_matrices(q[s], q_row + s * 32);
    }

    float out[D / 2]; // of each 8 columns two of both rows
#pragma unroll
    for (int i = 0; i < D / 2; i++) out[i] = 0;
    float most[2] = {-1e30f, -1e30f}, total[2] = {0, 0};
    const float LOG2E = 1.4426950408889634f;
    const u32 position_0 = span_position + row_0 + warp * 16 + g; // of the lane's rows g, g + 8
    // Whether this warp has rows, and which tiles it needs: the first warps of a causal tile see less.
    const bool idle = warp * 16 >= n_rows;
    const u32 warp_end = a.n_states || a.both_ways ? end : min(end, span_position + row_0 + warp * 16 + 16);
    const u32 warp_low = span_position + row_0 + warp * 16 + 1;
    const u32 warp_first = a.window && !a.n_states && warp_low > a.window ? warp_low - a.window : 0;

    for (u32 index = 0; index < n_tiles; index++) {
        const u32 next_pages = index + 1 < n_tiles ? look_up(index + 1) : 0;
        copy_wait<1>();
        if constexpr (Shape::WGMMA) wgmma_written();
        __syncthreads(); // the keys of this tile are there, the other buffer is free
        if (index + 1 < n_tiles) load(index + 1, next_pages, false);
        copy_commit();
        const u32 position = (tile_0 + index) * TILE;
        // The warps of an instruction go together.
        const bool needed = Shape::WGMMA || (!idle && position < warp_end && position + TILE > warp_first);
        float score[TILE / 2];
        u32 weight[TILE / 16][4];
        if (needed) {
            const u32 keys = base + (index & 1) * 2 * Shape::KV;
            if constexpr (Shape::WGMMA) {
                wgmma_fence();
#pragma unroll
                for (int s = 0; s < D / 16; s++) Wgmma<TILE>::multiply(score, q[s], wgmma_operand(keys + s / 4 * (TILE * 128)) + 2 * (s % 4), s > 0);
                wgmma_commit();
                wgmma_wait<0>();
                wgmma_settle(score);
            } else {
#pragma unroll
                for (int n = 0; n < TILE / 8; n++) score[4 * n] = score[4 * n + 1] = score[4 * n + 2] = score[4 * n + 3] = 0;
                // Matrices: positions 0..7 by columns 0..7 and 8..15, positions 8..15 likewise.
                const u32 key = keys + ((lane & 7) + (lane >> 4) * 8) * STRIDE + ((lane >> 3) & 1) * 16;
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
            const bool inner = a.n_states ? position + TILE <= end
                                          : position + TILE <= (a.both_ways ? end : warp_low) && (!a.window || position + a.window >= warp_low + 15);
            float factor_log2 = a.scale * LOG2E;
            if (a.softcap > 0) {
                // tanh(y) = 1 - 2 / (exp(2 y) + 1)
                const float inner_factor = 2.0f * LOG2E * a.scale / a.softcap;
                factor_log2 = LOG2E * a.softcap;
#pragma unroll
                for (int n = 0; n < TILE / 8; n++)
#pragma unroll
                    for (int e = 0; e < 4; e++)
                        score[4 * n + e] = 1.0f - 2.0f * reciprocal_fast(exp2_fast(inner_factor * score[4 * n + e]) + 1.0f);
            }
            if (!inner) {
#pragma unroll
                for (int n = 0; n < TILE / 8; n++)
#pragma unroll
                    for (int e = 0; e < 4; e++) {
                        const u32 p = position + n * 8 + 2 * t + (e & 1), own = position_0 + 8 * (e >> 1);
                        const bool seen = p < (a.n_states || a.both_ways ? end : own + 1) && (a.n_states || !a.window || p + a.window > own);
                        if (!seen) score[4 * n + e] = -__int_as_float(0x7f800000);
                    }
            }
            float high[2] = {-__int_as_float(0x7f800000), -__int_as_float(0x7f800000)};
#pragma unroll
            for (int n = 0; n < TILE / 8; n++)
#pragma unroll
                for (int e = 0; e < 4; e++) high[e >> 1] = fmaxf(high[e >> 1], score[4 * n + e]);
#pragma unroll
            for (int h = 0; h < 2; h++) {
                high[h] = fmaxf(high[h], __shfl_xor_sync(~0u, high[h], 1));
                high[h] = fmaxf(high[h], __shfl_xor_sync(~0u, high[h], 2));
                high[h] = fmaxf(most[h], high[h] * factor_log2);
                const float factor = exp2_fast(most[h] - high[h]);
                most[h] = high[h];
                total[h] *= factor;
#pragma unroll
                for (int i = 0; i < D / 8; i++) out[4 * i + 2 * h] *= factor, out[4 * i + 2 * h + 1] *= factor;
            }
#pragma unroll
            for (int n = 0; n < TILE / 8; n++) {
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    score[4 * n + e] = exp2_fast(fmaf(score[4 * n + e], factor_log2, -most[e >> 1]));
                    total[e >> 1] += score[4 * n + e];
                }
                weight[n / 2][(n & 1) * 2] = pack_half2(score[4 * n], score[4 * n + 1]);
                weight[n / 2][(n & 1) * 2 + 1] = pack_half2(score[4 * n + 2], score[4 * n + 3]);
            }
        }
        copy_wait<1>();
        if constexpr (Shape::WGMMA) wgmma_written();
        __syncthreads(); // the values of this tile are there
        if (index + 1 < n_tiles) load(index + 1, next_pages, true);
        copy_commit();
        const u32 values = base + ((index & 1) * 2 + 1) * Shape::KV;
        if constexpr (Shape::WGMMA) {
            wgmma_fence();
#pragma unroll
            for (int s = 0; s < TILE / 16; s++) Wgmma<D>::template multiply<1>(out, weight[s], wgmma_transposed(values + s * 2048, TILE * 128), 1);
            wgmma_commit();
            // Not on into the next turn of the loop: the compiler (12.9) gave registers away there that an operand was still read from.
            wgmma_wait<0>();
            wgmma_settle(out);
        } else if (needed) {
            // Matrices: positions 0..7, 8..15 by columns 0..7, then columns 8..15; transposed while they are loaded.
            const u32 value = values + (lane & 15) * STRIDE + (lane >> 4) * 16;
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
    }
    if (idle) return;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        total[h] += __shfl_xor_sync(~0u, total[h], 1);
        total[h] += __shfl_xor_sync(~0u, total[h], 2);
        float factor = 1.0f;
        if (a.sinks) {
            const float sink = a.sinks[head] * LOG2E, high = fmaxf(most[h], sink);
            factor = exp2_fast(most[h] - high);
            total[h] = total[h] * factor + exp2_fast(sink - high);
        }
        const u32 row = warp * 16 + g + 8 * h;
        if (row >= n_rows) continue;
        const float inverse = factor / total[h];
        float *o = a.out + ((u64)(span_first + row_0 + row) * a.n_heads + head) * D + 2 * t;
#pragma unroll
        for (int i = 0; i < D / 8; i++) *(float2 *)(o + 8 * i) = make_float2(out[4 * i + 2 * h] * inverse, out[4 * i + 2 * h + 1] * inverse);
    }
}

// The kernel NAME_D. The host knows the bytes of shared memory that each needs (compile/attention.rs).
#define FLASH(NAME, PAGES, D, SHARED_BYTES)                                                                       \
    static_assert(FlashShape<D>::SHARED == SHARED_BYTES, "shared memory");                                                \
    extern "C" __global__ void __launch_bounds__(128, FlashShape<D>::BLOCKS) NAME##_##D(const __grid_constant__ AttentionArguments a) { \
        begin();                                                                                                          \
        attention_flash<D, PAGES>(a);                                                                                     \
    }

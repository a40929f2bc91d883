// Warp 8: adds the partial sums of the other warps, runs the epilogue of each phase, and publishes what the next phases read.
#pragma once
#include "gemm/epilogue.h"
#include "persistent/block.cuh"

template <int D, int H> struct PersistentEpilogue : PersistentBlock<D, H> {
    typedef PersistentBlock<D, H> Block;
    INLINE explicit PersistentEpilogue(const PersistentBlock<D, H> &block) : Block(block) {}
    using Block::a;
    using Block::attends;
    using Block::block;
    using Block::first_group;
    using Block::kv_head;
    using Block::lane;
    using Block::n_blocks;
    using Block::part;
    using Block::pass_parity;
    using Block::position;
    using Block::published;
    using Block::s;
    using Block::split;
    static constexpr u32 PARTIAL_BYTES = Block::PARTIAL_BYTES;

    INLINE float partial_sum(int row) const {
        float v = 0;
#pragma unroll
        for (int w = 0; w < 8; w++) v += s.partial[pass_parity][w][row];
        return v;
    }
    INLINE float input_scale(u32 phase_parity) const {
        float sum = 0;
#pragma unroll
        for (int w = 0; w < 8; w++) sum += s.squares[phase_parity][w];
        return rsqrtf(sum * this->inverse_hidden + a.eps);
    }
    // The block's rows of the residual as chunks of residual * norm, with their squares.
    INLINE void publish_residual(const float (&norm)[2], u32 g0, u32 n, u32 to, u32 tag) {
#pragma unroll
        for (u32 r0 = 0; r0 < PERSISTENT_MAX_ROWS; r0 += 32) {
            if (r0 >= n) break;
            const u32 r = r0 + lane;
            const float x = r < n ? s.residual[r] : 0.0f;
            const float squares = sum_of_8(x * x);
            const uint4 chunk = make_chunk(x * norm[r0 / 32], squares, tag);
            if ((lane & 7) == 0 && r < n) store_relaxed_4(part(to) + (u64)(g0 + r / 8) * 16, chunk);
        }
    }
    INLINE void merge(u32 tag) {
        if (block >= a.n_kv_heads * a.n_splits) return;
        const u32 n_partials = min(a.n_splits, position / 32 + 1);
        constexpr u32 STRIDE = PARTIAL_BYTES;
        const u8 *from = part(EXCHANGE_PARTIALS) + (u64)kv_head * a.n_splits * STRIDE;
        const u32 half = lane & 1, index = lane >> 1; // 4 of a chunk's values, of one partial
        pause_cycles(a.merge_delay);
        for (u32 c0 = split; c0 < H * D / 8; c0 += 2 * a.n_splits) {
            uint4 v[2];
            uint2 ml[2];
            bool all;
            do {
                all = true;
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    const u32 c = c0 + i * a.n_splits;
                    if (c < H * D / 8 && index < n_partials) {
                        v[i] = load_relaxed_4(from + index * STRIDE + c * 32 + half * 16);
                        ml[i] = load_relaxed_2(from + index * STRIDE + (H * D + 2 * (c * 8 / D)) * 4);
                    }
                }
#pragma unroll
                for (int i = 0; i < 2; i++)
                    if (c0 + i * a.n_splits < H * D / 8 && index < n_partials)
                        all = all && ((((v[i].x ^ tag) | (v[i].y ^ tag) | (v[i].z ^ tag) | (v[i].w ^ tag) | (ml[i].x ^ tag) | (ml[i].y ^ tag)) & 15) == 0);
            } while (!__all_sync(~0u, all));
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const u32 c = c0 + i * a.n_splits;
                if (c >= H * D / 8) continue;
                const bool there = index < n_partials;
                float high = there ? untag_word(ml[i].x) : -1e30f;
#pragma unroll
                for (int m = 2; m < 32; m *= 2) high = fmaxf(high, __shfl_xor_sync(~0u, high, m));
                const float factor = there ? exp2_fast(untag_word(ml[i].x) - high) : 0.0f;
                float total = there ? factor * untag_word(ml[i].y) : 0.0f, f[4];
                f[0] = there ? factor * untag_word(v[i].x) : 0.0f, f[1] = there ? factor * untag_word(v[i].y) : 0.0f;
                f[2] = there ? factor * untag_word(v[i].z) : 0.0f, f[3] = there ? factor * untag_word(v[i].w) : 0.0f;
#pragma unroll
                for (int m = 2; m < 32; m *= 2) {
                    total += __shfl_xor_sync(~0u, total, m);
#pragma unroll
                    for (int e = 0; e < 4; e++) f[e] += __shfl_xor_sync(~0u, f[e], m);
                }
                const float inverse = reciprocal_fast(total);
                float largest = 0;
#pragma unroll
                for (int e = 0; e < 4; e++) f[e] *= inverse, largest = fmaxf(largest, fabsf(f[e]));
                largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 1));
                const u32 scale = chunk_scale(largest), t = tag << 28;
                u32 p = 0;
#pragma unroll
                for (int e = 0; e < 4; e++) p |= (u32)(chunk_quant(f[e], scale) & 255) << (8 * e);
                const u32 other = __shfl_xor_sync(~0u, p, 1);
                if (lane == 0)
                    store_relaxed_4(part(EXCHANGE_ATTENDED) + ((u64)kv_head * (H * D / 8) + c) * 16,
                                    make_uint4((p & 0xFFFFFF) | t, (p >> 24) | ((other & 0xFFFF) << 8) | t, (other >> 16) | (scale << 16) | t, t));
            }
        }
    }
    // Root of the mean square of a vector of which this block has the rows in `x`: the squares of all blocks are exchanged.
    INLINE float exchange_squares(float mine, u32 which, u32 tag) {
        u8 *at = part(EXCHANGE_SQUARES) + which * 1024;
        if (lane == 0) store_relaxed_1(at + block * 4, tag_word(mine, tag));
        float v[5];
        bool all;
        do {
            all = true;
#pragma unroll
            for (int i = 0; i < 5; i++) {
                v[i] = 0;
                if (i * 32 + lane < n_blocks) {
                    const u32 w = load_relaxed_1(at + (i * 32 + lane) * 4);
                    all = all && ((w ^ tag) & 15) == 0;
                    v[i] = untag_word(w);
                }
            }
        } while (!__all_sync(~0u, all));
        return rsqrtf(sum_of_32(v[0] + v[1] + v[2] + v[3] + v[4]) * this->inverse_hidden + a.eps);
    }

    INLINE void finish() {
        u32 epoch_input = 0, epoch = 0, phase_parity = 0;
        const u32 x0 = first_group(a.hidden / 8, block), nx = (first_group(a.hidden / 8, block + 1) - x0) * 8;
        // Weights of a norm for the rows of this lane, loaded before they are needed.
        auto own = [&](const float *w, float (&out)[2]) {
            out[0] = w && lane < nx ? w[x0 * 8 + lane] : 0.0f, out[1] = w && lane + 32 < nx ? w[x0 * 8 + 32 + lane] : 0.0f;
        };
        float norm[2], post[2];
        for (u32 r = lane; r < nx; r += 32) s.residual[r] = a.x[x0 * 8 + r];
        __syncwarp();
        own(a.first_norm, norm);
        publish_residual(norm, x0, nx, EXCHANGE_INPUT, tag_of(epoch_input));
        published();
        for (u32 i = 0; i < a.n_phases; i++) {
            if (i >= a.stop_phase) return;
            const PersistentPhase p = this->phase(i);
            const u32 g0 = p.own_first, n_groups = p.own_groups;
            const u32 n_passes = n_groups == 0 ? 1 : (n_groups + PERSISTENT_PASS - 1) / PERSISTENT_PASS;
            if (p.kind == PERSISTENT_QKV) epoch++;
            if (p.kind == PERSISTENT_ADD) own(p.norm, norm), own(p.post_norm, post);
            const u32 tag = tag_of(epoch);
            float best = -__int_as_float(0x7f800000);
            u32 best_row = 0;
            float squares = 0;
            const bool down = p.input == EXCHANGE_GATED;
            for (u32 pass = 0; pass < n_passes; pass++) {
                barrier(2 + pass_parity, 288);
                const u32 first_row = (g0 + pass * PERSISTENT_PASS) * 8, n = min((u32)PERSISTENT_PASS, n_groups - pass * PERSISTENT_PASS) * 8;
                if (p.kind == PERSISTENT_QKV) {
                    const float scale = input_scale(phase_parity);
                    for (u32 r = lane; r < n; r += 32) {
                        float v = partial_sum(r) * scale;
                        if (p.bias) v += p.bias[first_row + r];
                        store_relaxed_1(part(EXCHANGE_QKV) + (u64)(first_row + r) * 4, tag_word(v, tag));
                    }
                } else if (p.kind == PERSISTENT_ADD) {
                    for (u32 r = lane; r < n; r += 32) {
                        const float v = partial_sum(r);
                        const u32 at = pass * PERSISTENT_PASS * 8 + r;
                        if (p.post_norm) s.outputs[0][at] = v, squares += v * v;
                        else s.residual[at] += v;
                    }
                } else if (p.kind == PERSISTENT_GATE) {
                    const float scale = input_scale(phase_parity);
                    for (u32 r0 = 0; r0 < n; r0 += 64) { // 4 pairs of groups: 32 results
                        const u32 row = r0 + (lane >> 3) * 16 + (lane & 7);
                        const bool there = row < n;
                        float v = 0;
                        if (there) v = activate(p.activation, partial_sum(row) * scale) * (partial_sum(row + 8) * scale);
                        const uint4 chunk = make_chunk(v, 0.0f, tag);
                        if (there && (lane & 7) == 0) store_relaxed_4(part(EXCHANGE_GATED) + (u64)((first_row + row) / 16) * 16, chunk);
                    }
                } else {
                    const float scale = input_scale(phase_parity);
                    for (u32 r = lane; r < n; r += 32) {
                        const u32 row = first_row + r;
                        if (row >= a.n_vocab) continue;
                        const float v = partial_sum(r) * scale;
                        a.logits[row] = v;
                        if (v > best) best = v, best_row = row;
                    }
                }
                __syncwarp();
                if (pass + 2 < n_passes) barrier_arrive(8 + pass_parity, 288);
                pass_parity ^= 1;
            }
            if (p.kind == PERSISTENT_QKV) {
                if (attends()) barrier_arrive(6, 288);
                merge(tag);
            } else if (p.kind == PERSISTENT_ADD) {
                __syncwarp();
                if (p.post_norm) {
                    const float scale = exchange_squares(sum_of_32(squares), down, tag);
                    for (u32 r = lane; r < nx; r += 32) s.residual[r] += s.outputs[0][r] * scale * (r < 32 ? post[0] : post[1]);
                    __syncwarp();
                }
                if (down) epoch_input++;
                publish_residual(norm, x0, nx, down ? EXCHANGE_INPUT : EXCHANGE_MIDDLE, down ? tag_of(epoch_input) : tag);
            } else if (p.kind == PERSISTENT_HEAD) {
                if (a.trace)
                    for (u32 r = lane; r < nx; r += 32) a.trace[x0 * 8 + r] = s.residual[r];
                choose(best, best_row);
            }
            if (p.kind != PERSISTENT_HEAD) published();
            phase_parity ^= 1;
        }
    }
    // The best of all blocks: 32 bits of ordered logit, 18 of row, 14 that say that it is there; of equals the lowest row. NaN and
    // -infinity are never chosen. The last thing of a launch: then all blocks have read the turn.
    INLINE void choose(float best, u32 row) {
        u32 ordered = __float_as_uint(best);
        ordered = (ordered & 0x80000000u) ? ~ordered : ordered | 0x80000000u;
        u64 key = (u64)ordered << 18 | (262143 - row);
#pragma unroll
        for (int m = 1; m < 32; m *= 2) {
            const u64 other = __shfl_xor_sync(~0u, key, m);
            if (other > key) key = other;
        }
        const u64 tag = 1;
        if (lane == 0) store_relaxed_64(part(EXCHANGE_BEST) + block * 8, key << 14 | tag);
        u64 v[5];
        bool all;
        do {
            all = true;
#pragma unroll
            for (int i = 0; i < 5; i++) {
                v[i] = 0;
                if (i * 32 + lane < n_blocks) {
                    v[i] = load_relaxed_64(part(EXCHANGE_BEST) + (i * 32 + lane) * 8);
                    all = all && (v[i] & 16383) == tag;
                }
            }
        } while (!__all_sync(~0u, all));
#pragma unroll
        for (int i = 1; i < 5; i++)
            if (v[i] > v[0]) v[0] = v[i];
#pragma unroll
        for (int m = 1; m < 32; m *= 2) {
            const u64 other = __shfl_xor_sync(~0u, v[0], m);
            if (other > v[0]) v[0] = other;
        }
        const u64 winner = v[0] >> 14;
        if (block != 0 || lane != 0) return;
        *this->turn_word() = this->turn ^ 1;
        if (!a.choice || a.choice->how != CHOOSE_BEST) return;
        // 0x007fffff is -infinity in this order.
        const u32 token = (u32)(winner >> 18) > 0x007fffffu ? 262143 - (u32)(winner & 262143) : NO_TOKEN;
        a.chosen[a.choice->chosen] = token;
        a.host_chosen[a.choice->chosen] = token;
    }
};

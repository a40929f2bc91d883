// Warp 8: adds the partial sums of the other warps, runs the epilogue of each phase, and publishes what the next phases read.
#pragma once
#include "gemm/epilogue.h"
#include "persistent/best.cuh"
#include "persistent/mixture.cuh"

template <int D, int H, bool MIXTURE> struct PersistentEpilogue : PersistentBest<D, H, 1> {
    typedef PersistentBest<D, H, 1> Block;
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
    using Block::rehearsal;
    using Block::s;
    using Block::split;
    static constexpr u32 PARTIAL_BYTES = Block::PARTIAL_BYTES;

    INLINE float partial_sum(int row) const {
        float v = 0;
#pragma unroll
        for (int w = 0; w < 8; w++) v += s.partial[pass_parity][w][row];
        return v;
    }
    // Of four rows, the first a multiple of four.
    INLINE float4 partial_sums(int row) const {
        float4 v = make_float4(0, 0, 0, 0);
#pragma unroll
        for (int w = 0; w < 8; w++) {
            const float4 x = *(const float4 *)&s.partial[pass_parity][w][row];
            v.x += x.x, v.y += x.y, v.z += x.z, v.w += x.w;
        }
        return v;
    }
    // The norm of a phase's input, while the other warps multiply.
    INLINE float input_scale(u32 k_quads) {
        wait_input();
        float sum = 0;
        for (u32 quad = 0; quad < k_quads; quad++) {
#pragma unroll
            for (int t = 0; t < 4; t++) sum += __uint_as_float(s.input[32 * quad + 8 * t + (lane >> 2)].chunk[lane & 3].w);
        }
        return rsqrtf(sum_of_32(sum) * this->inverse_hidden + a.eps);
    }
    // Four rows of the residual a lane as chunks of residual * norm, with their squares.
    INLINE void publish_residual(const float (&x)[4], const float (&norm)[4], u32 g0, u32 n, u32 to, u32 tag, bool real) {
        float squares = x[0] * x[0] + x[1] * x[1] + x[2] * x[2] + x[3] * x[3];
        squares += __shfl_xor_sync(~0u, squares, 1);
        const float v[4] = {x[0] * norm[0], x[1] * norm[1], x[2] * norm[2], x[3] * norm[3]};
        if constexpr (MIXTURE) { // for a router
            const uint4 wide = make_uint4(tag_word(v[0], tag), tag_word(v[1], tag), tag_word(v[2], tag), tag_word(v[3], tag));
            if (real && to == EXCHANGE_MIDDLE && 4 * lane < n) store_relaxed_4(part(EXCHANGE_WIDE) + (u64)(g0 * 8 + 4 * lane) * 4, wide);
        }
        const uint4 chunk = make_chunk_of_2(v, squares, tag);
        if (real && (lane & 1) == 0 && 4 * lane < n) store_relaxed_4(part(to) + (u64)(g0 + lane / 2) * 16, chunk);
    }
    // Joins the partial attentions of the block's KV head; the block has every n_splits-th chunk of 8 values of its heads. Four lanes
    // have two chunks of one partial, so that eight partials are in flight, and eight more in other registers; and two more chunks. With more than 16
    // partials two lanes have one chunk, and sixteen partials are in flight.
    INLINE void merge(u32 tag) {
        if (!this->has_head() || this->alone) return;
        constexpr u32 STRIDE = PARTIAL_BYTES, CHUNKS = H * D / 8;
        const u32 n_partials = this->n_partials();
        const u8 *from = part(EXCHANGE_PARTIALS) + (u64)(block - split) * STRIDE;
        const bool many = this->many();
        const u32 half = lane & 1, index = many ? lane >> 1 : lane >> 2, together = many ? 16 : 8;
        const u32 next = (many ? 1 : 2) * a.n_splits; // from a lane's first chunk to its second
        for (u32 c0 = split + (many ? 0 : (lane >> 1) & 1) * a.n_splits, first = split; first < CHUNKS; c0 += 2 * next, first += 2 * next) {
            uint4 v[2][2] = {};
            uint2 ml[2][2] = {};
            bool there[2][2];
#pragma unroll
            for (int r = 0; r < 2; r++)
#pragma unroll
                for (int i = 0; i < 2; i++) there[r][i] = c0 + r * next < CHUNKS && index + together * i < n_partials;
            for (u32 turn = rehearsal(); turn < 2; turn++) {
                const bool real = turn == 1;
                bool all = true;
                if (real) do {
                    all = true;
#pragma unroll
                    for (int r = 0; r < 2; r++)
#pragma unroll
                        for (int i = 0; i < 2; i++) {
                            if (!there[r][i]) continue;
                            const u32 c = c0 + r * next;
                            const u8 *partial = from + (index + together * i) * STRIDE;
                            v[r][i] = load_relaxed_4(partial + c * 32 + half * 16);
                            ml[r][i] = load_relaxed_2(partial + (H * D + 2 * (c * 8 / D)) * 4);
                        }
#pragma unroll
                    for (int r = 0; r < 2; r++)
#pragma unroll
                        for (int i = 0; i < 2; i++)
                            if (there[r][i])
                                all = all && ((((v[r][i].x ^ tag) | (v[r][i].y ^ tag) | (v[r][i].z ^ tag) | (v[r][i].w ^ tag) | (ml[r][i].x ^ tag) | (ml[r][i].y ^ tag)) & 15) == 0);
                } while (!__all_sync(~0u, all));
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    if (first + r * next >= CHUNKS) break;
                    float high = -1e30f;
#pragma unroll
                    for (int i = 0; i < 2; i++)
                        if (there[r][i]) high = fmaxf(high, untag_word(ml[r][i].x));
#pragma unroll
                    for (int m = 4; m < 32; m *= 2) high = fmaxf(high, __shfl_xor_sync(~0u, high, m));
                    if (many) high = fmaxf(high, __shfl_xor_sync(~0u, high, 2));
                    float total = 0, f[4] = {0, 0, 0, 0};
#pragma unroll
                    for (int i = 0; i < 2; i++) {
                        if (!there[r][i]) continue;
                        const float factor = exp2_fast(untag_word(ml[r][i].x) - high);
                        total += factor * untag_word(ml[r][i].y);
                        f[0] += factor * untag_word(v[r][i].x), f[1] += factor * untag_word(v[r][i].y);
                        f[2] += factor * untag_word(v[r][i].z), f[3] += factor * untag_word(v[r][i].w);
                    }
#pragma unroll
                    for (int m = 2; m < 32; m *= 2) {
                        if (m == 2 && !many) continue;
                        total += __shfl_xor_sync(~0u, total, m);
#pragma unroll
                        for (int e = 0; e < 4; e++) f[e] += __shfl_xor_sync(~0u, f[e], m);
                    }
                    const float inverse = reciprocal_fast(total);
#pragma unroll
                    for (int e = 0; e < 4; e++) f[e] *= inverse;
                    const uint4 chunk = make_chunk_of_2(f, 0.0f, tag);
                    const u32 c = c0 + r * next;
                    if (real && half == 0 && index == 0 && c < CHUNKS) store_relaxed_4(this->chunk(EXCHANGE_ATTENDED, kv_head * CHUNKS + c, this->row), chunk);
                }
            }
        }
    }
    // Root of the mean square of a vector of which this block has the rows in `x`: the squares of all blocks are exchanged.
    INLINE float exchange_squares(float mine, u32 which, u32 tag, bool real) {
        u8 *at = part(EXCHANGE_SQUARES) + which * (PERSISTENT_COPIES * 1024);
        if (real && lane < PERSISTENT_COPIES) store_relaxed_1(at + lane * 1024 + block * 4, tag_word(mine, tag));
        at += block % PERSISTENT_COPIES * 1024;
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
        } while (real && !__all_sync(~0u, all));
        return rsqrtf(sum_of_32(v[0] + v[1] + v[2] + v[3] + v[4]) * this->inverse_hidden + a.eps);
    }

    // Scores of the block's experts to all blocks, and the scale of their norm. Nothing waits for the block's own words but warp 9.
    template <class P> INLINE float route(const P &p, u32 tag) {
        wait_partials(pass_parity);
        if (lane < p.own_groups) store_relaxed_1(part(EXCHANGE_SCORES) + (u64)(p.own_first + lane) * 4, tag_word(partial_sum(lane), tag));
        pass_parity ^= 1;
        const float scale = input_scale(p.k_quads);
        if (lane == 0) choice_of(*this).scale = scale;
        __syncwarp();
        arrive_scale();
        return scale;
    }
    // Of a bundle of 16 rows a pass: what its expert makes of them, by the expert's weight.
    template <class P> INLINE void experts(const P &p, float scale, u32 tag) {
        const u32 of_expert = p.groups / a.n_used, chunks = (a.expert_ffn + 127) / 128 * 16, n_passes = max(p.own_groups, 1u);
        for (int pass = (int)rehearsal() - 1; pass < (int)n_passes; pass++) {
            const bool real = pass >= 0;
            const u32 bundle = p.own_first + (real ? pass : 0), expert = bundle / of_expert, row = (bundle - expert * of_expert) * 16 + (lane >> 1) * 8;
            if (pass == 0) wait_choice();
            const bool there = lane < PERSISTENT_BUNDLE && p.own_groups > 0 && row < a.expert_ffn;
            float g[4] = {0, 0, 0, 0}, v[4] = {0, 0, 0, 0}; // biases, which are on their way while others multiply
            if constexpr (PERSISTENT_HAS_RARE) {
                if (p.bias && there && real) {
                    const u64 at = (u64)choice_of(*this).id[expert] * a.expert_ffn + row + (lane & 1) * 4;
#pragma unroll
                    for (int e = 0; e < 4; e++) g[e] = p.bias[at + e], v[e] = up_bias(p)[at + e];
                }
            }
            if (real) wait_partials(pass_parity);
            if (there) {
                const int at = (lane >> 1) * 16 + (lane & 1) * 4;
                const float4 gate = partial_sums(at), up = partial_sums(at + 8);
                const float weight = choice_of(*this).weight[expert];
                g[0] += gate.x * scale, g[1] += gate.y * scale, g[2] += gate.z * scale, g[3] += gate.w * scale;
                v[0] += up.x * scale, v[1] += up.y * scale, v[2] += up.z * scale, v[3] += up.w * scale;
                if (PERSISTENT_HAS_RARE && a.expert_limit > 0) {
#pragma unroll
                    for (int e = 0; e < 4; e++) v[e] = clamped_gate(a, g[e], v[e]);
                } else if (p.activation == ACTIVATION_SILU) {
#pragma unroll
                    for (int e = 0; e < 4; e++) v[e] *= activate(ACTIVATION_SILU, g[e]);
                } else {
#pragma unroll
                    for (int e = 0; e < 4; e++) v[e] *= activate(p.activation, g[e]);
                }
#pragma unroll
                for (int e = 0; e < 4; e++) v[e] *= weight;
            }
            const uint4 chunk = make_chunk_of_2(v, 0.0f, tag);
            if (real && there && (lane & 1) == 0) store_relaxed_4(part(EXCHANGE_GATED) + (u64)(expert * chunks + row / 8) * 16, chunk);
            __syncwarp();
            if (!real) continue;
            if (pass + 2 < n_passes) arrive_partials_read(pass_parity);
            pass_parity ^= 1;
        }
    }

    INLINE void finish() {
        float expert_scale = 0, qkv_scale = 0;
        u32 epoch_input = 0, epoch = 0;
        const u32 x0 = first_group(a.hidden / 8, block), nx = (first_group(a.hidden / 8, block + 1) - x0) * 8;
        // Of a vector like the residual, the four rows of this lane: norms, loaded before they are needed.
        auto own = [&](const float *w, float (&out)[4]) {
#pragma unroll
            for (int e = 0; e < 4; e++) out[e] = w && 4 * lane < nx ? w[x0 * 8 + 4 * lane + e] : 0.0f;
        };
        float residual[4], norm[4], post[4];
        own(a.x, residual);
        while (true) {
            own(a.first_norm, norm);
            publish_residual(residual, norm, x0, nx, EXCHANGE_INPUT, tag_of(epoch_input), true);
            published();
            this->each_phase([&](const auto &p) {
                const u32 g0 = p.own_first, n_groups = p.own_groups;
                if constexpr (MIXTURE) {
                    if (p.kind == PERSISTENT_ROUTE) {
                        expert_scale = route(p, tag_of(epoch));
                        return;
                    }
                    if (p.kind == PERSISTENT_EXPERTS) {
                        experts(p, expert_scale, tag_of(epoch));
                        published();
                        return;
                    }
                }
                if (p.kind == PERSISTENT_ADD || (MIXTURE && p.kind == PERSISTENT_ADD_EXPERTS)) { // of one pass: PERSISTENT_MAX_OWN
                    const bool down = p.input == EXCHANGE_GATED;
                    own(p.norm_or_sinks, norm), own(p.post_norm, post);
                    const u32 tag = tag_of(epoch);
                    if (down) epoch_input++;
                    const u32 to = down ? EXCHANGE_INPUT : EXCHANGE_MIDDLE, to_tag = down ? tag_of(epoch_input) : tag;
                    float bias[4] = {0, 0, 0, 0};
                    if constexpr (PERSISTENT_HAS_RARE) {
                        if (p.bias && p.kind == PERSISTENT_ADD) own(p.bias, bias);
                        if constexpr (MIXTURE) {
                            const PersistentChoice &choice = choice_of(*this);
                            if (p.bias && p.kind == PERSISTENT_ADD_EXPERTS) add_expert_biases(bias, a, p.bias, choice.id, choice.weight, own);
                        }
                    }
                    for (u32 turn = rehearsal(); turn < 2; turn++) {
                        const bool real = turn == 1;
                        if (real) wait_partials(pass_parity);
                        float4 v = make_float4(0, 0, 0, 0);
                        if (4 * lane < nx) v = partial_sums(4 * lane);
                        if constexpr (PERSISTENT_HAS_RARE) v.x += bias[0], v.y += bias[1], v.z += bias[2], v.w += bias[3];
                        if (p.post_norm) {
                            const float scale = exchange_squares(sum_of_32(v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w), down, tag, real);
                            v.x *= scale * post[0], v.y *= scale * post[1], v.z *= scale * post[2], v.w *= scale * post[3];
                        }
                        const float x[4] = {residual[0] + v.x, residual[1] + v.y, residual[2] + v.z, residual[3] + v.w};
                        publish_residual(x, norm, x0, nx, to, to_tag, real);
                        if (real) residual[0] = x[0], residual[1] = x[1], residual[2] = x[2], residual[3] = x[3];
                    }
                    pass_parity ^= 1;
                    published();
                    return;
                }
                const u32 n_passes = n_groups == 0 ? 1 : (n_groups + PERSISTENT_PASS - 1) / PERSISTENT_PASS;
                const bool continues = p.kind == PERSISTENT_QKV && p.qkv_part & PERSISTENT_CONTINUES;
                if (p.kind == PERSISTENT_QKV && !continues) epoch++;
                const u32 tag = tag_of(epoch);
                float best = -__int_as_float(0x7f800000);
                u32 best_row = 0;
                float scale = continues ? qkv_scale : 0.0f;
                for (int pass = continues ? 0 : (int)rehearsal() - 1; pass < (int)n_passes; pass++) {
                    const bool real = pass >= 0;
                    const u32 of = real ? pass : 0;
                    const u32 first_row = (g0 + of * PERSISTENT_PASS) * 8, n = min((u32)PERSISTENT_PASS, n_groups - of * PERSISTENT_PASS) * 8;
                    if (pass == 0 && !continues) scale = input_scale(p.k_quads);
                    if (real) wait_partials(pass_parity);
                    if (p.kind == PERSISTENT_GATE) {
                        // Pairs of groups, two lanes each.
                        const u32 row = (lane >> 1) * 16 + (lane & 1) * 4;
                        const bool there = row < n;
                        float v[4] = {0, 0, 0, 0};
                        if (there) {
                            const float4 gate = partial_sums(row), up = partial_sums(row + 8);
                            const float g[4] = {gate.x * scale, gate.y * scale, gate.z * scale, gate.w * scale};
                            v[0] = up.x * scale, v[1] = up.y * scale, v[2] = up.z * scale, v[3] = up.w * scale;
                            if (p.activation == ACTIVATION_SILU) {
#pragma unroll
                                for (int e = 0; e < 4; e++) v[e] *= activate(ACTIVATION_SILU, g[e]);
                            } else if (p.activation == ACTIVATION_GELU_TANH) {
#pragma unroll
                                for (int e = 0; e < 4; e++) v[e] *= activate(ACTIVATION_GELU_TANH, g[e]);
                            } else {
#pragma unroll
                                for (int e = 0; e < 4; e++) v[e] *= activate(p.activation, g[e]);
                            }
                        }
                        const uint4 chunk = make_chunk_of_2(v, 0.0f, tag);
                        if (real && there && (lane & 1) == 0) store_relaxed_4(part(EXCHANGE_GATED) + (u64)((first_row + row) / 16) * 16, chunk);
                    } else if (p.kind == PERSISTENT_QKV) {
                        for (u32 r = lane; r < n; r += 32) {
                            float v = partial_sum(r) * scale;
                            if (p.bias) v += p.bias[first_row + r];
                            if (real) store_relaxed_1(part(EXCHANGE_QKV) + (u64)(p.first_row + first_row + r) * 4, tag_word(v, tag));
                        }
                    } else {
                        for (u32 r = lane; r < n; r += 32) {
                            const u32 row = first_row + r;
                            if (!real || row >= a.n_vocab) continue;
                            const float v = partial_sum(r) * scale;
                            a.logits[row] = v;
                            if (v > best) best = v, best_row = row;
                        }
                    }
                    __syncwarp();
                    if (!real) continue;
                    if (pass + 2 < n_passes || (!continues && p.kind == PERSISTENT_QKV && p.qkv_part & PERSISTENT_OF_THREE)) arrive_partials_read(pass_parity);
                    pass_parity ^= 1;
                }
                if (p.kind == PERSISTENT_HEAD) {
                    if (a.trace && 4 * lane < nx)
                        for (int e = 0; e < 4; e++) a.trace[x0 * 8 + 4 * lane + e] = residual[e];
                    const u64 key = Block::template largest<1>(Block::order_of(best, best_row));
                    if (lane == 0) this->give_best(key, 0);
                    return;
                }
                if (p.kind == PERSISTENT_QKV) {
                    if (p.qkv_part & PERSISTENT_CONTINUED) {
                        qkv_scale = scale;
                        return;
                    }
                    if (attends()) arrive_qkv();
                    merge(tag);
                }
                published();
            });
            if (a.stop_phase < a.n_phases || (block != 0 && this->is_last())) return;
            const u32 token = this->choose(0);
            if (!this->next_step()) return;
            // Every block waits for the token, since it has rows of the residual: none writes its next best before all have read this one.
            epoch_input++;
#ifdef PERSISTENT_EMBEDDING
            if (4 * lane < nx) PERSISTENT_EMBEDDING::four(a.embedding.table, embedded(a.embedding, token), x0 * 8 + 4 * lane, a.embedding.scale, residual);
#endif
        }
    }
};

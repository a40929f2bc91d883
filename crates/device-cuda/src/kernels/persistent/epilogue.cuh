// Warp 8 of the kernel for one row: the parts of an epilogue that depend on the layout of lanes
// (phases.cuh has the rest). A lane has four neighbouring rows of the residual.
#pragma once
#include "gemm/epilogue.h"
#include "persistent/best.cuh"
#include "persistent/mixture.cuh"
#include "persistent/phases.cuh"

template <int D, int H, bool MIXTURE> struct PersistentRowLanes : PersistentBest<D, H, 1> {
    typedef PersistentBest<D, H, 1> Block;
    INLINE explicit PersistentRowLanes(const PersistentBlock<D, H> &block) : Block(block) {
        x0 = first_group(a.hidden / 8, this->block), nx = (first_group(a.hidden / 8, this->block + 1) - x0) * 8;
    }
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
    static constexpr int N = 4; // values of a lane: rows 4 * lane and on of the block's part
    static constexpr bool REHEARSES_SQUARES = true; // the exchange of squares is rehearsed too
    u32 x0, nx; // the block's part of the residual: first group, rows

    // Loads this lane's values of a vector like the residual, or 0.
    INLINE void own(const float *w, float (&out)[4]) const {
#pragma unroll
        for (int e = 0; e < 4; e++) out[e] = w && 4 * lane < nx ? w[x0 * 8 + 4 * lane + e] : 0.0f;
    }
    INLINE void load_residual(float (&residual)[4]) const { own(a.x, residual); }

    INLINE float partial_sum(int row) const {
        float v = 0;
#pragma unroll
        for (int w = 0; w < 8; w++) v += s.partial[pass_parity][w][row];
        return v;
    }
    // Sums of four rows from `row` on, a multiple of four.
    INLINE float4 partial_sums(int row) const {
        float4 v = make_float4(0, 0, 0, 0);
#pragma unroll
        for (int w = 0; w < 8; w++) {
            const float4 x = *(const float4 *)&s.partial[pass_parity][w][row];
            v.x += x.x, v.y += x.y, v.z += x.z, v.w += x.w;
        }
        return v;
    }
    // The scale of the norm of a phase's input, computed while the other warps multiply.
    template <class P> INLINE float input_scale(const P &p) const {
        wait_input();
        float sum = 0;
        for (u32 quad = 0; quad < p.k_quads; quad++) {
#pragma unroll
            for (int t = 0; t < 4; t++) sum += __uint_as_float(s.input[32 * quad + 8 * t + (lane >> 2)].chunk[lane & 3].w);
        }
        return rsqrtf(sum_of_32(sum) * this->inverse_hidden + a.eps);
    }
    // Publishes chunks of residual * norm with the squares of the residual.
    INLINE void publish_residual(const float (&x)[4], const float (&norm)[4], u32 to, u32 tag, bool real) {
        const u32 g0 = x0, n = nx;
        float squares = x[0] * x[0] + x[1] * x[1] + x[2] * x[2] + x[3] * x[3];
        squares += __shfl_xor_sync(~0u, squares, 1);
        const float v[4] = {x[0] * norm[0], x[1] * norm[1], x[2] * norm[2], x[3] * norm[3]};
        if constexpr (MIXTURE) { // a router reads f32 words
            const uint4 wide = make_uint4(tag_word(v[0], tag), tag_word(v[1], tag), tag_word(v[2], tag), tag_word(v[3], tag));
            if (real && to == EXCHANGE_MIDDLE && 4 * lane < n) store_relaxed_4(part(EXCHANGE_WIDE) + (u64)(g0 * 8 + 4 * lane) * 4, wide);
        }
        const uint4 chunk = make_chunk_of_2(v, squares, tag);
        if (real && (lane & 1) == 0 && 4 * lane < n) store_relaxed_4(part(to) + (u64)(g0 + lane / 2) * 16, chunk);
    }
    // Merges the partial attentions of the block's KV head and publishes every n_splits-th chunk of
    // them. Four lanes have two chunks of one partial, so that eight partials are loaded at once,
    // and eight more in other registers; then two more chunks. With more than 16 partials, two
    // lanes have one chunk, and sixteen partials are loaded at once.
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
    // Exchanges the squares of all blocks' parts of a vector. Returns the inverse root of its mean
    // square.
    INLINE float exchange_squares(const float (&x)[4], u32 which, u32 tag, bool real) {
        const float mine = sum_of_32(x[0] * x[0] + x[1] * x[1] + x[2] * x[2] + x[3] * x[3]);
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

    // Publishes the scores of the block's experts, and stores the scale of their norm. Only warp 9
    // waits for the block's own words.
    template <class P> INLINE float route(const P &p, u32 tag) {
        wait_partials(pass_parity);
        if (lane < p.own_groups) store_relaxed_1(part(EXCHANGE_SCORES) + (u64)(p.own_first + lane) * 4, tag_word(partial_sum(lane), tag));
        pass_parity ^= 1;
        const float scale = input_scale(p);
        if (lane == 0) choice_of(*this).scale = scale;
        __syncwarp();
        arrive_scale();
        return scale;
    }
    // Publishes the gated network of a bundle of 16 rows a pass, times its expert's weight.
    template <class P> INLINE void experts(const P &p, float scale, u32 tag) {
        const u32 of_expert = p.groups / a.n_used, chunks = (a.expert_ffn + 127) / 128 * 16, n_passes = max(p.own_groups, 1u);
        for (int pass = (int)rehearsal() - 1; pass < (int)n_passes; pass++) {
            const bool real = pass >= 0;
            const u32 bundle = p.own_first + (real ? pass : 0), expert = bundle / of_expert, row = (bundle - expert * of_expert) * 16 + (lane >> 1) * 8;
            if (pass == 0) wait_choice();
            const bool there = lane < PERSISTENT_BUNDLE && p.own_groups > 0 && row < a.expert_ffn;
            // biases, loaded while other warps multiply
            float g[4] = {0, 0, 0, 0}, v[4] = {0, 0, 0, 0};
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

    // This lane's sums of the block's part of the residual.
    INLINE void own_sums(float (&v)[4]) const {
        float4 sums = make_float4(0, 0, 0, 0);
        if (4 * lane < nx) sums = partial_sums(4 * lane);
        v[0] = sums.x, v[1] = sums.y, v[2] = sums.z, v[3] = sums.w;
    }
    template <class P> INLINE void add_biases_of_experts(const P &p, float (&bias)[4]) const {
        const PersistentChoice &choice = choice_of(*this);
        add_expert_biases(bias, a, p.bias, choice.id, choice.weight, [&](const float *w, float (&out)[4]) { own(w, out); });
    }
    // A pass of GATE of n groups, from g0 on.
    template <class P> INLINE void gate_pass(const P &p, u32 g0, u32 n_groups, float scale, u32 tag, bool real) {
        const u32 first_row = g0 * 8, n = n_groups * 8;
        // Two lanes have a pair of groups.
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
    }
    // A pass of QKV or HEAD of n groups, from g0 on.
    template <class P> INLINE void row_pass(const P &p, u32 g0, u32 n_groups, float scale, u32 tag, bool real, float &best, u32 &best_row) {
        const u32 first_row = g0 * 8, n = n_groups * 8;
        if (p.kind == PERSISTENT_QKV) {
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
    }
    // The end of the head: the block's best token.
    INLINE void end_head(const float (&residual)[4], float best, u32 best_row) {
        if (a.trace && 4 * lane < nx)
            for (int e = 0; e < 4; e++) a.trace[x0 * 8 + 4 * lane + e] = residual[e];
        const u64 key = Block::template largest<1>(Block::order_of(best, best_row));
        if (lane == 0) this->give_best(key, 0);
    }
    // Chooses the token and begins the next step of the launch with it. Returns false if there is
    // none.
    INLINE bool next_residual(float (&residual)[4], u32 &epoch_input) {
        if (a.stop_phase < a.n_phases || (block != 0 && this->is_last())) return false;
        const u32 token = this->choose(0);
        if (!this->next_step()) return false;
        // Every block waits for the token, since it has rows of the residual. So none writes its
        // next best token before all have read this one.
        epoch_input++;
#ifdef PERSISTENT_EMBEDDING
        if (4 * lane < nx) PERSISTENT_EMBEDDING::four(a.embedding.table, embedded(a.embedding, token), x0 * 8 + 4 * lane, a.embedding.scale, residual);
#endif
        return true;
    }
};
template <int D, int H, bool MIXTURE> using PersistentEpilogue = PersistentPhases<PersistentRowLanes<D, H, MIXTURE>, MIXTURE>;

// Warp 8 of the kernel for several rows: the parts of an epilogue that depend on the layout of
// lanes (phases.cuh has the rest). Lane l has row l % 8 of the step, and the (l / 8)-th of every
// four groups of weights' rows: the 8 values of a chunk.
#pragma once
#include "gemm/epilogue.h"
#include "persistent/best.cuh"
#include "persistent/mixture_rows.cuh"
#include "persistent/phases.cuh"

template <int D, int H, bool MIXTURE> struct PersistentRowsLanes : PersistentBest<D, H, PERSISTENT_MOST_ROWS> {
    typedef PersistentBest<D, H, PERSISTENT_MOST_ROWS> Block;
    INLINE explicit PersistentRowsLanes(const typename Block::Block &block) : Block(block) {
        x0 = first_group(a.hidden / 8, this->block) + (lane >> 3);
        has_own = x0 < first_group(a.hidden / 8, this->block + 1), is_row = of_step() < a.n_rows;
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
    using Block::published;
    using Block::rehearsal;
    using Block::s;

    static constexpr int N = 8; // values of a lane: a chunk of one row of the step
    static constexpr bool REHEARSES_SQUARES = false; // the exchange of squares runs once
    u32 x0;                                          // the lane's chunk of the residual
    bool has_own, is_row; // the block has that chunk; the step has the lane's row

    INLINE u32 of_step() const { return lane & 7; }
    // Loads this lane's values of a vector like the residual, or 0.
    INLINE void own(const float *w, float (&out)[8]) const {
#pragma unroll
        for (int e = 0; e < 8; e++) out[e] = w && has_own ? w[x0 * 8 + e] : 0.0f;
    }
    INLINE void load_residual(float (&residual)[8]) const {
#pragma unroll
        for (int e = 0; e < 8; e++) residual[e] = has_own && is_row ? a.x[(u64)of_step() * a.hidden + x0 * 8 + e] : 0.0f;
    }
    INLINE void own_sums(float (&v)[8]) const {
        if (has_own) sums(v, lane >> 3);
    }
    template <class P> INLINE void add_biases_of_experts(const P &p, float (&bias)[8]) const {
        const PersistentRowsChoice &choice = choice_of(*this);
        if (is_row) add_expert_biases(bias, a, p.bias, choice.id[of_step()], choice.weight[of_step()], [&](const float *w, float (&out)[8]) { own(w, out); });
    }
    // Adds the eight sums of a group of the pass.
    INLINE void sums(float (&v)[8], u32 group) const {
        const float *from = s.partial[pass_parity][0] + group * PERSISTENT_SUMS + of_step();
#pragma unroll
        for (int e = 0; e < 8; e++) v[e] = 0;
#pragma unroll
        for (int w = 0; w < 8; w++)
#pragma unroll
            for (int e = 0; e < 8; e++) v[e] += from[w * PERSISTENT_PASS * PERSISTENT_SUMS + 8 * e];
    }
    // The scale of the norm of this lane's row of the input, computed while the other warps
    // multiply.
    INLINE float input_scale() const {
        wait_input();
        float sum = 0;
#pragma unroll
        for (int w = 0; w < 8; w++) sum += s.squares[w][of_step()];
        return rsqrtf(sum * this->inverse_hidden + a.eps);
    }
    template <class P> INLINE float input_scale(const P &) const { return input_scale(); }
    // Publishes a chunk of residual * norm, with the squares of the residual.
    INLINE void publish_residual(const float (&x)[8], const float (&norm)[8], u32 to, u32 tag, bool is_real) const {
        const u32 index = x0;
        const bool real = is_real && has_own && is_row;
        float v[8], squares = 0;
#pragma unroll
        for (int e = 0; e < 8; e++) squares += x[e] * x[e], v[e] = x[e] * norm[e];
        if constexpr (MIXTURE) { // a router reads f32 words
            u8 *wide = part(EXCHANGE_WIDE) + ((u64)of_step() * a.hidden + index * 8) * 4;
            if (real && to == EXCHANGE_MIDDLE) {
                store_relaxed_4(wide, make_uint4(tag_word(v[0], tag), tag_word(v[1], tag), tag_word(v[2], tag), tag_word(v[3], tag)));
                store_relaxed_4(wide + 16, make_uint4(tag_word(v[4], tag), tag_word(v[5], tag), tag_word(v[6], tag), tag_word(v[7], tag)));
            }
        }
        const uint4 chunk = make_fine_chunk(v, squares, tag);
        if (real) store_relaxed_4(this->chunk(to, index, of_step()), chunk);
    }
    // Exchanges the squares of all blocks' parts of a vector. Returns the inverse root of the mean
    // square of this lane's row.
    INLINE float exchange_squares(const float (&x)[8], u32 which, u32 tag, bool) const {
        float mine = 0;
#pragma unroll
        for (int e = 0; e < 8; e++) mine += x[e] * x[e];
        mine += __shfl_xor_sync(~0u, mine, 8);
        mine += __shfl_xor_sync(~0u, mine, 16);
        const u32 first = lane >> 3;
        u8 *at = part(EXCHANGE_SQUARES) + (which * PERSISTENT_MOST_ROWS + of_step()) * 1024;
        const bool there = of_step() < a.n_rows;
        if (there && first == 0) store_relaxed_1(at + block * 4, tag_word(mine, tag));
        constexpr int N = PERSISTENT_MAX_BLOCKS / 16; // four words of every sixteen
        uint4 v[N];
        bool all;
        do {
            all = true;
#pragma unroll
            for (int i = 0; i < N; i++) {
                const u32 index = 16 * i + 4 * first;
                v[i] = make_uint4(tag, tag, tag, tag);
                if (there && index < n_blocks) {
                    v[i] = load_relaxed_4(at + index * 4);
                    if (index + 1 >= n_blocks) v[i].y = tag;
                    if (index + 2 >= n_blocks) v[i].z = tag;
                    if (index + 3 >= n_blocks) v[i].w = tag;
                    all = all && (((v[i].x ^ tag) | (v[i].y ^ tag) | (v[i].z ^ tag) | (v[i].w ^ tag)) & 15) == 0;
                }
            }
        } while (!__all_sync(~0u, all));
        float sum = 0;
#pragma unroll
        for (int i = 0; i < N; i++) sum += untag_word(v[i].x) + untag_word(v[i].y) + untag_word(v[i].z) + untag_word(v[i].w);
        sum += __shfl_xor_sync(~0u, sum, 8);
        sum += __shfl_xor_sync(~0u, sum, 16);
        return rsqrtf(sum * this->inverse_hidden + a.eps);
    }

    // Merges the partial attentions of the block's KV head and publishes every n_splits-th chunk:
    // two lanes a chunk, eight partials of it at a time.
    INLINE void merge(u32 tag) {
        if (!this->has_head() || this->alone) return;
        constexpr u32 STRIDE = Block::PARTIAL_BYTES, CHUNKS = H * D / 8, N = 8;
        const u32 n_splits = this->n_splits(), n_partials = this->n_partials(), half = lane & 1;
        const u8 *from = part(EXCHANGE_PARTIALS) + (u64)(block - this->split) * STRIDE;
        for (u32 first = this->split; first < CHUNKS; first += 16 * n_splits) {
            const u32 c = first + (lane >> 1) * n_splits;
            float high = -1e30f, total = 0, f[4] = {0, 0, 0, 0};
            for (u32 i0 = 0; i0 < n_partials; i0 += N) {
                uint4 v[N];
                uint2 ml[N];
                bool all;
                do {
                    all = true;
#pragma unroll
                    for (int i = 0; i < N; i++) {
                        if (i0 + i >= n_partials || c >= CHUNKS) continue;
                        const u8 *partial = from + (i0 + i) * STRIDE;
                        v[i] = load_relaxed_4(partial + c * 32 + half * 16);
                        ml[i] = load_relaxed_2(partial + (H * D + 2 * (c * 8 / D)) * 4);
                    }
#pragma unroll
                    for (int i = 0; i < N; i++) {
                        if (i0 + i >= n_partials || c >= CHUNKS) continue;
                        all = all && (((v[i].x ^ tag) | (v[i].y ^ tag) | (v[i].z ^ tag) | (v[i].w ^ tag) | (ml[i].x ^ tag) | (ml[i].y ^ tag)) & 15) == 0;
                    }
                } while (!__all_sync(~0u, all));
                const float before = high;
#pragma unroll
                for (int i = 0; i < N; i++)
                    if (i0 + i < n_partials && c < CHUNKS) high = fmaxf(high, untag_word(ml[i].x));
                const float factor = exp2_fast(before - high);
                total *= factor, f[0] *= factor, f[1] *= factor, f[2] *= factor, f[3] *= factor;
#pragma unroll
                for (int i = 0; i < N; i++) {
                    if (i0 + i >= n_partials || c >= CHUNKS) continue;
                    const float by = exp2_fast(untag_word(ml[i].x) - high);
                    total += by * untag_word(ml[i].y);
                    f[0] += by * untag_word(v[i].x), f[1] += by * untag_word(v[i].y);
                    f[2] += by * untag_word(v[i].z), f[3] += by * untag_word(v[i].w);
                }
            }
            const float inverse = reciprocal_fast(total);
#pragma unroll
            for (int e = 0; e < 4; e++) f[e] *= inverse;
            const uint2 words = make_half_of_fine_chunk(f, tag);
            if (c < CHUNKS) store_relaxed_2(this->chunk(EXCHANGE_ATTENDED, kv_head * CHUNKS + c, this->row) + 8 * half, words);
        }
    }

    // Publishes the scores of the block's experts and stores the scales of the rows' norms. Then
    // warps 0..7 choose.
    template <class P> INLINE float route(const P &p, u32 tag) {
        wait_partials(pass_parity);
        for (u32 expert = lane >> 3; expert < p.own_groups; expert += 4) {
            float score = 0;
#pragma unroll
            for (int w = 0; w < 8; w++) score += s.partial[pass_parity][w][expert * PERSISTENT_MOST_ROWS + of_step()];
            u8 *to = part(EXCHANGE_SCORES) + (of_step() * PERSISTENT_MAX_EXPERTS + p.own_first + expert) * 4;
            if (of_step() < a.n_rows) store_relaxed_1(to, tag_word(score, tag));
        }
        pass_parity ^= 1;
        const float scale = input_scale();
        if (lane < PERSISTENT_MOST_ROWS) choice_of(*this).scale[lane] = scale;
        __syncwarp();
        arrive_row_scales();
        wait_row_choice();
        return scale;
    }
    // Publishes the gated network of a bundle of 16 rows a pass. Each row that has chosen its
    // expert gets it times the expert's weight. A lane has 8 rows of the bundle; half of the lanes
    // have none.
    template <class P> INLINE void experts(const P &p, float scale, u32 tag) {
        const PersistentRowsChoice &choice = choice_of(*this);
        const u32 of_expert = p.groups / a.n_used, chunks = (a.expert_ffn + 127) / 128 * 16, pair = lane >> 3;
        const u32 first = first_group(choice.n * of_expert, block), n_passes = first_group(choice.n * of_expert, block + 1) - first;
        for (int pass = 0; pass < (int)max(n_passes, 1u); pass++) {
            const u32 bundle = first + pass, expert = n_passes > 0 ? bundle / of_expert : 0, row = (bundle - expert * of_expert) * 16 + pair * 8;
            const u32 place = n_passes > 0 && of_step() < a.n_rows ? choice.place[expert][of_step()] : NOT_CHOSEN;
            const bool there = place != NOT_CHOSEN && pair < PERSISTENT_BUNDLE / 2 && row < a.expert_ffn;
            float of_gate[8] = {}, of_up[8] = {}; // biases, loaded while other warps multiply
            if constexpr (PERSISTENT_HAS_RARE) {
                if (p.bias && there) {
                    const u64 at = (u64)choice.experts[expert] * a.expert_ffn + row;
#pragma unroll
                    for (int e = 0; e < 8; e++) of_gate[e] = p.bias[at + e], of_up[e] = up_bias(p)[at + e];
                }
            }
            wait_partials(pass_parity);
            if (there) {
                float g[8], v[8];
                sums(g, 2 * pair), sums(v, 2 * pair + 1);
                const float weight = choice.weight[of_step()][place];
#pragma unroll
                for (int e = 0; e < 8; e++) g[e] = fmaf(g[e], scale, of_gate[e]), v[e] = fmaf(v[e], scale, of_up[e]);
                if (PERSISTENT_HAS_RARE && a.expert_limit > 0) {
#pragma unroll
                    for (int e = 0; e < 8; e++) v[e] = clamped_gate(a, g[e], v[e]);
                } else {
#pragma unroll
                    for (int e = 0; e < 8; e++) v[e] *= activate(p.activation, g[e]);
                }
#pragma unroll
                for (int e = 0; e < 8; e++) v[e] *= weight;
                store_relaxed_4(this->chunk(EXCHANGE_GATED, place * chunks + row / 8, of_step()), make_fine_chunk(v, 0.0f, tag));
            }
            __syncwarp();
            if (pass + 2 < n_passes) arrive_partials_read(pass_parity);
            pass_parity ^= 1;
        }
    }

    // A pass of GATE of n groups, from g0 on.
    template <class P> INLINE void gate_pass(const P &p, u32 g0, u32 n, float scale, u32 tag, bool real) const {
        const u32 own = lane >> 3;
        if (2 * own < n) {
            float g[8], v[8];
            sums(g, 2 * own), sums(v, 2 * own + 1);
            if (p.activation == ACTIVATION_SILU) {
#pragma unroll
                for (int e = 0; e < 8; e++) v[e] *= scale * activate(ACTIVATION_SILU, g[e] * scale);
            } else {
#pragma unroll
                for (int e = 0; e < 8; e++) v[e] *= scale * activate(p.activation, g[e] * scale);
            }
            const uint4 chunk = make_fine_chunk(v, 0.0f, tag);
            if (real && is_row) store_relaxed_4(this->chunk(EXCHANGE_GATED, g0 / 2 + own, of_step()), chunk);
        }
    }
    // A pass of QKV or HEAD of n groups, from g0 on.
    template <class P> INLINE void row_pass(const P &p, u32 g0, u32 n, float scale, u32 tag, bool real, float &best, u32 &best_row) const {
        const u32 own = lane >> 3;
        for (u32 group = own; group < n; group += 4) {
            float v[8];
            sums(v, group);
            const u32 row = (g0 + group) * 8;
            if (p.kind == PERSISTENT_QKV) {
                u32 w[8];
#pragma unroll
                for (int e = 0; e < 8; e++) w[e] = tag_word(fmaf(v[e], scale, p.bias ? p.bias[row + e] : 0.0f), tag);
                u8 *to = part(EXCHANGE_QKV) + (u64)(of_step() * this->qkv_rows() + p.first_row + row) * 4;
                if (real && is_row) store_relaxed_4(to, make_uint4(w[0], w[1], w[2], w[3])), store_relaxed_4(to + 16, make_uint4(w[4], w[5], w[6], w[7]));
            } else if (real && is_row) {
#pragma unroll
                for (int e = 0; e < 8; e++) {
                    if (row + e >= a.n_vocab) break;
                    const float logit = v[e] * scale;
                    a.logits[(u64)of_step() * a.n_vocab + row + e] = logit;
                    if (logit > best) best = logit, best_row = row + e;
                }
            }
        }
    }
    // The end of the head: the best tokens of the rows.
    INLINE void end_head(const float (&residual)[8], float best, u32 best_row) {
        if (a.trace && has_own && is_row)
            for (int e = 0; e < 8; e++) a.trace[(u64)of_step() * a.hidden + x0 * 8 + e] = residual[e];
        const u64 key = Block::template largest<8>(Block::order_of(best, best_row));
        if (lane < a.n_rows) this->give_best(key, lane);
        if (block < a.n_rows) this->choose(block);
    }
    // A launch has one step.
    INLINE bool next_residual(float (&)[8], u32 &) const { return false; }
};
template <int D, int H, bool MIXTURE> using PersistentRowsEpilogue = PersistentPhases<PersistentRowsLanes<D, H, MIXTURE>, MIXTURE>;

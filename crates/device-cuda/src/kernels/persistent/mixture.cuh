// A layer's mixture of experts for one row: products of warps 0..7. Warp 9 chooses the experts and
// streams their weights (stream.cuh).
//
// A mixture has three phases: scores of all experts, gate and up of the chosen ones, down of the
// chosen ones. Scores are products in f32, from words that are published beside the chunks. Each
// block chooses for itself, from all scores and in the same order, so the choice needs no
// hand-over. Warp 9 streams its own choice. No other warp needs the experts' numbers, and only warp
// 8 needs their weights.
#pragma once
#include "persistent/products.cuh"

// The choice, in shared memory after the phases.
struct PersistentChoice {
    float weight[PERSISTENT_MAX_USED];
    u32 id[PERSISTENT_MAX_USED];
    float scale; // scale of the norm before the experts
    u32 padding[3];
};
static_assert(sizeof(PersistentChoice) == PERSISTENT_CHOICE, "the host asks for as many bytes");
template <int D, int H> INLINE PersistentChoice &choice_of(const PersistentBlock<D, H> &block) {
    return *(PersistentChoice *)(block.phases + block.a.n_phases);
}
// A number's bits in ascending order, above 0. Both zeros are equal, and NaN is the smallest.
INLINE u32 order_of_score(float x) {
    const u32 bits = __float_as_uint((x == x ? x : -__int_as_float(0x7f800000)) + 0.0f);
    return (bits & 0x80000000u) ? ~bits : bits | 0x80000000u;
}
// Chooses the best of T * 128 experts and computes their weights, like route.cu. Lane l has experts
// 4 l .. 4 l + 3 of each 128. scale_of returns the scale of the norm before them. It may wait, so
// biases and factors are loaded first.
template <int T, class A, class P, class Scale> INLINE void choose_experts(const A &a, const P &p, const u8 *scores, u32 tag, int lane, Scale scale_of, u32 *ids, float *weights) {
    constexpr int M = 4 * T;
    const u32 n = a.n_experts;
    auto index = [&](int i) { return 128u * (i / 4) + 4 * lane + i % 4; };
    float x[M], weigh[M], add[M], factor[M];
#pragma unroll
    for (int i = 0; i < M; i++) {
        const bool inside = index(i) < n;
        weigh[i] = p.bias && inside ? p.bias[index(i)] : 0.0f;
        add[i] = choice_bias(p) && inside ? choice_bias(p)[index(i)] : 0.0f;
        factor[i] = expert_factors(p) && inside ? expert_factors(p)[index(i)] : 1.0f;
    }
    const float scale = scale_of();
    u32 v[M];
    bool all;
    do {
        all = true;
#pragma unroll
        for (int t = 0; t < T; t++) {
            const uint4 w = load_relaxed_4(scores + (128 * t + 4 * lane) * 4);
            v[4 * t] = w.x, v[4 * t + 1] = w.y, v[4 * t + 2] = w.z, v[4 * t + 3] = w.w;
        }
#pragma unroll
        for (int i = 0; i < M; i++) all = all && (index(i) >= n || ((v[i] ^ tag) & 15) == 0);
    } while (!__all_sync(~0u, all));
    const float infinity = __int_as_float(0x7f800000);
    float high = -infinity, sum = 0;
#pragma unroll
    for (int i = 0; i < M; i++) {
        x[i] = index(i) < n ? untag_word(v[i]) * scale + weigh[i] : -infinity;
        high = fmaxf(high, x[i]);
    }
#pragma unroll
    for (int m = 1; m < 32; m *= 2) high = fmaxf(high, __shfl_xor_sync(~0u, high, m));
    float score[M];
    u32 key[M];
    if (a.expert_sigmoid) {
#pragma unroll
        for (int i = 0; i < M; i++) score[i] = 1.0f / (1.0f + expf(-x[i]));
    } else {
#pragma unroll
        for (int i = 0; i < M; i++) score[i] = expf(x[i] - high), sum += index(i) < n ? score[i] : 0.0f;
        const float by = 1.0f / sum_of_32(sum);
#pragma unroll
        for (int i = 0; i < M; i++) score[i] *= by;
    }
#pragma unroll
    for (int i = 0; i < M; i++) key[i] = index(i) < n ? order_of_score(choice_bias(p) ? score[i] + add[i] : x[i]) : 0;
    u32 mine = 0;
    float own = 0, own_factor = 1, chosen = 0;
    for (u32 j = 0; j < a.n_used; j++) {
        u32 best = key[0];
#pragma unroll
        for (int i = 1; i < M; i++) best = max(best, key[i]);
        const u32 most = __reduce_max_sync(~0u, best);
        u32 at = ~0u;
#pragma unroll
        for (int i = M - 1; i >= 0; i--)
            if (key[i] == most) at = index(i);
        const u32 id = __reduce_min_sync(~0u, at);
        float its = 0, its_factor = 1;
#pragma unroll
        for (int i = 0; i < M; i++)
            if (index(i) == id) key[i] = 0, its = score[i], its_factor = factor[i];
        its = __shfl_sync(~0u, its, id / 4 & 31), its_factor = __shfl_sync(~0u, its_factor, id / 4 & 31);
        if (lane == j) mine = id, own = its, own_factor = its_factor;
        chosen += its;
    }
    if (lane < a.n_used) {
        const float by = a.expert_normalise ? a.expert_factor / fmaxf(chosen, 1.17549435e-38f) : a.expert_factor;
        ids[lane] = mine, weights[lane] = own * by * own_factor;
    }
}

// Adds the biases of a row's experts, (n_experts, hidden), times the experts' weights to `sum`.
// `columns` loads this lane's values of one expert.
template <int N, class A, class Columns>
INLINE void add_expert_biases(float (&sum)[N], const A &a, const float *biases, const u32 *ids, const float *weights, Columns columns) {
    for (u32 j = 0; j < a.n_used; j++) {
        float of_expert[N];
        columns(biases + (u64)ids[j] * a.hidden, of_expert);
        const float weight = weights[j];
#pragma unroll
        for (int e = 0; e < N; e++) sum[e] += weight * of_expert[e];
    }
}
// A clamped gate (`GateClamped` in op.rs).
template <class A> INLINE float clamped_gate(const A &a, float gate, float up) {
    const float g = fminf(gate, a.expert_limit), u = fmaxf(fminf(up, a.expert_limit), -a.expert_limit);
    return g * reciprocal_fast(1.0f + exp2_fast(-1.4426950408889634f * a.expert_alpha * g)) * (u + 1.0f);
}

#define MOST_WIDE_QUADS (PERSISTENT_MAX_WIDE / 1024)

template <int D, int H> struct PersistentExperts : PersistentProducts<D, H> {
    typedef PersistentProducts<D, H> Products;
    INLINE explicit PersistentExperts(const PersistentBlock<D, H> &block) : Products(block) {}
    using Products::a;
    using Products::free_slot;
    using Products::full;
    using Products::lane;
    using Products::parity;
    using Products::part;
    using Products::pass_parity;
    using Products::ring;
    using Products::s;
    using Products::slot;
    using Products::wait_published;
    using Products::warp;

    // Computes scores of the block's experts, then stores the input of gate and up in shared
    // memory.
    template <class P> INLINE void route(const P &p, u32 tag) {
        wait_published(p.input);
        uint4 x[MOST_WIDE_QUADS];
        bool all;
        do {
            all = true;
#pragma unroll
            for (int quad = 0; quad < MOST_WIDE_QUADS; quad++) {
                if (quad >= p.k_quads) break;
                const u32 column = (warp * p.k_quads + quad) * 128 + lane * 4;
                x[quad] = make_uint4(tag, tag, tag, tag);
                if (column < a.hidden) x[quad] = load_relaxed_4(part(EXCHANGE_WIDE) + (u64)column * 4);
            }
#pragma unroll
            for (int quad = 0; quad < MOST_WIDE_QUADS; quad++) {
                if (quad >= p.k_quads) break;
                all = all && (((x[quad].x ^ tag) | (x[quad].y ^ tag) | (x[quad].z ^ tag) | (x[quad].w ^ tag)) & 15) == 0;
            }
        } while (!__all_sync(~0u, all));
        const u32 steps_a_slot = a.slot_bytes / PERSISTENT_ROUTER_STEP;
        for (u32 expert = 0; expert < p.own_groups; expert++) {
            float sum = 0;
            u32 within = 0;
#pragma unroll
            for (int quad = 0; quad < MOST_WIDE_QUADS; quad++) {
                if (quad >= p.k_quads) break;
                if (within == 0) mbarrier_wait(full + 8 * slot, parity);
                const float4 w = ((const float4 *)(ring + slot * a.slot_bytes + within * PERSISTENT_ROUTER_STEP + warp * 512))[lane];
                sum += w.x * untag_word(x[quad].x) + w.y * untag_word(x[quad].y) + w.z * untag_word(x[quad].z) + w.w * untag_word(x[quad].w);
                if (++within == steps_a_slot || quad + 1 == p.k_quads) within = 0, free_slot();
            }
            sum = sum_of_32(sum);
            if (lane == 0) s.partial[pass_parity][warp][expert] = sum;
        }
        arrive_partials(pass_parity);
        pass_parity ^= 1;
        this->poll_input(part(p.input), p.chunks, p.k_quads, tag);
        arrive_input();
    }
    template <int CODEC, class P> INLINE void multiply_bundles(const P &p) {
        const u32 steps_a_slot = whole_steps<false>(a.slot_bytes, CODEC, p.warps);
        for (u32 i = 0; i < p.own_groups || i == 0; i++) {
            // The epilogue has read the sums that this pass overwrites.
            if (i >= 2) wait_partials_read(pass_parity);
            u32 within = 0, left = PERSISTENT_BUNDLE * p.k_quads;
            if (i < p.own_groups) this->template multiply_some<CODEC, PERSISTENT_BUNDLE>(p, PERSISTENT_BUNDLE, steps_a_slot, within, left);
            arrive_partials(pass_parity);
            pass_parity ^= 1;
        }
    }
    // Multiplies gate and up of the chosen experts, whose input arrived before the scores.
    template <class P> INLINE void gate(const P &p) {
        with_codec(p, [&](auto codec) { multiply_bundles<decltype(codec)::value>(p); });
    }
    template <int CODEC, class P> INLINE void multiply_down(const P &p) {
        const u32 units = (a.expert_ffn + 127) / 128, each = a.slot_bytes / (units * Unit<CODEC>::BYTES);
        const InputBlock *blocks = s.input + warp * 4 * p.k_quads + (lane >> 3);
        float sum[PERSISTENT_PASS];
#pragma unroll
        for (int i = 0; i < PERSISTENT_PASS; i++) sum[i] = 0;
        for (u32 expert = 0, before = 0; expert < a.n_used; expert++, before += units) {
            for (u32 group = 0; group < p.own_groups; group += each) {
                const u32 n = min(each, p.own_groups - group);
                mbarrier_wait(full + 8 * slot, parity);
                for (u32 unit = (warp - before) & 7; unit < units; unit += 8) {
                    const InputBlock &in = blocks[4 * ((before + unit) >> 3)];
                    uint4 c[4];
#pragma unroll
                    for (int k = 0; k < 4; k++) c[k] = in.chunk[k];
                    const float2 half_sum = *(const float2 *)in.half_sum;
                    const u8 *at = ring + slot * a.slot_bytes + unit * Unit<CODEC>::BYTES;
#pragma unroll
                    for (int i = 0; i < PERSISTENT_PASS; i++)
                        if (i - group < n) sum[i] += Unit<CODEC>::dot(at + (i - group) * units * Unit<CODEC>::BYTES, lane, c, half_sum);
                }
                free_slot();
            }
        }
        this->give(sum, p.own_groups);
        arrive_partials(pass_parity);
        pass_parity ^= 1;
    }
    template <class P> INLINE void down(const P &p, u32 tag) {
        wait_published(p.input);
        this->template poll_input<true>(part(p.input), 0, p.k_quads, tag);
        with_codec(p, [&](auto codec) { multiply_down<decltype(codec)::value>(p); });
    }
};

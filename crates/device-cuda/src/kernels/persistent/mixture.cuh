// A layer's mixture of experts: products of warps 0..7, and the choice of experts and the stream of their weights by warp 9.
//
// Three phases: scores of all experts, gate and up of the chosen, down of the chosen. Scores are products in f32, of words that come beside
// the chunks. Each block chooses for itself, from all scores and in the same order, so that the choice needs no hand-over of its own. What
// its warp 9 has chosen it streams; no other warp needs to know which experts they are, only warp 8 how much each counts.
#pragma once
#include "persistent/products.cuh"

// In shared memory, after the phases.
struct PersistentChoice {
    float weight[PERSISTENT_MAX_USED];
    u32 id[PERSISTENT_MAX_USED];
    float scale; // of the norm before the experts
    u32 padding[3];
};
static_assert(sizeof(PersistentChoice) == PERSISTENT_CHOICE, "the host asks for as many bytes");
template <int D, int H> INLINE PersistentChoice &choice_of(const PersistentBlock<D, H> &block) {
    return *(PersistentChoice *)(block.phases + block.a.n_phases);
}
// Warp 8 says that the norm's scale is there and the block's scores are out; warp 9 that the weights are there.
INLINE void scale_is_here() { barrier_arrive(10, 64); }
INLINE void wait_scale() { barrier(10, 64); }
INLINE void choice_is_here() { barrier_arrive(11, 64); }
INLINE void wait_choice() { barrier(11, 64); }

#define ROUTER_STEP 4096
#define BUNDLE 4 // groups
#define MOST_WIDE_QUADS (PERSISTENT_MAX_WIDE / 1024)

template <int D, int H> struct PersistentExperts : PersistentProducts<D, H> {
    typedef PersistentProducts<D, H> Products;
    INLINE explicit PersistentExperts(const PersistentBlock<D, H> &block) : Products(block) {}
    using Products::a;
    using Products::empty;
    using Products::full;
    using Products::lane;
    using Products::next_slot;
    using Products::parity;
    using Products::part;
    using Products::pass_parity;
    using Products::ring;
    using Products::s;
    using Products::slot;
    using Products::wait_published;
    using Products::warp;

    INLINE void free_slot() {
        __syncwarp();
        if (lane == 0) mbarrier_arrive(empty + 8 * slot);
        next_slot();
    }
    // Scores of the block's experts; then the input of gate and up into shared memory.
    INLINE void route(const PersistentPhase &p, u32 tag) {
        wait_published();
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
        const u32 steps_a_slot = a.slot_bytes / ROUTER_STEP;
        for (u32 expert = 0; expert < p.own_groups; expert++) {
            float sum = 0;
            u32 within = 0;
#pragma unroll
            for (int quad = 0; quad < MOST_WIDE_QUADS; quad++) {
                if (quad >= p.k_quads) break;
                if (within == 0) mbarrier_wait(full + 8 * slot, parity);
                const float4 w = ((const float4 *)(ring + slot * a.slot_bytes + within * ROUTER_STEP + warp * 512))[lane];
                sum += w.x * untag_word(x[quad].x) + w.y * untag_word(x[quad].y) + w.z * untag_word(x[quad].z) + w.w * untag_word(x[quad].w);
                if (++within == steps_a_slot || quad + 1 == p.k_quads) within = 0, free_slot();
            }
            sum = sum_of_32(sum);
            if (lane == 0) s.partial[pass_parity][warp][expert] = sum;
        }
        barrier_arrive(2 + pass_parity, 288);
        pass_parity ^= 1;
        this->poll_input(part(p.input), p.chunks, p.k_quads, tag);
        this->input_is_here();
    }
    template <int CODEC> INLINE void multiply_bundles(const PersistentPhase &p) {
        const u32 steps_a_slot = a.slot_bytes / (8 * Unit<CODEC>::BYTES);
        for (u32 i = 0; i < p.own_groups || i == 0; i++) {
            if (i >= 2) barrier(8 + pass_parity, 288); // the epilogue has read what this overwrites
            u32 within = 0, left = BUNDLE * p.k_quads;
            if (i < p.own_groups) this->template multiply_pass<CODEC>(BUNDLE, p.k_quads, steps_a_slot, within, left);
            barrier_arrive(2 + pass_parity, 288);
            pass_parity ^= 1;
        }
    }
    // Gate and up of the chosen, whose input is here since the scores.
    INLINE void gate(const PersistentPhase &p) {
        if (p.codec == PERSISTENT_CODEC_Q4) multiply_bundles<PERSISTENT_CODEC_Q4>(p);
        else if (p.codec == PERSISTENT_CODEC_Q4M) multiply_bundles<PERSISTENT_CODEC_Q4M>(p);
        else if (p.codec == PERSISTENT_CODEC_Q8) multiply_bundles<PERSISTENT_CODEC_Q8>(p);
        else multiply_bundles<PERSISTENT_CODEC_Q6>(p);
    }
    template <int CODEC> INLINE void multiply_down(const PersistentPhase &p) {
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
        barrier_arrive(2 + pass_parity, 288);
        pass_parity ^= 1;
    }
    INLINE void down(const PersistentPhase &p, u32 tag) {
        wait_published();
        this->template poll_input<true>(part(p.input), 0, p.k_quads, tag);
        if (p.codec == PERSISTENT_CODEC_Q4) multiply_down<PERSISTENT_CODEC_Q4>(p);
        else if (p.codec == PERSISTENT_CODEC_Q4M) multiply_down<PERSISTENT_CODEC_Q4M>(p);
        else if (p.codec == PERSISTENT_CODEC_Q8) multiply_down<PERSISTENT_CODEC_Q8>(p);
        else multiply_down<PERSISTENT_CODEC_Q6>(p);
    }
};

template <int D, int H> struct PersistentExpertStream : PersistentBlock<D, H> {
    typedef PersistentBlock<D, H> Block;
    INLINE explicit PersistentExpertStream(const PersistentBlock<D, H> &block) : Block(block) {}
    using Block::a;
    using Block::empty;
    using Block::full;
    using Block::lane;
    using Block::next_slot;
    using Block::parity;
    using Block::part;
    using Block::ring;
    using Block::slot;

    // Bits of a number in the order of numbers, above 0; both zeros are one, and NaN is the smallest.
    static INLINE u32 order_of(float x) {
        const u32 bits = __float_as_uint((x == x ? x : -__int_as_float(0x7f800000)) + 0.0f);
        return (bits & 0x80000000u) ? ~bits : bits | 0x80000000u;
    }
    // The best of the scores as route.cu has them; lane l has experts 4 l .. 4 l + 3 of each 128.
    template <int T> INLINE void choose(const PersistentPhase &p, u32 tag) {
        constexpr int M = 4 * T;
        const u32 n = a.n_experts;
        auto index = [&](int i) { return 128u * (i / 4) + 4 * lane + i % 4; };
        float x[M], weigh[M], add[M], factor[M];
#pragma unroll
        for (int i = 0; i < M; i++) {
            const bool inside = index(i) < n;
            weigh[i] = p.bias && inside ? p.bias[index(i)] : 0.0f;
            add[i] = p.q_norm && inside ? p.q_norm[index(i)] : 0.0f;
            factor[i] = p.k_norm && inside ? p.k_norm[index(i)] : 1.0f;
        }
        PersistentChoice &choice = choice_of(*this);
        wait_scale();
        u32 v[M];
        bool all;
        do {
            all = true;
#pragma unroll
            for (int t = 0; t < T; t++) {
                const uint4 w = load_relaxed_4(part(EXCHANGE_SCORES) + (128 * t + 4 * lane) * 4);
                v[4 * t] = w.x, v[4 * t + 1] = w.y, v[4 * t + 2] = w.z, v[4 * t + 3] = w.w;
            }
#pragma unroll
            for (int i = 0; i < M; i++) all = all && (index(i) >= n || ((v[i] ^ tag) & 15) == 0);
        } while (!__all_sync(~0u, all));
        const float infinity = __int_as_float(0x7f800000), scale = choice.scale;
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
        for (int i = 0; i < M; i++) key[i] = index(i) < n ? order_of(p.q_norm ? score[i] + add[i] : x[i]) : 0;
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
            choice.id[lane] = mine, choice.weight[lane] = own * by * own_factor;
        }
        __syncwarp();
        choice_is_here();
    }

    // Weights into the ring, in the order of use: those of experts when they are chosen. All lanes go along; one copies.
    INLINE void stream() {
        const u64 policy = evict_first_policy();
        u32 n = 0, epoch = 0;
        auto send = [&](const u8 *from, u32 left, u32 each) {
            while (left > 0) {
                const u32 bytes = min(left, each);
                if (lane == 0) {
                    if (n >= a.n_slots) mbarrier_wait(empty + 8 * slot, parity ^ 1);
                    mbarrier_expect(full + 8 * slot, bytes);
                    bulk_copy(shared_address(ring + slot * a.slot_bytes), from, bytes, full + 8 * slot, policy);
                }
                n++;
                next_slot();
                from += bytes, left -= bytes;
            }
            __syncwarp();
        };
        for (u32 i = 0; i < a.n_phases; i++) {
            if (i >= a.stop_phase) return;
            const PersistentPhase p = this->phase(i);
            const u32 unit = unit_bytes(p.codec), step = 8 * unit;
            if (p.kind == PERSISTENT_QKV) epoch++;
            if (p.kind == PERSISTENT_ROUTE) {
                for (u32 e = 0; e < p.own_groups; e++)
                    send(p.weights + (u64)(p.own_first + e) * p.k_quads * ROUTER_STEP, p.k_quads * ROUTER_STEP, a.slot_bytes / ROUTER_STEP * ROUTER_STEP);
                if (i + 1 >= a.stop_phase) return;
                if (a.n_experts <= 128) choose<1>(p, tag_of(epoch));
                else choose<2>(p, tag_of(epoch));
            } else if (p.kind == PERSISTENT_EXPERTS) {
                const u32 of_expert = p.groups / a.n_used, bytes = BUNDLE * p.k_quads * step;
                for (u32 b = p.own_first; b < p.own_first + p.own_groups; b++) {
                    const u32 j = b / of_expert;
                    send(p.weights + ((u64)choice_of(*this).id[j] * of_expert + (b - j * of_expert)) * bytes, bytes, a.slot_bytes / step * step);
                }
            } else if (p.kind == PERSISTENT_ADD_EXPERTS) {
                const u32 bytes = (a.expert_ffn + 127) / 128 * unit; // of a group
                for (u32 j = 0; j < a.n_used; j++)
                    send(p.weights + ((u64)choice_of(*this).id[j] * p.groups + p.own_first) * bytes, p.own_groups * bytes, a.slot_bytes / bytes * bytes);
            } else {
                send(p.weights + (u64)p.own_first * p.k_quads * step, p.own_groups * p.k_quads * step, a.slot_bytes / step * step);
            }
        }
    }
};

// Warps 0..7: products of one row. Each warp multiplies its own slice of K; warp 8 adds the eight
// sums.
#pragma once
#include "persistent/block.cuh"

#define PRELOADED 8 // most units that a warp keeps in registers

template <int D, int H> struct PersistentProducts : PersistentBlock<D, H> {
    typedef PersistentBlock<D, H> Block;
    INLINE explicit PersistentProducts(const Block &block) : Block(block) {}
    using Block::a;
    using Block::free_slot;
    using Block::full;
    using Block::lane;
    using Block::parity;
    using Block::pass_parity;
    using Block::ring;
    using Block::s;
    using Block::slot;
    using Block::wait_published;
    using Block::warp;

    // Polls for this warp's slice of the input, chunks with the tag, and stores it in shared
    // memory. With EXPERTS, K is the units of 128 columns of all chosen experts, and every eighth
    // unit is this warp's.
    template <bool EXPERTS = false> INLINE void poll_input(const u8 *from, u32 chunks, u32 k_quads, u32 tag) {
        const u32 n = 16 * k_quads, first = warp * n;
        InputBlock *blocks = s.input + warp * 4 * k_quads;
        for (u32 t0 = 0; t0 < n; t0 += 128) {
            uint4 v[4];
            bool have[4];
            u32 at[4]; // only with EXPERTS
            const u32 n_t = (min(n - t0, 128u) + 31) / 32; // loads of a lane
#pragma unroll
            for (int t = 0; t < 4; t++) {
                const u32 i = t0 + 32 * t + lane;
                have[t] = i >= n || first + i >= chunks;
                if constexpr (EXPERTS) {
                    const u32 units = (a.expert_ffn + 127) / 128, unit = (i >> 4) * 8 + warp, expert = unit / units;
                    have[t] = i >= n || expert >= a.n_used || ((unit - expert * units) * 16 + (i & 15)) * 8 >= a.expert_ffn;
                    at[t] = unit * 16 + (i & 15);
                }
                v[t] = make_uint4(0, 0, 0, 0);
            }
            bool all;
            do {
                all = true;
#pragma unroll
                for (int t = 0; t < 4; t++)
                    if (t < n_t && !have[t]) v[t] = load_relaxed_4(from + (u64)(EXPERTS ? at[t] : first + t0 + 32 * t + lane) * 16);
#pragma unroll
                for (int t = 0; t < 4; t++) {
                    if (t >= n_t) break;
                    have[t] = have[t] || chunk_is(v[t], tag);
                    all = all && have[t];
                }
            } while (!__all_sync(~0u, all));
#pragma unroll
            for (int t = 0; t < 4; t++) {
                if (t >= n_t) break;
                const u32 i = t0 + 32 * t + lane;
                const bool inside = i < n;
                const uint4 w = v[t];
                uint4 c;
                c.x = __byte_perm(w.x, w.y, 0x4210), c.y = __byte_perm(w.y, w.z, 0x5421), c.z = (w.z << 3) & 0x7FF80000u, c.w = w.w << 4;
                const int sum = __dp4a((int)c.x, 0x01010101, __dp4a((int)c.y, 0x01010101, 0));
                float half = (float)sum * __uint_as_float(c.z);
                half += __shfl_xor_sync(~0u, half, 1);
                if (inside) {
                    blocks[i >> 2].chunk[i & 3] = c;
                    if ((i & 1) == 0) blocks[i >> 2].half_sum[(i & 3) >> 1] = half;
                }
            }
        }
        __syncwarp();
    }

    template <class P> INLINE void receive(const P &p, const u8 *from, u32 tag) {
        poll_input(from, p.chunks, p.k_quads, tag);
        if (p.kind != PERSISTENT_ADD) arrive_input();
    }

    // This warp has read a step of a slot that holds `steps_a_slot` of them.
    INLINE void pass_step(u32 steps_a_slot, u32 &within, u32 &left) {
        within++, left--;
        if (within == steps_a_slot || left == 0) {
            within = 0;
            free_slot();
        }
    }
    // Multiplies a pass of `n` groups. Weights are read from the ring as they arrive.
    template <int CODEC> INLINE void multiply_pass(u32 n, u32 k_quads, u32 warps, u32 steps_a_slot, u32 &within, u32 &left) {
        float sum[PERSISTENT_PASS];
#pragma unroll
        for (int i = 0; i < PERSISTENT_PASS; i++) sum[i] = 0;
        if (warp >= warps) { // this warp has no columns
            for (u32 step = n * k_quads; step > 0; step--) {
                if (within == 0) mbarrier_wait(full + 8 * slot, parity);
                pass_step(steps_a_slot, within, left);
            }
            k_quads = 0;
        }
        const InputBlock *blocks = s.input + warp * 4 * k_quads + (lane >> 3);
        const u8 *at = nullptr;
        for (u32 quad = 0; quad < k_quads; quad++) {
            const InputBlock &block_in = blocks[4 * quad];
            uint4 c[4];
#pragma unroll
            for (int k = 0; k < 4; k++) c[k] = block_in.chunk[k];
            const float2 half_sum = *(const float2 *)block_in.half_sum;
#pragma unroll
            for (int i = 0; i < PERSISTENT_PASS; i++) {
                if (i < n) {
                    if (within == 0) mbarrier_wait(full + 8 * slot, parity);
                    at = ring + slot * a.slot_bytes + within * step_bytes<false>(CODEC, warps) + warp * Unit<CODEC>::BYTES;
                    sum[i] += Unit<CODEC>::dot(at, lane, c, half_sum);
                    pass_step(steps_a_slot, within, left);
                }
            }
        }
        give(sum, n);
    }
    // Quads after which units of n groups begin a slot again, or 0 if the unrolled code would be
    // too long.
    static constexpr u32 span_of(u32 n, u32 steps, u32 quads) {
        return n % steps == 0 ? 1 : 2 * n % steps == 0 && quads % 2 == 0 ? 2 : n * quads <= 32 ? quads : 0;
    }
    // Multiplies a pass of N groups by QUADS quads. The compiler knows both, and so the place of a
    // unit in its slot. The first unit begins a slot.
    template <int CODEC, u32 N, u32 QUADS, u32 WARPS, u32 STEPS, u32 SPAN> INLINE void multiply_fixed() {
        float sum[PERSISTENT_PASS];
#pragma unroll
        for (int i = 0; i < PERSISTENT_PASS; i++) sum[i] = 0;
        const InputBlock *blocks = s.input + warp * 4 * QUADS + (lane >> 3);
        u32 quad = 0;
        if (WARPS < 8 && warp >= WARPS) { // this warp has no columns
            for (u32 i = QUADS / SPAN * ((N * SPAN + STEPS - 1) / STEPS); i > 0; i--) {
                mbarrier_wait(full + 8 * slot, parity);
                free_slot();
            }
            quad = QUADS;
        }
        for (; quad < QUADS; quad += SPAN) {
            uint4 c[4];
            float2 half_sum = {};
            const u8 *at = nullptr;
#pragma unroll
            for (u32 j = 0; j < N * SPAN; j++) {
                if (j % N == 0) {
                    const InputBlock &in = blocks[4 * (quad + j / N)];
#pragma unroll
                    for (int k = 0; k < 4; k++) c[k] = in.chunk[k];
                    half_sum = *(const float2 *)in.half_sum;
                }
                if (j % STEPS == 0) {
                    mbarrier_wait(full + 8 * slot, parity);
                    at = ring + slot * a.slot_bytes + warp * Unit<CODEC>::BYTES;
                }
                sum[j % N] += Unit<CODEC>::dot(at + j % STEPS * step_bytes<false>(CODEC, WARPS), lane, c, half_sum);
                if (j % STEPS == STEPS - 1 || j + 1 == N * SPAN) free_slot();
            }
        }
        give(sum, N);
    }
    // Multiplies a pass of n groups. N is n if the compiler knows it, otherwise 0.
    template <int CODEC, u32 N, class P> INLINE void multiply_some(const P &p, u32 n, u32 steps_a_slot, u32 &within, u32 &left) {
        if constexpr (PERSISTENT_IS_FIXED && N > 0) {
            constexpr u32 STEPS = whole_steps<false>(PERSISTENT_SLOT, CODEC, P::WARPS), SPAN = span_of(N, STEPS, P::QUADS);
            if constexpr (SPAN > 0) {
                multiply_fixed<CODEC, N, P::QUADS, P::WARPS, STEPS, SPAN>();
                left -= N * P::QUADS;
                return;
            }
        }
        multiply_pass<CODEC>(n, p.k_quads, p.warps, steps_a_slot, within, left);
    }
    // Stores this warp's sums of `n` groups for the epilogue.
    INLINE void give(float (&sum)[PERSISTENT_PASS], u32 n) {
        float *out = s.partial[pass_parity][warp];
#pragma unroll
        for (int i = 0; i < PERSISTENT_PASS; i++) {
            if (i < n) {
                sum[i] += __shfl_xor_sync(~0u, sum[i], 8);
                sum[i] += __shfl_xor_sync(~0u, sum[i], 16);
                if ((lane >> 3) == (i & 3)) out[i * 8 + (lane & 7)] = sum[i];
            }
        }
    }
    template <int CODEC, class P> INLINE void multiply(const P &p, u32 n_groups) {
        const u32 steps_a_slot = whole_steps<false>(a.slot_bytes, CODEC, p.warps);
        u32 within = 0, left = n_groups * p.k_quads;
        // A block without rows makes one empty pass, so that its warps stay in step.
        for (u32 g0 = 0, pass = 0; g0 < n_groups || pass == 0; g0 += PERSISTENT_PASS, pass++) {
            // the epilogue has read the sums that this pass overwrites
            if (pass >= 2) wait_partials_read(pass_parity);
            const u32 n = min((u32)PERSISTENT_PASS, n_groups - g0);
            if constexpr (PERSISTENT_IS_FIXED) {
                if (n == PERSISTENT_PASS) multiply_some<CODEC, PERSISTENT_PASS>(p, n, steps_a_slot, within, left);
                else if (P::FEWEST == P::MOST || n == P::MOST) multiply_some<CODEC, P::MOST % PERSISTENT_PASS>(p, n, steps_a_slot, within, left);
                else if constexpr (P::FEWEST > 0) multiply_some<CODEC, P::FEWEST>(p, n, steps_a_slot, within, left);
            } else {
                multiply_pass<CODEC>(n, p.k_quads, p.warps, steps_a_slot, within, left);
            }
            arrive_partials(pass_parity);
            pass_parity ^= 1;
        }
    }
    // Loads the weights of a phase of few units into registers before the input arrives.
    typedef typename Unit<PERSISTENT_CODEC_Q4>::Held Held;
    INLINE void preload(Held (&held)[PRELOADED], u32 n_units, u32 warps) {
        const u32 steps_a_slot = whole_steps<false>(a.slot_bytes, PERSISTENT_CODEC_Q4, warps);
        const u32 unit = min(warp, warps - 1); // the input of a warp without columns is zeros
        u32 within = 0;
#pragma unroll
        for (int j = 0; j < PRELOADED; j++) {
            if (j >= n_units) break;
            if (within == 0) mbarrier_wait(full + 8 * slot, parity);
            held[j].load(ring + slot * a.slot_bytes + within * step_bytes<false>(PERSISTENT_CODEC_Q4, warps) + unit * Unit<PERSISTENT_CODEC_Q4>::BYTES, lane);
            if (++within == steps_a_slot || j + 1 == n_units) {
                within = 0;
                free_slot();
            }
        }
    }
    // Multiplies preloaded weights of N groups.
    template <int N> INLINE void multiply_preloaded(const Held (&held)[PRELOADED], u32 k_quads) {
        float sum[N];
#pragma unroll
        for (int i = 0; i < N; i++) sum[i] = 0;
        const InputBlock *blocks = s.input + warp * 4 * k_quads + (lane >> 3);
#pragma unroll
        for (int quad = 0; quad < PRELOADED / N; quad++) {
            if (quad >= k_quads) break;
            uint4 c[4];
#pragma unroll
            for (int k = 0; k < 4; k++) c[k] = blocks[4 * quad].chunk[k];
            const float2 half_sum = *(const float2 *)blocks[4 * quad].half_sum;
#pragma unroll
            for (int i = 0; i < N; i++) sum[i] += held[quad * N + i].dot(c, half_sum);
        }
        float *out = s.partial[pass_parity][warp];
#pragma unroll
        for (int i = 0; i < N; i++) {
            sum[i] += __shfl_xor_sync(~0u, sum[i], 8);
            sum[i] += __shfl_xor_sync(~0u, sum[i], 16);
            if ((lane >> 3) == (i & 3)) out[i * 8 + (lane & 7)] = sum[i];
        }
        arrive_partials(pass_parity);
        pass_parity ^= 1;
    }
    // Returns false for too many units, or for a number of groups without code. Loads and polls
    // have one copy of code for all numbers of groups, and only the products a switch: a layer
    // should touch as little code as possible (NOTES.md).
    template <class P> INLINE bool product_in_registers(const P &p, const u8 *from, u32 tag) {
        const u32 n_groups = p.own_groups, k_quads = p.k_quads;
        if (p.codec != PERSISTENT_CODEC_Q4 || n_groups * k_quads > PRELOADED || !(1u << n_groups & 0x15e)) return false;
        Held held[PRELOADED];
        preload(held, n_groups * k_quads, p.warps);
        wait_published(p.input);
        receive(p, from, tag);
        switch (n_groups) {
        case 1: multiply_preloaded<1>(held, k_quads); break;
        case 2: multiply_preloaded<2>(held, k_quads); break;
        case 3: multiply_preloaded<3>(held, k_quads); break;
        case 4: multiply_preloaded<4>(held, k_quads); break;
        case 6: multiply_preloaded<6>(held, k_quads); break;
        default: multiply_preloaded<8>(held, k_quads); break;
        }
        return true;
    }
    template <class P> INLINE void product(const P &p, const u8 *from, u32 tag) {
        if (!(p.qkv_part & PERSISTENT_CONTINUES)) {
            if (product_in_registers(p, from, tag)) return;
            wait_published(p.input);
            receive(p, from, tag);
        } else if (p.qkv_part & PERSISTENT_OF_THREE) {
            wait_partials_read(pass_parity); // the epilogue has read the first part's sums
        }
        with_codec(p, [&](auto codec) { multiply<decltype(codec)::value>(p, p.own_groups); });
    }
};

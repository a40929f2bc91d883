// persistent_decode_<D>_<H>: whole tokens of a dense decoder in one launch, one row. D: head_dim, H: query heads of a KV head.
//
// Host contract
//   parameter  PersistentArguments (persistent/arguments.h)
//   launch     cooperative, one block a multiprocessor (n_blocks = grid, at most 160), 320 threads
//   dynamic shared memory  n_slots * slot_bytes + the constant persistent_shared_<D>_<H> + 2,560 * the largest k_quads
//              + 112 * n_phases
//   exchange   zeros before every launch
//
// How it works. Warps 0..7 multiply, each its own slice of K; warp 8 adds the eight partial sums, runs the epilogue and publishes;
// one lane of warp 9 streams the weights through a ring of bulk copies, in the order of use, over phases, layers and tokens. Values go
// from block to block as words that carry their epoch (4 bits a word), so that seeing the tag is seeing the value and nothing else is
// inferred: no fence, no grid barrier. Readers poll in warp-uniform loops, and only after their own block has published. Vectors are
// quantised by the writer, 8 values a chunk. A phase with more than 8 groups of rows runs in passes of 8.
//
// A layer has 6 hand-overs: QKV input, q k v, partial attentions, attention, gate/up input, down input; 8 with post-norms.
// Order of accumulation: fixed (lanes, then warps, then splits in ascending order), so results do not change from run to run.
// Bytes a token: the weights once, keys and values once. Measured: bench/NOTES.md.
#pragma once
#include "gemm/epilogue.h"
#include "gemm/repack.h"
#include "persistent/arguments.h"

#define PERSISTENT_PASS 8          // groups
#define PRELOADED 8                // units that a warp keeps in registers, at most
#define PERSISTENT_MAX_SPLITS 16
#define PERSISTENT_MAX_ROWS 64     // of the residual a block has
// Parts of the exchange, in bytes.
#define EXCHANGE_INPUT 0           // chunks: input of QKV and head
#define EXCHANGE_MIDDLE 65536      // chunks: input of gate/up
#define EXCHANGE_GATED 131072      // chunks: input of down
#define EXCHANGE_ATTENDED 262144   // chunks: input of O
#define EXCHANGE_QKV 327680        // words
#define EXCHANGE_PARTIALS 458752   // words: (n_kv_heads, splits, H * D + 2 * H)
#define EXCHANGE_SQUARES 1507328   // words: (2, 256)
#define EXCHANGE_BEST 1511424      // 64-bit words
#define PERSISTENT_EXCHANGE 1515520

INLINE uint4 load_relaxed_4(const void *p) {
    uint4 v;
    asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p) : "memory");
    return v;
}
INLINE uint2 load_relaxed_2(const void *p) {
    uint2 v;
    asm volatile("ld.relaxed.gpu.global.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(p) : "memory");
    return v;
}
INLINE u32 load_relaxed_1(const void *p) {
    u32 v;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}
INLINE u64 load_relaxed_64(const void *p) {
    u64 v;
    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
    return v;
}
INLINE void store_relaxed_1(void *p, u32 v) { asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory"); }
INLINE void store_relaxed_64(void *p, u64 v) { asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory"); }
INLINE void store_relaxed_4(void *p, uint4 v) {
    asm volatile("st.relaxed.gpu.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}
INLINE u32 clock_now() {
    u32 c;
    asm volatile("mov.u32 %0, %%clock;" : "=r"(c)::"memory");
    return c;
}
INLINE void pause_cycles(u32 n) {
    if (n == 0) return;
    const u32 start = clock_now();
    while (clock_now() - start < n) {}
}

// Tags are 1..15: a word that was never written has tag 0 and matches none.
INLINE u32 tag_of(u32 epoch) { return 1 + epoch % 15; }
INLINE u32 tag_word(float v, u32 tag) { return (__float_as_uint(v) & ~15u) | tag; }
INLINE float untag_word(u32 v) { return __uint_as_float(v & ~15u); }
// 12 bits of scale: 8 of exponent, 4 of mantissa, rounded up so that no value exceeds 127.
INLINE u32 chunk_scale(float largest) { return (__float_as_uint(fmaxf(largest, 1e-20f) * (1.0f / 127.0f)) + 0x7FFFF) >> 19; }
INLINE int chunk_quant(float v, u32 scale) { return __float2int_rn(v * reciprocal_fast(__uint_as_float(scale << 19))); }
INLINE float max_of_8(float v) {
    v = fmaxf(v, __shfl_xor_sync(~0u, v, 1));
    v = fmaxf(v, __shfl_xor_sync(~0u, v, 2));
    return fmaxf(v, __shfl_xor_sync(~0u, v, 4));
}
INLINE float sum_of_8(float v) {
    v += __shfl_xor_sync(~0u, v, 1);
    v += __shfl_xor_sync(~0u, v, 2);
    return v + __shfl_xor_sync(~0u, v, 4);
}
INLINE float sum_of_32(float v) {
#pragma unroll
    for (int m = 1; m < 32; m *= 2) v += __shfl_xor_sync(~0u, v, m);
    return v;
}
// The chunk of eight neighbouring lanes; whole in lanes that are multiples of 8. All lanes call it.
INLINE uint4 make_chunk(float v, float extra, u32 tag) {
    const u32 scale = chunk_scale(max_of_8(fabsf(v))), t = tag << 28;
    u32 p = chunk_quant(v, scale) & 255;
    p |= __shfl_xor_sync(~0u, p, 1) << 8;
    p = (p & 0xffff) | __shfl_xor_sync(~0u, p, 2) << 16;
    const u32 high = __shfl_xor_sync(~0u, p, 4);
    return make_uint4((p & 0xFFFFFF) | t, (p >> 24) | ((high & 0xFFFF) << 8) | t, (high >> 16) | (scale << 16) | t,
                      (__float_as_uint(extra) >> 4) | t);
}
INLINE bool chunk_is(uint4 v, u32 tag) {
    const u32 t = tag << 28;
    return ((((v.x ^ t) | (v.y ^ t)) | ((v.z ^ t) | (v.w ^ t))) >> 28) == 0;
}

// An integer t is added to the bits of 2^23 * 1.5: the float is that + t.
#define MAGIC_INT 0x4B400000
#define MAGIC_FLOAT 12582912.0f

// A block of 32 columns of the input in shared memory, 80 bytes: four chunks (8 int8, scale), then sums of both halves.
struct InputBlock {
    uint4 chunk[4]; // .x .y int8, .z scale as f32
    float half_sum[2];
    float unused[2];
};

template <int CODEC> struct Unit {
    static constexpr int BYTES = CODEC == PERSISTENT_CODEC_Q4 ? 576 : CODEC == PERSISTENT_CODEC_Q4M ? 640 : CODEC == PERSISTENT_CODEC_Q8 ? 1088 : 896;
    // Of codec q4: a lane's part in registers.
    struct Held {
        uint4 q;
        u16 d;
        INLINE void load(const u8 *unit, int lane) { q = ((const uint4 *)unit)[lane], d = ((const u16 *)(unit + 512))[lane]; }
        INLINE float dot(const uint4 (&c)[4], float2 half_sum) const {
            const u32 w[4] = {q.x, q.y, q.z, q.w};
            float s = 0;
#pragma unroll
            for (int k = 0; k < 4; k++) {
                const int t = __dp4a((int)((w[k] >> 4) & 0x0F0F0F0Fu), (int)c[k].y, __dp4a((int)(w[k] & 0x0F0F0F0Fu), (int)c[k].x, (int)MAGIC_INT));
                s = fmaf(__int_as_float(t) - MAGIC_FLOAT, __uint_as_float(c[k].z), s);
            }
            return (s - 8.0f * (half_sum.x + half_sum.y)) * from_half(d);
        }
    };
    // The product of a block of weights of this lane and the block of input `c`.
    static INLINE float dot(const u8 *unit, int lane, const uint4 (&c)[4], float2 half_sum) {
        float s = 0, s1 = 0;
        if constexpr (CODEC == PERSISTENT_CODEC_Q8) {
            const uint4 low = ((const uint4 *)unit)[lane], high = ((const uint4 *)(unit + 512))[lane];
            const u32 w[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
            for (int k = 0; k < 4; k++) {
                const int t = __dp4a((int)w[2 * k + 1], (int)c[k].y, __dp4a((int)w[2 * k], (int)c[k].x, (int)MAGIC_INT));
                s = fmaf(__int_as_float(t) - MAGIC_FLOAT, __uint_as_float(c[k].z), s);
            }
            return s * from_half(((const u16 *)(unit + 1024))[lane]);
        } else {
            const uint4 q = ((const uint4 *)unit)[lane];
            const u32 w[4] = {q.x, q.y, q.z, q.w};
            uint2 upper = make_uint2(0, 0);
            if constexpr (CODEC == PERSISTENT_CODEC_Q6) upper = ((const uint2 *)(unit + 512))[lane];
#pragma unroll
            for (int k = 0; k < 4; k++) {
                u32 a = w[k] & 0x0F0F0F0Fu, b = (w[k] >> 4) & 0x0F0F0F0Fu;
                if constexpr (CODEC == PERSISTENT_CODEC_Q6) {
                    const u32 h = (k < 2 ? upper.x : upper.y) >> (4 * (k & 1));
                    a |= (h << 4) & 0x30303030u, b |= (h << 2) & 0x30303030u;
                }
                const int t = __dp4a((int)b, (int)c[k].y, __dp4a((int)a, (int)c[k].x, (int)MAGIC_INT));
                const float f = __int_as_float(t) - MAGIC_FLOAT;
                if (CODEC == PERSISTENT_CODEC_Q6 && k >= 2) s1 = fmaf(f, __uint_as_float(c[k].z), s1);
                else s = fmaf(f, __uint_as_float(c[k].z), s);
            }
            if constexpr (CODEC == PERSISTENT_CODEC_Q4) return (s - 8.0f * (half_sum.x + half_sum.y)) * from_half(((const u16 *)(unit + 512))[lane]);
            const u32 scales = ((const u32 *)(unit + (CODEC == PERSISTENT_CODEC_Q6 ? 768 : 512)))[lane];
            if constexpr (CODEC == PERSISTENT_CODEC_Q4M) return fmaf(s, low_half(scales), (half_sum.x + half_sum.y) * high_half(scales));
            return fmaf(s - 32.0f * half_sum.x, low_half(scales), (s1 - 32.0f * half_sum.y) * high_half(scales));
        }
    }
};
INLINE u32 unit_bytes(u32 codec) { return codec == PERSISTENT_CODEC_Q4 ? 576 : codec == PERSISTENT_CODEC_Q4M ? 640 : codec == PERSISTENT_CODEC_Q8 ? 1088 : 896; }

// Values of a row of the embedding matrix.
INLINE float embedding_value(u32 type, const u8 *row, u32 k) {
    const RepackArguments none = {};
    if (type == 0) return ((const float *)row)[k];
    if (type == 1) return half_at(row + 2 * k);
    if (type == 2) return bfloat_at(row + 2 * k);
    if (type == 3) return Type_q8_0::d(none, row, 0, k) * (float)((int)Type_q8_0::q(none, row, 0, k) - 128);
    if (type == 4) return Type_q4_0::d(none, row, 0, k) * (float)((int)Type_q4_0::q(none, row, 0, k) - 8);
    if (type == 5) return Type_q6_k::d(none, row, 0, k) * (float)((int)Type_q6_k::q(none, row, 0, k) - 32);
    return Type_q4_k::d(none, row, 0, k) * (float)Type_q4_k::q(none, row, 0, k) + Type_q4_k::m(none, row, 0, k);
}

// The part of shared memory after the ring.
template <int D, int H> struct PersistentShared {
    float partial[2][8][PERSISTENT_PASS * 8]; // sums of a pass, by parity
    float queries[H * D];
    float new_key[D], new_value[D];
    float outputs[8][H * D]; // of each warp
    float most[8][H], total[8][H];
    float squares[2][8];     // of the input, by warp; by parity of the phase
    float residual[PERSISTENT_MAX_ROWS];
    u64 full[40], empty[40];
    u32 credit;              // pieces whose phases are over
    u32 gates;               // whether refills wait for gates
    u32 padding[2];
    InputBlock input[1];     // 8 warps x the most k_quads x 4; then the phases
};

template <int D, int H> struct Persistent {
    typedef PersistentShared<D, H> Shared;
    static constexpr int N_LANES_V = D / 32; // values of a head that a lane has
    static constexpr u32 PARTIAL_BYTES = (H * D + 2 * H + 3) / 4 * 16;
    const PersistentArguments &a;
    u8 *ring;
    Shared &s;
    const PersistentPhase *phases; // in shared memory
    u32 full, empty, slot = 0, parity = 0, block, n_blocks, pass_parity = 0, kv_head, split, page_shift;
    int warp, lane;

    INLINE Persistent(const PersistentArguments &a, u8 *shared)
        : a(a), ring(shared), s(*(Shared *)(shared + a.n_slots * a.slot_bytes)), block(blockIdx.x), n_blocks(gridDim.x), warp(threadIdx.x >> 5),
          lane(threadIdx.x & 31) {
        full = shared_address(s.full), empty = shared_address(s.empty);
        kv_head = block / a.n_splits, split = block % a.n_splits, page_shift = 31 - __clz(a.page_len);
    }
    // The table into shared memory, with what it means for this block. All threads call it, and wait afterwards.
    INLINE void prepare() {
        u32 most = 1;
        for (u32 i = 0; i < a.n_phases; i++) most = max(most, a.phases[i].k_quads);
        PersistentPhase *table = (PersistentPhase *)(s.input + 32 * most);
        phases = table;
        for (u32 i = threadIdx.x; i < a.n_phases; i += blockDim.x) {
            PersistentPhase p = a.phases[i];
            p.own_first = first_group(p, block), p.own_groups = first_group(p, block + 1) - p.own_first;
            const u32 each = a.slot_bytes / (8 * unit_bytes(p.codec));
            p.pieces = (p.own_groups * p.k_quads + each - 1) / each;
            table[i] = p;
        }
        if (threadIdx.x == 0) s.gates = a.refill_gates;
        __syncthreads();
        for (u32 i = threadIdx.x; i < a.n_phases; i += blockDim.x) {
            u32 n = 0, j = i;
            if (table[i].gate_refill) do {
                if (table[j].kind != PERSISTENT_HEAD) n += table[j].pieces;
                j = j == 0 ? a.n_phases - 1 : j - 1;
            } while (!table[j].gate_refill && j != i);
            table[i].credit = n;
            if (n > a.n_slots) s.gates = 0; // the ring could never be filled for it
        }
    }
    INLINE void next_slot() {
        if (++slot == a.n_slots) slot = 0, parity ^= 1;
    }
    INLINE u32 first_group(u32 groups, u32 b) const { return b * groups / n_blocks; }
    // Of a phase; gate and up stay together.
    INLINE u32 first_group(const PersistentPhase &p, u32 b) const {
        return p.kind == PERSISTENT_GATE ? 2 * first_group(p.groups / 2, b) : first_group(p.groups, b);
    }
    INLINE u8 *part(u32 at) const { return a.exchange + at; }
    INLINE void published() { barrier_arrive(5, 288); }
    INLINE void wait_published() {
        barrier(5, 288);
        pause_cycles(a.poll_delay);
    }

    // ---------------------------------------------------------------- warps 0..7: products

    // This warp's slice of the input, from chunks with the tag, into shared memory. Returns this lane's part of its sum of squares.
    INLINE float poll_input(const u8 *from, u32 chunks, u32 k_quads, u32 tag) {
        const u32 n = 16 * k_quads, first = warp * n;
        InputBlock *blocks = s.input + warp * 4 * k_quads;
        float squares = 0;
        for (u32 t0 = 0; t0 < n; t0 += 128) {
            uint4 v[4];
            bool have[4];
#pragma unroll
            for (int t = 0; t < 4; t++) {
                const u32 i = t0 + 32 * t + lane;
                have[t] = i >= n || first + i >= chunks;
                v[t] = make_uint4(0, 0, 0, 0);
            }
            bool all;
            do {
                all = true;
#pragma unroll
                for (int t = 0; t < 4; t++)
                    if (!have[t]) v[t] = load_relaxed_4(from + (u64)(first + t0 + 32 * t + lane) * 16);
#pragma unroll
                for (int t = 0; t < 4; t++) {
                    have[t] = have[t] || chunk_is(v[t], tag);
                    all = all && have[t];
                }
            } while (!__all_sync(~0u, all));
#pragma unroll
            for (int t = 0; t < 4; t++) {
                const u32 i = t0 + 32 * t + lane;
                const bool inside = i < n;
                const uint4 w = v[t];
                uint4 c;
                c.x = __byte_perm(w.x, w.y, 0x4210), c.y = __byte_perm(w.y, w.z, 0x5421), c.z = (w.z << 3) & 0x7FF80000u, c.w = 0;
                const int sum = __dp4a((int)c.x, 0x01010101, __dp4a((int)c.y, 0x01010101, 0));
                float half = (float)sum * __uint_as_float(c.z);
                half += __shfl_xor_sync(~0u, half, 1);
                squares += __uint_as_float(w.w << 4);
                if (inside) {
                    blocks[i >> 2].chunk[i & 3] = c;
                    if ((i & 1) == 0) blocks[i >> 2].half_sum[(i & 3) >> 1] = half;
                }
            }
        }
        __syncwarp();
        return squares;
    }

    // One pass: `n` groups. Weights are read from the ring as they come.
    template <int CODEC> INLINE void multiply_pass(u32 n, u32 k_quads, u32 steps_a_slot, u32 &within, u32 &left) {
        float sum[PERSISTENT_PASS];
#pragma unroll
        for (int i = 0; i < PERSISTENT_PASS; i++) sum[i] = 0;
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
                    at = ring + slot * a.slot_bytes + (within * 8 + warp) * Unit<CODEC>::BYTES;
                    sum[i] += Unit<CODEC>::dot(at, lane, c, half_sum);
                    within++, left--;
                    if (within == steps_a_slot || left == 0) {
                        within = 0;
                        __syncwarp();
                        if (lane == 0) mbarrier_arrive(empty + 8 * slot);
                        next_slot();
                    }
                }
            }
        }
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
    template <int CODEC> INLINE void multiply(const PersistentPhase &p, u32 n_groups) {
        const u32 steps_a_slot = a.slot_bytes / (8 * Unit<CODEC>::BYTES);
        u32 within = 0, left = n_groups * p.k_quads;
        // A block without rows makes one empty pass, so that its warps stay in step.
        for (u32 g0 = 0, pass = 0; g0 < n_groups || pass == 0; g0 += PERSISTENT_PASS, pass++) {
            if (pass >= 2) barrier(8 + pass_parity, 288); // the epilogue has read what this overwrites
            multiply_pass<CODEC>(min((u32)PERSISTENT_PASS, n_groups - g0), p.k_quads, steps_a_slot, within, left);
            barrier_arrive(2 + pass_parity, 288);
            pass_parity ^= 1;
        }
    }
    // A phase of N groups and few quads: its weights go to registers before the input is there.
    template <int CODEC, int N> INLINE void product_preloaded(const PersistentPhase &p, const u8 *from, u32 tag, u32 phase_parity) {
        constexpr int QUADS = PRELOADED / N;
        const u32 steps_a_slot = a.slot_bytes / (8 * Unit<CODEC>::BYTES), k_quads = p.k_quads;
        u32 within = 0, left = N * k_quads;
        typename Unit<CODEC>::Held held[QUADS * N];
#pragma unroll
        for (int j = 0; j < QUADS * N; j++) {
            if (j < N * k_quads) {
                if (within == 0) mbarrier_wait(full + 8 * slot, parity);
                held[j].load(ring + slot * a.slot_bytes + (within * 8 + warp) * Unit<CODEC>::BYTES, lane);
                within++, left--;
                if (within == steps_a_slot || left == 0) {
                    within = 0;
                    __syncwarp();
                    if (lane == 0) mbarrier_arrive(empty + 8 * slot);
                    next_slot();
                }
            }
        }
        wait_published();
        const float squares = poll_input(from, p.chunks, k_quads, tag);
        float sum[N];
#pragma unroll
        for (int i = 0; i < N; i++) sum[i] = 0;
        const InputBlock *blocks = s.input + warp * 4 * k_quads + (lane >> 3);
#pragma unroll
        for (int quad = 0; quad < QUADS; quad++) {
            if (quad < k_quads) {
                uint4 c[4];
#pragma unroll
                for (int k = 0; k < 4; k++) c[k] = blocks[4 * quad].chunk[k];
                const float2 half_sum = *(const float2 *)blocks[4 * quad].half_sum;
#pragma unroll
                for (int i = 0; i < N; i++) sum[i] += held[quad * N + i].dot(c, half_sum);
            }
        }
        float *out = s.partial[pass_parity][warp];
#pragma unroll
        for (int i = 0; i < N; i++) {
            sum[i] += __shfl_xor_sync(~0u, sum[i], 8);
            sum[i] += __shfl_xor_sync(~0u, sum[i], 16);
            if ((lane >> 3) == (i & 3)) out[i * 8 + (lane & 7)] = sum[i];
        }
        keep_squares(p, squares, phase_parity);
        barrier_arrive(2 + pass_parity, 288);
        pass_parity ^= 1;
    }
    // For the epilogue's norm; before this warp arrives.
    INLINE void keep_squares(const PersistentPhase &p, float squares, u32 phase_parity) {
        if (p.kind == PERSISTENT_ADD) return; // its input has no norm
        squares = sum_of_32(squares);
        if (lane == 0) s.squares[phase_parity][warp] = squares;
    }
    template <int CODEC> INLINE bool try_preloaded(const PersistentPhase &p, const u8 *from, u32 tag, u32 phase_parity) {
        if (p.own_groups * p.k_quads > PRELOADED) return false;
        switch (p.own_groups) {
        case 1: product_preloaded<CODEC, 1>(p, from, tag, phase_parity); return true;
        case 2: product_preloaded<CODEC, 2>(p, from, tag, phase_parity); return true;
        case 3: product_preloaded<CODEC, 3>(p, from, tag, phase_parity); return true;
        case 4: product_preloaded<CODEC, 4>(p, from, tag, phase_parity); return true;
        case 6: product_preloaded<CODEC, 6>(p, from, tag, phase_parity); return true;
        case 8: product_preloaded<CODEC, 8>(p, from, tag, phase_parity); return true;
        default: return false;
        }
    }
    INLINE void product(const PersistentPhase &p, const u8 *from, u32 tag, u32 phase_parity) {
        if (p.codec == PERSISTENT_CODEC_Q4 && try_preloaded<PERSISTENT_CODEC_Q4>(p, from, tag, phase_parity)) return;
        wait_published();
        const u32 n_groups = p.own_groups;
        const float squares = poll_input(from, p.chunks, p.k_quads, tag);
        keep_squares(p, squares, phase_parity);
        if (p.codec == PERSISTENT_CODEC_Q4) multiply<PERSISTENT_CODEC_Q4>(p, n_groups);
        else if (p.codec == PERSISTENT_CODEC_Q4M) multiply<PERSISTENT_CODEC_Q4M>(p, n_groups);
        else if (p.codec == PERSISTENT_CODEC_Q8) multiply<PERSISTENT_CODEC_Q8>(p, n_groups);
        else multiply<PERSISTENT_CODEC_Q6>(p, n_groups);
    }

    // ---------------------------------------------------------------- warps 0..7: attention of one KV head and one split

    struct Rows {
        uint2 k[D / 32];
        uint2 v[4];
    };
    INLINE const u8 *vector_at(const PersistentPhase &p, u32 position, u32 head) const {
        const u32 page = a.page_table[p.table + (position >> page_shift)];
        return a.pool + page * a.page_bytes + p.layer_offset + (head * a.page_len + (position & (a.page_len - 1))) * (D * 2);
    }
    // Keys: four positions a warp, eight lanes each. Values: the same four, all lanes each.
    INLINE void load_rows(Rows &r, const PersistentPhase &p, u32 tile, u32 position, u32 first, u32 kv_head) const {
        const u32 own = tile * 32 + warp * 4 + (lane >> 3);
        const bool inside = own < position && own >= first;
        const u8 *key = inside ? vector_at(p, own, kv_head) : a.pool;
#pragma unroll
        for (int c = 0; c < D / 32; c++) r.k[c] = inside ? *(const uint2 *)(key + (c * 32 + (lane & 7) * 4) * 2) : make_uint2(0, 0);
#pragma unroll
        for (int q = 0; q < 4; q++) {
            const u32 at = tile * 32 + warp * 4 + q;
            r.v[q] = make_uint2(0, 0);
            if (at < position && at >= first) {
                const u8 *value = vector_at(p, at, a.n_kv_heads + kv_head);
                if constexpr (D == 128) r.v[q] = *(const uint2 *)(value + lane * 8);
                else r.v[q].x = *(const u32 *)(value + lane * 4);
            }
        }
    }
    INLINE void attention(const PersistentPhase &p, u32 position, u32 tag) {
        const u32 first = p.window && position + 1 > p.window ? position + 1 - p.window : 0;
        const u32 own_tile = position / 32;
        // Tiles of this split: those congruent to it, from the first that is seen.
        u32 tile = first / 32 + (split + a.n_splits - first / 32 % a.n_splits) % a.n_splits;
        Rows now;
        load_rows(now, p, tile, position, first, kv_head);
        barrier(6, 288);
        pause_cycles(a.poll_delay);
        const bool owner = own_tile % a.n_splits == split;
        constexpr int WORDS = (H + 2) * D;
#pragma unroll
        for (int word_0 = 0; word_0 < WORDS; word_0 += 1024) {
            const int at = word_0 + 128 * warp;
            if (at < WORDS && (at < H * D || owner)) {
                const int word = at + 4 * lane, head = word / D, column = word % D;
                const u8 *from = part(EXCHANGE_QKV) + ((u64)kv_head * WORDS + word) * 4;
                float2 turn[4];
                float norm[4];
                const bool is_q = head < H;
                const float *weights = is_q ? p.q_norm : p.k_norm;
#pragma unroll
                for (int c = 0; c < 4; c++) {
                    const int pair = a.interleaved ? (column + c) / 2 : (column + c) & (D / 2 - 1);
                    turn[c] = ((const float2 *)a.rotations)[(u64)position * (D / 2) + pair];
                    norm[c] = weights && head <= H ? weights[column + c] : 1.0f;
                }
                uint4 v;
                do v = load_relaxed_4(from);
                while (__any_sync(~0u, ((v.x ^ tag) | (v.y ^ tag) | (v.z ^ tag) | (v.w ^ tag)) & 15));
                float f[4] = {untag_word(v.x), untag_word(v.y), untag_word(v.z), untag_word(v.w)};
                float squares = f[0] * f[0] + f[1] * f[1] + f[2] * f[2] + f[3] * f[3];
#pragma unroll
                for (int m = 1; m < D / 4; m *= 2) squares += __shfl_xor_sync(~0u, squares, m);
                if (weights && head <= H) {
                    const float scale = rsqrtf(squares * (1.0f / D) + a.eps);
#pragma unroll
                    for (int c = 0; c < 4; c++) f[c] *= scale * norm[c];
                }
                float o[4];
#pragma unroll
                for (int c = 0; c < 4; c++) {
                    const float far = __shfl_xor_sync(~0u, f[c], D / 8);
                    const float other = a.interleaved ? f[c ^ 1] : far;
                    const bool low = a.interleaved ? (c & 1) == 0 : column < D / 2;
                    o[c] = low ? f[c] * turn[c].x - other * turn[c].y : f[c] * turn[c].x + other * turn[c].y;
                }
                if (is_q) {
                    *(float4 *)(s.queries + word) = make_float4(o[0], o[1], o[2], o[3]);
                } else {
                    if (head > H) o[0] = f[0], o[1] = f[1], o[2] = f[2], o[3] = f[3];
                    const uint2 halves = make_uint2(pack_half2_clamped(o[0], o[1]), pack_half2_clamped(o[2], o[3]));
                    u8 *vector = (u8 *)vector_at(p, position, head == H ? kv_head : a.n_kv_heads + kv_head);
                    *(uint2 *)(vector + column * 2) = halves;
                    *(float4 *)((head == H ? s.new_key : s.new_value) + column) =
                        make_float4(low_half(halves.x), high_half(halves.x), low_half(halves.y), high_half(halves.y));
                }
            }
        }
        barrier(1, 256);
        float most[H], total[H], out[H][N_LANES_V];
#pragma unroll
        for (int h = 0; h < H; h++) {
            most[h] = -1e30f, total[h] = 0;
#pragma unroll
            for (int c = 0; c < N_LANES_V; c++) out[h][c] = 0;
        }
        while (tile <= own_tile) {
            Rows next;
            if (tile + a.n_splits <= own_tile) load_rows(next, p, tile + a.n_splits, position, first, kv_head);
            const u32 at = tile * 32 + warp * 4 + (lane >> 3);
            float score[H];
#pragma unroll
            for (int h = 0; h < H; h++) score[h] = 0;
#pragma unroll
            for (int c = 0; c < D / 32; c++) {
                const int column = c * 32 + (lane & 7) * 4;
                float2 low = make_float2(low_half(now.k[c].x), high_half(now.k[c].x)), high = make_float2(low_half(now.k[c].y), high_half(now.k[c].y));
                if (at == position) {
                    const float4 k = *(const float4 *)(s.new_key + column);
                    low = make_float2(k.x, k.y), high = make_float2(k.z, k.w);
                }
#pragma unroll
                for (int h = 0; h < H; h++) {
                    const float4 q = *(const float4 *)(s.queries + h * D + column);
                    score[h] += q.x * low.x + q.y * low.y + q.z * high.x + q.w * high.y;
                }
            }
            const bool seen = at <= position && at >= first;
            float weight[H];
#pragma unroll
            for (int h = 0; h < H; h++) {
                float x = sum_of_8(score[h]) * a.attention_scale;
                if (a.softcap > 0) {
                    const float y = x * (0.6931471805599453f / a.softcap);
                    x = 1.4426950408889634f * a.softcap * (1.0f - 2.0f * reciprocal_fast(exp2_fast(2.8853900817779268f * y) + 1.0f));
                }
                if (!seen) x = -1e30f;
                float high = fmaxf(x, __shfl_xor_sync(~0u, x, 8));
                high = fmaxf(high, __shfl_xor_sync(~0u, high, 16));
                high = fmaxf(high, most[h]);
                const float factor = exp2_fast(most[h] - high);
                most[h] = high;
                weight[h] = seen ? exp2_fast(x - high) : 0.0f;
                float sum = weight[h] + __shfl_xor_sync(~0u, weight[h], 8);
                sum += __shfl_xor_sync(~0u, sum, 16);
                total[h] = total[h] * factor + sum;
#pragma unroll
                for (int c = 0; c < N_LANES_V; c++) out[h][c] *= factor;
            }
#pragma unroll
            for (int q = 0; q < 4; q++) {
                float v[N_LANES_V];
                v[0] = low_half(now.v[q].x), v[1] = high_half(now.v[q].x);
                if constexpr (N_LANES_V == 4) v[2] = low_half(now.v[q].y), v[3] = high_half(now.v[q].y);
                if (tile * 32 + warp * 4 + q == position) {
#pragma unroll
                    for (int c = 0; c < N_LANES_V; c++) v[c] = s.new_value[lane * N_LANES_V + c];
                }
#pragma unroll
                for (int h = 0; h < H; h++) {
                    const float w = __shfl_sync(~0u, weight[h], q * 8);
#pragma unroll
                    for (int c = 0; c < N_LANES_V; c++) out[h][c] += w * v[c];
                }
            }
            now = next;
            tile += a.n_splits;
        }
#pragma unroll
        for (int h = 0; h < H; h++) {
#pragma unroll
            for (int c = 0; c < N_LANES_V; c++) s.outputs[warp][h * D + lane * N_LANES_V + c] = out[h][c];
            if (lane == 0) s.most[warp][h] = most[h], s.total[warp][h] = total[h];
        }
        barrier(1, 256);
        u8 *to = part(EXCHANGE_PARTIALS) + (u64)block * PARTIAL_BYTES;
        for (int i = threadIdx.x; i < H * D; i += 256) {
            const int h = i / D; // the same for a whole warp
            float high = -1e30f, sum = 0, value = 0;
#pragma unroll
            for (int w = 0; w < 8; w++) high = fmaxf(high, s.most[w][h]);
#pragma unroll
            for (int w = 0; w < 8; w++) {
                const float factor = exp2_fast(s.most[w][h] - high);
                sum += factor * s.total[w][h], value += factor * s.outputs[w][i];
            }
            store_relaxed_1(to + 4 * i, tag_word(value, tag));
            if (i % D == 0) {
                store_relaxed_1(to + 4 * (H * D + 2 * h), tag_word(high, tag));
                store_relaxed_1(to + 4 * (H * D + 2 * h + 1), tag_word(sum, tag));
            }
        }
    }
    INLINE bool attends(u32 position) const {
        return block < a.n_kv_heads * a.n_splits && split <= position / 32;
    }

    INLINE void run() {
        u32 epoch_input = 0, epoch = 0, phase_parity = 0;
        for (u32 t = 0; t < a.n_tokens; t++) {
            const u32 position = a.first_position + t;
            barrier(1, 256);
            for (u32 i = 0; i < a.n_phases; i++) {
                if (i >= a.stop_phase) return;
                const PersistentPhase p = phases[i]; // in registers: every barrier would make references read again
                if (p.kind == PERSISTENT_QKV) {
                    epoch++;
                    product(p, part(EXCHANGE_INPUT), tag_of(epoch_input), phase_parity);
                    if (attends(position)) attention(p, position, tag_of(epoch));
                } else if (p.kind == PERSISTENT_GATE) {
                    product(p, part(EXCHANGE_MIDDLE), tag_of(epoch), phase_parity);
                } else if (p.kind == PERSISTENT_ADD) {
                    const bool down = i > 0 && phases[i - 1].kind == PERSISTENT_GATE;
                    product(p, part(down ? EXCHANGE_GATED : EXCHANGE_ATTENDED), tag_of(epoch), phase_parity);
                    if (down) epoch_input++;
                } else {
                    if (threadIdx.x == 0) *(volatile u32 *)&s.credit += p.pieces; // all of it may come as slots are free
                    product(p, part(EXCHANGE_INPUT), tag_of(epoch_input), phase_parity);
                    epoch_input++;
                }
                if (p.gate_refill && threadIdx.x == 0) *(volatile u32 *)&s.credit += p.credit;
                phase_parity ^= 1;
            }
        }
    }

    // ---------------------------------------------------------------- warp 8: epilogues

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
        return rsqrtf(sum / (float)a.hidden + a.eps);
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
    INLINE void merge(u32 position, u32 tag) {
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
        return rsqrtf(sum_of_32(v[0] + v[1] + v[2] + v[3] + v[4]) / (float)a.hidden + a.eps);
    }

    INLINE void finish() {
        u32 epoch_input = 0, epoch = 0, phase_parity = 0, token = a.tokens[0];
        const u32 x0 = first_group(a.hidden / 8, block), nx = (first_group(a.hidden / 8, block + 1) - x0) * 8;
        // Weights of a norm for the rows of this lane, loaded before they are needed.
        auto own = [&](const float *w, float (&out)[2]) {
            out[0] = w && lane < nx ? w[x0 * 8 + lane] : 0.0f, out[1] = w && lane + 32 < nx ? w[x0 * 8 + 32 + lane] : 0.0f;
        };
        float norm[2], post[2];
        for (u32 t = 0; t < a.n_tokens; t++) {
            const u32 position = a.first_position + t;
            for (u32 r = lane; r < nx; r += 32)
                s.residual[r] = a.embedding_scale * embedding_value(a.embedding_type, a.embedding + token * a.embedding_row_bytes, x0 * 8 + r);
            __syncwarp();
            own(a.first_norm, norm);
            publish_residual(norm, x0, nx, EXCHANGE_INPUT, tag_of(epoch_input));
            published();
            for (u32 i = 0; i < a.n_phases; i++) {
                if (i >= a.stop_phase) return;
                const PersistentPhase p = phases[i]; // in registers: every barrier would make references read again
                const u32 g0 = p.own_first, n_groups = p.own_groups;
                const u32 n_passes = n_groups == 0 ? 1 : (n_groups + PERSISTENT_PASS - 1) / PERSISTENT_PASS;
                if (p.kind == PERSISTENT_QKV) epoch++;
                if (p.kind == PERSISTENT_ADD) own(p.norm, norm), own(p.post_norm, post);
                const u32 tag = tag_of(epoch);
                float best = -1e38f;
                u32 best_row = 0;
                float squares = 0;
                const bool down = p.kind == PERSISTENT_ADD && i > 0 && phases[i - 1].kind == PERSISTENT_GATE;
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
                            if (a.logits && t + 1 == a.n_tokens) a.logits[row] = v;
                            if (v > best) best = v, best_row = row;
                        }
                    }
                    __syncwarp();
                    if (pass + 2 < n_passes) barrier_arrive(8 + pass_parity, 288);
                    pass_parity ^= 1;
                }
                if (p.kind == PERSISTENT_QKV) {
                    if (attends(position)) barrier_arrive(6, 288);
                    merge(position, tag);
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
                    epoch_input++;
                    if (a.trace)
                        for (u32 r = lane; r < nx; r += 32) a.trace[(u64)t * a.hidden + x0 * 8 + r] = s.residual[r];
                    token = choose(best, best_row, t);
                }
                if (p.kind != PERSISTENT_HEAD) published();
                phase_parity ^= 1;
            }
        }
    }
    // The best of all blocks: 32 bits of ordered logit, 18 of row, 14 of epoch; of equals the lowest row.
    INLINE u32 choose(float best, u32 row, u32 t) {
        u32 ordered = __float_as_uint(best);
        ordered = (ordered & 0x80000000u) ? ~ordered : ordered | 0x80000000u;
        u64 key = (u64)ordered << 18 | (262143 - row);
#pragma unroll
        for (int m = 1; m < 32; m *= 2) {
            const u64 other = __shfl_xor_sync(~0u, key, m);
            if (other > key) key = other;
        }
        const u64 tag = (t + 1) & 16383;
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
        const u32 token = 262143 - (u32)(winner & 262143);
        if (block == 0 && lane == 0) {
            a.tokens[t + 1] = token;
            const u32 bits = (u32)(winner >> 18);
            a.best_logits[t] = __uint_as_float((bits & 0x80000000u) ? bits & 0x7fffffffu : ~bits);
        }
        return token;
    }

    // ---------------------------------------------------------------- one lane of warp 9: weights

    INLINE void stream() {
        u64 policy;
        asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
        u32 n = 0;
        for (u32 t = 0; t < a.n_tokens; t++) {
            for (u32 i = 0; i < a.n_phases; i++) {
                if (i >= a.stop_phase) return;
                const PersistentPhase p = phases[i]; // in registers: every barrier would make references read again
                const u32 step = 8 * unit_bytes(p.codec), each = a.slot_bytes / step * step;
                const u32 g0 = p.own_first, n_groups = p.own_groups;
                const u8 *from = p.weights + (u64)g0 * p.k_quads * step;
                for (u32 left = n_groups * p.k_quads * step; left > 0;) {
                    const u32 bytes = min(left, each);
                    if (n >= a.n_slots) {
                        mbarrier_wait(empty + 8 * slot, parity ^ 1);
                        if (s.gates)
                            while ((int)(*(volatile u32 *)&s.credit + a.n_slots - n) <= 0) {}
                    }
                    n++;
                    mbarrier_expect(full + 8 * slot, bytes);
                    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(
                                     shared_address(ring + slot * a.slot_bytes)),
                                 "l"(from), "r"(bytes), "r"(full + 8 * slot), "l"(policy)
                                 : "memory");
                    next_slot();
                    from += bytes, left -= bytes;
                }
            }
        }
    }
};

template <int D, int H> INLINE void persistent_decode(const PersistentArguments &a) {
    extern __shared__ __align__(128) u8 persistent_memory[];
    Persistent<D, H> k(a, persistent_memory);
    if (threadIdx.x == 0) {
        for (u32 i = 0; i < a.n_slots; i++) mbarrier_init(k.full + 8 * i, 1), mbarrier_init(k.empty + 8 * i, 8);
        k.s.credit = 0;
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    }
    k.prepare();
    __syncthreads();
    if (k.warp < 8) k.run();
    else if (k.warp == 8) k.finish();
    else if (k.lane == 0) k.stream();
}

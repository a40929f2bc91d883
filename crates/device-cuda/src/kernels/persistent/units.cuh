// A unit of weights by codec, its product with four blocks of the input, and the codecs of a phase.
#pragma once
#include "gemm/codec.h"
#include "persistent/arguments.h"

// Prebuilt kernels stay small, so they lack code for rare parts: codecs from q2m on, sinks of
// attention, clamped gates, and biases of experts and of products that are added to the residual.
// Kernels compiled when a model is loaded have these parts. PERSISTENT_CODECS has the bits of the
// model's codecs where the table's numbers are not constants.
#if defined(PERSISTENT_FIXED) || defined(PERSISTENT_CODECS)
#define PERSISTENT_HAS_RARE true
#else
#define PERSISTENT_HAS_RARE false
#endif

// Adding an integer t to the bits of 2^23 * 1.5 gives the float 2^23 * 1.5 + t.
#define MAGIC_INT 0x4B400000
#define MAGIC_FLOAT 12582912.0f

// A block of 32 columns of the input in shared memory, 80 bytes: four chunks and the sums of both
// halves.
struct InputBlock {
    uint4 chunk[4]; // .x .y int8, .z scale as f32, .w squares of the values before rounding
    float half_sum[2];
    float unused[2];
};

// Bytes of a unit. SEVERAL: the kernel for several rows, which alone multiplies halves.
template <bool SEVERAL> INLINE constexpr u32 unit_bytes(u32 codec) {
    if (SEVERAL && codec == PERSISTENT_CODEC_F16) return PERSISTENT_UNIT_F16;
    static_assert(PERSISTENT_UNIT_NL == PERSISTENT_UNIT_Q4 && PERSISTENT_UNIT_FP4 == PERSISTENT_UNIT_Q4, "one case");
    if (codec == PERSISTENT_CODEC_Q4 || codec == PERSISTENT_CODEC_NL || codec == PERSISTENT_CODEC_FP4) return PERSISTENT_UNIT_Q4;
    static_assert(PERSISTENT_UNIT_Q3 == PERSISTENT_UNIT_Q4M, "one case");
    if (codec == PERSISTENT_CODEC_Q4M || codec == PERSISTENT_CODEC_Q3) return PERSISTENT_UNIT_Q4M;
    return codec == PERSISTENT_CODEC_Q2M ? PERSISTENT_UNIT_Q2M
           : codec == PERSISTENT_CODEC_Q8 ? PERSISTENT_UNIT_Q8 : codec == PERSISTENT_CODEC_Q6 ? PERSISTENT_UNIT_Q6 : PERSISTENT_UNIT_Q5M;
}

// Bytes of a step: 8 rows by a unit for each warp that has columns, padded to whole L2 lines.
template <bool SEVERAL> INLINE constexpr u32 step_bytes(u32 codec, u32 warps) { return (warps * unit_bytes<SEVERAL>(codec) + 127) / 128 * 128; }

// Steps that a slot of the ring holds. One row: a power of two, so that a pass of 8 groups begins a
// slot.
template <bool SEVERAL> INLINE constexpr u32 whole_steps(u32 slot_bytes, u32 codec, u32 warps) {
    const u32 fit = slot_bytes / step_bytes<SEVERAL>(codec, warps);
    return SEVERAL ? fit : fit >= 8 ? 8 : fit >= 4 ? 4 : fit >= 2 ? 2 : 1;
}

// The table that nibbles index: its values plus 128 (Biased), and the values themselves, as bytes.
template <int CODEC> struct PersistentTable4 {
    typedef Codec_nl Biased;
};
template <> struct PersistentTable4<PERSISTENT_CODEC_FP4> {
    typedef Codec_fp4 Biased;
};
template <class T> struct WithoutBias;
template <u32 T0, u32 T1, u32 T2, u32 T3, int GROUPS> struct WithoutBias<Table4<T0, T1, T2, T3, GROUPS>> {
    typedef Table4<T0 ^ 0x80808080u, T1 ^ 0x80808080u, T2 ^ 0x80808080u, T3 ^ 0x80808080u, GROUPS> Values;
};

template <int CODEC> struct Unit {
    static constexpr int BYTES = unit_bytes<false>(CODEC);
    static constexpr bool TABLE = CODEC == PERSISTENT_CODEC_NL || CODEC == PERSISTENT_CODEC_FP4;
    // 16 columns share a scale
    static constexpr bool BY_HALVES = CODEC == PERSISTENT_CODEC_Q6 || CODEC == PERSISTENT_CODEC_Q3 || CODEC == PERSISTENT_CODEC_Q2M;
    // A lane's part of a unit of codec q4 in registers.
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
    // The product of this lane's block of weights with the block of input `c`.
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
            uint4 q = make_uint4(0, 0, 0, 0);
            if constexpr (CODEC != PERSISTENT_CODEC_Q2M) q = ((const uint4 *)unit)[lane];
            const u32 w[4] = {q.x, q.y, q.z, q.w};
            uint2 upper = make_uint2(0, 0);
            if constexpr (CODEC == PERSISTENT_CODEC_Q6) upper = ((const uint2 *)(unit + 512))[lane];
            if constexpr (CODEC == PERSISTENT_CODEC_Q2M) upper = ((const uint2 *)unit)[lane];
            if constexpr (CODEC == PERSISTENT_CODEC_Q5M) upper.x = ((const u32 *)(unit + 512))[lane];
#pragma unroll
            for (int k = 0; k < 4; k++) {
                u32 a = w[k] & 0x0F0F0F0Fu, b = (w[k] >> 4) & 0x0F0F0F0Fu;
                if constexpr (CODEC == PERSISTENT_CODEC_Q6) {
                    const u32 h = (k < 2 ? upper.x : upper.y) >> (4 * (k & 1));
                    a |= (h << 4) & 0x30303030u, b |= (h << 2) & 0x30303030u;
                }
                if constexpr (CODEC == PERSISTENT_CODEC_Q5M) {
                    a |= (upper.x >> (2 * k) << 4) & 0x10101010u, b |= (upper.x >> (2 * k) << 3) & 0x10101010u;
                }
                if constexpr (CODEC == PERSISTENT_CODEC_Q2M) {
                    const u32 h = (k < 2 ? upper.x : upper.y) >> (4 * (k & 1));
                    a = h & 0x03030303u, b = (h >> 2) & 0x03030303u;
                }
                if constexpr (TABLE) {
                    typedef typename WithoutBias<typename PersistentTable4<CODEC>::Biased>::Values Values;
                    a = Values::look_up(w[k] & 0xffffu), b = Values::look_up(w[k] >> 16);
                }
                const int t = __dp4a((int)b, (int)c[k].y, __dp4a((int)a, (int)c[k].x, (int)MAGIC_INT));
                const float f = __int_as_float(t) - MAGIC_FLOAT;
                if (BY_HALVES && k >= 2) s1 = fmaf(f, __uint_as_float(c[k].z), s1);
                else s = fmaf(f, __uint_as_float(c[k].z), s);
            }
            if constexpr (CODEC == PERSISTENT_CODEC_Q4) return (s - 8.0f * (half_sum.x + half_sum.y)) * from_half(((const u16 *)(unit + 512))[lane]);
            if constexpr (CODEC == PERSISTENT_CODEC_NL) return s * from_half(((const u16 *)(unit + 512))[lane]);
            if constexpr (CODEC == PERSISTENT_CODEC_FP4) return s * __uint_as_float((u32)((const u16 *)(unit + 512))[lane] << 16);
            if constexpr (CODEC == PERSISTENT_CODEC_Q2M) {
                const uint2 scales = ((const uint2 *)(unit + 256))[lane];
                const float first = fmaf(s, low_half(scales.x), half_sum.x * high_half(scales.x));
                return first + fmaf(s1, low_half(scales.y), half_sum.y * high_half(scales.y));
            }
            const u32 scales = ((const u32 *)(unit + (CODEC == PERSISTENT_CODEC_Q6 ? 768 : CODEC == PERSISTENT_CODEC_Q5M ? 640 : 512)))[lane];
            if constexpr (CODEC == PERSISTENT_CODEC_Q4M || CODEC == PERSISTENT_CODEC_Q5M) return fmaf(s, low_half(scales), (half_sum.x + half_sum.y) * high_half(scales));
            constexpr float OFFSET = CODEC == PERSISTENT_CODEC_Q6 ? 32.0f : 4.0f;
            return fmaf(s - OFFSET * half_sum.x, low_half(scales), (s1 - OFFSET * half_sum.y) * high_half(scales));
        }
    }
};

// Calls f with the codec of a phase as a type, Codec<...>. A fixed kernel has code only for the
// codecs of P. The kernel for several rows handles halves itself.
template <int CODEC> struct Codec {
    static constexpr int value = CODEC;
};
template <class P, int CODEC> INLINE constexpr bool may_have() {
#ifdef PERSISTENT_FIXED
    return P::CODECS >> CODEC & 1;
#elif defined(PERSISTENT_CODECS)
    return PERSISTENT_CODECS >> CODEC & 1;
#else
    return CODEC < PERSISTENT_CODEC_Q2M;
#endif
}
template <class P, class F> INLINE void with_codec(const P &p, F f) {
#define PERSISTENT_TRY(CODEC)                        \
    if constexpr (may_have<P, CODEC>())              \
        if (p.codec == CODEC) return f(Codec<CODEC>());
    PERSISTENT_TRY(PERSISTENT_CODEC_Q4)
    PERSISTENT_TRY(PERSISTENT_CODEC_Q4M)
    PERSISTENT_TRY(PERSISTENT_CODEC_Q8)
    PERSISTENT_TRY(PERSISTENT_CODEC_Q6)
    PERSISTENT_TRY(PERSISTENT_CODEC_Q5M)
    PERSISTENT_TRY(PERSISTENT_CODEC_Q2M)
    PERSISTENT_TRY(PERSISTENT_CODEC_Q3)
    PERSISTENT_TRY(PERSISTENT_CODEC_NL)
    PERSISTENT_TRY(PERSISTENT_CODEC_FP4)
#undef PERSISTENT_TRY
}

// Codecs: how a tile of 64 x 64 packed weights becomes the first operand of mma.m16n8k16.
//
// Thread tid (0..127: slab tid / 32 of 16 rows, lane l, g = l / 4, t = l % 4) holds 32 weights of a
// tile, 8 for each slice J of 16 columns: register R of the slice, half e, is row g + 8 (R % 2),
// column 16 J + 2 t + 8 (R / 2) + e. A weight is d * (q - OFFSET), or d * q + m where MINS. d and m
// are f16, one for each of GROUPS groups of columns in a row.
//
// A tile: PLANES x [128 threads] of 16 bytes, HIGH x [128 threads] of 4 bytes, then [32 pairs of
// rows tid / 4] of GROUPS * (1 + MINS) words: the d of both rows (g low, g + 8 high), and their m.
//
// | codec | types of files | bytes a tile (a value: bits) |
// |---|---|---|
// | q4 | Q4_0 | 2,304 (4.5) |
// | q4m | Q4_1, Q4_K, affine 4 | 2,560 (5) |
// | q5, q5m | Q5_0; Q5_1, Q5_K, affine 5 | 2,816 (5.5), 3,072 (6) |
// | q6 | Q6_K | 3,584 (7) |
// | q6m | affine 6 | 3,584 (7) |
// | q8, q8m | Q8_0; affine 8 | 4,352 (8.5), 4,608 (9) |
// | q2m | Q2_K, affine 2 | 2,048 (4) |
// | q3, q3m | Q3_K; affine 3 | 2,048 (4), 2,048 (4) |
// | nl | IQ4_NL, IQ4_XS | 2,304 (4.5) |
// | fp4, fp4_16 | MXFP4; NVFP4 | 2,304 (4.5), 2,560 (5) |
// | f16 | F16, BF16 | 8,192 (16) |
//
// K types grow by 7 to 14 % (Q2_K by half): a scale of a scale and its product are rounded to one
// f16, which costs 2^-11 and saves instructions in the inner loop. BF16 is rounded to f16: exact
// down to 2^-14, then to 2^-25.
#pragma once
#include "gemm/ptx.h"

// A thread's part of a tile, as it is in memory.
template <class C> struct Packed {
    static constexpr int WORDS = 4 * C::PLANES + C::HIGH;
    static constexpr int SCALES = C::GROUPS * (1 + C::MINS);
    static constexpr int SCALES_AT = 2048 * C::PLANES + 512 * C::HIGH;
    static constexpr int TILE = SCALES_AT + 128 * SCALES;
    u32 words[WORDS];
    u32 scales[SCALES > 0 ? SCALES : 1];

    // Loads a thread's part from shared memory: from a whole tile, or from the slabs of 16 rows
    // that `copy` loaded.
    template <int SLABS = 4> INLINE void load(u32 tile, int tid) {
#pragma unroll
        for (int p = 0; p < C::PLANES; p++) load_shared_4(words + 4 * p, tile + 512 * SLABS * p + 16 * tid);
#pragma unroll
        for (int h = 0; h < C::HIGH; h++) load_shared_1(words + 4 * C::PLANES + h, tile + SLABS * (512 * C::PLANES + 128 * h) + 4 * tid);
        const u32 at = tile + SLABS * (SCALES_AT / 4) + (tid >> 2) * (4 * SCALES);
        if constexpr (SCALES == 2) load_shared_2(scales, at);
        if constexpr (SCALES >= 4) load_shared_4(scales, at);
        if constexpr (SCALES == 8) load_shared_4(scales + 4, at + 16);
    }
    // Copies SLABS slabs, from the slab `first` on, to shared memory in the layout that `load`
    // reads. A warp calls it.
    template <int SLABS> static INLINE void copy(u32 to, const u8 *tile, u32 first, int lane) {
        copy_part<SLABS, 512, C::PLANES>(to, tile, first, lane);
        copy_part<SLABS, 128, C::HIGH>(to + SLABS * 512 * C::PLANES, tile + 2048 * C::PLANES, first, lane);
        copy_part<SLABS, 32 * SCALES, SCALES == 0 ? 0 : 1>(to + SLABS * (SCALES_AT / 4), tile + SCALES_AT, first, lane);
    }
    // Copies N arrays of four slabs of BYTES.
    template <int SLABS, int BYTES, int N> static INLINE void copy_part(u32 to, const u8 *from, u32 first, int lane) {
        constexpr int EACH = SLABS * BYTES;
#pragma unroll
        for (int i = 0; i < N * EACH; i += 512) {
            const u32 at = i + 16 * lane;
            if (at < N * EACH) copy_16(to + at, from + at / EACH * (4 * BYTES) + first * BYTES + at % EACH, true);
        }
    }
    // Slice J as operand registers.
    template <int J> INLINE void slice(u32 (&a)[4]) const {
        if constexpr (C::GROUPS == 0) {
            C::template slice<J>(a, words);
        } else {
            constexpr int group = C::GROUPS == 2 ? J / 2 : J;
            const u32 d = scales[group * (1 + C::MINS)];
            const u32 d_low = __byte_perm(d, d, 0x1010), d_high = __byte_perm(d, d, 0x3232);
            C::template slice<J>(a, words);
            if constexpr (C::MINS) {
                const u32 m = scales[group * 2 + 1];
                const u32 m_low = __byte_perm(m, m, 0x1010), m_high = __byte_perm(m, m, 0x3232);
                a[0] = half2_fma(a[0], d_low, m_low), a[1] = half2_fma(a[1], d_high, m_high);
                a[2] = half2_fma(a[2], d_low, m_low), a[3] = half2_fma(a[3], d_high, m_high);
            } else {
                a[0] = half2_mul(a[0], d_low), a[1] = half2_mul(a[1], d_high);
                a[2] = half2_mul(a[2], d_low), a[3] = half2_mul(a[3], d_high);
            }
        }
    }
};

// A half of 1024 + q (q < 1024) has q in its lowest bits. An integer therefore becomes a half by
// one LOP3 and one exact subtraction.
#define HALF2_1024 0x64006400u
template <int OFFSET> INLINE u32 minus_1024(u32 biased) { return half2_sub(biased, HALF2_1024 + OFFSET * 0x00010001u); }
// 1024 + 16 q, divided by 16, is 64 + q, so 64 is subtracted.
template <int OFFSET> INLINE u32 minus_64(u32 biased) {
    return half2_fma(biased, 0x2c002c00u, 0xd400d400u + OFFSET * 0x00100010u);
}
template <int BY> INLINE u32 shift_right(u32 v) {
    if constexpr (BY >= 0) return v >> BY;
    else return v << -BY;
}

// 4 bits: word J, register R in bits 4 R (e = 0) and 16 + 4 R (e = 1).
template <int OFFSET, int MINS_> struct Bits4 {
    static constexpr int PLANES = 1, HIGH = 0, GROUPS = 2, MINS = MINS_;
    static INLINE void place(u32 *w, int j, int r, int e, u32 q) { w[j] |= q << (4 * r + 16 * e); }
    template <int J> static INLINE void slice(u32 (&a)[4], const u32 *w) {
        const u32 v = w[J] >> 8;
        a[0] = minus_1024<OFFSET>(and_or(w[J], 0x000f000fu, HALF2_1024));
        a[1] = minus_64<OFFSET>(and_or(w[J], 0x00f000f0u, HALF2_1024));
        a[2] = minus_1024<OFFSET>(and_or(v, 0x000f000fu, HALF2_1024));
        a[3] = minus_64<OFFSET>(and_or(v, 0x00f000f0u, HALF2_1024));
    }
};

// 5 bits: the low four as Bits4, the fifth in bit 4 J + R + 16 e of word 4.
template <int OFFSET, int MINS_> struct Bits5 {
    static constexpr int PLANES = 1, HIGH = 1, GROUPS = 2, MINS = MINS_;
    static INLINE void place(u32 *w, int j, int r, int e, u32 q) {
        w[j] |= (q & 15) << (4 * r + 16 * e);
        w[4] |= (q >> 4) << (4 * j + r + 16 * e);
    }
    template <int J, int R> static INLINE u32 one(const u32 *w) {
        const u32 low = and_or(w[J] >> (4 * R), 0x000f000fu, HALF2_1024);
        return minus_1024<OFFSET>(and_or(shift_right<4 * J + R - 4>(w[4]), 0x00100010u, low));
    }
    template <int J> static INLINE void slice(u32 (&a)[4], const u32 *w) {
        a[0] = one<J, 0>(w), a[1] = one<J, 1>(w), a[2] = one<J, 2>(w), a[3] = one<J, 3>(w);
    }
};

// 6 bits: the low four as Bits4, the upper two in bits 2 (4 (J % 2) + R) + 16 e of word 4 + J / 2.
template <int OFFSET, int GROUPS_, int MINS_> struct Bits6 {
    static constexpr int PLANES = 1, HIGH = 2, GROUPS = GROUPS_, MINS = MINS_;
    static INLINE void place(u32 *w, int j, int r, int e, u32 q) {
        w[j] |= (q & 15) << (4 * r + 16 * e);
        w[4 + (j >> 1)] |= (q >> 4) << (2 * (4 * (j & 1) + r) + 16 * e);
    }
    template <int J, int R> static INLINE u32 one(const u32 *w) {
        const u32 low = and_or(w[J] >> (4 * R), 0x000f000fu, HALF2_1024);
        return minus_1024<OFFSET>(and_or(shift_right<2 * (4 * (J & 1) + R) - 4>(w[4 + (J >> 1)]), 0x00300030u, low));
    }
    template <int J> static INLINE void slice(u32 (&a)[4], const u32 *w) {
        a[0] = one<J, 0>(w), a[1] = one<J, 1>(w), a[2] = one<J, 2>(w), a[3] = one<J, 3>(w);
    }
};

// 2 bits: bits 2 (4 (J % 2) + R) + 16 e of word J / 2; and a third bit 4 J + R + 16 e of word 2.
template <int BITS, int OFFSET, int GROUPS_, int MINS_> struct Bits23 {
    static constexpr int PLANES = 0, HIGH = BITS, GROUPS = GROUPS_, MINS = MINS_;
    static INLINE void place(u32 *w, int j, int r, int e, u32 q) {
        w[j >> 1] |= (q & 3) << (2 * (4 * (j & 1) + r) + 16 * e);
        if (BITS == 3) w[2] |= (q >> 2) << (4 * j + r + 16 * e);
    }
    template <int J, int R> static INLINE u32 one(const u32 *w) {
        u32 v = and_or(w[J >> 1] >> (2 * (4 * (J & 1) + R)), 0x00030003u, HALF2_1024);
        if constexpr (BITS == 3) v = and_or(shift_right<4 * J + R - 2>(w[2]), 0x00040004u, v);
        return minus_1024<OFFSET>(v);
    }
    template <int J> static INLINE void slice(u32 (&a)[4], const u32 *w) {
        a[0] = one<J, 0>(w), a[1] = one<J, 1>(w), a[2] = one<J, 2>(w), a[3] = one<J, 3>(w);
    }
};

// 8 bits: word 2 J + R / 2, byte 2 (R % 2) + e.
template <int OFFSET, int MINS_> struct Bits8 {
    static constexpr int PLANES = 2, HIGH = 0, GROUPS = 2, MINS = MINS_;
    static INLINE void place(u32 *w, int j, int r, int e, u32 q) { w[2 * j + (r >> 1)] |= q << (8 * (2 * (r & 1) + e)); }
    template <int J> static INLINE void slice(u32 (&a)[4], const u32 *w) {
#pragma unroll
        for (int r = 0; r < 4; r++)
            a[r] = minus_1024<OFFSET>(__byte_perm(w[2 * J + (r >> 1)], 0x64646464u, r & 1 ? 0x4342 : 0x4140));
    }
};

// 4 bits that index a table of 16 integers, stored plus 128 in four words. The bits are those of
// Bits4.
template <u32 T0, u32 T1, u32 T2, u32 T3, int GROUPS_> struct Table4 {
    static constexpr int PLANES = 1, HIGH = 0, GROUPS = GROUPS_, MINS = 0;
    static INLINE void place(u32 *w, int j, int r, int e, u32 q) { w[j] |= q << (4 * r + 16 * e); }
    // Looks up four indices, one byte each. The fourth bit of a selector would replicate signs, so
    // it is masked, and selects between the results afterwards.
    static INLINE u32 look_up(u32 indices) {
        const u32 three = indices & 0x7777u;
        return __byte_perm(__byte_perm(T0, T1, three), __byte_perm(T2, T3, three), (indices & 0x8888u) >> 1 | 0x3210u);
    }
    template <int J> static INLINE void slice(u32 (&a)[4], const u32 *w) {
        const u32 even = look_up(w[J] & 0xffffu), odd = look_up(w[J] >> 16);
#pragma unroll
        for (int r = 0; r < 4; r++)
            a[r] = minus_1024<128>(and_or(__byte_perm(even, odd, r * 0x0011 | (4 + r) * 0x1100), 0x00ff00ffu, HALF2_1024));
    }
};

// f16 unchanged: word 4 J + R.
struct Half16 {
    static constexpr int PLANES = 4, HIGH = 0, GROUPS = 0, MINS = 0;
    static INLINE void place(u32 *w, int j, int r, int e, u32 q) { w[4 * j + r] |= q << (16 * e); }
    // ptxas serialises wgmma if its operand comes straight from a load (C7513). The product with 1
    // avoids that.
    template <int J> static INLINE void slice(u32 (&a)[4], const u32 *w) {
#pragma unroll
        for (int r = 0; r < 4; r++) a[r] = half2_mul(w[4 * J + r], 0x3c003c00u);
    }
};

typedef Bits4<8, 0> Codec_q4;
typedef Bits4<0, 1> Codec_q4m;
typedef Bits5<16, 0> Codec_q5;
typedef Bits5<0, 1> Codec_q5m;
typedef Bits6<32, 4, 0> Codec_q6;
typedef Bits6<0, 2, 1> Codec_q6m;
typedef Bits8<128, 0> Codec_q8;
typedef Bits8<0, 1> Codec_q8m;
typedef Bits23<2, 0, 4, 1> Codec_q2m;
typedef Bits23<3, 4, 4, 0> Codec_q3;
typedef Bits23<3, 0, 2, 1> Codec_q3m;
// -127 -104 -83 -65 | -49 -35 -22 -10 | 1 13 25 38 | 53 69 89 113
typedef Table4<0x3f2d1801u, 0x766a5d4fu, 0xa6998d81u, 0xf1d9c5b5u, 2> Codec_nl;
// 0 1 2 3 | 4 6 8 12 | 0 -1 -2 -3 | -4 -6 -8 -12
typedef Table4<0x83828180u, 0x8c888684u, 0x7d7e7f80u, 0x74787a7cu, 2> Codec_fp4;
typedef Table4<0x83828180u, 0x8c888684u, 0x7d7e7f80u, 0x74787a7cu, 4> Codec_fp4_16;
typedef Half16 Codec_f16;

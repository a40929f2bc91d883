// repack_<type>: packs rows of a file's blocks to the weights of a codec (codec.h).
//
// Host contract
//   parameter RepackArguments; threads 128; grid (k_tiles, ceil(packed rows / 64)), packed rows =
//     n_rows, or twice that with up_rows
// One block makes one tile. With up_rows, packed rows 16 i + 0..7 are the 8 rows of `rows` from row
// 8 i on, and packed rows 16 i + 8..15 those of `up_rows`. Bytes: the file's bytes are read once
// (through L2, since neighbouring tiles share lines), and the codec's bytes are written once.
#pragma once
#include "gemm/arguments.h"
#include "gemm/ptx.h"
#include "gemm/codec.h"

INLINE u32 byte_at(const u8 *p, u32 i) { return __ldg(p + i); }
INLINE float half_at(const u8 *p) { return from_half((u16)(byte_at(p, 0) | byte_at(p, 1) << 8)); }
INLINE float bfloat_at(const u8 *p) { return __uint_as_float((byte_at(p, 0) | byte_at(p, 1) << 8) << 16); }
INLINE float e8m0_half(u32 e) { return __uint_as_float(e < 2 ? 0x00200000u << e : (e - 1) << 23); }

// The types of files: the integer of column k of a row, and d and m of its group.
struct NoMin {
    static INLINE float m(const RepackArguments &, const u8 *, u64, u32) { return 0; }
};
// 32 values, nibble j % 16 low for the first half, high for the second.
INLINE u32 nibble_16(const u8 *qs, u32 k) { return byte_at(qs, k % 16) >> (k % 32 / 16 * 4) & 15; }

struct Type_q4_0 : NoMin {
    static INLINE u32 q(const RepackArguments &, const u8 *row, u64, u32 k) { return nibble_16(row + k / 32 * 18 + 2, k); }
    static INLINE float d(const RepackArguments &, const u8 *row, u64, u32 k) { return half_at(row + k / 32 * 18); }
};
struct Type_q4_1 {
    static INLINE u32 q(const RepackArguments &, const u8 *row, u64, u32 k) { return nibble_16(row + k / 32 * 20 + 4, k); }
    static INLINE float d(const RepackArguments &, const u8 *row, u64, u32 k) { return half_at(row + k / 32 * 20); }
    static INLINE float m(const RepackArguments &, const u8 *row, u64, u32 k) { return half_at(row + k / 32 * 20 + 2); }
};
struct Type_q5_0 : NoMin {
    static INLINE u32 q(const RepackArguments &, const u8 *row, u64, u32 k) {
        const u8 *b = row + k / 32 * 22;
        return nibble_16(b + 6, k) | (byte_at(b + 2, k % 32 / 8) >> (k % 8) & 1) << 4;
    }
    static INLINE float d(const RepackArguments &, const u8 *row, u64, u32 k) { return half_at(row + k / 32 * 22); }
};
struct Type_q5_1 {
    static INLINE u32 q(const RepackArguments &, const u8 *row, u64, u32 k) {
        const u8 *b = row + k / 32 * 24;
        return nibble_16(b + 8, k) | (byte_at(b + 4, k % 32 / 8) >> (k % 8) & 1) << 4;
    }
    static INLINE float d(const RepackArguments &, const u8 *row, u64, u32 k) { return half_at(row + k / 32 * 24); }
    static INLINE float m(const RepackArguments &, const u8 *row, u64, u32 k) { return half_at(row + k / 32 * 24 + 2); }
};
struct Type_q8_0 : NoMin {
    static INLINE u32 q(const RepackArguments &, const u8 *row, u64, u32 k) {
        return byte_at(row + k / 32 * 34 + 2, k % 32) ^ 128; // signed + 128
    }
    static INLINE float d(const RepackArguments &, const u8 *row, u64, u32 k) { return half_at(row + k / 32 * 34); }
};
// Bits 2 j of byte 32 h + l: value 128 h + 32 j + l.
INLINE u32 two_bits(const u8 *qs, u32 k) { return byte_at(qs, k / 128 * 32 + k % 32) >> (k % 128 / 32 * 2) & 3; }
struct Type_q2_k {
    static INLINE u32 q(const RepackArguments &, const u8 *row, u64, u32 k) { return two_bits(row + k / 256 * 84 + 16, k % 256); }
    static INLINE float d(const RepackArguments &, const u8 *row, u64, u32 k) {
        const u8 *b = row + k / 256 * 84;
        return half_at(b + 80) * (float)(byte_at(b, k % 256 / 16) & 15);
    }
    static INLINE float m(const RepackArguments &, const u8 *row, u64, u32 k) {
        const u8 *b = row + k / 256 * 84;
        return -half_at(b + 82) * (float)(byte_at(b, k % 256 / 16) >> 4);
    }
};
struct Type_q3_k : NoMin {
    static INLINE u32 q(const RepackArguments &, const u8 *row, u64, u32 k) {
        const u8 *b = row + k / 256 * 110;
        k %= 256;
        return two_bits(b + 32, k) | (byte_at(b, k % 32) >> (k / 32) & 1) << 2;
    }
    static INLINE float d(const RepackArguments &, const u8 *row, u64, u32 k) {
        const u8 *b = row + k / 256 * 110;
        const u32 i = k % 256 / 16;
        const u32 low = byte_at(b + 96, i % 8) >> (4 * (i / 8)) & 15, high = byte_at(b + 104, i % 4) >> (2 * (i / 4)) & 3;
        return half_at(b + 108) * (float)((int)(low | high << 4) - 32);
    }
};
// Scale (shift 0) or min of sub-block i of 8, in the byte layout of codec/k_scales.rs in the
// weights crate.
INLINE float six_bits(const u8 *scales, u32 i, bool min) {
    if (i < 4) return (float)(byte_at(scales, i + (min ? 4 : 0)) & 63);
    const u32 low = byte_at(scales, i + 4) >> (min ? 4 : 0) & 15, high = byte_at(scales, i - 4 + (min ? 4 : 0)) >> 6;
    return (float)(low | high << 4);
}
template <int BYTES> struct Type_q45_k {
    static INLINE float d(const RepackArguments &, const u8 *row, u64, u32 k) {
        const u8 *b = row + k / 256 * BYTES;
        return half_at(b) * six_bits(b + 4, k % 256 / 32, false);
    }
    static INLINE float m(const RepackArguments &, const u8 *row, u64, u32 k) {
        const u8 *b = row + k / 256 * BYTES;
        return -half_at(b + 2) * six_bits(b + 4, k % 256 / 32, true);
    }
    static INLINE u32 low(const u8 *qs, u32 k) { return byte_at(qs, k / 64 * 32 + k % 32) >> (k % 64 / 32 * 4) & 15; }
};
struct Type_q4_k : Type_q45_k<144> {
    static INLINE u32 q(const RepackArguments &, const u8 *row, u64, u32 k) { return low(row + k / 256 * 144 + 16, k % 256); }
};
struct Type_q5_k : Type_q45_k<176> {
    static INLINE u32 q(const RepackArguments &, const u8 *row, u64, u32 k) {
        const u8 *b = row + k / 256 * 176;
        k %= 256;
        return low(b + 48, k) | (byte_at(b + 16, k % 32) >> (k / 32) & 1) << 4;
    }
};
// Low nibbles: byte 64 h + l % 64 of value 128 h + l, low for l < 64. Upper bits: bits 2 (l / 32)
// of byte 32 h + l % 32.
struct Type_q6_k : NoMin {
    static INLINE u32 q(const RepackArguments &, const u8 *row, u64, u32 k) {
        const u8 *b = row + k / 256 * 210;
        k %= 256;
        const u32 low = byte_at(b, k / 128 * 64 + k % 64) >> (k % 128 / 64 * 4) & 15;
        return low | two_bits(b + 128, k) << 4;
    }
    static INLINE float d(const RepackArguments &, const u8 *row, u64, u32 k) {
        const u8 *b = row + k / 256 * 210;
        return half_at(b + 208) * (float)(signed char)byte_at(b + 192, k % 256 / 16);
    }
};
struct Type_iq4_nl : Type_q4_0 {};
struct Type_iq4_xs : NoMin {
    static INLINE u32 q(const RepackArguments &, const u8 *row, u64, u32 k) {
        return nibble_16(row + k / 256 * 136 + 8 + k % 256 / 32 * 16, k);
    }
    static INLINE float d(const RepackArguments &, const u8 *row, u64, u32 k) {
        const u8 *b = row + k / 256 * 136;
        const u32 i = k % 256 / 32;
        const u32 low = byte_at(b + 4, i / 2) >> (4 * (i % 2)) & 15, high = byte_at(b + 2, i / 4) >> (2 * (i % 4)) & 3;
        return half_at(b) * (float)((int)(low | high << 4) - 32);
    }
};
struct Type_mxfp4 : NoMin {
    static INLINE u32 q(const RepackArguments &, const u8 *row, u64, u32 k) { return nibble_16(row + k / 32 * 17 + 1, k); }
    static INLINE float d(const RepackArguments &, const u8 *row, u64, u32 k) { return e8m0_half(byte_at(row, k / 32 * 17)); }
};
struct Type_nvfp4 : NoMin {
    static INLINE u32 q(const RepackArguments &, const u8 *row, u64, u32 k) {
        const u8 *b = row + k / 64 * 36;
        k %= 64;
        return byte_at(b + 4, k / 16 * 8 + k % 8) >> (k % 16 / 8 * 4) & 15;
    }
    static INLINE float d(const RepackArguments &, const u8 *row, u64, u32 k) {
        const u32 v = byte_at(row + k / 64 * 36, k % 64 / 16), exponent = v >> 3 & 15;
        if (v == 127) return 0;
        if (exponent == 0) return (float)(v & 7) * (1.0f / 1024.0f);
        return (1.0f + (float)(v & 7) * 0.125f) * __uint_as_float((exponent + 119) << 23);
    }
};
struct Type_f16 : NoMin {
    static INLINE u32 q(const RepackArguments &, const u8 *row, u64, u32 k) { return byte_at(row, 2 * k) | byte_at(row, 2 * k + 1) << 8; }
    static INLINE float d(const RepackArguments &, const u8 *, u64, u32) { return 0; }
};
struct Type_bf16 : Type_f16 {
    static INLINE u32 q(const RepackArguments &, const u8 *row, u64, u32 k) { return to_half(bfloat_at(row + 2 * k)); }
};
// Groups of integers of `bits` bits, packed from the lowest bit up, with scales and biases in
// separate arrays.
struct Type_affine {
    static INLINE float read(const u8 *plane, u32 type, u64 i) {
        if (type == 0) return __uint_as_float(byte_at(plane + 4 * i, 0) | byte_at(plane + 4 * i, 1) << 8 | byte_at(plane + 4 * i, 2) << 16 |
                                              byte_at(plane + 4 * i, 3) << 24);
        if (type == 1) return half_at(plane + 2 * i);
        if (type == 2) return bfloat_at(plane + 2 * i);
        return 2.0f * e8m0_half(byte_at(plane + i, 0));
    }
    static INLINE u32 q(const RepackArguments &a, const u8 *row, u64, u32 k) {
        const u32 bit = k * a.bits, at = bit / 8;
        u32 v = byte_at(row, at);
        if (bit % 8 + a.bits > 8) v |= byte_at(row, at + 1) << 8;
        return v >> (bit % 8) & ((1u << a.bits) - 1);
    }
    static INLINE float d(const RepackArguments &a, const u8 *row, u64 row_index, u32 k) {
        return read(row_index >> 63 ? a.up_scales : a.scales, a.scale_type, (row_index & ~(1ull << 63)) * (a.n_cols / a.group) + k / a.group);
    }
    static INLINE float m(const RepackArguments &a, const u8 *row, u64 row_index, u32 k) {
        if (a.symmetric) return -d(a, row, row_index, k) * (float)(1u << (a.bits - 1));
        return read(row_index >> 63 ? a.up_biases : a.biases, a.scale_type, (row_index & ~(1ull << 63)) * (a.n_cols / a.group) + k / a.group);
    }
};

template <class C, class T> INLINE void repack(const RepackArguments &a) {
    typedef Packed<C> P;
    const u32 kt = blockIdx.x, row_64 = blockIdx.y, tid = threadIdx.x;
    const u32 g = (tid & 31) >> 2, t = tid & 3, slab = row_64 * 4 + (tid >> 5);
    u8 *tile = a.packed + ((u64)(a.first_row / 64 + row_64) * a.k_tiles + kt) * P::TILE;
    // Rows g and g + 8 of the slab.
    const u8 *rows[2];
    u64 index[2];
    bool inside[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const u32 row = a.up_rows ? slab * 8 + g : slab * 16 + g + 8 * i;
        const bool up = a.up_rows && i == 1;
        inside[i] = row < a.n_rows;
        rows[i] = (up ? a.up_rows : a.rows) + (u64)row * a.row_bytes;
        index[i] = row | (up ? 1ull << 63 : 0);
    }
    u32 words[P::WORDS];
#pragma unroll
    for (int i = 0; i < P::WORDS; i++) words[i] = 0;
#pragma unroll
    for (int j = 0; j < 4; j++)
#pragma unroll
        for (int r = 0; r < 4; r++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const u32 k = kt * 64 + 16 * j + 2 * t + 8 * (r >> 1) + e;
                if (inside[r & 1] && k < a.n_cols) C::place(words, j, r, e, T::q(a, rows[r & 1], index[r & 1], k));
            }
#pragma unroll
    for (int p = 0; p < C::PLANES; p++)
        *(uint4 *)(tile + 2048 * p + 16 * tid) = make_uint4(words[4 * p], words[4 * p + 1], words[4 * p + 2], words[4 * p + 3]);
#pragma unroll
    for (int h = 0; h < C::HIGH; h++) *(u32 *)(tile + 2048 * C::PLANES + 512 * h + 4 * tid) = words[4 * C::PLANES + h];
    if (t != 0) return;
    u32 *scales = (u32 *)(tile + P::SCALES_AT) + (tid >> 2) * P::SCALES;
#pragma unroll
    for (int group = 0; group < C::GROUPS; group++) {
        const u32 k = kt * 64 + group * (64 / (C::GROUPS ? C::GROUPS : 1));
        float d[2], m[2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const bool there = inside[i] && k < a.n_cols;
            d[i] = there ? T::d(a, rows[i], index[i], k) : 0.0f;
            m[i] = there && C::MINS ? T::m(a, rows[i], index[i], k) : 0.0f;
        }
        scales[group * (1 + C::MINS)] = pack_half2(d[0], d[1]);
        if (C::MINS) scales[group * 2 + 1] = pack_half2(m[0], m[1]);
    }
}

#define REPACK(type, codec)                                                                                              \
    extern "C" __global__ void __launch_bounds__(128) repack_##type(const __grid_constant__ RepackArguments a) {         \
        dependency_wait();                                                                                               \
        repack<Codec_##codec, Type_##type>(a);                                                                           \
    }

// The affine types of MLX and `.base`: groups of 32, 64 or 128 codes of 2, 3, 4, 5, 6 or 8 bits. A
// row of codes is one stream of bits, the first code in the lowest bits. Scales and offsets are in
// planes of their own. value = scale * q + offset, or with AFFINE_SYMMETRIC scale * (q - 2^(bits -
// 1)).
//
// Also CTranslate2's rows of signed integers, with one divisor a row.
//
// Codes are aligned to 2 bytes, scales to their size. With AFFINE_WIDE a span's codes are one load:
// codes of 4 and 8 bits are then aligned to 8 and 16 bytes.
#pragma once
#include "linear/block.h"

// Returns scale or offset i of a plane.
static inline float affine_scale(device const uchar * plane, uint i) {
    if (AFFINE_SCALE == 0) return ((device const float *) plane)[i];
    if (AFFINE_SCALE == 1) return float(((device const half *) plane)[i]);
    if (AFFINE_SCALE == 2) return bf16_to_float(((device const ushort *) plane)[i]);
    return 2.0f * e8m0_half(plane[i]);
}

template<short BITS> struct Affine : WholeBlocks {
    enum { GROUPS = 1, OFFSET = 1, PLANES = 1 };
    static uint column(uint span, short j) { return span * 16 + j * 4; }
    static float4 factor() {
        return float4(1.0f, 1.0f / float(1 << BITS), 1.0f / float(1 << 2 * BITS), 1.0f / float(1 << 3 * BITS));
    }

    // Codes 4 j to 4 j + 3 of a span for each j, the first in the lowest bits of a word.
    static uint4 fours(device const uchar * span) {
        if (AFFINE_WIDE && BITS == 8) return *(device const uint4 *) span;
        if (AFFINE_WIDE && BITS == 4) {
            const uint2 words = *(device const uint2 *) span;
            return uint4(words.x, words.x >> 16, words.y, words.y >> 16);
        }
        device const ushort * words = (device const ushort *) span;
        uint4 fours;
        for (short j = 0; j < 4; j++) {
            const short word = j * BITS / 4, shift = j * BITS % 4 * 4;
            uint bits = uint(words[word]);
            if (word + 1 < BITS) bits |= uint(words[word + 1]) << 16;
            fours[j] = bits >> shift;
        }
        return fours;
    }

    static Codes<1> load(WeightRow row, uint span, uint) {
        const uint4 words = fours(row.codes + span * 2 * BITS);
        const uint mask = (1u << BITS) - 1, group = span * 16 / AFFINE_GROUP;
        Codes<1> codes;
        for (short j = 0; j < 4; j++) {
            const uint bits = words[j];
            codes.q[j] = float4(float(bits & mask), float(bits & mask << BITS), float(bits & mask << 2 * BITS),
                                float(bits & mask << 3 * BITS));
        }
        codes.scale[0] = affine_scale(row.scales, group);
        codes.offset[0] = AFFINE_SYMMETRIC ? -float(1 << (BITS - 1)) * codes.scale[0] : affine_scale(row.offsets, group);
        return codes;
    }

    static Values decode(WeightRow row, uint index, uint n_in) {
        const Codes<1> codes = load(row, index, n_in);
        Values values;
        for (short j = 0; j < 4; j++) values.v[j] = codes.scale[0] * (codes.q[j] * factor()) + codes.offset[0];
        return values;
    }
};

// Rows of signed integers of type E. The plane of scales holds one divisor a row, a float. Rows
// need not be whole spans.
template<class E> struct IntegerRow : NoLevels {
    enum { GROUPS = 1, OFFSET = 0, RAGGED = 1, PLANES = 1 };
    typedef float Operand;
    static uint n_spans(uint n_in) { return (n_in + 15) / 16; }
    static uint column(uint span, short j) { return span * 16 + j * 4; }
    static float4 factor() { return float4(1.0f); }

    static Codes<1> load(WeightRow row, uint span, uint n_in) {
        device const E * values = (device const E *) row.codes;
        Codes<1> codes;
        for (short j = 0; j < 4; j++) {
            const uint first = column(span, j);
            float4 v = float4(0.0f);
            for (short i = 0; i < 4; i++) {
                if (first + i < n_in) v[i] = float(values[first + i]);
            }
            codes.q[j] = v;
        }
        codes.scale[0] = 1.0f / *(device const float *) row.scales;
        codes.offset[0] = 0.0f;
        return codes;
    }

    static Values decode(WeightRow row, uint index, uint n_in) {
        const Codes<1> codes = load(row, index, n_in);
        Values values;
        for (short j = 0; j < 4; j++) values.v[j] = codes.q[j] * codes.scale[0];
        return values;
    }
};

// MXFP4: blocks of 32 values in 17 bytes: an exponent E8M0, then 16 bytes; byte j holds value j in
// its low nibble, value j + 16 in its high one, each a sign, two bits of exponent and one of
// mantissa (E2M1). value = 2^(e - 127) * E2M1. Blocks start anywhere.
//
// The lower three bits of a code, shifted left by 9, are a half that is 2^-14 times the number. For
// 0.5 this half is subnormal. Halves are multiplied before they are converted: Apple's GPUs compute
// with subnormal halves, but no document says how they convert one to an f32 that is flushed.
#pragma once
#include "linear/block.h"

struct MXFP4 : WholeBlocks {
    enum { GROUPS = 1, OFFSET = 0 };
    static uint column(uint span, short j) { return NibbleBlocks::column(span, j); }
    // `scale` is half the scale of the block.
    static float4 factor() { return float4(2.0f); }

    // The numbers of the low nibbles of four bytes.
    static float4 numbers(uint word) {
        const uint even = (word & 0x00070007) << 9 | (word & 0x00080008) << 12;
        const uint odd = (word & 0x07000700) << 1 | (word & 0x08000800) << 4;
        const half2 a = as_type<half2>(even) * half2(16384.0h), b = as_type<half2>(odd) * half2(16384.0h);
        return float4(float(a.x), float(b.x), float(a.y), float(b.y));
    }

    static Codes<1> load(WeightRow row, uint span, uint) {
        device const uchar * block = row.codes + span / 2 * 17;
        device const uchar * qs = block + 1 + span % 2 * 8;
        const uint a = load_1(qs), b = load_1(qs + 4);
        Codes<1> codes;
        codes.q[0] = numbers(a);
        codes.q[1] = numbers(b);
        codes.q[2] = numbers(a >> 4);
        codes.q[3] = numbers(b >> 4);
        codes.scale[0] = e8m0_half(block[0]);
        codes.offset[0] = 0.0f;
        return codes;
    }

    enum { WORDS = 1 };
    struct Raw {
        uint4 qs;
        uint e;
    };
    static Raw read(WeightRow row, uint index, uint) {
        device const uchar * block = row.codes + index / 2 * 17;
        Raw raw;
        for (short j = 0; j < 4; j++) raw.qs[j] = load_1(block + 1 + 4 * j);
        raw.e = block[0];
        return raw;
    }
    // Numbers are at most 6, so that values exceed a half only if the scale exceeds 2^13, which
    // bounds it.
    static HalfValues values(Raw raw, uint index) {
        const float d = min(2.0f * e8m0_half(raw.e), 8192.0f);
        HalfValues values;
        for (short j = 0; j < 4; j++) values.v[j] = half4(d * numbers(raw.qs[j] >> index % 2 * 4));
        return values;
    }
};

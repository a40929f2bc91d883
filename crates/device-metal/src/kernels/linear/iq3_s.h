// IQ3_S: blocks of 256 values in 110 bytes: a half `d`, 64 bytes with the low 8 bits of the index
// of 4 values each, 8 bytes of ninth bits, 32 bytes of signs, 4 bytes of scales, a nibble for each
// 32 values. value = d * (1 + 2 * scale) * point, with its sign; a code c of a point means 2 c + 1.
// Blocks start at multiples of 2 bytes.
#pragma once
#include "linear/grid.h"

struct IQ3_S : Neighbours<IQ3_S> {
    static Codes<1> load(WeightRow row, uint span, uint) {
        device const uchar * block = row.codes + span / 16 * 110;
        const uint at = span % 16;
        const uint indices = load_2(block + 2 + 4 * at), signs = load_2(block + 74 + at / 2 * 4) >> at % 2 * 16;
        const uint ninth = uint(block[66 + at / 2]) >> at % 2 * 4;
        Codes<1> codes;
        for (short j = 0; j < 4; j++) {
            const uint index = (indices >> 8 * j & 255) | (ninth >> j & 1) << 8;
            codes.q[j] = signed_by(float4(iq3_codes(IQ3_S_POINTS[index]) * 2 + 1), signs >> 4 * j);
        }
        const uint scale = uint(block[106 + at / 4]) >> at / 2 % 2 * 4 & 15;
        codes.scale[0] = load_half(block) * float(1 + 2 * scale);
        codes.offset[0] = 0.0f;
        return codes;
    }
};

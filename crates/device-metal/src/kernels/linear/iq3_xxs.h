// IQ3_XXS: blocks of 256 values in 98 bytes: a half `d`, 64 bytes, the index of 4 values each, then
// a word for each 32 values: four times 7 bits of signs of 8 values, the scale in its top 4 bits.
// value = d * (0.5 + scale) * 0.5 * point, with its sign. Blocks start at multiples of 2 bytes.
#pragma once
#include "linear/grid.h"

struct IQ3_XXS : Neighbours<IQ3_XXS> {
    // 4, 12, 20, 28, 36, 44, 52, 62
    static float4 four(uint point) {
        const uint4 codes = iq3_codes(point);
        return float4(codes * 8 + 4 + (codes + 1) / 8 * 2);
    }

    static Codes<1> load(WeightRow row, uint span, uint) {
        device const uchar * block = row.codes + span / 16 * 98;
        const uint at = span % 16;
        const uint indices = load_2(block + 2 + 4 * at), tail = load_2(block + 66 + at / 2 * 4);
        Codes<1> codes;
        for (short i = 0; i < 2; i++) {
            const uint signs = even_signs(tail >> 7 * (at % 2 * 2 + i)), pair = indices >> 16 * i;
            codes.q[2 * i] = signed_by(four(IQ3_XXS_POINTS[pair & 255]), signs);
            codes.q[2 * i + 1] = signed_by(four(IQ3_XXS_POINTS[pair >> 8 & 255]), signs >> 4);
        }
        codes.scale[0] = load_half(block) * (0.5f + float(tail >> 28)) * 0.5f;
        codes.offset[0] = 0.0f;
        return codes;
    }
};

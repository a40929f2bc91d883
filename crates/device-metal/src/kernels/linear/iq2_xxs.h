// IQ2_XXS: blocks of 256 values in 66 bytes: a half `d`, then for each 32 values four bytes of
// indices, one for 8 values, and a word: four times 7 bits of signs, the scale in its top 4 bits.
// value = d * (0.5 + scale) * 0.25 * point, with its sign. Blocks start at multiples of 2 bytes.
#pragma once
#include "linear/grid.h"

struct IQ2_XXS : Neighbours<IQ2_XXS> {
    static Codes<1> load(WeightRow row, uint span, uint) {
        device const uchar * block = row.codes + span / 16 * 66;
        device const uchar * sub = block + 2 + span % 16 / 2 * 8;
        const uint tail = load_2(sub + 4);
        uint2 points, signs;
        for (short i = 0; i < 2; i++) {
            const uint at = span % 2 * 2 + i;
            points[i] = IQ2_XXS_POINTS[sub[at]];
            signs[i] = even_signs(tail >> 7 * at);
        }
        return iq2_span(points, signs, load_half(block) * (0.5f + float(tail >> 28)) * 0.25f);
    }
};

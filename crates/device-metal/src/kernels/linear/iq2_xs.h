// IQ2_XS: blocks of 256 values in 74 bytes: a half `d`, 16 bits for each 8 values (9 of index, 7 of
// signs), 8 bytes of scales, a nibble for each 16 values. value = d * (0.5 + scale) * 0.25 * point,
// with its sign. Blocks start at multiples of 2 bytes.
#pragma once
#include "linear/grid.h"

struct IQ2_XS : Neighbours<IQ2_XS> {
    static Codes<1> load(WeightRow row, uint span, uint) {
        device const uchar * block = row.codes + span / 16 * 74;
        const uint at = span % 16;
        const uint pair = load_2(block + 2 + 4 * at);
        uint2 points, signs;
        for (short i = 0; i < 2; i++) {
            const uint bits = pair >> 16 * i;
            points[i] = IQ2_XS_POINTS[bits & 511];
            signs[i] = even_signs(bits >> 9);
        }
        return iq2_span(points, signs, iq2_scale(load_half(block), block + 66, at));
    }
};

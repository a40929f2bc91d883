// IQ2_S: blocks of 256 values in 82 bytes: a half `d`, 32 bytes with the low 8 bits of the index of
// each 8 values, 32 bytes of signs, 8 bytes of upper two bits of indices, 8 bytes of scales, a
// nibble for each 16 values. value = d * (0.5 + scale) * 0.25 * point, with its sign. Blocks start
// at multiples of 2 bytes.
#pragma once
#include "linear/grid.h"

struct IQ2_S : Neighbours<IQ2_S> {
    static Codes<1> load(WeightRow row, uint span, uint) {
        device const uchar * block = row.codes + span / 16 * 82;
        const uint at = span % 16;
        const uint high = uint(block[66 + at / 2]) >> at % 2 * 4;
        uint2 points, signs;
        for (short i = 0; i < 2; i++) {
            points[i] = IQ2_S_POINTS[uint(block[2 + 2 * at + i]) | (high >> 2 * i & 3) << 8];
            signs[i] = block[34 + 2 * at + i];
        }
        return iq2_span(points, signs, iq2_scale(load_half(block), block + 74, at));
    }
};

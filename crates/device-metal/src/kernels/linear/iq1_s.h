// IQ1_S: blocks of 256 values in 50 bytes: a half `d`, 32 bytes with the low 8 bits of the index of
// each 8 values, 16 bits for each 32 values: the upper 3 bits of four indices, 3 bits of scale, the
// sign of the shift. value = d * (2 * scale + 1) * (point +-
// 0.125). Blocks start at multiples of 2 bytes.
#pragma once
#include "linear/grid.h"

struct IQ1_S : Neighbours<IQ1_S> {
    static Codes<1> load(WeightRow row, uint span, uint) {
        device const uchar * block = row.codes + span / 16 * 50;
        const uint at = span % 16;
        const uint high = ((device const ushort *) (block + 34))[at / 2];
        const float shift = high & 0x8000 ? -0.125f : 0.125f;
        Codes<1> codes;
        for (short i = 0; i < 2; i++) {
            const uint upper = high >> 3 * (at % 2 * 2 + i) & 7;
            const uint point = IQ1_POINTS[uint(block[2 + 2 * at + i]) | upper << 8];
            codes.q[2 * i] = iq1_four(point) + shift;
            codes.q[2 * i + 1] = iq1_four(point >> 8) + shift;
        }
        codes.scale[0] = load_half(block) * float(2 * (high >> 12 & 7) + 1);
        codes.offset[0] = 0.0f;
        return codes;
    }
};

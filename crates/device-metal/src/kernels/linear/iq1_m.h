// IQ1_M: blocks of 256 values in 56 bytes: 32 bytes with the low 8 bits of the index of each 8
// values; 16 bytes with a nibble for each 8 values, the upper 3 bits of the index and the sign of
// the shift; four words of 16 bits, with a scale of 3 bits for each 16 values. Their top nibbles
// are a half `d`, the lowest first. value = d * (2 * scale + 1) * (point +- 0.125). Blocks start at
// multiples of 2 bytes.
#pragma once
#include "linear/grid.h"

struct IQ1_M : Neighbours<IQ1_M> {
    static Codes<1> load(WeightRow row, uint span, uint) {
        device const uchar * block = row.codes + span / 16 * 56;
        const uint at = span % 16;
        device const ushort * scales = (device const ushort *) (block + 48);
        ushort d = 0;
        for (short i = 0; i < 4; i++) d |= (scales[i] >> 12) << 4 * i;
        Codes<1> codes;
        for (short i = 0; i < 2; i++) {
            const uint high = uint(block[32 + at]) >> 4 * i;
            const uint point = IQ1_POINTS[uint(block[2 * at + i]) | (high & 7) << 8];
            const float shift = high & 8 ? -0.125f : 0.125f;
            codes.q[2 * i] = iq1_four(point) + shift;
            codes.q[2 * i + 1] = iq1_four(point >> 8) + shift;
        }
        const uint scale = uint(scales[at / 4]) >> 3 * (at % 4) & 7;
        codes.scale[0] = float(as_type<half>(d)) * float(2 * scale + 1);
        codes.offset[0] = 0.0f;
        return codes;
    }
};

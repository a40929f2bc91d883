// IQ2_XS: blocks of 256 values in 74 bytes: a half `d`, 16 bits for each 8 values (9 of index, 7 of signs), 8 bytes of scales, a
// nibble for each 16 values. value = d * (0.5 + scale) * 0.25 * point, with its sign. Blocks start at multiples of 2 bytes.
#pragma once
#include "linear/grid.h"

struct IQ2_XS : Neighbours<IQ2_XS> {
    static Codes<1> load(WeightRow row, uint span, uint) {
        device const uchar * block = row.codes + span / 16 * 74;
        const uint at = span % 16;
        const uint pair = load_2(block + 2 + 4 * at);
        Codes<1> codes;
        for (short i = 0; i < 2; i++) {
            const uint bits = pair >> 16 * i, point = IQ2_XS_POINTS[bits & 511], signs = even_signs(bits >> 9);
            codes.q[2 * i] = signed_by(iq2_four(point), signs);
            codes.q[2 * i + 1] = signed_by(iq2_four(point >> 8), signs >> 4);
        }
        const uint scale = uint(block[66 + at / 2]) >> at % 2 * 4 & 15;
        codes.scale[0] = load_half(block) * (0.5f + float(scale)) * 0.25f;
        codes.offset[0] = 0.0f;
        return codes;
    }
};

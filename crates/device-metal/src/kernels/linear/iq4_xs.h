// IQ4_XS: blocks of 256 values in 136 bytes: a half `d`, 8 upper two bits of scales, 8 low four
// bits of scales, 128 bytes: 16 for each 32 values, as in IQ4_NL. value = d * (scale - 32) * level.
// Blocks start at multiples of 8 bytes.
#pragma once
#include "linear/iq4_nl.h"

struct IQ4_XS : Iq4Blocks {
    // d * (scale - 32) of sub-block i.
    static float scale(device const uchar * block, uint i) {
        const uint head = load_4(block);
        const uint low = load_4(block + 4) >> 4 * i & 15;
        const uint high = head >> 16 + 2 * i & 3;
        return float(as_type<half2>(head).x) * float(int(low | high << 4) - 32);
    }

    static Codes<1> load(WeightRow row, uint span, uint) {
        device const uchar * block = row.codes + span / 16 * 136;
        const uint i = span % 16 / 2;
        const uint2 qs = *(device const uint2 *) (block + 8 + 16 * i + span % 2 * 8);
        Codes<1> codes;
        codes.q[0] = look_up(row.levels, qs.x);
        codes.q[1] = look_up(row.levels, qs.y);
        codes.q[2] = look_up(row.levels, qs.x >> 4);
        codes.q[3] = look_up(row.levels, qs.y >> 4);
        codes.scale[0] = scale(block, i);
        codes.offset[0] = 0.0f;
        return codes;
    }

    static Values decode(WeightRow row, uint index, uint) {
        device const uchar * block = row.codes + index / 16 * 136;
        const uint i = index % 16 / 2;
        const float d = scale(block, i);
        Values values;
        for (short j = 0; j < 4; j++) {
            values.v[j] = d * look_up(row.levels, load_4(block + 8 + 16 * i + 4 * j) >> index % 2 * 4);
        }
        return values;
    }
};

// TQ2_0: blocks of 256 ternary values in 66 bytes: 64 bytes of codes, a half `d`. Value 128 h + 32
// j + l is bits 2 j of byte 32 h + l: value = d * (q - 1). Blocks start at multiples of 2 bytes.
#pragma once
#include "linear/block.h"

struct TQ2_0 : QuarterBlocks {
    enum { GROUPS = 1, OFFSET = 1 };

    static Codes<1> load(WeightRow row, uint span, uint) {
        device const uchar * block = row.codes + span / 16 * 66;
        const uint qs = load_2(block + span % 16 * 4);
        Codes<1> codes;
        for (short j = 0; j < 4; j++) codes.q[j] = bytes_in_place(qs >> 2 * j, 3);
        codes.scale[0] = load_half(block + 64);
        codes.offset[0] = -codes.scale[0];
        return codes;
    }

    static Values decode(WeightRow row, uint index, uint) {
        device const uchar * block = row.codes + index / 16 * 66;
        const uint i = index % 16;
        const float d = load_half(block + 64);
        device const uchar * qs = block + 32 * (i / 8) + 16 * (i % 2);
        Values values;
        for (short j = 0; j < 4; j++) values.v[j] = d * (bytes_of(load_2(qs + 4 * j) >> i / 2 % 4 * 2, 3) - 1.0f);
        return values;
    }
};

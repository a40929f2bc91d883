// Q4_0: blocks of 32 values in 18 bytes: a half `d`, then 16 bytes; byte j holds value j in its low
// nibble, value j + 16 in its high one. value = d * (q - 8). Blocks start at multiples of 2 bytes.
#pragma once
#include "linear/block.h"

struct Q4_0 : NibbleBlocks {
    static Codes<1> load(WeightRow row, uint span, uint) {
        device const uchar * block = row.codes + span / 2 * 18;
        device const uchar * qs = block + 2 + span % 2 * 8;
        const uint a = load_2(qs), b = load_2(qs + 4);
        Codes<1> codes;
        codes.q[0] = bytes_in_place(a, 15);
        codes.q[1] = bytes_in_place(b, 15);
        codes.q[2] = bytes_in_place(a >> 4, 15);
        codes.q[3] = bytes_in_place(b >> 4, 15);
        codes.scale[0] = load_half(block);
        codes.offset[0] = -8.0f * codes.scale[0];
        return codes;
    }

    enum { WORDS = 1 };
    typedef ScaledWords Raw;
    static Raw read(WeightRow row, uint index, uint) { return scaled_words(row.codes + index / 2 * 18, 2); }
    // |q - 8| <= 8, so that values exceed a half only if |d| > 8188, which is clamped.
    static HalfValues values(Raw raw, uint index) {
        const half d = clamp(raw.d, -8188.0h, 8188.0h);
        HalfValues values;
        for (short j = 0; j < 4; j++) values.v[j] = nibbles_less(raw.qs[j], index % 2 == 1, 8.0h) * d;
        return values;
    }
};

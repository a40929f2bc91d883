// Q8_0: blocks of 32 values in 34 bytes: a half `d`, then 32 signed bytes. value = d * q. Blocks
// start at multiples of 2 bytes.
#pragma once
#include "linear/block.h"

struct Q8_0 : WholeBlocks {
    enum { GROUPS = 1, OFFSET = 0 };
    static uint column(uint span, short j) { return span * 16 + j * 4; }
    static float4 factor() { return float4(1.0f); }

    static uint row_bytes(uint n_in) { return n_in / 32 * 34; }

    static Codes<1> load(WeightRow row, uint span, uint) {
        device const uchar * block = row.codes + span / 2 * 34;
        device const uchar * qs = block + 2 + span % 2 * 16;
        Codes<1> codes;
        for (short j = 0; j < 4; j++) codes.q[j] = float4(as_type<char4>(load_2(qs + 4 * j)));
        codes.scale[0] = load_half(block);
        codes.offset[0] = 0.0f;
        return codes;
    }

    enum { WORDS = 1 };
    typedef ScaledWords Raw;
    static Raw read(WeightRow row, uint index, uint) { return scaled_words(row.codes + index / 2 * 34, 2 + index % 2 * 16); }
    // |q| <= 128, so that values exceed a half only if |d| > 511.75, which is clamped. q + 128 is the
    // byte with its sign flipped.
    static HalfValues values(Raw raw, uint) {
        const half d = clamp(raw.d, -511.75h, 511.75h);
        HalfValues values;
        for (short j = 0; j < 4; j++) values.v[j] = bytes_less(raw.qs[j] ^ 0x80808080, 255, 128.0h) * d;
        return values;
    }
};

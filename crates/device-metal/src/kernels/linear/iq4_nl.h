// IQ4_NL: blocks of 32 values in 18 bytes: a half `d`, then 16 bytes; byte j holds the index of
// value j's level in its low nibble, of value j + 16's in its high one. value = d * level. Blocks
// start at multiples of 2 bytes.
#pragma once
#include "linear/block.h"

// The levels of IQ4_NL and IQ4_XS, denser around 0 where weights are.
constant float IQ4_LEVELS[16] = {-127.0f, -104.0f, -83.0f, -65.0f, -49.0f, -35.0f, -22.0f, -10.0f,
                                 1.0f,    13.0f,   25.0f,  38.0f,  53.0f,  69.0f,  89.0f,  113.0f};

struct Iq4Blocks : NibbleBlocks {
    enum { GROUPS = 1, OFFSET = 0, LEVELS = 1 };
    static float level(ushort i) { return IQ4_LEVELS[i]; }
    static float4 factor() { return float4(1.0f); }

    // The levels that the low nibbles of four bytes name.
    static float4 look_up(threadgroup const float * levels, uint word) {
        return float4(levels[word & 15], levels[word >> 8 & 15], levels[word >> 16 & 15], levels[word >> 24 & 15]);
    }
};

struct IQ4_NL : Iq4Blocks {
    static Codes<1> load(WeightRow row, uint span, uint) {
        device const uchar * block = row.codes + span / 2 * 18;
        device const uchar * qs = block + 2 + span % 2 * 8;
        const uint a = load_2(qs), b = load_2(qs + 4);
        Codes<1> codes;
        codes.q[0] = look_up(row.levels, a);
        codes.q[1] = look_up(row.levels, b);
        codes.q[2] = look_up(row.levels, a >> 4);
        codes.q[3] = look_up(row.levels, b >> 4);
        codes.scale[0] = load_half(block);
        codes.offset[0] = 0.0f;
        return codes;
    }

    static Values decode(WeightRow row, uint index, uint) {
        device const uchar * block = row.codes + index / 2 * 18;
        const float d = load_half(block);
        Values values;
        for (short j = 0; j < 4; j++) {
            values.v[j] = d * look_up(row.levels, load_2(block + 2 + 4 * j) >> index % 2 * 4);
        }
        return values;
    }
};

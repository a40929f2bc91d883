// Q1_0: blocks of 128 values in 18 bytes: a half `d`, then a bit for each value: value = bit ? d :
// -d. Blocks start at multiples of 2 bytes.
#pragma once
#include "linear/neighbours.h"

struct Q1_0 : Neighbours<Q1_0> {
    enum { OFFSET = 1 };
    // Bits stay in place in their nibble.
    static float4 factor() { return float4(1.0f, 0.5f, 0.25f, 0.125f); }

    static Codes<1> load(WeightRow row, uint span, uint) {
        device const uchar * block = row.codes + span / 8 * 18;
        const uint bits = ((device const ushort *) (block + 2))[span % 8];
        const float d = load_half(block);
        Codes<1> codes;
        for (short j = 0; j < 4; j++) codes.q[j] = float4(uint4(bits >> 4 * j) & uint4(1, 2, 4, 8));
        codes.scale[0] = 2.0f * d;
        codes.offset[0] = -d;
        return codes;
    }
};

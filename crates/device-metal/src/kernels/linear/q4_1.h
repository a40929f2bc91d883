// Q4_1: blocks of 32 values in 20 bytes: halves `d` and `m`, then 16 bytes; byte j holds value j in
// its low nibble, value j + 16 in its high one. value = d * q + m. Blocks start at multiples of 4
// bytes.
#pragma once
#include "linear/block.h"

struct Q4_1 : NibbleBlocks {
    static Codes<1> load(WeightRow row, uint span, uint) {
        device const uchar * block = row.codes + span / 2 * 20;
        device const uchar * qs = block + 4 + span % 2 * 8;
        const uint a = load_4(qs), b = load_4(qs + 4);
        const half2 dm = as_type<half2>(load_4(block));
        Codes<1> codes;
        codes.q[0] = bytes_in_place(a, 15);
        codes.q[1] = bytes_in_place(b, 15);
        codes.q[2] = bytes_in_place(a >> 4, 15);
        codes.q[3] = bytes_in_place(b >> 4, 15);
        codes.scale[0] = float(dm.x);
        codes.offset[0] = float(dm.y);
        return codes;
    }

    static Values decode(WeightRow row, uint index, uint) {
        device const uchar * block = row.codes + index / 2 * 20;
        const half2 dm = as_type<half2>(load_4(block));
        Values values;
        for (short j = 0; j < 4; j++) {
            const half4 q = nibbles_less(load_4(block + 4 + 4 * j), index % 2 == 1, 0.0h);
            values.v[j] = float(dm.x) * float4(q) + float(dm.y);
        }
        return values;
    }
};

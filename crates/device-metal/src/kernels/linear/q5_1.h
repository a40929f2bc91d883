// Q5_1: blocks of 32 values in 24 bytes: halves `d` and `m`, 32 fifth bits, then 16 bytes as in
// Q5_0. value = d * q + m. Blocks start at multiples of 8 bytes.
#pragma once
#include "linear/q5_0.h"

struct Q5_1 : NibbleBlocks {
    static Codes<1> load(WeightRow row, uint span, uint) {
        device const uchar * block = row.codes + span / 2 * 24;
        device const uchar * qs = block + 8 + span % 2 * 8;
        const uint2 ab = *(device const uint2 *) qs;
        const uint2 head = *(device const uint2 *) block;
        const half2 dm = as_type<half2>(head.x);
        const uint high = head.y >> span % 2 * 8;
        Codes<1> codes;
        codes.q[0] = bytes_in_place((ab.x & 0x0f0f0f0f) | fifth_bits(high), 31);
        codes.q[1] = bytes_in_place((ab.y & 0x0f0f0f0f) | fifth_bits(high >> 4), 31);
        codes.q[2] = bytes_in_place((ab.x >> 4 & 0x0f0f0f0f) | fifth_bits(high >> 16), 31);
        codes.q[3] = bytes_in_place((ab.y >> 4 & 0x0f0f0f0f) | fifth_bits(high >> 20), 31);
        codes.scale[0] = float(dm.x);
        codes.offset[0] = float(dm.y);
        return codes;
    }

    static Values decode(WeightRow row, uint index, uint) {
        device const uchar * block = row.codes + index / 2 * 24;
        const half2 dm = as_type<half2>(load_4(block));
        const uint shift = index % 2 * 4;
        const uint high = load_4(block + 4) >> index % 2 * 16;
        Values values;
        for (short j = 0; j < 4; j++) {
            const uint low = load_4(block + 8 + 4 * j) >> shift & 0x0f0f0f0f;
            values.v[j] = float(dm.x) * bytes_of(low | fifth_bits(high >> 4 * j), 31) + float(dm.y);
        }
        return values;
    }
};

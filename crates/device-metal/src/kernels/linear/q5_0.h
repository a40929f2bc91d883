// Q5_0: blocks of 32 values in 22 bytes: a half `d`, 32 fifth bits, then 16 bytes; byte j holds the
// low four bits of value j in its low nibble, of value j + 16 in its high one. value = d * (q -
// 16). Blocks start at multiples of 2 bytes.
#pragma once
#include "linear/block.h"

// Moves bits 0..3 to bit 4 of bytes 0..3.
static inline uint fifth_bits(uint bits) {
    return (bits << 4 & 0x10) | (bits << 11 & 0x1000) | (bits << 18 & 0x100000) | (bits << 25 & 0x10000000);
}

struct Q5_0 : NibbleBlocks {
    static Codes<1> load(WeightRow row, uint span, uint) {
        device const uchar * block = row.codes + span / 2 * 22;
        device const uchar * qs = block + 6 + span % 2 * 8;
        const uint a = load_2(qs), b = load_2(qs + 4);
        const uint high = load_2(block + 2) >> span % 2 * 8;
        Codes<1> codes;
        codes.q[0] = bytes_in_place((a & 0x0f0f0f0f) | fifth_bits(high), 31);
        codes.q[1] = bytes_in_place((b & 0x0f0f0f0f) | fifth_bits(high >> 4), 31);
        codes.q[2] = bytes_in_place((a >> 4 & 0x0f0f0f0f) | fifth_bits(high >> 16), 31);
        codes.q[3] = bytes_in_place((b >> 4 & 0x0f0f0f0f) | fifth_bits(high >> 20), 31);
        codes.scale[0] = load_half(block);
        codes.offset[0] = -16.0f * codes.scale[0];
        return codes;
    }

    static Values decode(WeightRow row, uint index, uint) {
        device const uchar * block = row.codes + index / 2 * 22;
        const float d = load_half(block);
        const uint shift = index % 2 * 4;
        const uint high = load_2(block + 2) >> index % 2 * 16;
        Values values;
        for (short j = 0; j < 4; j++) {
            const uint low = load_2(block + 6 + 4 * j) >> shift & 0x0f0f0f0f;
            values.v[j] = d * (bytes_of(low | fifth_bits(high >> 4 * j), 31) - 16.0f);
        }
        return values;
    }
};

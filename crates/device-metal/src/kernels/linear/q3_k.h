// Q3_K: blocks of 256 values in 110 bytes: 32 bytes of third bits, 64 bytes of low bits as in Q2_K,
// 12 bytes of sixteen 6-bit scales, a half `d`. The third bit of value 128 h + 32 j + l is bit 4
// h + j of byte l. value = d * (scale - 32) * (q - 4). Blocks start at multiples of 2 bytes.
#pragma once
#include "linear/block.h"

// The 6-bit scale of sub-block i, less 32: low four bits in byte i % 8, upper two in byte 8 + i
// % 4.
static inline float q3_scale(device const uchar * scales, uint i) {
    const uint low = scales[i % 8] >> i / 8 * 4 & 15;
    const uint high = scales[8 + i % 4] >> i / 4 * 2 & 3;
    return float(int(low | high << 4) - 32);
}

struct Q3_K : QuarterBlocks {
    static Codes<4> load(WeightRow row, uint span, uint) {
        device const uchar * block = row.codes + span / 16 * 110;
        const uint h = span % 16 / 8, l = span % 8 * 4;
        const uint high = load_2(block + l) >> 4 * h;
        const uint qs = load_2(block + 32 + 32 * h + l);
        const float d = load_half(block + 108);
        Codes<4> codes;
        codes.q[0] = bytes_in_place((qs & 0x03030303) | (high << 2 & 0x04040404), 7);
        codes.q[1] = bytes_in_place((qs >> 2 & 0x03030303) | (high << 1 & 0x04040404), 7);
        codes.q[2] = bytes_in_place((qs >> 4 & 0x03030303) | (high & 0x04040404), 7);
        codes.q[3] = bytes_in_place((qs >> 6 & 0x03030303) | (high >> 1 & 0x04040404), 7);
        for (short j = 0; j < 4; j++) {
            codes.scale[j] = d * q3_scale(block + 96, 8 * h + 2 * j + l / 16);
            codes.offset[j] = -4.0f * codes.scale[j];
        }
        return codes;
    }

    static Values decode(WeightRow row, uint index, uint) {
        device const uchar * block = row.codes + index / 16 * 110;
        const uint i = index % 16;
        const float scale = load_half(block + 108) * q3_scale(block + 96, i);
        device const uchar * qs = block + 32 + 32 * (i / 8) + 16 * (i % 2);
        device const uchar * third = block + 16 * (i % 2);
        Values values;
        for (short j = 0; j < 4; j++) {
            const uint low = load_2(qs + 4 * j) >> i / 2 % 4 * 2 & 0x03030303;
            const uint high = (load_2(third + 4 * j) >> i / 2 & 0x01010101) << 2;
            values.v[j] = scale * (bytes_of(low | high, 7) - 4.0f);
        }
        return values;
    }
};

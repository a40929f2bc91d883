// Q2_K: blocks of 256 values in 84 bytes: 16 bytes with a scale (low nibble) and a min (high
// nibble) for each 16 values, 64 bytes of codes, halves `d` and `dmin`. Value 128 h + 32 j + l is
// bits 2 j of byte 32 h + l: value = d * scale * q - dmin * min. Blocks start at multiples of 4
// bytes.
#pragma once
#include "linear/block.h"

struct Q2_K : QuarterBlocks {
    static Codes<4> load(WeightRow row, uint span, uint) {
        device const uchar * block = row.codes + span / 16 * 84;
        const uint h = span % 16 / 8, l = span % 8 * 4;
        const uint qs = load_4(block + 16 + 32 * h + l);
        const half2 dm = as_type<half2>(load_4(block + 80));
        // Bytes 2 j + l / 16 of the eight bytes of the half block.
        const uint shift = l / 16 * 8;
        const uint s0 = load_4(block + 8 * h) >> shift, s1 = load_4(block + 8 * h + 4) >> shift;
        Codes<4> codes;
        codes.q[0] = bytes_in_place(qs, 3);
        codes.q[1] = bytes_in_place(qs >> 2, 3);
        codes.q[2] = bytes_in_place(qs >> 4, 3);
        codes.q[3] = bytes_in_place(qs >> 6, 3);
        const float d = float(dm.x), dmin = -float(dm.y);
        codes.scale[0] = d * float(s0 & 15);
        codes.scale[1] = d * float(s0 >> 16 & 15);
        codes.scale[2] = d * float(s1 & 15);
        codes.scale[3] = d * float(s1 >> 16 & 15);
        codes.offset[0] = dmin * float(s0 >> 4 & 15);
        codes.offset[1] = dmin * float(s0 >> 20 & 15);
        codes.offset[2] = dmin * float(s1 >> 4 & 15);
        codes.offset[3] = dmin * float(s1 >> 20 & 15);
        return codes;
    }

    static Values decode(WeightRow row, uint index, uint) {
        device const uchar * block = row.codes + index / 16 * 84;
        const uint i = index % 16, shift = i / 2 % 4 * 2;
        const half2 dm = as_type<half2>(load_4(block + 80));
        const float scale = float(dm.x) * float(block[i] & 15);
        const float min = float(dm.y) * float(block[i] >> 4);
        device const uchar * qs = block + 16 + 32 * (i / 8) + 16 * (i % 2);
        Values values;
        for (short j = 0; j < 4; j++) values.v[j] = scale * bytes_of(load_4(qs + 4 * j) >> shift, 3) - min;
        return values;
    }
};

// Q5_K: blocks of 256 values in 176 bytes: halves `d` and `dmin`, 12 bytes of scales and mins, 32
// bytes of fifth bits, 128 bytes of low bits as in Q4_K. The fifth bits of values 64 c + l and 64
// c + 32 + l are bits 2 c and 2 c + 1 of byte l. value = d * scale * q - dmin * min. Blocks start
// at multiples of 16 bytes.
#pragma once
#include "linear/k_scales.h"

struct Q5_K : ChunkBlocks {
    static uint row_bytes(uint n_in) { return n_in / 256 * 176; }

    static Codes<2> load(WeightRow row, uint span, uint) {
        device const uchar * block = row.codes + span / 16 * 176;
        const uint c = span % 16 / 4, l = span % 4 * 8;
        const uint2 qs = *(device const uint2 *) (block + 48 + 32 * c + l);
        const uint2 high = *(device const uint2 *) (block + 16 + l) >> uint2(2 * c);
        const KScales k = k_scales(k_words(block, c), c);
        Codes<2> codes;
        codes.q[0] = bytes_in_place((qs.x & 0x0f0f0f0f) | (high.x << 4 & 0x10101010), 31);
        codes.q[1] = bytes_in_place((qs.y & 0x0f0f0f0f) | (high.y << 4 & 0x10101010), 31);
        codes.q[2] = bytes_in_place((qs.x >> 4 & 0x0f0f0f0f) | (high.x << 3 & 0x10101010), 31);
        codes.q[3] = bytes_in_place((qs.y >> 4 & 0x0f0f0f0f) | (high.y << 3 & 0x10101010), 31);
        codes.scale[0] = k.scale.x;
        codes.scale[1] = k.scale.y;
        codes.offset[0] = -k.min.x;
        codes.offset[1] = -k.min.y;
        return codes;
    }

    enum { WORDS = 1 };
    struct Raw {
        uint4 qs;
        uint4 fifth;
        KWords scales;
    };
    static Raw read(WeightRow row, uint index, uint) {
        device const uchar * block = row.codes + index / 16 * 176;
        const uint i = index % 16, c = i / 4;
        Raw raw;
        raw.qs = *(device const uint4 *) (block + 48 + 32 * c + i % 2 * 16);
        raw.fifth = *(device const uint4 *) (block + 16 + i % 2 * 16);
        raw.scales = k_words(block, c);
        return raw;
    }
    static HalfValues values(Raw raw, uint index) {
        const uint i = index % 16, upper = i / 2 % 2;
        const KScale k = bounded(k_scales(raw.scales, i / 4), upper == 1, 31.0f);
        HalfValues values;
        for (short j = 0; j < 4; j++) {
            const uint low = raw.qs[j] >> 4 * upper & 0x0f0f0f0f;
            const uint high = (raw.fifth[j] >> i / 2 & 0x01010101) << 4;
            values.v[j] = scaled(bytes_less(low | high, 31, 0.0h), k);
        }
        return values;
    }
};

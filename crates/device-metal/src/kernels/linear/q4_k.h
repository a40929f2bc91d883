// Q4_K: blocks of 256 values in 144 bytes: halves `d` and `dmin`, 12 bytes of scales and mins, 128
// bytes of codes. Byte 32 c + l holds values 64 c + l (low nibble) and 64 c + 32 + l (high). value
// = d * scale * q - dmin * min. Blocks start at multiples of 16 bytes.
#pragma once
#include "linear/k_scales.h"

struct Q4_K : ChunkBlocks {
    static uint row_bytes(uint n_in) { return n_in / 256 * 144; }

    static Codes<2> load(WeightRow row, uint span, uint) {
        device const uchar * block = row.codes + span / 16 * 144;
        const uint c = span % 16 / 4;
        const uint2 qs = *(device const uint2 *) (block + 16 + 32 * c + span % 4 * 8);
        const KScales k = k_scales(k_words(block, c), c);
        Codes<2> codes;
        codes.q[0] = bytes_in_place(qs.x, 15);
        codes.q[1] = bytes_in_place(qs.y, 15);
        codes.q[2] = bytes_in_place(qs.x >> 4, 15);
        codes.q[3] = bytes_in_place(qs.y >> 4, 15);
        codes.scale[0] = k.scale.x;
        codes.scale[1] = k.scale.y;
        codes.offset[0] = -k.min.x;
        codes.offset[1] = -k.min.y;
        return codes;
    }

    enum { WORDS = 1 };
    struct Raw {
        uint4 qs;
        KWords scales;
    };
    static Raw read(WeightRow row, uint index, uint) {
        device const uchar * block = row.codes + index / 16 * 144;
        const uint i = index % 16, c = i / 4;
        Raw raw;
        raw.qs = *(device const uint4 *) (block + 16 + 32 * c + i % 2 * 16);
        raw.scales = k_words(block, c);
        return raw;
    }
    static HalfValues values(Raw raw, uint index) {
        const bool upper = index / 2 % 2 == 1;
        const KScale k = bounded(k_scales(raw.scales, index % 16 / 4), upper, 15.0f);
        HalfValues values;
        for (short j = 0; j < 4; j++) values.v[j] = scaled(nibbles_less(raw.qs[j], upper, 0.0h), k);
        return values;
    }
};

// Q4_K: blocks of 256 values in 144 bytes: halves `d` and `dmin`, 12 bytes of scales and mins, 128 bytes of codes. Byte 32 c + l
// holds values 64 c + l (low nibble) and 64 c + 32 + l (high). value = d * scale * q - dmin * min. Blocks start at multiples of
// 16 bytes.
#pragma once
#include "linear/k_scales.h"

struct Q4_K : ChunkBlocks {
    static uint row_bytes(uint n_in) { return n_in / 256 * 144; }

    static Codes<2> load(WeightRow row, uint span, uint) {
        device const uchar * block = row.codes + span / 16 * 144;
        const uint c = span % 16 / 4;
        const uint2 qs = *(device const uint2 *) (block + 16 + 32 * c + span % 4 * 8);
        const half2 dm = as_type<half2>(load_4(block));
        const KScales k = k_scales(block + 4, c);
        Codes<2> codes;
        codes.q[0] = bytes_in_place(qs.x, 15);
        codes.q[1] = bytes_in_place(qs.y, 15);
        codes.q[2] = bytes_in_place(qs.x >> 4, 15);
        codes.q[3] = bytes_in_place(qs.y >> 4, 15);
        codes.scale[0] = float(dm.x) * k.scale.x;
        codes.scale[1] = float(dm.x) * k.scale.y;
        codes.offset[0] = -float(dm.y) * k.min.x;
        codes.offset[1] = -float(dm.y) * k.min.y;
        return codes;
    }

    static Values decode(WeightRow row, uint index, uint) {
        device const uchar * block = row.codes + index / 16 * 144;
        const uint i = index % 16, c = i / 4, upper = i / 2 % 2;
        const half2 dm = as_type<half2>(load_4(block));
        const KScales k = k_scales(block + 4, c);
        const float scale = float(dm.x) * (upper ? k.scale.y : k.scale.x);
        const float min = float(dm.y) * (upper ? k.min.y : k.min.x);
        const uint4 qs = *(device const uint4 *) (block + 16 + 32 * c + i % 2 * 16);
        Values values;
        for (short j = 0; j < 4; j++) values.v[j] = scale * bytes_of(qs[j] >> 4 * upper, 15) - min;
        return values;
    }
};

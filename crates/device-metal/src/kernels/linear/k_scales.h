// The 12 bytes of eight 6-bit scales and eight 6-bit mins that Q4_K and Q5_K share.
//
// Bytes 0-3 hold scales 0-3 in their low six bits, bytes 4-7 mins 0-3. Bytes 8-11 hold the low four bits of scales 4-7 and of
// mins 4-7, whose upper two bits are the top bits of bytes 0-3 and 4-7.
#pragma once
#include "linear/block.h"

// Two neighbouring sub-blocks.
struct KScales {
    float2 scale;
    float2 min;
};

// Of sub-blocks 2 c and 2 c + 1. `packed` is a multiple of 2 bytes.
static inline KScales k_scales(device const uchar * packed, uint c) {
    device const ushort * pairs = (device const ushort *) packed;
    ushort scale, min;
    if (c < 2) {
        scale = pairs[c] & 0x3f3f;
        min = pairs[c + 2] & 0x3f3f;
    } else {
        const ushort low = pairs[c + 2];
        scale = (low & 0x0f0f) | (pairs[c - 2] & 0xc0c0) >> 2;
        min = (low >> 4 & 0x0f0f) | (pairs[c] & 0xc0c0) >> 2;
    }
    KScales k;
    k.scale = float2(float(scale & 0xff), float(scale >> 8));
    k.min = float2(float(min & 0xff), float(min >> 8));
    return k;
}

// Blocks of 256 values in four chunks of 64, whose byte b of 32 holds values b and b + 32: a lane takes 8 bytes of a chunk.
struct ChunkBlocks : WholeBlocks {
    enum { GROUPS = 2, OFFSET = 1 };
    static uint column(uint span, short j) { return span / 4 * 64 + span % 4 * 8 + (j & 2) * 16 + (j & 1) * 4; }
    static float4 factor() { return BYTES_IN_PLACE; }
};

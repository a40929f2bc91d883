// The 12 bytes of eight 6-bit scales and eight 6-bit mins that Q4_K and Q5_K share.
//
// Bytes 0-3 hold scales 0-3 in their low six bits, bytes 4-7 mins 0-3. Bytes 8-11 hold the low four
// bits of scales 4-7 and of mins 4-7, whose upper two bits are the top bits of bytes 0-3 and 4-7.
#pragma once
#include "linear/block.h"

// Two neighbouring sub-blocks.
struct KScales {
    float2 scale;
    float2 min;
};

// The undecoded scales and mins of sub-blocks 2 c and 2 c + 1: `d` and `dmin`, and three pairs of
// the 12 bytes.
struct KWords {
    half2 dm;
    ushort first;  // bytes 2 c
    ushort second; // bytes 2 c + 4
    ushort before; // bytes 2 c - 4, if c is 2 or 3
};

// Loads the words of a block that begins with `d`, `dmin` and the 12 bytes, and is aligned to 4
// bytes.
static inline KWords k_words(device const uchar * block, uint c) {
    device const ushort * pairs = (device const ushort *) (block + 4);
    KWords w;
    w.dm = as_type<half2>(load_4(block));
    w.first = pairs[c];
    w.second = pairs[c + 2];
    w.before = 0;
    if (c >= 2) w.before = pairs[c - 2];
    return w;
}

// Returns both sub-blocks' scales, times `d`, and mins, times `dmin`.
static inline KScales k_scales(KWords w, uint c) {
    ushort scale, min;
    if (c < 2) {
        scale = w.first & 0x3f3f;
        min = w.second & 0x3f3f;
    } else {
        scale = (w.second & 0x0f0f) | (w.before & 0xc0c0) >> 2;
        min = (w.second >> 4 & 0x0f0f) | (w.first & 0xc0c0) >> 2;
    }
    KScales k;
    k.scale = float(w.dm.x) * float2(float(scale & 0xff), float(scale >> 8));
    k.min = float(w.dm.y) * float2(float(min & 0xff), float(min >> 8));
    return k;
}

// One sub-block: value = scale * q - min.
struct KScale {
    float scale;
    float min;
};

// Returns one of two sub-blocks for codes up to `most`: as it is if no value is beyond 65504, else
// with the nearest min and then the nearest scale that make it so. The values of codes 0 and `most`
// are the outermost, whatever the signs.
static inline KScale bounded(KScales k, bool second, float most) {
    KScale one;
    one.min = clamp(second ? k.min.y : k.min.x, -65504.0f, 65504.0f);
    const float low = fma(one.min, 1.0f / most, -65504.0f / most), high = fma(one.min, 1.0f / most, 65504.0f / most);
    one.scale = clamp(second ? k.scale.y : k.scale.x, low, high);
    return one;
}

// The values of four codes, rounded once.
static inline half4 scaled(half4 q, KScale k) { return half4(fma(float4(q), float4(k.scale), float4(-k.min))); }

// Blocks of 256 values in four chunks of 64. Byte b of the 32 bytes of a chunk holds values b and
// b + 32. A lane loads 8 bytes of a chunk.
struct ChunkBlocks : WholeBlocks {
    enum { GROUPS = 2, OFFSET = 1 };
    static uint column(uint span, short j) { return span / 4 * 64 + span % 4 * 8 + (j & 2) * 16 + (j & 1) * 4; }
    static float4 factor() { return BYTES_IN_PLACE; }
};

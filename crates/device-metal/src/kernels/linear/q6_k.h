// Q6_K: blocks of 256 values in 210 bytes: 128 bytes of low four bits, 64 bytes of upper two bits,
// 16 signed scales, a half `d`. Value 128 h + 32 j + l has its low bits in byte 64 h + 32 (j % 2) +
// l, nibble j / 2, and its upper bits in bits 2 j of byte 32 h + l. value = d * scale * (q - 32).
// Blocks start at multiples of 2 bytes.
#pragma once
#include "linear/block.h"

struct Q6_K : QuarterBlocks {
    static uint row_bytes(uint n_in) { return n_in / 256 * 210; }

    static Codes<4> load(WeightRow row, uint span, uint) {
        device const uchar * block = row.codes + span / 16 * 210;
        const uint h = span % 16 / 8, l = span % 8 * 4;
        const uint a = load_2(block + 64 * h + l), b = load_2(block + 64 * h + 32 + l);
        const uint high = load_2(block + 128 + 32 * h + l);
        device const char * scales = (device const char *) (block + 192 + 8 * h + l / 16);
        const float d = load_half(block + 208);
        Codes<4> codes;
        codes.q[0] = bytes_in_place((a & 0x0f0f0f0f) | (high << 4 & 0x30303030), 63);
        codes.q[1] = bytes_in_place((b & 0x0f0f0f0f) | (high << 2 & 0x30303030), 63);
        codes.q[2] = bytes_in_place((a >> 4 & 0x0f0f0f0f) | (high & 0x30303030), 63);
        codes.q[3] = bytes_in_place((b >> 4 & 0x0f0f0f0f) | (high >> 2 & 0x30303030), 63);
        for (short j = 0; j < 4; j++) {
            codes.scale[j] = d * float(scales[2 * j]);
            codes.offset[j] = -32.0f * codes.scale[j];
        }
        return codes;
    }

    enum { WORDS = 1 };
    struct Raw {
        uint4 low;
        uint4 high;
        float d;
        float scale;
    };
    static Raw read(WeightRow row, uint index, uint) {
        device const uchar * block = row.codes + index / 16 * 210;
        const uint i = index % 16, h = i / 8, j = i / 2 % 4;
        Raw raw;
        for (short n = 0; n < 4; n++) {
            raw.low[n] = load_2(block + 64 * h + 32 * (j % 2) + 16 * (i % 2) + 4 * n);
            raw.high[n] = load_2(block + 128 + 32 * h + 16 * (i % 2) + 4 * n);
        }
        raw.d = load_half(block + 208);
        raw.scale = float(((device const char *) (block + 192))[i]);
        return raw;
    }
    // |q - 32| <= 32, so that values exceed a half only if the scale exceeds 2047, which is clamped.
    static HalfValues values(Raw raw, uint index) {
        const uint j = index % 16 / 2 % 4;
        const float scale = clamp(raw.d * raw.scale, -2047.0f, 2047.0f);
        HalfValues values;
        for (short n = 0; n < 4; n++) {
            const uint low = raw.low[n] >> j / 2 * 4 & 0x0f0f0f0f;
            const uint high = (raw.high[n] >> 2 * j & 0x03030303) << 4;
            values.v[n] = half4(float4(bytes_less(low | high, 63, 32.0h)) * scale);
        }
        return values;
    }
};

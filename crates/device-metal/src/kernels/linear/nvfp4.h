// NVFP4: blocks of 64 values in 36 bytes: four scales E4M3 of 16 values each, then 32 bytes: byte 8
// s + j holds value 16 s + j in its low nibble, value 16 s + 8 + j in its high one, as MXFP4's
// (E2M1). value = E4M3 * E2M1. Blocks start at multiples of 4 bytes.
#pragma once
#include "linear/mxfp4.h"
#include "linear/neighbours.h"

struct NVFP4 : Neighbours<NVFP4> {
    // `scale` is half the scale of the values.
    static float4 factor() { return MXFP4::factor(); }

    // Returns half the magnitude of an E4M3. Its bits, shifted left by 7, are a half that is 2^-8
    // times the number, subnormals included. NaN (127) is 0.
    static float e4m3_half(uchar e) {
        if (e == 127) return 0.0f;
        return float(as_type<half>(ushort((e & 127) << 7)) * 128.0h);
    }

    static Codes<1> load(WeightRow row, uint span, uint) {
        device const uchar * block = row.codes + span / 4 * 36;
        device const uchar * qs = block + 4 + span % 4 * 8;
        const uint a = load_4(qs), b = load_4(qs + 4);
        Codes<1> codes;
        codes.q[0] = MXFP4::numbers(a);
        codes.q[1] = MXFP4::numbers(b);
        codes.q[2] = MXFP4::numbers(a >> 4);
        codes.q[3] = MXFP4::numbers(b >> 4);
        codes.scale[0] = e4m3_half(block[span % 4]);
        codes.offset[0] = 0.0f;
        return codes;
    }
};

// The codebooks of the IQ types below 4 bits, and the decoding of their points.
//
// A point has 16 bits, its first value in the lowest: 2 bits for each of 8 values (IQ1, IQ2), or 3
// bits for each of 4 (IQ3). build.rs prints the tables of crates/weights/src/codec/grid.rs as
// linear/grid_points.h. The largest table has 4 KiB. Tables stay in constant memory, since lanes
// read different points, which its caches serve.
#pragma once
#include "linear/grid_points.h"
#include "linear/neighbours.h"

// Negates each of four numbers whose bit of bits 0 to 3 is set.
static inline float4 signed_by(float4 v, uint bits) {
    return as_type<float4>(as_type<uint4>(v) ^ (uint4(bits << 31, bits << 30, bits << 29, bits << 28) & 0x80000000u));
}

// Returns the signs of 8 values from the 7 stored bits. The eighth sign makes the number of
// negative values even.
static inline uint even_signs(uint seven) {
    seven &= 127;
    return seven | (popcount(seven) & 1) << 7;
}

// The magnitudes of the low four values of an IQ2 point: 8, 25, 43. No point has code 3.
static inline float4 iq2_four(uint point) {
    const uint4 codes = uint4(point, point >> 2, point >> 4, point >> 6) & 3;
    return float4(codes * 17 + 8 + codes / 2);
}

// Decodes a span of an IQ2 type from two points of 8 values, their signs, and their scale.
static inline Codes<1> iq2_span(uint2 points, uint2 signs, float scale) {
    Codes<1> codes;
    for (short i = 0; i < 2; i++) {
        codes.q[2 * i] = signed_by(iq2_four(points[i]), signs[i]);
        codes.q[2 * i + 1] = signed_by(iq2_four(points[i] >> 8), signs[i] >> 4);
    }
    codes.scale[0] = scale;
    codes.offset[0] = 0.0f;
    return codes;
}

// Returns d * (0.5 + scale) * 0.25 for span `at` of a block with a scale, one nibble, for each 16
// values.
static inline float iq2_scale(float d, device const uchar * scales, uint at) {
    const uint scale = uint(scales[at / 2]) >> at % 2 * 4 & 15;
    return d * (0.5f + float(scale)) * 0.25f;
}

// The low four values of an IQ1 point: -1, 0, 1.
static inline float4 iq1_four(uint point) {
    return float4(uint4(point, point >> 2, point >> 4, point >> 6) & 3) - 1.0f;
}

// The codes of an IQ3 point.
static inline uint4 iq3_codes(uint point) { return uint4(point, point >> 3, point >> 6, point >> 9) & 7; }

// The codebooks of the IQ types below 4 bits, and how a point is taken apart.
//
// A point is 16 bits, its first value in the lowest: 2 bits for each of 8 values (IQ1, IQ2), 3 bits
// for each of 4 (IQ3). build.rs prints the tables of crates/weights/src/codec/grid.rs as
// linear/grid_points.h. Packed so, the largest has 4 KiB: they stay in constant memory, in the
// caches of which lanes find different points.
#pragma once
#include "linear/grid_points.h"
#include "linear/neighbours.h"

// Four numbers, negative where bits 0 to 3 are set.
static inline float4 signed_by(float4 v, uint bits) {
    return as_type<float4>(as_type<uint4>(v) ^ (uint4(bits << 31, bits << 30, bits << 29, bits << 28) & 0x80000000u));
}

// The signs of 8 values of which 7 bits are stored: the eighth makes the number of negative ones
// even.
static inline uint even_signs(uint seven) {
    seven &= 127;
    return seven | (popcount(seven) & 1) << 7;
}

// The magnitudes of the low four values of an IQ2 point: 8, 25, 43. No point has code 3.
static inline float4 iq2_four(uint point) {
    const uint4 codes = uint4(point, point >> 2, point >> 4, point >> 6) & 3;
    return float4(codes * 17 + 8 + codes / 2);
}

// A span of an IQ2 type: two points of 8 values, the signs of each, and what its codes are
// multiplied by.
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

// Of blocks with a scale for each 16 values, a nibble: d * (0.5 + scale) * 0.25 of span `at` of a
// block.
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

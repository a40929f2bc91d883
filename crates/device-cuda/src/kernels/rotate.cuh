// Rotary position embedding of one column of a head.
#pragma once
#include "common.cuh"

// Cosine and sine of a pair of columns, times `scale`; `frequency` is in radians a position. The
// angle is rounded to f32 once, and its sine and cosine are exact for any size of the angle.
__device__ __forceinline__ float2 turn_of(uint position, float frequency, float scale) {
    float sine, cosine;
    sincosf(float(position) * frequency, &sine, &cosine);
    return make_float2(cosine * scale, sine * scale);
}

// Column `i` of a head after RoPE. `at` reads a column of the head. `turn` returns the cosine and
// the sine of each of the n_dims / 2 pairs.
template <class At, class Turn>
__device__ __forceinline__ float rotated(const At &at, uint i, uint n_dims, bool interleaved, const Turn &turn) {
    if (i >= n_dims) return at(i);
    const uint half = n_dims / 2;
    const bool second = interleaved ? (i & 1) != 0 : i >= half;
    const uint pair = interleaved ? i / 2 : second ? i - half : i;
    const uint other = interleaved ? i ^ 1 : (second ? i - half : i + half);
    const float2 by = turn(pair);
    return second ? at(i) * by.x + at(other) * by.y : at(i) * by.x - at(other) * by.y;
}

// Rotary position embedding of one column of a head.
#pragma once
#include "common.cuh"

// Column `i` of a head that `at` reads, after the rotation. `frequencies` has n_dims / 2 radians a position.
template <class At>
__device__ __forceinline__ float rotated(const At &at, uint i, uint n_dims, bool interleaved, float scale,
                                         const float *frequencies, uint position) {
    if (i >= n_dims) return at(i);
    const uint half = n_dims / 2;
    const uint pair = interleaved ? i / 2 : i % half;
    const bool second = interleaved ? (i & 1) != 0 : i >= half;
    const uint other = interleaved ? i ^ 1 : (second ? i - half : i + half);
    float sine, cosine;
    // The angle is rounded to f32 once; its sine and cosine are those of the whole angle.
    sincosf(float(position) * frequencies[pair], &sine, &cosine);
    sine *= scale;
    cosine *= scale;
    return second ? at(i) * cosine + at(other) * sine : at(i) * cosine - at(other) * sine;
}

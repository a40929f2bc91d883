// FP8 numbers (E4M3) of keys and values: device::kv_fp8 has the format.
#pragma once

// Two bytes of a word (pair 0: the lower two) as halves that are 2^-8 times their values. The
// exponent and mantissa move one bit down. This is exact, also for subnormal values.
__device__ __forceinline__ unsigned int halves_of_e4m3(unsigned int word, int pair) {
    const unsigned int x = __byte_perm(word, 0, pair == 0 ? 0x1404 : 0x3424);
    return (x & 0x80008000u) | ((x & 0x7f007f00u) >> 1);
}
// Factor of the values that `halves_of_e4m3` returns: 2^8 times the vector's scale. A vector with
// values above 57,344 is scaled down to that limit, because halves end at 65,504.
__device__ __forceinline__ float half_scale_of_e4m3(float scale) {
    return fminf(256.0f * scale, 32768.0f);
}
// The scale of a vector, which maps its largest magnitude to 448.
__device__ __forceinline__ float fp8_scale(float largest) {
    return fmaxf(largest / 448.0f, 7.888609052210118e-31f); // 2^-100
}
// The nearest E4M3 value, ties to even, clamped to 448.
__device__ __forceinline__ unsigned int e4m3_of(float x) {
    const unsigned int bits = __float_as_uint(x), magnitude = bits & 0x7fffffffu;
    const unsigned int normal = ((magnitude + 0x7ffffu + (magnitude >> 20 & 1)) >> 20) - ((127 - 7) << 3);
    const unsigned int rounded = magnitude < 0x3c800000u ? (unsigned int)rintf(fabsf(x) * 512.0f) : min(normal, 0x7eu);
    return (bits >> 24 & 0x80u) | rounded;
}

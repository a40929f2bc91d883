// Words that blocks exchange. A word carries its epoch in 4 bits (a chunk has 4 bits in each of its
// words): a reader that sees the tag sees the value. Nothing else is inferred, so there is no fence
// and no grid barrier. One thread writes a word once an epoch. A word that is read is at most one
// epoch old, because the writer of the next epoch depends on all readers of this one.
#pragma once
#include "gemm/ptx.h"

INLINE uint4 load_relaxed_4(const void *p) {
    uint4 v;
    asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p) : "memory");
    return v;
}
INLINE uint2 load_relaxed_2(const void *p) {
    uint2 v;
    asm volatile("ld.relaxed.gpu.global.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(p) : "memory");
    return v;
}
INLINE u32 load_relaxed_1(const void *p) {
    u32 v;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}
INLINE u64 load_relaxed_64(const void *p) {
    u64 v;
    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
    return v;
}
INLINE void store_relaxed_1(void *p, u32 v) { asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory"); }
INLINE void store_relaxed_2(void *p, uint2 v) {
    asm volatile("st.relaxed.gpu.global.v2.u32 [%0], {%1, %2};" ::"l"(p), "r"(v.x), "r"(v.y) : "memory");
}
INLINE void store_relaxed_64(void *p, u64 v) { asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory"); }
INLINE void store_relaxed_4(void *p, uint4 v) {
    asm volatile("st.relaxed.gpu.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}
INLINE u32 clock_now() {
    u32 c;
    asm volatile("mov.u32 %0, %%clock;" : "=r"(c)::"memory");
    return c;
}
INLINE void pause_cycles(u32 n) {
    if (n == 0) return;
    const u32 start = clock_now();
    while (clock_now() - start < n) {}
}

// Tags are 1..15. A word that was never written has tag 0, which matches none.
INLINE u32 tag_of(u32 epoch) { return 1 + epoch % 15; }
INLINE u32 tag_word(float v, u32 tag) { return (__float_as_uint(v) & ~15u) | tag; }
INLINE float untag_word(u32 v) { return __uint_as_float(v & ~15u); }
// A scale of 12 bits: 8 of exponent, 4 of mantissa, rounded up so that no value exceeds MOST.
template <int MOST = 127> INLINE u32 chunk_scale(float largest) {
    return (__float_as_uint(fmaxf(largest, 1e-20f) * (1.0f / MOST)) + 0x7FFFF) >> 19;
}
INLINE float max_of_8(float v) {
    v = fmaxf(v, __shfl_xor_sync(~0u, v, 1));
    v = fmaxf(v, __shfl_xor_sync(~0u, v, 2));
    return fmaxf(v, __shfl_xor_sync(~0u, v, 4));
}
INLINE float sum_of_8(float v) {
    v += __shfl_xor_sync(~0u, v, 1);
    v += __shfl_xor_sync(~0u, v, 2);
    return v + __shfl_xor_sync(~0u, v, 4);
}
INLINE float sum_of_32(float v) {
#pragma unroll
    for (int m = 1; m < 32; m *= 2) v += __shfl_xor_sync(~0u, v, m);
    return v;
}
INLINE uint4 chunk_of(u32 low, u32 high, u32 scale, float extra, u32 tag) {
    const u32 t = tag << 28;
    return make_uint4((low & 0xFFFFFF) | t, (low >> 24) | ((high & 0xFFFF) << 8) | t, (high >> 16) | (scale << 16) | t,
                      (__float_as_uint(extra) >> 4) | t);
}
// The chunk of two neighbouring lanes with four values each, whole in even lanes. All lanes call
// it.
INLINE uint4 make_chunk_of_2(const float (&v)[4], float extra, u32 tag) {
    const float largest = fmaxf(fmaxf(fabsf(v[0]), fabsf(v[1])), fmaxf(fabsf(v[2]), fabsf(v[3])));
    const u32 scale = chunk_scale(fmaxf(largest, __shfl_xor_sync(~0u, largest, 1)));
    const float inverse = reciprocal_fast(__uint_as_float(scale << 19));
    u32 p = 0;
#pragma unroll
    for (int e = 0; e < 4; e++) p |= (u32)(__float2int_rn(v[e] * inverse) & 255) << (8 * e);
    return chunk_of(p, __shfl_xor_sync(~0u, p, 1), scale, extra, tag);
}
// Chunks for several rows have integers of 10 bits, plus 512. A word has two of them, columns (0,
// 2), (1, 3), (4, 6) or (5, 7). Each is in the low bits of a half, where products need it. The
// first two words have 6 bits of scale each between them. The last two words have 8 bits each of
// the squares, as the upper half of an f32 that is not negative.
INLINE u32 fine_pair(float a, float b, float inverse) {
    // the low bits of 2^23 * 1.5 + an integer are the integer
    constexpr float PLUS_512 = 12582912.0f + 512.0f;
    return __byte_perm(__float_as_uint(fmaf(a, inverse, PLUS_512)), __float_as_uint(fmaf(b, inverse, PLUS_512)), 0x5410) & 0x03FF03FFu;
}
INLINE u32 fine_scale(float largest) { return chunk_scale<511>(largest); }
INLINE u32 fine_scale_bits(u32 scale, int word) { return word == 0 ? (scale & 63) << 10 : word == 1 ? scale >> 6 << 10 : 0; }
// The chunk of eight values of one lane.
INLINE uint4 make_fine_chunk(const float (&v)[8], float squares, u32 tag) {
    float largest = fabsf(v[0]);
#pragma unroll
    for (int e = 1; e < 8; e++) largest = fmaxf(largest, fabsf(v[e]));
    const u32 scale = fine_scale(largest), t = tag << 28;
    // NaN stays NaN.
    const u32 q = min((__float_as_uint(squares) & 0x7FFFFFFF) + 0x4000, 0x7FFFFFFFu) >> 15;
    const float inverse = reciprocal_fast(__uint_as_float(scale << 19));
    return make_uint4(fine_pair(v[0], v[2], inverse) | fine_scale_bits(scale, 0) | t, fine_pair(v[1], v[3], inverse) | fine_scale_bits(scale, 1) | t,
                      fine_pair(v[4], v[6], inverse) | (q & 63) << 10 | (q >> 6 & 3) << 26 | t,
                      fine_pair(v[5], v[7], inverse) | (q >> 8 & 63) << 10 | q >> 14 << 26 | t);
}
// Half of the chunk of two neighbouring lanes with four values each, without squares. All lanes
// call it.
INLINE uint2 make_half_of_fine_chunk(const float (&v)[4], u32 tag) {
    const float largest = fmaxf(fmaxf(fabsf(v[0]), fabsf(v[1])), fmaxf(fabsf(v[2]), fabsf(v[3])));
    const u32 scale = fine_scale(fmaxf(largest, __shfl_xor_sync(~0u, largest, 1))), t = tag << 28, word = 2 * (threadIdx.x & 1);
    const float inverse = reciprocal_fast(__uint_as_float(scale << 19));
    return make_uint2(fine_pair(v[0], v[2], inverse) | fine_scale_bits(scale, word) | t, fine_pair(v[1], v[3], inverse) | fine_scale_bits(scale, word + 1) | t);
}
INLINE u32 scale_of_fine(uint4 w) { return (w.x >> 10 & 63) | (w.y >> 4 & 0xFC0); }
INLINE float squares_of_fine(uint4 w) {
    return __uint_as_float((w.z >> 10 & 63 | w.z >> 20 & 0xC0 | w.w >> 2 & 0x3F00 | w.w >> 12 & 0xC000) << 15);
}
INLINE bool chunk_is(uint4 v, u32 tag) {
    const u32 t = tag << 28;
    return ((((v.x ^ t) | (v.y ^ t)) | ((v.z ^ t) | (v.w ^ t))) >> 28) == 0;
}


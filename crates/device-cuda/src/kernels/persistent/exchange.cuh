// Values handed from block to block as words that carry their epoch (4 bits a word): seeing the tag is seeing the value, and nothing
// else is inferred, so there is no fence and no grid barrier. A word is written once an epoch, by one thread; it can be at most one
// epoch old when it is read, because whoever writes the next one depends on all readers of this one.
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

// Tags are 1..15: a word that was never written has tag 0 and matches none.
INLINE u32 tag_of(u32 epoch) { return 1 + epoch % 15; }
INLINE u32 tag_word(float v, u32 tag) { return (__float_as_uint(v) & ~15u) | tag; }
INLINE float untag_word(u32 v) { return __uint_as_float(v & ~15u); }
// 12 bits of scale: 8 of exponent, 4 of mantissa, rounded up so that no value exceeds 127.
INLINE u32 chunk_scale(float largest) { return (__float_as_uint(fmaxf(largest, 1e-20f) * (1.0f / 127.0f)) + 0x7FFFF) >> 19; }
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
// The chunk of two neighbouring lanes with four values each; whole in even lanes. All lanes call it.
INLINE uint4 make_chunk_of_2(const float (&v)[4], float extra, u32 tag) {
    const float largest = fmaxf(fmaxf(fabsf(v[0]), fabsf(v[1])), fmaxf(fabsf(v[2]), fabsf(v[3])));
    const u32 scale = chunk_scale(fmaxf(largest, __shfl_xor_sync(~0u, largest, 1)));
    const float inverse = reciprocal_fast(__uint_as_float(scale << 19));
    u32 p = 0;
#pragma unroll
    for (int e = 0; e < 4; e++) p |= (u32)(__float2int_rn(v[e] * inverse) & 255) << (8 * e);
    return chunk_of(p, __shfl_xor_sync(~0u, p, 1), scale, extra, tag);
}
// The chunk of eight values of one lane.
INLINE uint4 make_chunk(const float (&v)[8], float extra, u32 tag) {
    float largest = fabsf(v[0]);
#pragma unroll
    for (int e = 1; e < 8; e++) largest = fmaxf(largest, fabsf(v[e]));
    const u32 scale = chunk_scale(largest);
    const float inverse = reciprocal_fast(__uint_as_float(scale << 19));
    u32 low = 0, high = 0;
#pragma unroll
    for (int e = 0; e < 4; e++) {
        low |= (u32)(__float2int_rn(v[e] * inverse) & 255) << (8 * e);
        high |= (u32)(__float2int_rn(v[4 + e] * inverse) & 255) << (8 * e);
    }
    return chunk_of(low, high, scale, extra, tag);
}
INLINE bool chunk_is(uint4 v, u32 tag) {
    const u32 t = tag << 28;
    return ((((v.x ^ t) | (v.y ^ t)) | ((v.z ^ t) | (v.w ^ t))) >> 28) == 0;
}


// Keys and values in pages. A layer's part of a page holds its keys, (n_kv_heads, page_len)
// vectors, then its values.
#pragma once
#include "common.cuh"
#include "e4m3.cuh"
#include "vector_bytes.h"

#define PAGE_NONE 0xffffffffu

struct KvF32 {
    static constexpr bool HALVES = false, BYTES = false, ONE_SCALE = false;
    static __device__ __forceinline__ uint bytes(uint head_dim) { return 4 * head_dim; }
    // If BYTES, all lanes of a warp store neighbouring columns together.
    static __device__ __forceinline__ void store(uchar *vector, uint, uint i, float x) { ((float *)vector)[i] = x; }
    static __device__ __forceinline__ float load(const uchar *vector, uint, uint i) { return ((const float *)vector)[i]; }
    // Columns 4 i to 4 i + 3 of a vector whose columns are a multiple of 4.
    static __device__ __forceinline__ void four(const uchar *vector, uint, uint i, float (&x)[4]) {
        const Vec4 v = ((const Vec4 *)vector)[i];
        x[0] = v.x, x[1] = v.y, x[2] = v.z, x[3] = v.w;
    }
};

struct KvF16 {
    static constexpr bool HALVES = true, BYTES = false, ONE_SCALE = false;
    static __device__ __forceinline__ uint bytes(uint head_dim) { return vector_bytes_f16(head_dim); }
    // Values that are too large are stored as the largest half.
    static __device__ __forceinline__ void store(uchar *vector, uint, uint i, float x) {
        ((ushort *)vector)[i] = f16_of_f32(x);
    }
    static __device__ __forceinline__ float load(const uchar *vector, uint, uint i) {
        return f32_of_f16(((const ushort *)vector)[i]);
    }
    static __device__ __forceinline__ void four(const uchar *vector, uint, uint i, float (&x)[4]) {
        const Word2 v = ((const Word2 *)vector)[i];
        x[0] = low_f16(v.x), x[1] = high_f16(v.x), x[2] = low_f16(v.y), x[3] = high_f16(v.y);
    }
};

// Byte `index` of a word as a signed value, computed as (2^23 + 128 + byte) - (2^23 + 128).
__device__ __forceinline__ float f32_of_byte(uint word, int index) {
    return __uint_as_float(__byte_perm(word ^ 0x80808080u, 0x4b000000u, 0x7440 + index)) - 8388736.0f;
}

// Blocks of 32 columns like Q8_0, where d is the largest magnitude / 127, rounded to half. Here a
// vector's bytes come first, in the order of columns, and its scales after them. Words of a vector
// of 64 columns or more are therefore aligned.
struct KvQ8_0 {
    static constexpr bool HALVES = false, BYTES = true, ONE_SCALE = false;
    static __device__ __forceinline__ uint bytes(uint head_dim) { return vector_bytes_q8_0(head_dim); }
    static __device__ __forceinline__ void store(uchar *vector, uint head_dim, uint i, float x) {
        const ushort d = f16_of_f32(fminf(warp_max(fabsf(x)) / 127.0f, 65504.0f));
        const float scale = f32_of_f16(d), inverse = scale > 0.0f ? 1.0f / scale : 0.0f;
        ((signed char *)vector)[i] = (signed char)fminf(fmaxf(rintf(x * inverse), -127.0f), 127.0f);
        if ((i & 31) == 0) ((ushort *)(vector + head_dim))[i / 32] = d;
    }
    static __device__ __forceinline__ float scale(const uchar *vector, uint head_dim, uint block) {
        return f32_of_f16(((const ushort *)(vector + head_dim))[block]);
    }
    static __device__ __forceinline__ float load(const uchar *vector, uint head_dim, uint i) {
        return scale(vector, head_dim, i / 32) * float(((const signed char *)vector)[i]);
    }
    static __device__ __forceinline__ void four(const uchar *vector, uint head_dim, uint i, float (&x)[4]) {
        const float d = scale(vector, head_dim, i / 8);
        // Loads two bytes at a time, because a vector of 32 columns has 34 bytes.
        const uint low = ((const ushort *)vector)[2 * i], high = ((const ushort *)vector)[2 * i + 1];
        numbers(low | high << 16, x);
#pragma unroll
        for (int c = 0; c < 4; c++) x[c] *= d;
    }
    // Four columns without their scale.
    static __device__ __forceinline__ void numbers(uint word, float (&x)[4]) {
#pragma unroll
        for (int c = 0; c < 4; c++) x[c] = f32_of_byte(word, c);
    }
};

// device::kv_fp8: a byte for each column, padded to whole words, then the vector's scale in f32.
struct KvFp8 {
    static constexpr bool HALVES = false, BYTES = true, ONE_SCALE = true;
    static __device__ __forceinline__ uint padded(uint head_dim) { return (head_dim + 3) & ~3u; }
    static __device__ __forceinline__ uint bytes(uint head_dim) { return vector_bytes_fp8(head_dim); }
    // Stores a whole vector. All lanes of a warp call it.
    static __device__ __forceinline__ void store_all(uchar *vector, uint head_dim, uint lane, const float *x) {
        float largest = 0.0f;
        for (uint i = lane; i < head_dim; i += 32) largest = fmaxf(largest, fabsf(x[i]));
        const float scale = fp8_scale(warp_max(largest)), inverse = 1.0f / scale;
        for (uint i = lane; i < head_dim; i += 32) vector[i] = uchar(e4m3_of(x[i] * inverse));
        if (lane == 0) *(float *)(vector + padded(head_dim)) = scale;
    }
    // Scale of the values that `numbers` returns.
    static __device__ __forceinline__ float scale(const uchar *vector, uint head_dim, uint) {
        return 256.0f * *(const float *)(vector + padded(head_dim));
    }
    static __device__ __forceinline__ float load(const uchar *vector, uint head_dim, uint i) {
        return scale(vector, head_dim, 0) * low_f16(halves_of_e4m3(vector[i], 0));
    }
    static __device__ __forceinline__ void four(const uchar *vector, uint head_dim, uint i, float (&x)[4]) {
        const float d = scale(vector, head_dim, 0);
        numbers(((const uint *)vector)[i], x);
#pragma unroll
        for (int c = 0; c < 4; c++) x[c] *= d;
    }
    static __device__ __forceinline__ void numbers(uint word, float (&x)[4]) {
        const uint low = halves_of_e4m3(word, 0), high = halves_of_e4m3(word, 1);
        x[0] = low_f16(low), x[1] = high_f16(low), x[2] = low_f16(high), x[3] = high_f16(high);
    }
};

// The address of a head's key (or value) at a position.
template <class Kv>
__device__ __forceinline__ uchar *vector_of(const PagesArguments &p, const uint *table, uint position, uint head, bool values) {
    const uint page = table[position / p.page_len];
    const uint n = p.n_kv_heads * p.page_len;
    const uint index = (values ? n : 0) + head * p.page_len + position % p.page_len;
    return p.pool + page * p.page_bytes + p.layer_offset + ulong(index) * Kv::bytes(p.head_dim);
}

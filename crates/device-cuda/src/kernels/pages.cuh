// Keys and values in pages. A layer's part of a page holds its keys, (n_kv_heads, page_len) vectors, then its values.
#pragma once
#include "common.cuh"

#define PAGE_NONE 0xffffffffu

struct KvF32 {
    static constexpr bool HALVES = false;
    static __device__ __forceinline__ uint bytes(uint head_dim) { return 4 * head_dim; }
    static __device__ __forceinline__ void store(uchar *vector, uint i, float x) { ((float *)vector)[i] = x; }
    static __device__ __forceinline__ float load(const uchar *vector, uint i) { return ((const float *)vector)[i]; }
    // Columns 4 i to 4 i + 3, of vectors whose columns are a multiple of 4.
    static __device__ __forceinline__ void four(const uchar *vector, uint i, float (&x)[4]) {
        const Vec4 v = ((const Vec4 *)vector)[i];
        x[0] = v.x, x[1] = v.y, x[2] = v.z, x[3] = v.w;
    }
};

struct KvF16 {
    static constexpr bool HALVES = true;
    static __device__ __forceinline__ uint bytes(uint head_dim) { return 2 * head_dim; }
    // What is too large is stored as the largest.
    static __device__ __forceinline__ void store(uchar *vector, uint i, float x) {
        ((ushort *)vector)[i] = f16_of_f32(x);
    }
    static __device__ __forceinline__ float load(const uchar *vector, uint i) {
        return f32_of_f16(((const ushort *)vector)[i]);
    }
    static __device__ __forceinline__ void four(const uchar *vector, uint i, float (&x)[4]) {
        const Word2 v = ((const Word2 *)vector)[i];
        x[0] = low_f16(v.x), x[1] = high_f16(v.x), x[2] = low_f16(v.y), x[3] = high_f16(v.y);
    }
};

// The vector of a head of keys (or values) at a position.
template <class Kv>
__device__ __forceinline__ uchar *vector_of(const PagesArguments &p, const uint *table, uint position, uint head, bool values) {
    const uint page = table[position / p.page_len];
    const uint n = p.n_kv_heads * p.page_len;
    const uint index = (values ? n : 0) + head * p.page_len + position % p.page_len;
    return p.pool + page * p.page_bytes + p.layer_offset + ulong(index) * Kv::bytes(p.head_dim);
}

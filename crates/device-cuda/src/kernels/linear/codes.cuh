// The integers of 32 neighbouring columns of a row, in the layouts to which the host repacks every
// type. One aligned load has the integers of a group, and few operations make words of four signed
// bytes in the order of the columns. Word k holds columns 4k to 4k + 3.
//
// | layout | bits | `codes` | `high` |
// |---|---|---|---|
// | Crumbs | 2 | 8 bytes: bits 2 (k % 4) of byte i of word k / 4 | |
// | Crumbs1 | 3 | as Crumbs | 4 bytes: the third bits, bit k of byte i |
// | Nibbles | 4 | 16 bytes: nibble k / 4 of byte i of word k % 4 | |
// | Nibbles1 | 5 | as Nibbles | 4 bytes: the fifth bits, bit k of byte i |
// | Nibbles2 | 6 | as Nibbles | 8 bytes: the upper two bits, as Crumbs |
// | Bytes | 8 | 32 bytes, signed | |
#pragma once
#include "common.cuh"

// Addresses of a row in the planes of its matrix.
struct Row {
    const uchar *codes;
    const uchar *high;
    const uchar *scales;
    const uchar *supers;
    uint kind;
    uint shift;
};

__device__ __forceinline__ uint word_of(const Word4 &w, int k) {
    return k == 0 ? w.x : k == 1 ? w.y : k == 2 ? w.z : w.w;
}
__device__ __forceinline__ uint word_of(const Word2 &w, int k) { return k == 0 ? w.x : w.y; }

struct Crumbs {
    Word2 c;
    static constexpr int BITS = 2;
    __device__ __forceinline__ void load(const Row &row, uint g) { c = *(const Word2 *)(row.codes + 8 * g); }
    __device__ __forceinline__ uint word(int k) const { return (word_of(c, k / 4) >> (2 * (k % 4))) & 0x03030303u; }
};

struct Crumbs1 {
    Word2 c;
    uint h;
    static constexpr int BITS = 3;
    __device__ __forceinline__ void load(const Row &row, uint g) {
        c = *(const Word2 *)(row.codes + 8 * g);
        h = *(const uint *)(row.high + 4 * g);
    }
    __device__ __forceinline__ uint word(int k) const {
        return ((word_of(c, k / 4) >> (2 * (k % 4))) & 0x03030303u) | (((h >> k) & 0x01010101u) << 2);
    }
};

struct Nibbles {
    Word4 c;
    static constexpr int BITS = 4;
    __device__ __forceinline__ void load(const Row &row, uint g) { c = *(const Word4 *)(row.codes + 16 * g); }
    __device__ __forceinline__ uint word(int k) const { return (word_of(c, k % 4) >> (4 * (k / 4))) & 0x0f0f0f0fu; }
};

struct Nibbles1 {
    Word4 c;
    uint h;
    static constexpr int BITS = 5;
    __device__ __forceinline__ void load(const Row &row, uint g) {
        c = *(const Word4 *)(row.codes + 16 * g);
        h = *(const uint *)(row.high + 4 * g);
    }
    __device__ __forceinline__ uint word(int k) const {
        return ((word_of(c, k % 4) >> (4 * (k / 4))) & 0x0f0f0f0fu) | (((h >> k) & 0x01010101u) << 4);
    }
};

struct Nibbles2 {
    Word4 c;
    Word2 h;
    static constexpr int BITS = 6;
    __device__ __forceinline__ void load(const Row &row, uint g) {
        c = *(const Word4 *)(row.codes + 16 * g);
        h = *(const Word2 *)(row.high + 8 * g);
    }
    __device__ __forceinline__ uint word(int k) const {
        return ((word_of(c, k % 4) >> (4 * (k / 4))) & 0x0f0f0f0fu) |
               (((word_of(h, k / 4) >> (2 * (k % 4))) & 0x03030303u) << 4);
    }
};

struct Bytes {
    Word4 low, high;
    static constexpr int BITS = 8;
    __device__ __forceinline__ void load(const Row &row, uint g) {
        low = *(const Word4 *)(row.codes + 32 * g);
        high = *(const Word4 *)(row.codes + 32 * g + 16);
    }
    __device__ __forceinline__ uint word(int k) const { return k < 4 ? word_of(low, k) : word_of(high, k - 4); }
};

// Nibbles that index a table of 16 signed bytes, stored in four words.
template <uint T0, uint T1, uint T2, uint T3> struct Looked {
    Word4 c;
    static constexpr int BITS = 8;
    __device__ __forceinline__ void load(const Row &row, uint g) { c = *(const Word4 *)(row.codes + 16 * g); }
    // Looks up the four lower nibbles of a word.
    static __device__ __forceinline__ uint four(uint nibbles) {
        const uint low = __byte_perm(T0, T1, nibbles & 0x7777u), high = __byte_perm(T2, T3, nibbles & 0x7777u);
        return __byte_perm(low, high, 0x3210u | ((nibbles & 0x8888u) >> 1));
    }
    __device__ __forceinline__ uint word(int k) const {
        const uint nibbles = word_of(c, k % 4);
        return __byte_perm(four(nibbles), four(nibbles >> 16), k < 4 ? 0x6420u : 0x7531u);
    }
};

// -127 -104 -83 -65 -49 -35 -22 -10 1 13 25 38 53 69 89 113
typedef Looked<0xbfad9881u, 0xf6eaddcfu, 0x26190d01u, 0x71594535u> Iq4Codes;
// 0 1 2 3 4 6 8 12 0 -1 -2 -3 -4 -6 -8 -12
typedef Looked<0x03020100u, 0x0c080604u, 0xfdfeff00u, 0xf4f8fafcu> Mxfp4Codes;

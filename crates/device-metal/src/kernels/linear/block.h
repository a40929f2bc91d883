// What the decoders of block types share, and what each of them offers.
//
// A decoder `D` is a struct without data. `linear/gemv.h` multiplies with it in *spans*: 16 values
// of a row that one lane takes at once, four vectors of four neighbouring columns.
//
//     enum { GROUPS, OFFSET, LEVELS }  1, 2 or 4 groups of vectors with a scale each; whether there are offsets;
//                                      whether `levels` must hold D::level(0..15)
//     enum { RAGGED, PLANES }          whether rows need not be whole spans: what follows their end is 0 and not read;
//                                      whether scales lie in planes of their own
//     typedef .. Operand               what linear/gemm.h multiplies: half, or float where a half loses what the file has
//     uint n_spans(n_in)               spans of a row
//     uint column(span, j)             the first column of its vector j = 0..3
//     float4 factor()                  what a vector of x is multiplied with before it meets the codes, a power of two each
//     Codes<GROUPS> load(row, span, n_in)   value = scale[g] * factor * q + offset[g]
//     uint row_bytes(n_in)             of types that follow another in linear/mixed.metal
//     Values decode(row, index, n_in)  the 16 values of columns 16 * index .. + 15, for matrices and for embed
//
// Types of which most files are have these too, so that tiles can load words long before they are
// decoded (`Held`):
//
//     typedef .. Raw                   the words in which 16 neighbouring values lie
//     Raw read(row, index)             those of columns 16 * index .. + 15
//     Values values(raw, index)        what they stand for
//
// The factors are why a code is not shifted to its place: `word & 0x0f00` is 256 times the code,
// and its x is divided by 256 once for all rows of the weight. Powers of two are exact.
#pragma once
#include <metal_stdlib>
#include "linear/constants.h"
using namespace metal;

// One row of a weight.
struct WeightRow {
    device const uchar * codes;
    device const uchar * scales;  // of types with planes
    device const uchar * offsets; // of types with planes
    threadgroup const float * levels; // 16 levels, of types that have them
};

// Codes of a span as numbers.
template<short GROUPS> struct Codes {
    float4 q[4];
    float scale[GROUPS];
    float offset[GROUPS];
};

// 16 neighbouring values.
struct Values {
    float4 v[4];
};

// 16 neighbouring values from when they are loaded until they are needed: of types with `read`
// their words, of the others themselves.
template<class D, bool WORDS = D::WORDS> struct Held {
    Values held;
    void load(WeightRow row, uint index, uint n_in) { held = D::decode(row, index, n_in); }
    Values values(uint) const { return held; }
};
template<class D> struct Held<D, true> {
    typename D::Raw held;
    void load(WeightRow row, uint index, uint) { held = D::read(row, index); }
    Values values(uint index) const { return D::values(held, index); }
};

// The factors of `bytes_in_place`: 2^0, 2^-8, 2^-16, 2^-24.
#define BYTES_IN_PLACE float4(1.0f, 0.00390625f, 1.52587890625e-5f, 5.9604644775390625e-8f)

// Most types have no table of levels, and follow no other.
struct NoLevels {
    enum { LEVELS = 0, WORDS = 0 };
    static float level(ushort) { return 0.0f; }
    static uint row_bytes(uint) { return 0; }
};

// A row of whole blocks: 16 values a span.
struct WholeBlocks : NoLevels {
    enum { RAGGED = 0, PLANES = 0 };
    typedef half Operand;
    static uint n_spans(uint n_in) { return n_in / 16; }
};

// Blocks of 32 values whose byte j holds values j and j + 16: a lane takes 8 of the 16 bytes.
struct NibbleBlocks : WholeBlocks {
    enum { GROUPS = 1, OFFSET = 1 };
    static uint column(uint span, short j) { return span / 2 * 32 + span % 2 * 8 + (j & 2) * 8 + (j & 1) * 4; }
    static float4 factor() { return BYTES_IN_PLACE; }
};

// Blocks of 256 values whose byte b of each half holds values b, b + 32, b + 64 and b + 96 of that
// half: a lane takes 4 bytes.
struct QuarterBlocks : WholeBlocks {
    enum { GROUPS = 4, OFFSET = 1 };
    static uint column(uint span, short j) { return span / 8 * 128 + span % 8 * 4 + j * 32; }
    static float4 factor() { return BYTES_IN_PLACE; }
};

// 4 bytes from an address that is a multiple of 2.
static inline uint load_2(device const uchar * p) {
    device const ushort * words = (device const ushort *) p;
    return uint(words[0]) | uint(words[1]) << 16;
}

// 4 bytes from an address that is a multiple of 4.
static inline uint load_4(device const uchar * p) {
    return *(device const uint *) p;
}

// 4 bytes from any address.
static inline uint load_1(device const uchar * p) {
    return uint(p[0]) | uint(p[1]) << 8 | uint(p[2]) << 16 | uint(p[3]) << 24;
}

static inline float load_half(device const uchar * p) {
    return float(*(device const half *) p);
}

// 16 bytes of a block and its scale, as Q4_0 and Q8_0 have them.
struct ScaledWords {
    uint4 qs;
    float d;
};

// Of a block that begins with its scale, the 16 bytes from `at` on; both are multiples of 2 bytes.
static inline ScaledWords scaled_words(device const uchar * block, uint at) {
    ScaledWords words;
    for (short j = 0; j < 4; j++) words.qs[j] = load_2(block + at + 4 * j);
    words.d = load_half(block);
    return words;
}

// The masked part of each byte where it lies: 1, 2^8, 2^16 and 2^24 times its number.
static inline float4 bytes_in_place(uint word, uint mask) {
    return float4(float(word & mask), float(word & mask << 8), float(word & mask << 16), float(word & mask << 24));
}

// The masked part of each byte.
static inline float4 bytes_of(uint word, uint mask) {
    return float4(float(word & mask), float(word >> 8 & mask), float(word >> 16 & mask), float(word >> 24 & mask));
}

// 2^(e - 128), half the number that the exponent E8M0 stands for; its least two are subnormal.
static inline float e8m0_half(uint e) {
    return as_type<float>(e < 2 ? 0x00200000u << e : (e - 1) << 23);
}

static inline float bf16_to_float(ushort bits) {
    return as_type<float>(uint(bits) << 16);
}

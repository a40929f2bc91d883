// Interface of the decoders of block types, and the code that they share.
//
// A decoder `D` is a struct without data. `linear/gemv.h` multiplies by *spans*: 16 values of a row
// that one lane loads at once, as four vectors of four neighbouring columns.
//
//   enum { GROUPS, OFFSET, LEVELS }  number of groups of vectors with their own scale: 1, 2 or 4;
//                                    1 if there are offsets; 1 if `levels` holds D::level(0..15)
//   enum { RAGGED, PLANES }          1 if rows need not be whole spans (columns after the end are 0
//                                    and not read); 1 if scales are in planes of their own
//   typedef .. Operand               operand of linear/gemm.h: half, or float if a half would lose
//                                    precision or range
//   uint n_spans(n_in)               spans of a row
//   uint column(span, j)             first column of vector j = 0..3 of a span
//   float4 factor()                  powers of two by which a vector of x is multiplied before its
//                                    product with the codes
//   Codes<GROUPS> load(row, span, n_in)   value = scale[g] * factor * q + offset[g]
//   uint row_bytes(n_in)             bytes of a row, for last types of linear/mixed.metal
//   Values decode(row, index, n_in)  values of columns 16 * index .. + 15, for tiles
//
// The most common types have these instead of `decode`, so that tiles can load words long before
// they decode them (`Held`):
//
//   typedef .. Raw                   the words that hold 16 neighbouring values
//   Raw read(row, index, n_in)       loads the words of columns 16 * index .. + 15
//   HalfValues values(raw, index)    decodes them, none beyond 65504
//
// The factors save shifts of codes: `word & 0x0f00` is 256 times the code, and x is divided by 256
// once for all rows of the weight. Powers of two are exact.
#pragma once
#include <metal_stdlib>
#include "linear/constants.h"
using namespace metal;

// One row of a weight.
struct WeightRow {
    device const uchar * codes;
    device const uchar * scales;  // for types with planes
    device const uchar * offsets; // for types with planes
    threadgroup const float * levels; // 16 levels, for types with LEVELS
};

// Codes of a span, converted to numbers.
template<short GROUPS> struct Codes {
    float4 q[4];
    float scale[GROUPS];
    float offset[GROUPS];
};

// 16 neighbouring values.
struct Values {
    float4 v[4];
};

// 16 neighbouring values as operands of matrices. A decoder that returns them bounds the scale of
// the values, once, so that no value is beyond 65504 and none has to be clamped.
struct HalfValues {
    half4 v[4];
};

// 16 neighbouring values that are loaded early: the words of types with `read`, the decoded values
// of other types.
template<class D, bool WORDS = D::WORDS> struct Held {
    Values held;
    void load(WeightRow row, uint index, uint n_in) { held = D::decode(row, index, n_in); }
    Values values(uint) const { return held; }
};
template<class D> struct Held<D, true> {
    typename D::Raw held;
    void load(WeightRow row, uint index, uint n_in) { held = D::read(row, index, n_in); }
    HalfValues values(uint index) const { return D::values(held, index); }
};

// The factors of `bytes_in_place`: 2^0, 2^-8, 2^-16, 2^-24.
#define BYTES_IN_PLACE float4(1.0f, 0.00390625f, 1.52587890625e-5f, 5.9604644775390625e-8f)

// Base of types without a table of levels, words, or a use as last type of linear/mixed.metal.
struct NoLevels {
    enum { LEVELS = 0, WORDS = 0 };
    static float level(ushort) { return 0.0f; }
    static uint row_bytes(uint) { return 0; }
};

// Rows of whole blocks: 16 values a span.
struct WholeBlocks : NoLevels {
    enum { RAGGED = 0, PLANES = 0 };
    typedef half Operand;
    static uint n_spans(uint n_in) { return n_in / 16; }
};

// Blocks of 32 values whose byte j holds values j and j + 16. A lane loads 8 of the 16 bytes.
struct NibbleBlocks : WholeBlocks {
    enum { GROUPS = 1, OFFSET = 1 };
    static uint column(uint span, short j) { return span / 2 * 32 + span % 2 * 8 + (j & 2) * 8 + (j & 1) * 4; }
    static float4 factor() { return BYTES_IN_PLACE; }
};

// Blocks of 256 values whose byte b of each half holds values b, b + 32, b + 64 and b + 96 of that
// half. A lane loads 4 bytes.
struct QuarterBlocks : WholeBlocks {
    enum { GROUPS = 4, OFFSET = 1 };
    static uint column(uint span, short j) { return span / 8 * 128 + span % 8 * 4 + j * 32; }
    static float4 factor() { return BYTES_IN_PLACE; }
};

// Loads 4 bytes from an address that is a multiple of 2.
static inline uint load_2(device const uchar * p) {
    device const ushort * words = (device const ushort *) p;
    return uint(words[0]) | uint(words[1]) << 16;
}

// Loads 4 bytes from an address that is a multiple of 4.
static inline uint load_4(device const uchar * p) {
    return *(device const uint *) p;
}

// Loads 4 bytes from any address.
static inline uint load_1(device const uchar * p) {
    return uint(p[0]) | uint(p[1]) << 8 | uint(p[2]) << 16 | uint(p[3]) << 24;
}

static inline float load_half(device const uchar * p) {
    return float(*(device const half *) p);
}

// 16 bytes of a block and its scale, for Q4_0 and Q8_0.
struct ScaledWords {
    uint4 qs;
    half d;
};

// Loads the scale at the start of a block, and the 16 bytes from `at` on. Block and `at` are
// multiples of 2 bytes.
static inline ScaledWords scaled_words(device const uchar * block, uint at) {
    ScaledWords words;
    for (short j = 0; j < 4; j++) words.qs[j] = load_2(block + at + 4 * j);
    words.d = *(device const half *) block;
    return words;
}

// The masked part of each byte in place: 1, 2^8, 2^16 and 2^24 times its number.
static inline float4 bytes_in_place(uint word, uint mask) {
    return float4(float(word & mask), float(word & mask << 8), float(word & mask << 16), float(word & mask << 24));
}

// The masked part of each byte, as low bits of halves whose other bits are `bits`. No conversion is
// needed: with 0x6400 the half of a part n is 1024 + n; with 0x5400 it is 64 + n / 16.
static inline half4 bytes_in_halves(uint word, uint mask, uint bits) {
    const uint masks = mask | mask << 16, ones = bits | bits << 16;
    const half2 even = as_type<half2>((word & masks) | ones), odd = as_type<half2>((word >> 8 & masks) | ones);
    return half4(even.x, odd.x, even.y, odd.y);
}

// The masked part of each byte, less a whole number.
static inline half4 bytes_less(uint word, uint mask, half less) {
    return bytes_in_halves(word, mask, 0x6400) - (1024.0h + less);
}

// The low, or the high, nibble of each byte, less a whole number. A high nibble is not shifted.
static inline half4 nibbles_less(uint word, bool high, half less) {
    return bytes_in_halves(word, high ? 0xf0 : 0x0f, high ? 0x5400 : 0x6400) - ((high ? 64.0h : 1024.0h) + less);
}

// The masked part of each byte.
static inline float4 bytes_of(uint word, uint mask) { return float4(bytes_less(word, mask, 0.0h)); }

// 2^(e - 128), half the value of the E8M0 exponent e. The two smallest are subnormal.
static inline float e8m0_half(uint e) {
    return as_type<float>(e < 2 ? 0x00200000u << e : (e - 1) << 23);
}

static inline float bf16_to_float(ushort bits) {
    return as_type<float>(uint(bits) << 16);
}

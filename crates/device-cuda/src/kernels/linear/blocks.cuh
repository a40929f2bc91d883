// Decodes the integers of each type: column c of a group of 32 is s[c / 16] * (q - zero) + b[c /
// 16].
//
// A type has `Raw`, the data that is loaded for a group; `scales`, which returns s and b; and
// `zero`. HALVES: the two halves of a group have different scales. HAS_MIN: there is a b. Formulas
// are those of the codecs (crates/weights/src/codec).
#pragma once
#include "linear/codes.cuh"

struct GroupScales {
    float s0, s1, b0, b1;
};

// `d` in f16, one for each group.
template <class C, int ZERO> struct Simple {
    static constexpr bool HALVES = false, HAS_MIN = false;
    struct Raw {
        C codes;
        ushort d;
    };
    static __device__ __forceinline__ void load(Raw &raw, const Row &row, uint g) {
        raw.codes.load(row, g);
        raw.d = *(const ushort *)(row.scales + 2 * g);
    }
    static __device__ __forceinline__ GroupScales scales(const Raw &raw, const Row &, uint) {
        const float d = f32_of_f16(raw.d);
        return {d, d, 0.0f, 0.0f};
    }
    static __device__ __forceinline__ int zero(const Row &) { return ZERO; }
};

// `d` and `m` in f16.
template <class C> struct WithMin {
    static constexpr bool HALVES = false, HAS_MIN = true;
    struct Raw {
        C codes;
        uint dm;
    };
    static __device__ __forceinline__ void load(Raw &raw, const Row &row, uint g) {
        raw.codes.load(row, g);
        raw.dm = *(const uint *)(row.scales + 4 * g);
    }
    static __device__ __forceinline__ GroupScales scales(const Raw &raw, const Row &, uint) {
        const float d = low_f16(raw.dm), m = high_f16(raw.dm);
        return {d, d, m, m};
    }
    static __device__ __forceinline__ int zero(const Row &) { return 0; }
};

// Q4_K, Q5_K: 16 bytes for 8 groups: d, dmin, 12 bytes of packed scales and mins.
template <class C> struct KWithMin {
    static constexpr bool HALVES = false, HAS_MIN = true;
    struct Raw {
        C codes;
        Word4 super;
    };
    static __device__ __forceinline__ void load(Raw &raw, const Row &row, uint g) {
        raw.codes.load(row, g);
        raw.super = *(const Word4 *)(row.supers + 16 * (g >> 3));
    }
    static __device__ __forceinline__ GroupScales scales(const Raw &raw, const Row &, uint g) {
        const uint shift = 8 * (g & 3);
        const uint a = raw.super.y >> shift, b = raw.super.z >> shift, c = raw.super.w >> shift;
        const bool upper = (g & 4) != 0;
        const uint scale = upper ? (c & 15) | ((a >> 2) & 0x30) : a & 63;
        const uint min = upper ? ((c >> 4) & 15) | ((b >> 2) & 0x30) : b & 63;
        const float s = low_f16(raw.super.x) * float(scale), m = -(high_f16(raw.super.x) * float(min));
        return {s, s, m, m};
    }
    static __device__ __forceinline__ int zero(const Row &) { return 0; }
};

// Q3_K, Q6_K: a signed byte for each half of a group, and a d for 8 groups.
template <class C, int ZERO> struct KSigned {
    static constexpr bool HALVES = true, HAS_MIN = false;
    struct Raw {
        C codes;
        ushort scales;
        ushort d;
    };
    static __device__ __forceinline__ void load(Raw &raw, const Row &row, uint g) {
        raw.codes.load(row, g);
        raw.scales = *(const ushort *)(row.scales + 2 * g);
        raw.d = *(const ushort *)(row.supers + 2 * (g >> 3));
    }
    static __device__ __forceinline__ GroupScales scales(const Raw &raw, const Row &, uint) {
        const float d = f32_of_f16(raw.d);
        return {d * float((signed char)(raw.scales & 0xff)), d * float((signed char)(raw.scales >> 8)), 0.0f, 0.0f};
    }
    static __device__ __forceinline__ int zero(const Row &) { return ZERO; }
};

// Q2_K: a byte for each half, scale and min; d and dmin for 8 groups.
struct Q2K {
    static constexpr bool HALVES = true, HAS_MIN = true;
    struct Raw {
        Crumbs codes;
        ushort scales;
        uint dm;
    };
    static __device__ __forceinline__ void load(Raw &raw, const Row &row, uint g) {
        raw.codes.load(row, g);
        raw.scales = *(const ushort *)(row.scales + 2 * g);
        raw.dm = *(const uint *)(row.supers + 4 * (g >> 3));
    }
    static __device__ __forceinline__ GroupScales scales(const Raw &raw, const Row &, uint) {
        const float d = low_f16(raw.dm), m = high_f16(raw.dm);
        const uint s = raw.scales;
        return {d * float(s & 15), d * float((s >> 8) & 15), -(m * float((s >> 4) & 15)), -(m * float(s >> 12))};
    }
    static __device__ __forceinline__ int zero(const Row &) { return 0; }
};

// IQ4_XS: a signed byte a group, and a d for 8.
struct Iq4Xs {
    static constexpr bool HALVES = false, HAS_MIN = false;
    struct Raw {
        Iq4Codes codes;
        uchar scale;
        ushort d;
    };
    static __device__ __forceinline__ void load(Raw &raw, const Row &row, uint g) {
        raw.codes.load(row, g);
        raw.scale = row.scales[g];
        raw.d = *(const ushort *)(row.supers + 2 * (g >> 3));
    }
    static __device__ __forceinline__ GroupScales scales(const Raw &raw, const Row &, uint) {
        const float s = f32_of_f16(raw.d) * float((signed char)raw.scale);
        return {s, s, 0.0f, 0.0f};
    }
    static __device__ __forceinline__ int zero(const Row &) { return 0; }
};

struct Mxfp4 {
    static constexpr bool HALVES = false, HAS_MIN = false;
    struct Raw {
        Mxfp4Codes codes;
        uchar e;
    };
    static __device__ __forceinline__ void load(Raw &raw, const Row &row, uint g) {
        raw.codes.load(row, g);
        raw.e = row.scales[g];
    }
    static __device__ __forceinline__ GroupScales scales(const Raw &raw, const Row &, uint) {
        const float s = e8m0_half(raw.e);
        return {s, s, 0.0f, 0.0f};
    }
    static __device__ __forceinline__ int zero(const Row &) { return 0; }
};

// Affine types: groups of 32 << shift columns, scales and offsets in planes of f32, f16 or bf16.
// Symmetric types have no offsets, and their zero is the middle of the range. Integers of eight
// bits are stored minus 128.
template <class C> struct AffineOf {
    static constexpr bool HALVES = false, HAS_MIN = true;
    struct Raw {
        C codes;
        uint scale, bias;
    };
    static __device__ __forceinline__ uint number(const uchar *plane, uint kind, uint i) {
        if ((kind & 3) == SCALE_F32) return *(const uint *)(plane + 4 * i);
        return *(const ushort *)(plane + 2 * i);
    }
    static __device__ __forceinline__ float value(uint bits, uint kind) {
        if ((kind & 3) == SCALE_F32) return __uint_as_float(bits);
        return (kind & 3) == SCALE_F16 ? f32_of_f16(ushort(bits)) : f32_of_bf16(ushort(bits));
    }
    static __device__ __forceinline__ void load(Raw &raw, const Row &row, uint g) {
        raw.codes.load(row, g);
        raw.scale = number(row.scales, row.kind, g >> row.shift);
        raw.bias = (row.kind & SYMMETRIC) != 0 ? 0 : number(row.supers, row.kind, g >> row.shift);
    }
    static __device__ __forceinline__ GroupScales scales(const Raw &raw, const Row &row, uint) {
        const float s = value(raw.scale, row.kind), b = value(raw.bias, row.kind);
        return {s, s, b, b};
    }
    static __device__ __forceinline__ int zero(const Row &row) {
        const bool symmetric = (row.kind & SYMMETRIC) != 0;
        if (C::BITS == 8) return symmetric ? 0 : -128;
        return symmetric ? 1 << (C::BITS - 1) : 0;
    }
};

// Rows of signed bytes with one factor for each row.
struct I8Rows {
    static constexpr bool HALVES = false, HAS_MIN = false;
    struct Raw {
        Bytes codes;
        float s;
    };
    static __device__ __forceinline__ void load(Raw &raw, const Row &row, uint g) {
        raw.codes.load(row, g);
        raw.s = *(const float *)row.scales;
    }
    static __device__ __forceinline__ GroupScales scales(const Raw &raw, const Row &, uint) {
        return {raw.s, raw.s, 0.0f, 0.0f};
    }
    static __device__ __forceinline__ int zero(const Row &) { return 0; }
};

typedef Simple<Nibbles, 8> Q4_0;
typedef WithMin<Nibbles> Q4_1;
typedef Simple<Nibbles1, 16> Q5_0;
typedef WithMin<Nibbles1> Q5_1;
typedef Simple<Bytes, 0> Q8_0;
typedef Q2K Q2_K;
typedef KSigned<Crumbs1, 4> Q3_K;
typedef KWithMin<Nibbles> Q4_K;
typedef KWithMin<Nibbles1> Q5_K;
typedef KSigned<Nibbles2, 32> Q6_K;
typedef Simple<Iq4Codes, 0> IQ4_NL;
typedef Iq4Xs IQ4_XS;
typedef Mxfp4 MXFP4;
typedef AffineOf<Crumbs> AFFINE2;
typedef AffineOf<Crumbs1> AFFINE3;
typedef AffineOf<Nibbles> AFFINE4;
typedef AffineOf<Nibbles1> AFFINE5;
typedef AffineOf<Nibbles2> AFFINE6;
typedef AffineOf<Bytes> AFFINE8;
typedef I8Rows I8_ROWS;

// A row of a matrix, or of a stack.
__device__ __forceinline__ Row row_of(const MatrixArguments &m, ulong row) {
    const WeightArguments &w = m.weight;
    return {w.codes + row * w.code_stride, w.high + row * w.high_stride, w.scales + row * w.scale_stride,
            w.supers + row * w.super_stride, m.kind, m.group_shift};
}

// The four columns of word k of a group, as f32.
template <class T>
__device__ __forceinline__ void four_of(const typename T::Raw &raw, const GroupScales &scales, int zero, int k,
                                        float out[4]) {
    const uint q = raw.codes.word(k);
    const float s = k < 4 || !T::HALVES ? scales.s0 : scales.s1, b = k < 4 || !T::HALVES ? scales.b0 : scales.b1;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int code = int(q << (24 - 8 * i)) >> 24;
        out[i] = T::HAS_MIN ? __fadd_rn(__fmul_rn(s, float(code - zero)), b) : __fmul_rn(s, float(code - zero));
    }
}

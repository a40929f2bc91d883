// Eight neighbouring columns of a row in f32, f16 or bf16.
#pragma once
#include "linear/codes.cuh"

struct F32 {
    static constexpr int SIZE = 4;
    struct Raw {
        Vec4 a, b;
    };
    static __device__ __forceinline__ void load(Raw &raw, const uchar *row, uint column) {
        raw.a = *(const Vec4 *)(row + 4 * column);
        raw.b = *(const Vec4 *)(row + 4 * column + 16);
    }
    static __device__ __forceinline__ void values(const Raw &raw, float (&w)[8]) {
        w[0] = raw.a.x, w[1] = raw.a.y, w[2] = raw.a.z, w[3] = raw.a.w;
        w[4] = raw.b.x, w[5] = raw.b.y, w[6] = raw.b.z, w[7] = raw.b.w;
    }
};

struct Floats16 {
    static constexpr int SIZE = 2;
    struct Raw {
        Word4 a;
    };
    static __device__ __forceinline__ void load(Raw &raw, const uchar *row, uint column) {
        raw.a = *(const Word4 *)(row + 2 * column);
    }
};

struct F16 : Floats16 {
    static __device__ __forceinline__ void values(const Raw &raw, float (&w)[8]) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            w[2 * i] = low_f16(word_of(raw.a, i));
            w[2 * i + 1] = high_f16(word_of(raw.a, i));
        }
    }
};

struct BF16 : Floats16 {
    static __device__ __forceinline__ void values(const Raw &raw, float (&w)[8]) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            w[2 * i] = __uint_as_float(word_of(raw.a, i) << 16);
            w[2 * i + 1] = __uint_as_float(word_of(raw.a, i) & 0xffff0000u);
        }
    }
};

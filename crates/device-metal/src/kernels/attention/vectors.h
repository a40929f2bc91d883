// Stored keys and values, four neighbouring columns at a time, and their places in pages.
#pragma once
#include <metal_stdlib>
using namespace metal;
#include "kv_store.h"
#include "attention/arguments.h"
#include "attention/constants.h"
#include "attention/parts.h"

// Vectors of four columns in a head. Columns after the last one are 0 and not read.
#define HEAD_FOURS ((ATTENTION_HEAD_DIM + 3) / 4)

struct KvF32 {
    enum { KIND = KV_F32 };
    typedef float Operand; // element of simdgroup matrices
    static float4 four(device const uchar * vector, uint i) {
        device const float * v = (device const float *) vector + 4 * i;
        if (ATTENTION_HEAD_DIM % 4 == 0) return *(device const float4 *) v;
        float4 r = float4(0.0f);
        for (uint c = 0; c < 4; c++) {
            if (4 * i + c < ATTENTION_HEAD_DIM) r[c] = v[c];
        }
        return r;
    }
    // Returns the value that a later read of the stored value returns. All lanes of a simdgroup
    // call it.
    static float stored(float value) { return value; }
};

struct KvF16 {
    enum { KIND = KV_F16 };
    typedef half Operand;
    static float4 four(device const uchar * vector, uint i) {
        device const half * v = (device const half *) vector + 4 * i;
        if (ATTENTION_HEAD_DIM % 4 == 0) return float4(*(device const half4 *) v);
        float4 r = float4(0.0f);
        for (uint c = 0; c < 4; c++) {
            if (4 * i + c < ATTENTION_HEAD_DIM) r[c] = float(v[c]);
        }
        return r;
    }
    static float stored(float value) { return float(half(value)); }
};

// Blocks of 34 bytes: a half and 32 signed bytes.
struct KvQ8_0 {
    enum { KIND = KV_Q8_0 };
    typedef half Operand;
    static float4 four(device const uchar * vector, uint i) {
        device const uchar * block = vector + i / 8 * 34;
        device const ushort * pairs = (device const ushort *) (block + 2 + i % 8 * 4);
        const char4 q = as_type<char4>(uint(pairs[0]) | uint(pairs[1]) << 16);
        return float(*(device const half *) block) * float4(q);
    }
    // The lanes hold the 32 columns of a block.
    static float stored(float value) {
        const float d = float(half(simd_max(fabs(value)) / 127.0f));
        const float inverse = d > 0.0f ? 1.0f / d : 0.0f;
        return d * clamp(rint(value * inverse), -127.0f, 127.0f);
    }
};

// Places of a layer's vectors of one KV head, for one sequence.
struct HeadPages {
    device const Page * table;        // pages of the sequence
    uint shift;                       // log2 of page_len
    uint mask;                        // page_len - 1
    uint keys;                        // offset of the head's keys of the layer in a page, in bytes
    uint values;                      // offset of the head's values, in bytes
    uint vector;                      // bytes of a vector

    // Returns the vector of a position's key. Its value is `values - keys` bytes after it, 0 if
    // values are keys.
    device const uchar * key(uint position) const {
        return table[position >> shift].bytes + keys + (position & mask) * vector;
    }
};

static inline HeadPages head_pages(uint kind, constant AttentionArguments & a, device const Page * page_tables,
                                   device const Step * step, uint span, uint kv_head) {
    HeadPages p;
    p.table = page_tables + page_table_of(*step, span, a.pages.group);
    p.shift = ctz(a.pages.page_len);
    p.mask = a.pages.page_len - 1;
    p.vector = vector_bytes(kind, ATTENTION_HEAD_DIM);
    p.keys = a.pages.layer_offset + kv_head * a.pages.page_len * p.vector;
    p.values = p.keys + (a.pages.values_are_keys != 0 ? 0 : a.pages.n_kv_heads * a.pages.page_len * p.vector);
    return p;
}

static inline float capped(float score, float softcap) {
    if (!ATTENTION_SOFTCAP) return score;
    // tanh from an exponential that cannot overflow.
    const float e = precise::exp(-2.0f * fabs(score / softcap));
    const float t = softcap * (1.0f - e) / (1.0f + e);
    return score < 0.0f ? -t : t;
}

// Returns the first position that a row at position `own` sees.
static inline uint first_seen(constant AttentionArguments & a, uint own) {
    if (!ATTENTION_WINDOW) return 0;
    if (ATTENTION_CHUNKED) return own / a.window * a.window;
    return own + 1 > a.window ? own + 1 - a.window : 0;
}

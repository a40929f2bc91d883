// Rows of F32, F16 and BF16, read four neighbouring values at a time, as vectors unless
// LINEAR_SCALAR.
//
// A span's vectors are 128 columns apart, so that the 32 lanes of a simdgroup read neighbouring
// vectors. Rows need not be whole spans: columns after a row's end are 0 and not read.
#pragma once
#include "linear/block.h"

// Rows of elements that `E` reads, with `float one(device const uchar *, uint index)` and `float4
// four(device const uchar *, uint index)`.
template<class E> struct FloatRow : NoLevels {
    enum { GROUPS = 1, OFFSET = 0, RAGGED = 1, PLANES = 0 };
    typedef typename E::Operand Operand;
    static uint n_spans(uint n_in) { return (n_in + 511) / 512 * 32; }
    static uint column(uint span, short j) { return span / 32 * 512 + span % 32 * 4 + j * 128; }
    static float4 factor() { return float4(1.0f); }

    static float4 vector(WeightRow row, uint column, uint n_in) {
        if (!LINEAR_SCALAR) return column < n_in ? E::four(row.codes, column) : float4(0.0f);
        float4 v = float4(0.0f);
        for (short i = 0; i < 4; i++) {
            if (column + i < n_in) v[i] = E::one(row.codes, column + i);
        }
        return v;
    }

    static Codes<1> load(WeightRow row, uint span, uint n_in) {
        Codes<1> codes;
        for (short j = 0; j < 4; j++) codes.q[j] = vector(row, column(span, j), n_in);
        codes.scale[0] = 1.0f;
        codes.offset[0] = 0.0f;
        return codes;
    }

    static Values decode(WeightRow row, uint index, uint n_in) {
        Values values;
        for (short j = 0; j < 4; j++) values.v[j] = vector(row, index * 16 + j * 4, n_in);
        return values;
    }
};

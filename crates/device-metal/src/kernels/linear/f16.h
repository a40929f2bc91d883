// F16: 2 bytes a value.
#pragma once
#include "linear/float.h"

struct F16Element {
    typedef half Operand;
    static float one(device const uchar * row, uint i) { return float(((device const half *) row)[i]); }
    static float4 four(device const uchar * row, uint i) { return float4(*(device const half4 *) (row + i * 2)); }
};

// Tiles take the halves as they are.
struct F16 : FloatRow<F16Element> {
    enum { WORDS = 1 };
    typedef HalfValues Raw;
    static Raw read(WeightRow row, uint index, uint n_in) {
        HalfValues values;
        for (short j = 0; j < 4; j++) values.v[j] = half4(vector(row, index * 16 + j * 4, n_in));
        return values;
    }
    static HalfValues values(Raw raw, uint) { return raw; }
};

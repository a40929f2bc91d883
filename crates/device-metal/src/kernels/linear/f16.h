// F16: 2 bytes a value.
#pragma once
#include "linear/float.h"

struct F16Element {
    typedef half Operand;
    static float one(device const uchar * row, uint i) { return float(((device const half *) row)[i]); }
    static float4 four(device const uchar * row, uint i) { return float4(*(device const half4 *) (row + i * 2)); }
};

typedef FloatRow<F16Element> F16;

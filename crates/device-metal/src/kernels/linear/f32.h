// F32: 4 bytes a value.
#pragma once
#include "linear/float.h"

struct F32Element {
    typedef float Operand;
    static float one(device const uchar * row, uint i) { return ((device const float *) row)[i]; }
    static float4 four(device const uchar * row, uint i) { return *(device const float4 *) (row + i * 4); }
};

typedef FloatRow<F32Element> F32;

// BF16: the upper 2 bytes of an F32. Matrices multiply it as float, because a half lacks its range,
// and its products with x their precision.
#pragma once
#include "linear/float.h"

struct BF16Element {
    typedef float Operand;
    static float one(device const uchar * row, uint i) { return bf16_to_float(((device const ushort *) row)[i]); }
    static float4 four(device const uchar * row, uint i) {
        const uint2 pairs = *(device const uint2 *) (row + i * 2);
        return as_type<float4>(uint4(pairs.x << 16, pairs.x & 0xffff0000, pairs.y << 16, pairs.y & 0xffff0000));
    }
};

typedef FloatRow<BF16Element> BF16;

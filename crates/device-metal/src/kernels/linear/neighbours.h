// Blocks whose spans are 16 neighbouring values. Matrices and embedding use the same 16 values, so
// that such a type only has `load`.
#pragma once
#include "linear/block.h"

// `D::load` loads span `index`, with one scale and perhaps one offset.
template<class D> struct Neighbours : WholeBlocks {
    enum { GROUPS = 1, OFFSET = 0 };
    static uint column(uint span, short j) { return span * 16 + j * 4; }
    static float4 factor() { return float4(1.0f); }

    static Values decode(WeightRow row, uint index, uint n_in) {
        const Codes<1> codes = D::load(row, index, n_in);
        Values values;
        for (short j = 0; j < 4; j++) {
            values.v[j] = codes.scale[0] * (codes.q[j] * D::factor());
            if (D::OFFSET) values.v[j] += codes.offset[0];
        }
        return values;
    }
};

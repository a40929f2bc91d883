// Choice of a weight, and of rows of it, for a threadgroup or a simdgroup of a dispatch with
// several weights. A unit is 4 or 8 rows of a weight for a simdgroup of linear/gemv.h, and 64 for a
// threadgroup of linear/gemm.h.
#pragma once
#include "linear/arguments.h"
#include "linear/constants.h"

// All bound weights. Those after LINEAR_WEIGHTS are not read.
struct BoundWeights {
    device const uchar * codes[3];
    device const uchar * scales[3];
    device const uchar * offsets[3];
    device const float * bias[3];
    device float * y[3];
};

// One weight, and a unit of its rows. With LINEAR_GATE it is weight 0, and a unit has rows of both
// weights.
struct Target {
    device const uchar * codes;
    device const uchar * scales;
    device const uchar * offsets;
    device const float * bias;
    device float * y;
    uint n_out;
    uint unit;
    bool is_last; // true for weight 2
};

static inline Target weight_at(BoundWeights w, short i, uint n_out, uint unit) {
    Target t;
    t.codes = w.codes[i];
    t.scales = w.scales[i];
    t.offsets = w.offsets[i];
    t.bias = w.bias[i];
    t.y = w.y[i];
    t.n_out = n_out;
    t.unit = unit;
    t.is_last = i == 2;
    return t;
}

// Returns the target of a unit of `rows` rows. Units of weight 0 come first, then those of weights
// 1 and 2. All lanes of a simdgroup take the same branches.
static inline Target target_of(BoundWeights w, constant LinearArguments & a, uint unit, uint rows) {
    if (LINEAR_WEIGHTS == 1 || LINEAR_GATE) return weight_at(w, 0, a.n_out_0, unit);
    const uint units_0 = (a.n_out_0 + rows - 1) / rows, units_1 = (a.n_out_1 + rows - 1) / rows;
    if (unit < units_0) return weight_at(w, 0, a.n_out_0, unit);
    if (LINEAR_WEIGHTS == 2 || unit < units_0 + units_1) return weight_at(w, 1, a.n_out_1, unit - units_0);
    return weight_at(w, 2, a.n_out_2, unit - units_0 - units_1);
}

// Adds a branch to the residual stream after norms of the branch's own: the part that join.metal
// and linear/joined.h share, for one row.
//
//     sum = factor * (residual + rms_norm(y) * weight); without JOIN_NORM factor * (residual + y)
//     y   = x
//           with JOIN_PAIR rms_norm(x) * first_weight + rms_norm(o) * other_weight
//           with JOIN_PARTS, without JOIN_PAIR and JOIN_NORM: o
//     o   = other; with JOIN_PARTS sum over j of chosen[j] * other_j, where other_j is the j-th of
//           n_parts parts of a row
//
// Sums of squares: each thread adds every n-th column, then threadgroup_sum.
#pragma once
#include "linear/arguments.h"
#include "reduce.h"

// The branch's norm has a weight.
constant bool JOIN_WEIGHT [[function_constant(20)]];
// The branch is the sum of two values, each after its own norm.
constant bool JOIN_PAIR [[function_constant(21)]];
// The second value of the pair, or the branch, is a weighted sum of parts.
constant bool JOIN_PARTS [[function_constant(22)]];
// Number of norms of the sum that the same dispatch computes: 0 to 3; in linear/joined.h 0 or 1.
constant uint JOIN_NORMS [[function_constant(23)]];
// The branch has a norm of its own.
constant bool JOIN_NORM [[function_constant(24)]];

// Operands of a row.
struct JoinRow {
    device const float * x;            // (cols)
    device const float * weight;       // (cols), JOIN_WEIGHT
    device const float * residual;     // (cols)
    device const float * first_weight; // (cols), JOIN_PAIR
    device const float * other;        // (cols), or (n_parts, cols): JOIN_PAIR, JOIN_PARTS
    device const float * other_weight; // (cols)
    device const float * chosen;       // (n_parts), JOIN_PARTS
};

// A thread of the threadgroup that computes a row.
struct JoinThread {
    uint tid;
    uint n_threads;
    uint sg;
    uint lane;
    uint n_sg;
};

static inline float join_factor(float squares, uint cols, float eps) { return 1.0f / precise::sqrt(squares / float(cols) + eps); }

// Column i of `o` above.
static inline float join_other(JoinRow from, constant JoinArguments & a, uint i) {
    if (!JOIN_PARTS) return from.other[i];
    float o = 0.0f;
    for (uint j = 0; j < a.n_parts; j++) o += from.chosen[j] * from.other[j * a.cols + i];
    return o;
}

// Writes the sum to `row`, of which a thread reads only columns that it wrote itself. With
// JOIN_NORMS it returns the sum of the row's squares, the same in every thread. `scratch` has a
// float for each simdgroup. Every thread of the threadgroup calls it.
template<class P>
static inline float join_row(P row, JoinRow from, constant JoinArguments & a, threadgroup float * scratch, JoinThread at) {
    if (JOIN_PAIR) {
        float first = 0.0f, second = 0.0f;
        for (uint i = at.tid; i < a.cols; i += at.n_threads) {
            const float x = from.x[i], o = join_other(from, a, i);
            row[i] = o;
            first += x * x;
            second += o * o;
        }
        first = join_factor(threadgroup_sum(first, scratch, at.sg, at.lane, at.n_sg), a.cols, a.first_eps);
        second = join_factor(threadgroup_sum(second, scratch, at.sg, at.lane, at.n_sg), a.cols, a.other_eps);
        for (uint i = at.tid; i < a.cols; i += at.n_threads) {
            row[i] = from.x[i] * first * from.first_weight[i] + row[i] * second * from.other_weight[i];
        }
    }
    float squares = 0.0f, factor = 1.0f;
    if (JOIN_NORM) {
        for (uint i = at.tid; i < a.cols; i += at.n_threads) {
            float y = 0.0f;
            if (JOIN_PAIR) y = row[i];
            else y = from.x[i];
            squares += y * y;
        }
        factor = join_factor(threadgroup_sum(squares, scratch, at.sg, at.lane, at.n_sg), a.cols, a.eps);
    }
    squares = 0.0f;
    for (uint i = at.tid; i < a.cols; i += at.n_threads) {
        float y = 0.0f;
        if (JOIN_PAIR) y = row[i];
        else if (JOIN_PARTS) y = join_other(from, a, i);
        else y = from.x[i];
        if (JOIN_NORM) y *= factor;
        if (JOIN_NORM && JOIN_WEIGHT) y *= from.weight[i];
        y = (y + from.residual[i]) * a.factor;
        row[i] = y;
        squares += y * y;
    }
    return JOIN_NORMS > 0 ? threadgroup_sum(squares, scratch, at.sg, at.lane, at.n_sg) : 0.0f;
}

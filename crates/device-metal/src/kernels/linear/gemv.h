// linear_<type>_gemv_<N>: y = x W^T for few rows of x, N = 1, 2, 4 or 8 at a time, with up to three
// weights of one type at once. linear_<type>_<last>_gemv_1 (linear/mixed.metal): the same product
// with three weights, the last of which has another type. linear_<..>_gemv_1x8: one row of x, and
// 8 rows of a weight at a time; all others take R = 4 rows of a weight.
//
//     y_i = epilogue(x W_i^T + bias_i), W_i (n_out_i, n_in), x (n_rows, n_in) f32,
//     y_i (n_rows, n_out_i) f32
//
// Host contract
//   buffers  0 LinearArguments (linear/arguments.h)
//            1 x, aligned to 16 bytes (with LINEAR_SCALAR to 4)
//            2 norm (n_in) f32, aligned like x, LINEAR_NORM
//            3, 4, 5 codes of weights 0, 1, 2
//            6, 7, 8 their planes of scales    9, 10, 11 their planes of offsets
//            12, 13, 14 biases (n_out_i) f32, LINEAR_BIAS
//            15 residual (n_rows, n_out_0) f32, may be y_0, LINEAR_RESIDUAL; or the first n_out_0
//               columns of up (n_rows, up_stride), LINEAR_UP
//            16, 17, 18 y_0, y_1, y_2
//            19 partials (n_rows, threadgroups) of {float bits, uint column}, LINEAR_ARGMAX
//            20 Step (step.h)
//            21 row_gate (n_rows) f32, LINEAR_ROW_GATE
//            Buffers that the constants leave unused may be bound to anything. The decoder's header
//            gives the alignment of codes; planes are aligned to 4 bytes.
//   threads  32 * S, S = 1 to 16 simdgroups, LINEAR_SPLIT divides S
//   grid     (ceil(G / (S / LINEAR_SPLIT)), ceil(n_rows / N), 1), G = sum over weights of
//            ceil(n_out_i / R); with LINEAR_GATE G = ceil(n_out_0 / (R / 2))
//   constants LINEAR_NORM, _BIAS, _RESIDUAL, _GATE, _UP, _ROW_GATE, _ACTIVATION, _WEIGHTS, _SPLIT,
//            _ARGMAX, _SOFTCAP; LINEAR_SCALAR for floats and integer rows; AFFINE_GROUP, _SCALE,
//            _SYMMETRIC, _WIDE for affine types
//   threadgroup memory  none to be set
//   reads    each weight once for N rows of x; x and norm once for R rows of a weight (from
//            caches); nothing after the end of a row
//
// A simdgroup computes R rows of a weight (with LINEAR_GATE half of them of the gate, and the same
// rows of up) for all rows of x. Each lane computes every 32nd span of 16 columns. x and its sums
// are prepared once for the R rows. LINEAR_SPLIT simdgroups share the spans of the same rows, for
// matrices with too few rows to fill the GPU.
//
// The norm needs no extra pass: y = scale * sum(w * x * norm), scale = 1 / sqrt(mean(x^2) + eps).
// The loop that multiplies also sums the squares.
//
// Order of accumulation: each lane over its spans ascending, then over a span's vectors ascending.
// The components of a vector are summed first and then multiplied by the scale; offsets are added
// after the last vector of a scale. Lanes are added by simd_sum, then splits ascending. The order
// is the same for every N and R, so that a row has the same bits in every batch.
#pragma once
#include <metal_stdlib>
using namespace metal;
#include "activation.h"
#include "linear/arguments.h"
#include "linear/block.h"
#include "linear/parameters.h"
#include "linear/target.h"
#include "step.h"

// Loads a vector of x; columns after the row's end are 0.
template<class D> static inline float4 load_x(device const float * x, uint column, uint n_in) {
    if (!D::RAGGED) return *(device const float4 *) (x + column);
    float4 v = float4(0.0f);
    if (!LINEAR_SCALAR) {
        if (column < n_in) v = *(device const float4 *) (x + column);
        return v;
    }
    for (short i = 0; i < 4; i++) {
        if (column + i < n_in) v[i] = x[column + i];
    }
    return v;
}

// Rows of x in device memory. Every source of x of `gemv_products` has such a `load`.
struct DeviceRows {
    device const float * x;
    uint stride;
    uint n_rows;

    // Loads a vector of row n. Absent rows repeat the last one.
    template<class D> float4 load(uint n, uint column, uint n_in) const {
        return load_x<D>(x + min(n, n_rows - 1) * stride, column, n_in);
    }
};

// A row of x in threadgroup memory: whole vectors, with zeros after its end.
struct ThreadgroupRow {
    threadgroup const float * x;

    template<class D> float4 load(uint, uint column, uint n_in) const {
        if (D::RAGGED && column >= n_in) return float4(0.0f);
        return *(threadgroup const float4 *) (x + column);
    }
};

// A lane's part of the products of R rows of weights and N rows of x.
template<short N, short R> struct Products {
    float sums[N][R];
    float squares[N]; // sums of squares of x, before the norm's weight
};

// Adds a span for one row of x, which stays in registers while each row of weights is loaded.
template<class D, short R, class X>
static inline void add_span(thread Products<1, R> & p, thread const WeightRow * rows, // R
                            X x, device const float * norm, uint n_in, uint span) {
    const short per_group = 4 / D::GROUPS;
    float4 v[4];
    float x_sums[D::GROUPS];
    #pragma clang loop unroll(full)
    for (short j = 0; j < 4; j++) {
        const uint column = D::column(span, j);
        v[j] = x.template load<D>(0, column, n_in);
        if (LINEAR_NORM) {
            p.squares[0] = fma(v[j].w, v[j].w, fma(v[j].z, v[j].z, fma(v[j].y, v[j].y, fma(v[j].x, v[j].x, p.squares[0]))));
            v[j] *= load_x<D>(norm, column, n_in);
        }
        const float sum = (v[j].x + v[j].y) + (v[j].z + v[j].w);
        x_sums[j / per_group] = j % per_group == 0 ? sum : x_sums[j / per_group] + sum;
        v[j] *= D::factor();
    }
    #pragma clang loop unroll(full)
    for (short r = 0; r < R; r++) {
        const Codes<D::GROUPS> w = D::load(rows[r], span, n_in);
        float total = p.sums[0][r];
        #pragma clang loop unroll(full)
        for (short j = 0; j < 4; j++) {
            const short g = j / per_group;
            const float4 q = w.q[j];
            total = fma(w.scale[g], fma(q.w, v[j].w, fma(q.z, v[j].z, fma(q.y, v[j].y, q.x * v[j].x))), total);
            if (D::OFFSET && j % per_group == per_group - 1) total = fma(w.offset[g], x_sums[g], total);
        }
        p.sums[0][r] = total;
    }
}

// Adds a span. A vector of codes is multiplied with every row of x before the next one is decoded.
// The other codes stay as they were loaded, since decoded ones would take 64 registers. `load` is
// called again for each part of a span; the compiler loads and decodes each part once.
template<class D, short R, short N, class X>
static inline void add_span(thread Products<N, R> & p, thread const WeightRow * rows, // R
                            X x, device const float * norm, uint n_in, uint span) {
    const short per_group = 4 / D::GROUPS;
    float x_sums[N], scale[R][D::GROUPS];
    #pragma clang loop unroll(full)
    for (short r = 0; r < R; r++) {
        const Codes<D::GROUPS> w = D::load(rows[r], span, n_in);
        #pragma clang loop unroll(full)
        for (short g = 0; g < D::GROUPS; g++) scale[r][g] = w.scale[g];
    }
    #pragma clang loop unroll(full)
    for (short j = 0; j < 4; j++) {
        const short g = j / per_group;
        const bool is_first = j % per_group == 0, is_last = j % per_group == per_group - 1;
        const uint column = D::column(span, j);
        float4 weight = float4(1.0f), q[R];
        if (LINEAR_NORM) weight = load_x<D>(norm, column, n_in);
        #pragma clang loop unroll(full)
        for (short r = 0; r < R; r++) q[r] = D::load(rows[r], span, n_in).q[j];
        #pragma clang loop unroll(full)
        for (short n = 0; n < N; n++) {
            float4 v = x.template load<D>(n, column, n_in);
            if (LINEAR_NORM) {
                p.squares[n] = fma(v.w, v.w, fma(v.z, v.z, fma(v.y, v.y, fma(v.x, v.x, p.squares[n]))));
                v *= weight;
            }
            const float sum = (v.x + v.y) + (v.z + v.w);
            x_sums[n] = is_first ? sum : x_sums[n] + sum;
            v *= D::factor();
            #pragma clang loop unroll(full)
            for (short r = 0; r < R; r++) {
                const float product = fma(q[r].w, v.w, fma(q[r].z, v.z, fma(q[r].y, v.y, q[r].x * v.x)));
                p.sums[n][r] = fma(scale[r][g], product, p.sums[n][r]);
            }
        }
        if (D::OFFSET && is_last) {
            #pragma clang loop unroll(full)
            for (short r = 0; r < R; r++) {
                const float offset = D::load(rows[r], span, n_in).offset[g];
                #pragma clang loop unroll(full)
                for (short n = 0; n < N; n++) p.sums[n][r] = fma(offset, x_sums[n], p.sums[n][r]);
            }
        }
    }
}

template<class D, short N, short R, class X>
static inline Products<N, R> gemv_products(thread const WeightRow * rows, // R
                                           X x, device const float * norm, uint n_in, uint first_span, uint step) {
    Products<N, R> p;
    #pragma clang loop unroll(full)
    for (short n = 0; n < N; n++) {
        p.squares[n] = 0.0f;
        #pragma clang loop unroll(full)
        for (short r = 0; r < R; r++) p.sums[n][r] = 0.0f;
    }
    const uint n_spans = D::n_spans(n_in);
    for (uint span = first_span; span < n_spans; span += step) add_span<D, R>(p, rows, x, norm, n_in, span);
    return p;
}

// Returns row `row` of a weight.
static inline WeightRow weight_row(device const uchar * codes, device const uchar * scales, device const uchar * offsets,
                                   threadgroup const float * levels, constant LinearArguments & a, uint row) {
    WeightRow w;
    w.codes = codes + ulong(row) * a.row_bytes;
    w.scales = scales + ulong(row) * a.scale_bytes;
    w.offsets = offsets + ulong(row) * a.scale_bytes;
    w.levels = levels;
    return w;
}

// Sums over all lanes. Lane R n + r holds the product of row n of x and row r of the weights, and
// the squares of row n.
struct LaneSums {
    float product;
    float squares;
};

template<short N, short R> static inline LaneSums lane_sums(thread const Products<N, R> & p, ushort lane) {
    LaneSums s;
    s.product = 0.0f;
    s.squares = 0.0f;
    #pragma clang loop unroll(full)
    for (short n = 0; n < N; n++) {
        #pragma clang loop unroll(full)
        for (short r = 0; r < R; r++) {
            const float total = simd_sum(p.sums[n][r]);
            if (lane == R * n + r) s.product = total;
        }
        if (LINEAR_NORM) {
            const float total = simd_sum(p.squares[n]);
            if (lane / R == n) s.squares = total;
        }
    }
    return s;
}

template<class A, class B> struct SameType {
    enum { YES = 0 };
};
template<class A> struct SameType<A, A> {
    enum { YES = 1 };
};

// Memory that the simdgroups of a threadgroup share, at most 16.
template<short N> struct GemvMemory {
    threadgroup float * levels;  // 16
    threadgroup float * sums;    // 16 * N * R
    threadgroup float * squares; // 16 * N
    threadgroup uint2 * best;    // 16 * N: float bits, column
};

// Place of a simdgroup, and its rows of x.
struct GemvPlace {
    ushort sg;
    ushort lane;
    uint pass;    // number of blocks that it has computed before
    uint first_x; // the first row of x
    uint n_rows;  // number of rows from `first_x` on
};

// Computes R rows of a weight (with LINEAR_GATE half of them of gate and up each) by N rows of x,
// and the epilogue. `block`: index of the R rows among those of all weights. `other`: residual, or
// up.
// Every simdgroup of the threadgroup must call it equally often.
//
// LAST: the type of weight 2. If it is not D, its rows have LAST::row_bytes(n_in) bytes, and no
// planes or levels.
template<class D, class LAST, short N, short R, class X>
static inline void gemv_block(constant LinearArguments & a, BoundWeights weights, X inputs, device const float * norm,
                              device const float * other, device const float * row_gate, uint block, GemvMemory<N> memory, GemvPlace at) {
    const ushort sg = at.sg, lane = at.lane;
    const uint part = sg % LINEAR_SPLIT;
    const Target w = target_of(weights, a, block, R);
    const uint n_out = w.n_out;
    const uint first = w.unit * (LINEAR_GATE ? R / 2 : R);
    const bool active = first < n_out && at.n_rows > 0;

    WeightRow rows[R];
    for (short r = 0; r < R; r++) {
        // Absent rows repeat the last one.
        const uint row = min(first + (LINEAR_GATE ? r % (R / 2) : r), n_out - 1);
        const bool up = LINEAR_GATE && r >= R / 2;
        rows[r] = weight_row(up ? weights.codes[1] : w.codes, up ? weights.scales[1] : w.scales,
                             up ? weights.offsets[1] : w.offsets, memory.levels, a, row);
    }
    const uint first_span = active ? part * 32 + lane : 0xffffffff;
    Products<N, R> products;
    if (SameType<D, LAST>::YES || !w.is_last) {
        products = gemv_products<D, N, R>(rows, inputs, norm, a.n_in, first_span, LINEAR_SPLIT * 32);
    } else {
        for (short r = 0; r < R; r++) rows[r].codes = w.codes + ulong(min(first + r, n_out - 1)) * LAST::row_bytes(a.n_in);
        products = gemv_products<LAST, N, R>(rows, inputs, norm, a.n_in, first_span, LINEAR_SPLIT * 32);
    }
    LaneSums s = lane_sums<N, R>(products, lane);

    if (LINEAR_SPLIT > 1) {
        // Other simdgroups may still read the sums of the previous block.
        if (at.pass > 0) threadgroup_barrier(mem_flags::mem_threadgroup);
        if (lane < R * N) memory.sums[sg * R * N + lane] = s.product;
        if (LINEAR_NORM && lane < R * N && lane % R == 0) memory.squares[sg * N + lane / R] = s.squares;
        threadgroup_barrier(mem_flags::mem_threadgroup);
        if (part == 0 && lane < R * N) {
            for (uint i = 1; i < LINEAR_SPLIT; i++) {
                s.product += memory.sums[(sg + i) * R * N + lane];
                if (LINEAR_NORM) s.squares += memory.squares[(sg + i) * N + lane / R];
            }
        }
    }

    const uint n = lane / R, r = lane % R;
    const uint row = first + (LINEAR_GATE ? r % (R / 2) : r);
    const bool mine = active && part == 0 && n < N && n < at.n_rows && row < n_out;
    float value = s.product;
    if (LINEAR_NORM) value *= rsqrt(s.squares / float(a.n_in) + a.eps);
    if (LINEAR_BIAS && mine) {
        device const float * b = LINEAR_GATE && r >= R / 2 ? weights.bias[1] : w.bias;
        value += b[row];
    }
    if (LINEAR_GATE) {
        const float up = simd_shuffle_down(value, R / 2);
        value = activation(LINEAR_ACTIVATION, value) * up;
    }
    const bool writes = mine && (!LINEAR_GATE || r < R / 2);
    if (LINEAR_ROW_GATE && writes) value *= activation(ACTIVATION_SIGMOID, row_gate[at.first_x + n]);
    if (LINEAR_RESIDUAL && writes) value += other[(at.first_x + n) * n_out + row];
    if (LINEAR_UP && writes) value = activation(LINEAR_ACTIVATION, value) * other[(at.first_x + n) * a.up_stride + row];
    if (LINEAR_SOFTCAP) value = a.softcap * hyperbolic_tangent(value / a.softcap);
    if (writes) w.y[(at.first_x + n) * n_out + row] = value;

    if (LINEAR_ARGMAX) {
        // The largest of each R lanes, with the lowest column of equal ones. NaN is never larger.
        float largest = writes && value == value ? value : -FLT_MAX;
        uint column = writes && value == value ? row : 0xffffffff;
        for (ushort other = 1; other < R; other *= 2) {
            const float v = simd_shuffle_xor(largest, other);
            const uint c = simd_shuffle_xor(column, other);
            if (v > largest || (v == largest && c < column)) {
                largest = v;
                column = c;
            }
        }
        if (part == 0 && lane < R * N && r == 0) {
            threadgroup uint2 * best = memory.best + sg / LINEAR_SPLIT * N + n;
            if (at.pass == 0 || largest > as_type<float>(best->x)) *best = uint2(as_type<uint>(largest), column);
        }
    }
}

// Writes the best column of each row of x in the threadgroup, after all its blocks. `partials`
// begins at the threadgroup's first row of x. Simdgroups ascend with their columns, so that the
// first of equal values stays.
template<short N>
static inline void write_best(device uint2 * partials, GemvMemory<N> memory, uint n_rows, uint n_sg, uint group, uint n_groups, uint tid) {
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (tid >= N || tid >= n_rows) return;
    uint2 winner = memory.best[tid];
    for (uint i = 1; i < n_sg / LINEAR_SPLIT; i++) {
        const uint2 other = memory.best[i * N + tid];
        if (as_type<float>(other.x) > as_type<float>(winner.x)) winner = other;
    }
    partials[tid * n_groups + group] = winner;
}

template<class D, class LAST, short N, short R>
kernel void linear_gemv(constant LinearArguments & a [[buffer(0)]],
                        PRODUCT_BUFFERS,
                        device const Step * step [[buffer(20)]],
                        device const float * row_gate [[buffer(21)]],
                        PRODUCT_THREAD) {
    threadgroup float levels[16];
    threadgroup float split_sums[16 * N * R];
    threadgroup float split_squares[16 * N];
    threadgroup uint2 best[16 * N];
    if (D::LEVELS) {
        if (tid < 16) levels[tid] = D::level(tid);
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    const GemvMemory<N> memory = {levels, split_sums, split_squares, best};

    // Rows of x of this threadgroup.
    const uint all_rows = rows_of(*step, a.per_token), first_x = place.y * N;
    const uint n_rows = first_x < all_rows ? min(all_rows - first_x, uint(N)) : 0;
    DeviceRows inputs;
    inputs.x = x + first_x * a.x_stride;
    inputs.stride = a.x_stride;
    inputs.n_rows = n_rows;

    const BoundWeights weights = PRODUCT_WEIGHTS;
    const GemvPlace at = {sg, lane, 0, first_x, n_rows};
    const uint block = place.x * (n_sg / LINEAR_SPLIT) + sg / LINEAR_SPLIT;
    gemv_block<D, LAST, N, R>(a, weights, inputs, norm, other, row_gate, block, memory, at);
    if (LINEAR_ARGMAX) write_best<N>(partials + first_x * n_places.x, memory, n_rows, n_sg, place.x, n_places.x, tid);
}

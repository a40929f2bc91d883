// expert_linear_<type>_gemv and _gemm: products with the matrices of the experts that a router
// chose for each row.
//
// expert_linear_<type>_gemv: y[pair] = W[ids[pair]] x, for few rows. A pair is a row of x and one
// of its k experts. expert_linear_<type>_gemv_x8 takes R = 8 rows of a weight at a time, the other
// R = 4.
//
//   buffers  0 ExpertArguments, and those of linear/parameters.h, with:
//            1 x (n, n_in), or (n, k * n_in) with EXPERTS_OWN_INPUT
//            2 norm (n_in), LINEAR_NORM
//            15 residual (1, n_out_0), EXPERTS_SUM and LINEAR_RESIDUAL
//            16 y (n, k, n_out_0); with EXPERTS_SUM (n, n_out_0)
//            3, 6, 9 codes, scales, offsets of a dense weight (beside_n_out, beside_n_in), 29 its
//              x, 17 its y (beside_n_out), EXPERTS_BESIDE; 4, 7, 10 those of its up (LINEAR_GATE)
//            20 Step
//            21 ids (n, k) u32; with EXPERTS_SUM k is at most 32
//            22 chosen (n, k) f32, EXPERTS_SUM: weight of each expert
//            25 weights 0, 26 weights 1 (LINEAR_GATE: up): the buffer that holds all experts'
//              matrices
//            27 places 0, 28 places 1: ulong[3][n_experts], bytes from the buffer's start to each
//              expert's codes, then to its scales, then to its offsets; only types with planes have
//              and read the last two
//   threads  32 * S, S = 1 to 16 simdgroups
//   grid     (ceil(B / S), n * k, 1), with EXPERTS_SUM (ceil(B / S), n, 1); B = ceil(n_out_0 / R),
//            with LINEAR_GATE ceil(n_out_0 / (R / 2)). With EXPERTS_BESIDE n is 1, and the grid has
//            further rows of threadgroups for the dense weight's blocks
//   constants LINEAR_NORM, _RESIDUAL, _GATE, _ACTIVATION, EXPERTS_OWN_INPUT, EXPERTS_SUM,
//            EXPERTS_BESIDE; those of the type
//   reads    the chosen experts' matrices, once for each pair
//
//   LINEAR_GATE: y = activation(W_0 x) * (W_1 x). EXPERTS_SUM: y = residual + sum over j of
//   chosen[j] * (W[ids[j]] x_j). Lane l adds every 32nd span from l on, of the spans of all experts
//   in a row, so that all lanes have work for any n_in. The sum over lanes is last. EXPERTS_BESIDE:
//   the last rows of threadgroups compute an independent dense product, so that both products are
//   one dispatch. LINEAR_NORM and LINEAR_GATE apply to both.
//
// expert_linear_<type>_gemm: the same products for many rows, by tiles of up to 64 pairs of one
// expert, which expert_groups wrote.
//
//   buffers  0 LinearArguments, 1, 16, 25 to 28 as above
//            23 order (n * k) u32: pairs sorted by expert
//            24 ExpertTile[tiles]
//   threads  128
//   grid     (T, tiles, 1), T = ceil(n_out_0 / 64), with LINEAR_GATE ceil(n_out_0 / 32);
//            tiles = n_experts + n * k / 64, of which unused ones have no pairs. Neighbours read
//            the same rows of x, and two tiles of one expert are near
//   constants LINEAR_GATE, _ACTIVATION, _BOUNDED, _TENSOR, EXPERTS_OWN_INPUT; those of the type
//   reads    a tile of an expert's matrix once for up to 64 of its pairs
//
// A tile of up to 32 pairs is multiplied as one of 32 rows, so that all simdgroups have work.
// Products are those of each eight pairs, of which the last may be absent.
//
// Tiles, operands and orders of accumulation are those of linear/gemv.h and linear/gemm.h. Vectors
// of x are loaded as float4, like there.
#pragma once
#include "linear/gemm.h"
#include "linear/parameters.h"

// The matrices of all experts: the buffers of weights 0 and 1, and the place of each matrix in
// them.
#define EXPERT_BUFFERS                                     \
    device const uchar * weights_0 [[buffer(25)]],         \
    device const uchar * weights_1 [[buffer(26)]],         \
    device const ulong * places_0 [[buffer(27)]],          \
    device const ulong * places_1 [[buffer(28)]]

// Bytes from the start of a buffer to the planes of one expert's matrix.
struct ExpertPlaces {
    ulong codes;
    ulong scales;  // for types with planes
    ulong offsets; // for types with planes
};

static inline ExpertPlaces expert_places(device const ulong * places, bool planes, uint expert, uint n_experts) {
    ExpertPlaces p;
    p.codes = places[expert];
    p.scales = planes ? places[n_experts + expert] : 0;
    p.offsets = planes ? places[2 * n_experts + expert] : 0;
    return p;
}

static inline ulong shuffled(ulong v, uint lane) { return as_type<ulong>(simd_shuffle(as_type<uint2>(v), ushort(lane))); }

// Returns the places that lane `lane` has. All lanes of a simdgroup call it.
static inline ExpertPlaces places_of(ExpertPlaces p, bool planes, uint lane) {
    p.codes = shuffled(p.codes, lane);
    if (!planes) return p;
    p.scales = shuffled(p.scales, lane);
    p.offsets = shuffled(p.offsets, lane);
    return p;
}

// Returns row `row` of an expert's matrix.
static inline WeightRow expert_row(device const uchar * weights, ExpertPlaces places, threadgroup const float * levels,
                                   constant LinearArguments & a, uint row) {
    return weight_row(weights + places.codes, weights + places.scales, weights + places.offsets, levels, a, row);
}

template<class D, short R>
kernel void expert_gemv(constant ExpertArguments & all [[buffer(0)]],
                        PRODUCT_BUFFERS,
                        device const Step * step [[buffer(20)]],
                        device const uint * ids [[buffer(21)]],
                        device const float * chosen [[buffer(22)]],
                        EXPERT_BUFFERS,
                        device const float * beside_x [[buffer(29)]],
                        PRODUCT_THREAD) {
    threadgroup float levels[16];
    if (D::LEVELS) {
        if (tid < 16) levels[tid] = D::level(tid);
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    constant LinearArguments & a = all.experts;
    const uint k = a.experts_per_row;
    const uint n_own = rows_of(*step, a.per_token) * (EXPERTS_SUM ? 1 : k);
    const bool beside = EXPERTS_BESIDE && place.y >= n_own;
    const uint n_out = beside ? all.beside_n_out : a.n_out_0;
    const uint group = place.x + (beside ? (place.y - n_own) * n_places.x : 0);
    const uint first = (group * n_sg + sg) * (LINEAR_GATE ? R / 2 : R);
    if ((place.y >= n_own && !beside) || first >= n_out) return;

    Products<1, R> sums;
    for (short j = 0; j < R; j++) sums.sums[0][j] = 0.0f;
    sums.squares[0] = 0.0f;
    const bool adds = EXPERTS_SUM && !beside;
    const uint n_experts = adds ? k : 1, first_pair = beside ? 0 : place.y * n_experts;
    // Lane j finds the matrix and the weight of pair j, for all lanes.
    const uint my_pair = first_pair + min(uint(lane), n_experts - 1), my_expert = ids[my_pair];
    const ExpertPlaces my_gate = expert_places(places_0, D::PLANES, my_expert, a.n_experts);
    ExpertPlaces my_up = my_gate;
    if (LINEAR_GATE) my_up = expert_places(places_1, D::PLANES, my_expert, a.n_experts);
    const float my_weight = adds ? chosen[my_pair] : 1.0f;
    const uint n_in = beside ? all.beside_n_in : a.n_in, n_spans = D::n_spans(n_in);
    uint j = 0, span = lane;
    for (uint done = 0; done < n_experts * n_spans; done += 32, span += 32) {
        for (; span >= n_spans; span -= n_spans) j++;
        const uint of = min(j, n_experts - 1);
        ExpertPlaces gate = my_gate;
        if (EXPERTS_SUM) gate = places_of(my_gate, D::PLANES, of);
        const float weight = EXPERTS_SUM ? simd_shuffle(my_weight, ushort(of)) : 1.0f;
        if (j >= n_experts) continue;
        WeightRow rows[R];
        for (short i = 0; i < R; i++) {
            const uint row = min(first + (LINEAR_GATE ? i % (R / 2) : i), n_out - 1);
            const bool up = LINEAR_GATE && i >= R / 2;
            if (beside) {
                rows[i].codes = (up ? codes_1 : codes_0) + ulong(row) * all.beside_row_bytes;
                rows[i].scales = (up ? scales_1 : scales_0) + ulong(row) * all.beside_scale_bytes;
                rows[i].offsets = (up ? offsets_1 : offsets_0) + ulong(row) * all.beside_scale_bytes;
                rows[i].levels = levels;
            } else {
                const ExpertPlaces places = {up ? my_up.codes : gate.codes, up ? my_up.scales : gate.scales,
                                             up ? my_up.offsets : gate.offsets};
                rows[i] = expert_row(up ? weights_1 : weights_0, places, levels, a, row);
            }
        }
        const uint x_row = EXPERTS_OWN_INPUT ? first_pair + j : (first_pair + j) / k;
        DeviceRows input;
        input.x = beside ? beside_x : x + ulong(x_row) * a.n_in;
        input.stride = 0;
        input.n_rows = 1;
        Products<1, R> p = sums;
        for (short i = 0; i < R; i++) p.sums[0][i] = EXPERTS_SUM ? 0.0f : sums.sums[0][i];
        add_span<D, R>(p, rows, input, norm, n_in, span);
        for (short i = 0; i < R; i++) sums.sums[0][i] = EXPERTS_SUM ? fma(weight, p.sums[0][i], sums.sums[0][i]) : p.sums[0][i];
        sums.squares[0] = p.squares[0];
    }
    const LaneSums s = lane_sums<1, R>(sums, lane);

    const uint row = first + (LINEAR_GATE ? lane % (R / 2) : lane);
    float value = s.product;
    // Lanes 0 to R - 1 have the squares, and only these lanes write.
    if (LINEAR_NORM) value *= rsqrt(s.squares / float(n_in) + a.eps);
    if (LINEAR_GATE) {
        const float up = simd_shuffle_down(value, R / 2);
        value = activation(LINEAR_ACTIVATION, value) * up;
    }
    if (lane >= (LINEAR_GATE ? R / 2 : R) || row >= n_out) return;
    if (beside) {
        y_1[row] = value;
        return;
    }
    if (LINEAR_RESIDUAL) value += other[ulong(place.y) * n_out + row];
    y_0[ulong(place.y) * n_out + row] = value;
}

#ifdef WITH_TENSORS
// Writes the products of an expert's pairs.
struct PairOutput {
    device const uint * pairs;
    device float * y;
    uint first; // first column of y
    uint n_out;
    uint n_pairs;

    void write_one(uint row, uint column, float value) const {
        if (row < n_pairs && column < n_out) y[ulong(pairs[row]) * n_out + column] = value;
    }
    void write(uint row, uint column, float left, float right) const {
        write_one(row, first + column, LINEAR_GATE ? activation(LINEAR_ACTIVATION, left) * right : left);
        if (!LINEAR_GATE) write_one(row, first + 32 + column, right);
    }
};
#endif

// A tile of pairs of one expert.
struct ExpertWork {
    ExpertTile tile;
    WeightRow w_row;
    device const float * x;
    device const uint * order; // of the tile's first pair on
    device float * y;
    uint first; // first column of y
};

template<class D, short BX>
static inline void expert_products(ExpertWork w, constant LinearArguments & a, threadgroup float4 * tiles, ushort tid, ushort sg,
                                   ushort lane) {
    typedef typename D::Operand T;
    const uint n_out = a.n_out_0, n_pairs = w.tile.n_pairs;
    // Absent pairs repeat the last one.
    const uint pair = w.order[min(uint(tid / (128 / BX)), n_pairs - 1)];
    const uint x_row = EXPERTS_OWN_INPUT ? pair : pair / a.experts_per_row;
    threadgroup T * tile_w = (threadgroup T *) tiles;
#ifdef WITH_TENSORS
    if (LINEAR_TENSOR) {
        StagedRows<D, BX> rows;
        rows.x_row = w.x + ulong(x_row) * a.n_in;
        rows.staged = tile_w + 64 * TENSOR_COLUMNS;
        tensor_tile<D, BX>(w.w_row, rows, a.n_in, tile_w, PairOutput{w.order, w.y, w.first, n_out, n_pairs}, tid);
        return;
    }
#endif
    const GemmSums<BX> sums =
        gemm_products<D, BX, true>(w.w_row, w.x + ulong(x_row) * a.n_in, a.n_in, n_pairs, tile_w, tile_w + 64 * 32, tid, sg);

    threadgroup_barrier(mem_flags::mem_threadgroup);
    threadgroup float * strip = (threadgroup float *) tiles + sg * 256;
    #pragma clang loop unroll(full)
    for (short i = 0; i < BX / 16; i++) {
        #pragma clang loop unroll(full)
        for (short j = 0; j < 4; j++) simdgroup_store(sums.m[i][j], strip + 8 * j, 32, ulong2(0, 0), false);
        simdgroup_barrier(mem_flags::mem_threadgroup);
        const uint x_0 = sg / 2 * (BX / 2) + 8 * i;
        const uint columns = LINEAR_GATE ? 16 : 32;
        const uint column = w.first + sg % 2 * columns + lane % columns;
        for (uint r = lane / columns; r < 8; r += 32 / columns) {
            if (x_0 + r >= n_pairs || column >= n_out) continue;
            float value = strip[r * 32 + lane % columns];
            if (LINEAR_GATE) value = activation(LINEAR_ACTIVATION, value) * strip[r * 32 + 16 + lane % 16];
            w.y[ulong(w.order[x_0 + r]) * n_out + column] = value;
        }
        simdgroup_barrier(mem_flags::mem_threadgroup);
    }
}

template<class D>
kernel void expert_gemm(constant LinearArguments & a [[buffer(0)]],
                        PRODUCT_BUFFERS,
                        device const uint * order [[buffer(23)]],
                        device const ExpertTile * expert_tiles [[buffer(24)]],
                        EXPERT_BUFFERS,
                        PRODUCT_THREAD) {
    threadgroup float levels[16];
    threadgroup float4 tiles[EXPERT_FOURS(sizeof(typename D::Operand))];
    if (D::LEVELS) {
        if (tid < 16) levels[tid] = D::level(tid);
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    ExpertWork w;
    w.tile = expert_tiles[place.y];
    if (w.tile.n_pairs == 0) return;
    w.first = place.x * (LINEAR_GATE ? 32 : 64);
    const uint2 w_at = tile_row(w.first, tid);
    const bool up = LINEAR_GATE && w_at.x == 1;
    const ExpertPlaces places = expert_places(up ? places_1 : places_0, D::PLANES, w.tile.expert, a.n_experts);
    w.w_row = expert_row(up ? weights_1 : weights_0, places, levels, a, min(w_at.y, a.n_out_0 - 1));
    w.x = x;
    w.order = order + w.tile.first;
    w.y = y_0;
#ifdef WITH_TENSORS
    if (LINEAR_TENSOR && EXPERT_STAGED(sizeof(typename D::Operand)) == 32 && w.tile.n_pairs > 32) {
        ExpertWork rest = w;
        rest.order += 32;
        rest.tile.n_pairs -= 32;
        expert_products<D, 32>(rest, a, tiles, tid, sg, lane);
        w.tile.n_pairs = 32;
    }
#endif
    if (w.tile.n_pairs > 32) expert_products<D, 64>(w, a, tiles, tid, sg, lane);
    else expert_products<D, 32>(w, a, tiles, tid, sg, lane);
}

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
//            21 ids (n, k) u32
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
//   chosen[j] * (W[ids[j]] x_j). The sum over experts ascends, and is inside the sum over lanes.
//   EXPERTS_BESIDE: the last rows of threadgroups compute an independent dense product, so that
//   both products are one dispatch. LINEAR_NORM and LINEAR_GATE apply to both.
//
// expert_linear_<type>_gemm: the same products for many rows, by tiles of up to 32 pairs of one
// expert, which expert_groups wrote.
//
//   buffers  0 LinearArguments, 1, 16, 25 to 28 as above
//            23 order (n * k) u32: pairs sorted by expert
//            24 ExpertTile[tiles]
//   threads  128
//   grid     (T, tiles, 1), T = ceil(n_out_0 / 64), with LINEAR_GATE ceil(n_out_0 / 32);
//            tiles = n_experts + n * k / 32, of which unused ones have no pairs
//   constants LINEAR_GATE, _ACTIVATION, EXPERTS_OWN_INPUT; those of the type
//   reads    a tile of an expert's matrix once for up to 32 of its pairs
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

// Returns row `row` of an expert's matrix.
static inline WeightRow expert_row(device const uchar * weights, device const ulong * places, bool planes, uint expert,
                                   threadgroup const float * levels, constant LinearArguments & a, uint row) {
    device const uchar * codes = weights + places[expert];
    device const uchar * scales = codes;
    device const uchar * offsets = codes;
    if (planes) {
        scales = weights + places[a.n_experts + expert];
        offsets = weights + places[2 * a.n_experts + expert];
    }
    return weight_row(codes, scales, offsets, levels, a, row);
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
    const uint n_experts = EXPERTS_SUM && !beside ? k : 1;
    for (uint j = 0; j < n_experts; j++) {
        const uint pair = EXPERTS_SUM ? place.y * k + j : place.y;
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
                rows[i] = expert_row(up ? weights_1 : weights_0, up ? places_1 : places_0, D::PLANES, ids[pair], levels, a, row);
            }
        }
        const uint x_row = EXPERTS_OWN_INPUT ? pair : pair / k;
        DeviceRows input;
        input.x = beside ? beside_x : x + ulong(x_row) * a.n_in;
        input.stride = 0;
        input.n_rows = 1;
        const Products<1, R> p = gemv_products<D, 1, R>(rows, input, norm, beside ? all.beside_n_in : a.n_in, lane, 32);
        const float weight = EXPERTS_SUM && !beside ? chosen[pair] : 1.0f;
        for (short i = 0; i < R; i++) sums.sums[0][i] += weight * p.sums[0][i];
        sums.squares[0] = p.squares[0];
    }
    const LaneSums s = lane_sums<1, R>(sums, lane);

    const uint row = first + (LINEAR_GATE ? lane % (R / 2) : lane);
    float value = s.product;
    // Lanes 0 to R - 1 have the squares, and only these lanes write.
    if (LINEAR_NORM) value *= rsqrt(s.squares / float(beside ? all.beside_n_in : a.n_in) + a.eps);
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

template<class D>
kernel void expert_gemm(constant LinearArguments & a [[buffer(0)]],
                        PRODUCT_BUFFERS,
                        device const uint * order [[buffer(23)]],
                        device const ExpertTile * expert_tiles [[buffer(24)]],
                        EXPERT_BUFFERS,
                        PRODUCT_THREAD) {
    typedef typename D::Operand T;
    threadgroup float levels[16];
    threadgroup float4 tiles[96 * TILE_STRIDE * sizeof(T) / 16];
    threadgroup T * tile_w = (threadgroup T *) tiles;
    threadgroup T * tile_x = tile_w + 64 * TILE_STRIDE;
    if (D::LEVELS) {
        if (tid < 16) levels[tid] = D::level(tid);
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    const ExpertTile tile = expert_tiles[place.y];
    if (tile.n_pairs == 0) return;
    const uint n_out = a.n_out_0, first = place.x * (LINEAR_GATE ? 32 : 64);

    const uint2 w_at = tile_row(first, tid);
    const bool up = LINEAR_GATE && w_at.x == 1;
    const WeightRow w_row = expert_row(up ? weights_1 : weights_0, up ? places_1 : places_0, D::PLANES, tile.expert, levels, a,
                                       min(w_at.y, n_out - 1));
    // Absent pairs repeat the last one.
    const uint pair = order[tile.first + min(uint(tid / 4), tile.n_pairs - 1)];
    const uint x_row = EXPERTS_OWN_INPUT ? pair : pair / a.experts_per_row;
    const GemmSums<32> sums =
        gemm_products<D, 32>(w_row, x + ulong(x_row) * a.n_in, a.n_in, tile.n_pairs, tile_w, tile_x, tid, sg);

    threadgroup_barrier(mem_flags::mem_threadgroup);
    threadgroup float * strip = (threadgroup float *) tiles + sg * 256;
    #pragma clang loop unroll(full)
    for (short i = 0; i < 2; i++) {
        #pragma clang loop unroll(full)
        for (short j = 0; j < 4; j++) simdgroup_store(sums.m[i][j], strip + 8 * j, 32, ulong2(0, 0), false);
        simdgroup_barrier(mem_flags::mem_threadgroup);
        const uint x_0 = sg / 2 * 16 + 8 * i;
        const uint columns = LINEAR_GATE ? 16 : 32;
        const uint column = first + sg % 2 * columns + lane % columns;
        for (uint r = lane / columns; r < 8; r += 32 / columns) {
            if (x_0 + r >= tile.n_pairs || column >= n_out) continue;
            float value = strip[r * 32 + lane % columns];
            if (LINEAR_GATE) value = activation(LINEAR_ACTIVATION, value) * strip[r * 32 + 16 + lane % 16];
            y_0[ulong(order[tile.first + x_0 + r]) * n_out + column] = value;
        }
        simdgroup_barrier(mem_flags::mem_threadgroup);
    }
}

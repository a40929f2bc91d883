// Heads whose states are matrices S (rows, cols), carried along the positions of a span: the part
// that gated_delta.metal and selective_scan.metal share.
//
// Host contract
//   buffers  0 ScanArguments    1 Step    2 spans
//            3 x (n, n_heads * cols), the values
//            4 keys, 5 queries (n, n_shared * rows)
//            6 steps (n, n_heads), or with FC_STEP_PER_ROW (n, n_heads * rows)
//            7 rates (n_heads)
//            8 the layer's part of state 0 (n_heads, rows, cols)
//            9 out (n, n_heads * cols)
//            x, keys and queries are aligned to 16 bytes
//   threads  32 * S, S at most 8
//   grid     (ceil(cols / (8 * S)), n_heads, n_spans)
//   kernels  for up to 64, 128 and 256 rows; `_chunks` in a name: scan_chunks.h, for steps of many
//            rows
//
// Position by position: a SIMD-group computes eight neighbouring columns of S, from the first
// position of a span to the last. Four lanes share a column. Each of them keeps four neighbouring
// rows of every 16 in registers. So a state is read and written once for a span, and a sum over a
// column takes two exchanges. Each SIMD-group reads shared keys and queries itself, from caches.
//
// Sums over rows: each lane its rows in order, then lanes 8 apart, then 16 apart.
#pragma once
#include "arguments.h"
#include "constants.h"
#include "step.h"

// Columns of a SIMD-group.
#define SCAN_COLUMNS 8

// Parameters of every scan kernel. The use of buffer 10 depends on the kernel.
#define SCAN_PARAMETERS                              \
    constant ScanArguments &args [[buffer(0)]],      \
    device const Step *step [[buffer(1)]],           \
    device const Span *spans [[buffer(2)]],          \
    device const float *x [[buffer(3)]],             \
    device const float *keys [[buffer(4)]],          \
    device const float *queries [[buffer(5)]],       \
    device const float *steps [[buffer(6)]],         \
    device const float *rates [[buffer(7)]],         \
    device float *states [[buffer(8)]],              \
    device float *out [[buffer(9)]],                 \
    device const float *other [[buffer(10)]],        \
    uint3 place [[threadgroup_position_in_grid]],    \
    ushort sg [[simdgroup_index_in_threadgroup]],    \
    ushort n_sg [[simdgroups_per_threadgroup]],      \
    ushort lane [[thread_index_in_simdgroup]]

// The parameters from x on, by their names above.
struct ScanBuffers {
    device const float *x;
    device const float *keys;
    device const float *queries;
    device const float *steps;
    device const float *rates;
    device float *states;
    device float *out;
    device const float *other;
};
#define SCAN_BUFFERS {x, keys, queries, steps, rates, states, out, other}

// Rows and column of a head's state that a lane holds.
struct ScanLane {
    uint head;
    uint column;
    uint row;   // first of four neighbouring rows; the lane's other groups of four are 16 rows apart
    bool there; // the column is less than cols
};

static inline ScanLane scan_lane(constant ScanArguments &args, uint3 place, ushort sg, ushort n_sg, ushort lane) {
    ScanLane mine;
    mine.head = place.y;
    mine.column = (place.x * n_sg + sg) * SCAN_COLUMNS + lane % SCAN_COLUMNS;
    mine.row = lane / SCAN_COLUMNS * 4;
    mine.there = mine.column < args.cols;
    return mine;
}

// Returns four neighbouring numbers of a vector of `n`, 0 after its end. If `n` is a multiple of 4,
// the vector is aligned to 16 bytes.
static inline float4 scan_four(device const float *vector, uint i, uint n) {
    if (n % 4 == 0 && i < n) return *(device const float4 *) (vector + i);
    float4 four = float4(0.0f);
    #pragma clang loop unroll(full)
    for (uint e = 0; e < 4; e++) {
        if (i + e < n) four[e] = vector[i + e];
    }
    return four;
}

// Returns `sum` plus the dot product of two vectors, with four roundings.
static inline float scan_dot(float4 a, float4 b, float sum) {
    return fma(a.w, b.w, fma(a.z, b.z, fma(a.y, b.y, fma(a.x, b.x, sum))));
}

// Returns the sum over the lanes that share a column.
static inline float scan_sum(float x) {
    x += simd_shuffle_xor(x, ushort(8));
    return x + simd_shuffle_xor(x, ushort(16));
}

// Index of the lane's column of its head in the states.
static inline ulong scan_place(constant ScanArguments &args, ScanLane mine, uint state) {
    return ulong(state) * args.state_stride + ulong(mine.head) * args.rows * args.cols + mine.column;
}

// Loads the lane's part of the state before a span; STATE_NONE is 0.
template<ushort N>
static inline void scan_load(thread float4 *s, constant ScanArguments &args, ScanLane mine, uint state, device const float *states) {
    #pragma clang loop unroll(full)
    for (ushort i = 0; i < N; i++) s[i] = float4(0.0f);
    if (state == STATE_NONE || !mine.there) return;
    device const float *column = states + scan_place(args, mine, state);
    #pragma clang loop unroll(full)
    for (ushort i = 0; i < N; i++) {
        #pragma clang loop unroll(full)
        for (ushort e = 0; e < 4; e++) {
            const uint row = mine.row + 16 * i + e;
            if (row < args.rows) s[i][e] = column[row * args.cols];
        }
    }
}

// Stores the lane's part of the state after a span.
template<ushort N>
static inline void scan_store(thread const float4 *s, constant ScanArguments &args, ScanLane mine, uint state, device float *states) {
    if (!mine.there) return;
    device float *column = states + scan_place(args, mine, state);
    #pragma clang loop unroll(full)
    for (ushort i = 0; i < N; i++) {
        #pragma clang loop unroll(full)
        for (ushort e = 0; e < 4; e++) {
            const uint row = mine.row + 16 * i + e;
            if (row < args.rows) column[row * args.cols] = s[i][e];
        }
    }
}

// gated_delta_<rows>: the gated delta rule. At each position S = diag(exp(rate * step)) S; S += k (beta (v - S^T k))^T;
// out = scale * S^T q. Contract: scan.h; x is v.
//
// Further buffers: 10 beta (n, n_heads). Constants: FC_STEP_PER_ROW, FC_TILED (head h has the keys of h % n_shared, otherwise of
// h / (n_heads / n_shared)).
// Moves S twice for a span; k, q, v, step, beta and out once for a position and a column of threadgroups.
#include <metal_stdlib>
using namespace metal;
#include "instantiate.h"
#include "scan.h"

constant bool STEP_PER_ROW [[function_constant(FC_STEP_PER_ROW)]];
constant bool TILED [[function_constant(FC_TILED)]];

// N: vectors of four rows that a lane has.
template<ushort N>
kernel void gated_delta(constant ScanArguments &args [[buffer(0)]],
                        device const Step *step [[buffer(1)]],
                        device const Span *spans [[buffer(2)]],
                        device const float *v [[buffer(3)]],
                        device const float *k [[buffer(4)]],
                        device const float *q [[buffer(5)]],
                        device const float *steps [[buffer(6)]],
                        device const float *rates [[buffer(7)]],
                        device float *states [[buffer(8)]],
                        device float *out [[buffer(9)]],
                        device const float *beta [[buffer(10)]],
                        uint3 place [[threadgroup_position_in_grid]],
                        ushort sg [[simdgroup_index_in_threadgroup]],
                        ushort n_sg [[simdgroups_per_threadgroup]],
                        ushort lane [[thread_index_in_simdgroup]]) {
    if (place.z >= step->n_spans || (place.x * n_sg + sg) * SCAN_COLUMNS >= args.cols) return;
    device const Span &span = spans[place.z];
    const ScanLane mine = scan_lane(args, place, sg, n_sg, lane);
    const uint shared = TILED ? mine.head % args.n_shared : mine.head / (args.n_heads / args.n_shared);
    const float rate = rates[mine.head];
    float4 s[N];
    scan_load<N>(s, args, mine, span.state_from, states);
    for (uint t = span.first_row; t < span.first_row + span.n_rows; t++) {
        const ulong of_head = ulong(t) * args.n_heads + mine.head;
        device const float *keys = k + (ulong(t) * args.n_shared + shared) * args.rows;
        device const float *queries = q + (ulong(t) * args.n_shared + shared) * args.rows;
        float4 decay = float4(0.0f);
        if (!STEP_PER_ROW) decay = float4(precise::exp(rate * steps[of_head]));
        float4 key[N];
        float dot = 0.0f;
        #pragma clang loop unroll(full)
        for (ushort i = 0; i < N; i++) {
            const uint row = mine.row + 16 * i;
            if (STEP_PER_ROW) decay = precise::exp(rate * scan_four(steps + of_head * args.rows, row, args.rows));
            s[i] *= decay;
            key[i] = scan_four(keys, row, args.rows);
            dot = scan_dot(key[i], s[i], dot);
        }
        dot = scan_sum(dot);
        const float value = mine.there ? v[of_head * args.cols + mine.column] : 0.0f;
        const float delta = beta[of_head] * (value - dot);
        float sum = 0.0f;
        #pragma clang loop unroll(full)
        for (ushort i = 0; i < N; i++) {
            s[i] = fma(key[i], float4(delta), s[i]);
            sum = scan_dot(scan_four(queries, mine.row + 16 * i, args.rows), s[i], sum);
        }
        sum = scan_sum(sum);
        if (mine.there && mine.row == 0) out[of_head * args.cols + mine.column] = args.scale * sum;
    }
    scan_store<N>(s, args, mine, span.state_to, states);
}

INSTANTIATE(gated_delta_64, gated_delta<4>)
INSTANTIATE(gated_delta_128, gated_delta<8>)
INSTANTIATE(gated_delta_256, gated_delta<16>)

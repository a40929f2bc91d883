// selective_scan_<rows>: the selective scan with one decay for each head. At each position S = exp(rate * step) S + b (step * x)^T;
// out = S^T c + skip * x. Contract: scan.h; keys are b, queries c.
//
// Further buffers: 10 skip (n_heads). Without it anything may be bound there. Constants: FC_HAS_WEIGHT (skip).
// Moves S twice for a span; b, c, x, step and out once for a position and a column of threadgroups.
#include <metal_stdlib>
using namespace metal;
#include "instantiate.h"
#include "scan.h"

constant bool HAS_SKIP [[function_constant(FC_HAS_WEIGHT)]];

// N: vectors of four rows that a lane has.
template<ushort N>
kernel void selective_scan(constant ScanArguments &args [[buffer(0)]],
                           device const Step *step [[buffer(1)]],
                           device const Span *spans [[buffer(2)]],
                           device const float *x [[buffer(3)]],
                           device const float *b [[buffer(4)]],
                           device const float *c [[buffer(5)]],
                           device const float *steps [[buffer(6)]],
                           device const float *rates [[buffer(7)]],
                           device float *states [[buffer(8)]],
                           device float *out [[buffer(9)]],
                           device const float *skip [[buffer(10)]],
                           uint3 place [[threadgroup_position_in_grid]],
                           ushort sg [[simdgroup_index_in_threadgroup]],
                           ushort n_sg [[simdgroups_per_threadgroup]],
                           ushort lane [[thread_index_in_simdgroup]]) {
    if (place.z >= step->n_spans || (place.x * n_sg + sg) * SCAN_COLUMNS >= args.cols) return;
    device const Span &span = spans[place.z];
    const ScanLane mine = scan_lane(args, place, sg, n_sg, lane);
    const uint shared = mine.head / (args.n_heads / args.n_shared);
    const float rate = rates[mine.head];
    float4 s[N];
    scan_load<N>(s, args, mine, span.state_from, states);
    for (uint t = span.first_row; t < span.first_row + span.n_rows; t++) {
        const ulong of_head = ulong(t) * args.n_heads + mine.head;
        device const float *ins = b + (ulong(t) * args.n_shared + shared) * args.rows;
        device const float *outs = c + (ulong(t) * args.n_shared + shared) * args.rows;
        const float size = steps[of_head];
        const float decay = precise::exp(rate * size);
        const float value = mine.there ? x[of_head * args.cols + mine.column] : 0.0f;
        const float in = size * value;
        float sum = 0.0f;
        #pragma clang loop unroll(full)
        for (ushort i = 0; i < N; i++) {
            const uint row = mine.row + 16 * i;
            s[i] = fma(scan_four(ins, row, args.rows), float4(in), decay * s[i]);
            sum = scan_dot(scan_four(outs, row, args.rows), s[i], sum);
        }
        sum = scan_sum(sum);
        if (HAS_SKIP) sum = fma(skip[mine.head], value, sum);
        if (mine.there && mine.row == 0) out[of_head * args.cols + mine.column] = sum;
    }
    scan_store<N>(s, args, mine, span.state_to, states);
}

INSTANTIATE(selective_scan_64, selective_scan<4>)
INSTANTIATE(selective_scan_128, selective_scan<8>)
INSTANTIATE(selective_scan_256, selective_scan<16>)

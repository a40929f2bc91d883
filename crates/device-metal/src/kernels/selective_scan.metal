// selective_scan_<rows>, selective_scan_chunks_<rows>: the selective scan with one decay for each
// head. At each position S = exp(rate * step) S + b (step * x)^T; out = S^T c + skip * x. Contract:
// scan.h; keys are b, queries c.
//
// Further buffers: 10 skip (n_heads); may be bound to anything without FC_HAS_WEIGHT. Constants:
// FC_HAS_WEIGHT (skip). Moves S twice for a span; b, c, x, step and out once for each position and
// column of threadgroups.
#include <metal_stdlib>
using namespace metal;
#include "instantiate.h"
#include "scan.h"
#include "scan_chunks.h"

constant bool HAS_SKIP [[function_constant(FC_HAS_WEIGHT)]];

static inline uint shared_of(constant ScanArguments &args, uint head) { return head / (args.n_heads / args.n_shared); }

// Computes a span position by position. N: vectors of four rows that a lane holds.
template<ushort N>
static inline void selective_scan_walk(constant ScanArguments &args, ScanBuffers b, device const Span &span, ScanLane mine) {
    if (mine.column / SCAN_COLUMNS * SCAN_COLUMNS >= args.cols) return;
    const uint shared = shared_of(args, mine.head);
    const float rate = b.rates[mine.head];
    float4 s[N];
    scan_load<N>(s, args, mine, span.state_from, b.states);
    for (uint t = span.first_row; t < span.first_row + span.n_rows; t++) {
        const ulong of_head = ulong(t) * args.n_heads + mine.head;
        device const float *ins = b.keys + (ulong(t) * args.n_shared + shared) * args.rows;
        device const float *outs = b.queries + (ulong(t) * args.n_shared + shared) * args.rows;
        const float size = b.steps[of_head];
        const float decay = precise::exp(rate * size);
        const float value = mine.there ? b.x[of_head * args.cols + mine.column] : 0.0f;
        const float in = size * value;
        float sum = 0.0f;
        #pragma clang loop unroll(full)
        for (ushort i = 0; i < N; i++) {
            const uint row = mine.row + 16 * i;
            s[i] = fma(scan_four(ins, row, args.rows), float4(in), decay * s[i]);
            sum = scan_dot(scan_four(outs, row, args.rows), s[i], sum);
        }
        sum = scan_sum(sum);
        if (HAS_SKIP) sum = fma(b.other[mine.head], value, sum);
        if (mine.there && mine.row == 0) b.out[of_head * args.cols + mine.column] = sum;
    }
    scan_store<N>(s, args, mine, span.state_to, b.states);
}

template<ushort N>
kernel void selective_scan(SCAN_PARAMETERS) {
    if (place.z >= step->n_spans) return;
    const ScanBuffers buffers = SCAN_BUFFERS;
    selective_scan_walk<N>(args, buffers, spans[place.z], scan_lane(args, place, sg, n_sg, lane));
}

template<ushort N>
kernel void selective_scan_chunks(SCAN_PARAMETERS) {
    SCAN_CHUNK_MEMORY(N);
    if (place.z >= step->n_spans) return;
    const ScanBuffers buffers = SCAN_BUFFERS;
    device const Span &span = spans[place.z];
    const ScanLane mine = scan_lane(args, place, sg, n_sg, lane);
    if (span.n_rows < args.least_chunk) {
        selective_scan_walk<N>(args, buffers, span, mine);
        return;
    }
    float skip = 0.0f;
    if (HAS_SKIP) skip = other[mine.head];
    const ScanHead head = scan_head(args, buffers, mine, shared_of(args, mine.head), skip, lane);
    const ScanMemory memory = SCAN_CHUNK_PARTS;
    const ScanThread at = {sg, n_sg, lane};
    scan_chunks<N, false>(args, buffers, span, head, memory, at);
}

INSTANTIATE(selective_scan_64, selective_scan<4>)
INSTANTIATE(selective_scan_128, selective_scan<8>)
INSTANTIATE(selective_scan_256, selective_scan<16>)
INSTANTIATE(selective_scan_chunks_64, selective_scan_chunks<4>)
INSTANTIATE(selective_scan_chunks_128, selective_scan_chunks<8>)
INSTANTIATE(selective_scan_chunks_256, selective_scan_chunks<16>)

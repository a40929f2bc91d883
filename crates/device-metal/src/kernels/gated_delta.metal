// gated_delta_<rows>, gated_delta_chunks_<rows>: the gated delta rule. At each position S =
// diag(exp(rate * step)) S; S += k (beta (v - S^T k))^T; out = scale * S^T q. Contract: scan.h; x
// is v.
//
// Further buffers: 10 beta (n, n_heads). Constants: FC_STEP_PER_ROW (not for chunks), FC_TILED
// (head h uses the keys of h % n_shared, otherwise of h / (n_heads / n_shared)). Moves S twice for
// a span; k, q, v, step, beta and out once for each position and column of threadgroups.
//
// With FC_STEP_PER_ROW, A[t][s] of scan_chunks.h is the sum over i of q[t][i] k[s][i] exp(L[t][i] -
// L[s][i]). It cannot be split into a product of matrices: exp(L[t][i]) exp(-L[s][i]) leaves the
// range of f32 as soon as a row decays by e^-88 in a chunk. Between two blocks of eight positions,
// one factor on each side of the boundary would suffice. Within a block there are 36 pairs of
// positions. So 16 positions of 128 rows would take 9,216 exponentials and 4,096 more for the
// factors, against 2,048 position by position. Such heads are therefore computed position by
// position.
#include <metal_stdlib>
using namespace metal;
#include "instantiate.h"
#include "scan.h"
#include "scan_chunks.h"

constant bool STEP_PER_ROW [[function_constant(FC_STEP_PER_ROW)]];
constant bool TILED [[function_constant(FC_TILED)]];

static inline uint shared_of(constant ScanArguments &args, uint head) {
    return TILED ? head % args.n_shared : head / (args.n_heads / args.n_shared);
}

// Computes a span position by position. N: vectors of four rows that a lane holds.
template<ushort N>
static inline void gated_delta_walk(constant ScanArguments &args, ScanBuffers b, device const Span &span, ScanLane mine) {
    if (mine.column / SCAN_COLUMNS * SCAN_COLUMNS >= args.cols) return;
    const uint shared = shared_of(args, mine.head);
    const float rate = b.rates[mine.head];
    float4 s[N];
    scan_load<N>(s, args, mine, span.state_from, b.states);
    for (uint t = span.first_row; t < span.first_row + span.n_rows; t++) {
        const ulong of_head = ulong(t) * args.n_heads + mine.head;
        device const float *keys = b.keys + (ulong(t) * args.n_shared + shared) * args.rows;
        device const float *queries = b.queries + (ulong(t) * args.n_shared + shared) * args.rows;
        float4 decay = float4(0.0f);
        if (!STEP_PER_ROW) decay = float4(precise::exp(rate * b.steps[of_head]));
        float4 key[N];
        float dot = 0.0f;
        #pragma clang loop unroll(full)
        for (ushort i = 0; i < N; i++) {
            const uint row = mine.row + 16 * i;
            if (STEP_PER_ROW) decay = precise::exp(rate * scan_four(b.steps + of_head * args.rows, row, args.rows));
            s[i] *= decay;
            key[i] = scan_four(keys, row, args.rows);
            dot = scan_dot(key[i], s[i], dot);
        }
        dot = scan_sum(dot);
        const float value = mine.there ? b.x[of_head * args.cols + mine.column] : 0.0f;
        const float delta = b.other[of_head] * (value - dot);
        float sum = 0.0f;
        #pragma clang loop unroll(full)
        for (ushort i = 0; i < N; i++) {
            s[i] = fma(key[i], float4(delta), s[i]);
            sum = scan_dot(scan_four(queries, mine.row + 16 * i, args.rows), s[i], sum);
        }
        sum = scan_sum(sum);
        if (mine.there && mine.row == 0) b.out[of_head * args.cols + mine.column] = args.scale * sum;
    }
    scan_store<N>(s, args, mine, span.state_to, b.states);
}

template<ushort N>
kernel void gated_delta(SCAN_PARAMETERS) {
    if (place.z >= step->n_spans) return;
    const ScanBuffers buffers = SCAN_BUFFERS;
    gated_delta_walk<N>(args, buffers, spans[place.z], scan_lane(args, place, sg, n_sg, lane));
}

template<ushort N>
kernel void gated_delta_chunks(SCAN_PARAMETERS) {
    SCAN_CHUNK_MEMORY(N);
    if (place.z >= step->n_spans) return;
    const ScanBuffers buffers = SCAN_BUFFERS;
    device const Span &span = spans[place.z];
    const ScanLane mine = scan_lane(args, place, sg, n_sg, lane);
    if (span.n_rows < args.least_chunk) {
        gated_delta_walk<N>(args, buffers, span, mine);
        return;
    }
    const ScanHead head = scan_head(args, buffers, mine, shared_of(args, mine.head), 0.0f, lane);
    const ScanMemory memory = SCAN_CHUNK_PARTS;
    const ScanThread at = {sg, n_sg, lane};
    scan_chunks<N, true>(args, buffers, span, head, memory, at);
}

INSTANTIATE(gated_delta_64, gated_delta<4>)
INSTANTIATE(gated_delta_128, gated_delta<8>)
INSTANTIATE(gated_delta_256, gated_delta<16>)
INSTANTIATE(gated_delta_chunks_64, gated_delta_chunks<4>)
INSTANTIATE(gated_delta_chunks_128, gated_delta_chunks<8>)
INSTANTIATE(gated_delta_chunks_256, gated_delta_chunks<16>)

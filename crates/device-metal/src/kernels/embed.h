// embed_<type>: out[i] = scale * table[token[i]], for any type of weight. The step's first
// embedding also writes the cosines and sines of the step's positions (turns.h).
//
// Host contract
//   buffers  0 EmbedArguments (linear/arguments.h)
//            1 tokens (n) u32    2 chosen tokens (token_of in step.h)
//            3 codes, 6 scales, 9 offsets of the table
//            4 positions (n), 5 pairs (n_turns) TurnPair, 17 tables of cosines and sines, if
//              n_turns > 0
//            16 out (n, n_cols) f32    20 Step
//            Alignments and unused buffers as in linear/gemv.h.
//   threads  any multiple of 32; a thread computes a span of 16 columns at a time (linear/block.h)
//   grid     (ceil(n_cols / 16 / threads), n, 1), n the tokens of the step; fewer threadgroups in x
//            also work
//   constants LINEAR_SCALAR for floats and integer rows; AFFINE_GROUP, _SCALE, _SYMMETRIC,
//            _WIDE for affine types
//   reads    one row of the table for each token
#pragma once
#include "linear/arguments.h"
#include "linear/block.h"
#include "step.h"
#include "turns.h"

template<class D>
kernel void embed(constant EmbedArguments & a [[buffer(0)]],
                  device const uint * tokens [[buffer(1)]],
                  device const uint * chosen [[buffer(2)]],
                  device const uchar * codes [[buffer(3)]],
                  device const uint * positions [[buffer(4)]],
                  device const TurnPair * pairs [[buffer(5)]],
                  device const uchar * scales [[buffer(6)]],
                  device const uchar * offsets [[buffer(9)]],
                  device float * out [[buffer(16)]],
                  device float2 * turns [[buffer(17)]],
                  device const Step * step [[buffer(20)]],
                  uint2 place [[threadgroup_position_in_grid]],
                  uint2 n_places [[threadgroups_per_grid]],
                  ushort tid [[thread_index_in_threadgroup]],
                  ushort n_sg [[simdgroups_per_threadgroup]]) {
    threadgroup float levels[16];
    if (D::LEVELS) {
        if (tid < 16) levels[tid] = D::level(tid);
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    if (place.y >= step->n_rows) return;
    const ulong row = token_of(tokens[place.y], chosen);
    WeightRow w;
    w.codes = codes + row * a.row_bytes;
    w.scales = scales + row * a.scale_bytes;
    w.offsets = offsets + row * a.scale_bytes;
    w.levels = levels;
    const uint n_threads = 32 * n_sg, first = place.x * n_threads + tid, n_all = n_places.x * n_threads;
    if (a.n_turns > 0) write_turns(turns, pairs, a.n_turns, place.y, positions[place.y], first, n_all);
    out += ulong(place.y) * a.n_cols;
    for (uint span = first; span < D::n_spans(a.n_cols); span += n_all) {
        const Codes<D::GROUPS> codes = D::load(w, span, a.n_cols);
        #pragma clang loop unroll(full)
        for (short j = 0; j < 4; j++) {
            const short group = j * D::GROUPS / 4;
            const uint column = D::column(span, j);
            const float4 values = fma(codes.q[j] * D::factor(), float4(codes.scale[group]), float4(codes.offset[group]));
            for (short i = 0; i < 4; i++) {
                if (column + i < a.n_cols) out[column + i] = a.scale * values[i];
            }
        }
    }
}

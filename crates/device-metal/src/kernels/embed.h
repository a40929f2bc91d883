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
//   threads  any multiple of 32; a thread computes 16 columns at a time
//   grid     (ceil(n_cols / 16 / threads), n, 1), n the tokens of the step; fewer threadgroups in x
//            also work
//   constants LINEAR_SCALAR for floats and integer rows; AFFINE_GROUP, _SCALE, _SYMMETRIC for
//            affine types
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
    for (uint i = first; 16 * i < a.n_cols; i += n_all) {
        const Values values = D::decode(w, i, a.n_cols);
        for (uint j = 0; j < 16 && 16 * i + j < a.n_cols; j++) out[16 * i + j] = a.scale * values.v[j / 4][j % 4];
    }
}

// expert_groups: groups the pairs (a row and one of its k experts) by expert, for
// expert_linear_<type>_gemm. With FC_ROUTES it also chooses the experts, as route.metal does.
//
// Host contract
//   buffers  0 RouteArguments    1 Step
//            2 x (n, n_experts), 4 weights (n, k), 5 scales, 6 bias (n_experts), as in route.metal
//            3 ids (n, k) u32, written with FC_ROUTES
//            23 order (n * k) u32: pairs sorted by expert; pairs of one expert ascend
//            24 ExpertTile[n_experts + n * k / 32]: up to 32 neighbours in `order` of one expert;
//               unused tiles have no pairs
//            Buffers that the constants leave unused may be bound to anything.
//   threads  a multiple of 32, at most 1024
//   grid     (1, 1, 1)
//   constants FC_ROUTES, and those of route.metal
//   n_experts at most 1024
//
// One threadgroup does all the work. A thread counts the pairs of one expert in a slice of the
// rows; there are as many slices as threads allow. Sums over experts and slices give the first
// place of each slice. The thread then scans its ids again and writes the pairs. ids are read twice
// for each expert, from caches; neighbouring threads read the same id.
#include <metal_stdlib>
using namespace metal;
#include "linear/arguments.h"
#include "route.h"
#include "step.h"

constant bool ROUTES [[function_constant(FC_ROUTES)]];

kernel void expert_groups(constant RouteArguments & a [[buffer(0)]],
                          device const Step * step [[buffer(1)]],
                          device const float * x [[buffer(2)]],
                          device uint * ids [[buffer(3)]],
                          device float * weights [[buffer(4)]],
                          device const float * scales [[buffer(5)]],
                          device const float * bias [[buffer(6)]],
                          device uint * order [[buffer(23)]],
                          device ExpertTile * tiles [[buffer(24)]],
                          ushort tid [[thread_index_in_threadgroup]],
                          ushort sg [[simdgroup_index_in_threadgroup]],
                          ushort n_sg [[simdgroups_per_threadgroup]],
                          ushort lane [[thread_index_in_simdgroup]]) {
    threadgroup uint counts[1024]; // (n_slices, n_experts)
    threadgroup uint totals[1024]; // (n_experts)
    const uint n_threads = 32 * n_sg, n_rows = rows_of(*step, a.per_token), n_pairs = n_rows * a.k;
    if (ROUTES) {
        for (uint row = sg; row < n_rows; row += n_sg) {
            route_row(a, x + row * a.n_experts, ids + row * a.k, weights + row * a.k, scales, bias, lane);
        }
        threadgroup_barrier(mem_flags::mem_device);
    }
    const uint n_slices = max(n_threads / a.n_experts, 1u), per_slice = (n_pairs + n_slices - 1) / n_slices;
    for (uint i = tid; i < n_slices * a.n_experts; i += n_threads) {
        const uint e = i % a.n_experts, begin = i / a.n_experts * per_slice;
        uint count = 0;
        for (uint pair = begin; pair < min(begin + per_slice, n_pairs); pair++) count += ids[pair] == e ? 1 : 0;
        counts[i] = count;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint e = tid; e < a.n_experts; e += n_threads) {
        uint total = 0;
        for (uint slice = 0; slice < n_slices; slice++) total += counts[slice * a.n_experts + e];
        totals[e] = total;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    uint n_tiles = 0;
    for (uint e = 0; e < a.n_experts; e++) n_tiles += (totals[e] + 31) / 32;
    for (uint i = tid; i < n_slices * a.n_experts; i += n_threads) {
        const uint e = i % a.n_experts, slice = i / a.n_experts, begin = slice * per_slice;
        uint first = 0, tile = 0;
        for (uint before = 0; before < e; before++) {
            first += totals[before];
            tile += (totals[before] + 31) / 32;
        }
        uint to = first;
        for (uint before = 0; before < slice; before++) to += counts[before * a.n_experts + e];
        for (uint pair = begin; pair < min(begin + per_slice, n_pairs); pair++) {
            if (ids[pair] == e) order[to++] = pair;
        }
        if (slice > 0) continue;
        for (uint done = 0; done < totals[e]; done += 32) {
            ExpertTile t;
            t.expert = e;
            t.first = first + done;
            t.n_pairs = min(totals[e] - done, 32u);
            t.zero = 0;
            tiles[tile++] = t;
        }
    }
    for (uint i = n_tiles + tid; i < a.n_experts + n_pairs / 32; i += n_threads) {
        ExpertTile t;
        t.expert = 0;
        t.first = 0;
        t.n_pairs = 0;
        t.zero = 0;
        tiles[i] = t;
    }
}

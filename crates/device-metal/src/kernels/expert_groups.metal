// expert_groups: which pairs (a row and one of its k experts) go to each expert, for expert_linear_<type>_gemm.
//
// Host contract
//   buffers  0 LinearArguments (per_token, n_experts, experts_per_row)     20 Step      21 ids (n, k) u32
//            23 order (n * k) u32: pairs sorted by expert, of equals the lower pair first
//            24 ExpertTile[n_experts + n * k / 32]: up to 32 neighbours in `order` of one expert; those left over have no pairs
//   threads  a multiple of 32, at most 1024
//   grid     (1, 1, 1)
//   n_experts at most 1024
//
// One threadgroup: a thread counts the pairs of its experts, a sum over experts says where each begins, the thread goes over the
// ids again and writes. ids are read twice by each simdgroup, from caches; 32 neighbouring threads read the same id.
#include <metal_stdlib>
using namespace metal;
#include "linear/arguments.h"
#include "step.h"

kernel void expert_groups(constant LinearArguments & a [[buffer(0)]],
                          device const Step * step [[buffer(20)]],
                          device const uint * ids [[buffer(21)]],
                          device uint * order [[buffer(23)]],
                          device ExpertTile * tiles [[buffer(24)]],
                          ushort tid [[thread_index_in_threadgroup]],
                          ushort n_sg [[simdgroups_per_threadgroup]]) {
    threadgroup uint counts[1024];
    const uint n_threads = 32 * n_sg;
    const uint n_pairs = rows_of(*step, a.per_token) * a.experts_per_row;
    for (uint e = tid; e < a.n_experts; e += n_threads) {
        uint count = 0;
        for (uint i = 0; i < n_pairs; i++) count += ids[i] == e ? 1 : 0;
        counts[e] = count;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    uint n_tiles = 0;
    for (uint e = 0; e < a.n_experts; e++) n_tiles += (counts[e] + 31) / 32;
    for (uint e = tid; e < a.n_experts; e += n_threads) {
        uint first = 0, tile = 0;
        for (uint before = 0; before < e; before++) {
            first += counts[before];
            tile += (counts[before] + 31) / 32;
        }
        const uint count = counts[e];
        uint to = first;
        for (uint i = 0; i < n_pairs; i++) {
            if (ids[i] == e) order[to++] = i;
        }
        for (uint done = 0; done < count; done += 32) {
            ExpertTile t;
            t.expert = e;
            t.first = first + done;
            t.n_pairs = min(count - done, 32u);
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

// expert_groups: groups the pairs (a row and one of its k experts) by expert, for
// expert_linear_<type>_gemm.
//
// Host contract
//   buffers  0 RouteArguments    1 Step
//            3 ids (n, k) u32
//            23 order (n * k) u32: pairs sorted by expert; pairs of one expert ascend
//            24 ExpertTile[n_experts + n * k / 64]: up to 64 neighbours in `order` of one expert;
//               unused tiles have no pairs
//   threads  a multiple of 32, at most 1024
//   grid     (ceil(n_experts / simdgroups), 1, 1); fewer threadgroups also work
//   n_experts at most 1024
//
// Each threadgroup counts the pairs of all experts, in threadgroup memory. A simdgroup has one
// expert: sums of the counts before it are the place of its pairs and of its tiles. It then reads
// all ids again, and a vote of its lanes numbers its pairs. So the longest chain of a thread is
// n * k / 32 ids, from caches, four loads at a time.
#include <metal_stdlib>
using namespace metal;
#include "arguments.h"
#include "linear/arguments.h"
#include "step.h"

// Pairs of a full tile.
#define TILE_PAIRS 64

static inline ExpertTile expert_tile(uint expert, uint first, uint n_pairs) {
    ExpertTile t;
    t.expert = expert;
    t.first = first;
    t.n_pairs = n_pairs;
    t.zero = 0;
    return t;
}

// Writes the pairs of an expert, ascending. A simdgroup calls it.
static inline void write_pairs(device uint * order, device const uint * ids, uint n_pairs, uint expert, ushort lane) {
    for (uint begin = 0; begin < n_pairs; begin += 128) {
        bool mine[4];
        #pragma clang loop unroll(full)
        for (ushort i = 0; i < 4; i++) {
            const uint pair = begin + 32 * i + lane;
            mine[i] = pair < n_pairs && ids[pair] == expert;
        }
        #pragma clang loop unroll(full)
        for (ushort i = 0; i < 4; i++) {
            const uint lanes = uint(simd_vote::vote_t(simd_ballot(mine[i])));
            if (mine[i]) order[popcount(lanes & ((1u << lane) - 1))] = begin + 32 * i + lane;
            order += popcount(lanes);
        }
    }
}

kernel void expert_groups(constant RouteArguments & a [[buffer(0)]],
                          device const Step * step [[buffer(1)]],
                          device const uint * ids [[buffer(3)]],
                          device uint * order [[buffer(23)]],
                          device ExpertTile * tiles [[buffer(24)]],
                          uint place [[threadgroup_position_in_grid]],
                          uint n_places [[threadgroups_per_grid]],
                          ushort tid [[thread_index_in_threadgroup]],
                          ushort sg [[simdgroup_index_in_threadgroup]],
                          ushort n_sg [[simdgroups_per_threadgroup]],
                          ushort lane [[thread_index_in_simdgroup]]) {
    threadgroup atomic_uint counts[1024]; // (n_experts)
    const uint n_threads = 32 * n_sg, n_pairs = rows_of(*step, a.per_token) * a.k;
    for (uint e = tid; e < a.n_experts; e += n_threads) atomic_store_explicit(&counts[e], 0, memory_order_relaxed);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint pair = tid; pair < n_pairs; pair += n_threads) {
        atomic_fetch_add_explicit(&counts[ids[pair]], 1, memory_order_relaxed);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint expert = place * n_sg + sg; expert < a.n_experts; expert += n_places * n_sg) {
        uint first = 0, tile = 0;
        for (uint e = lane; e < expert; e += 32) {
            const uint count = atomic_load_explicit(&counts[e], memory_order_relaxed);
            first += count;
            tile += (count + TILE_PAIRS - 1) / TILE_PAIRS;
        }
        first = simd_sum(first);
        tile = simd_sum(tile);
        const uint total = atomic_load_explicit(&counts[expert], memory_order_relaxed);
        const uint end = tile + (total + TILE_PAIRS - 1) / TILE_PAIRS;
        write_pairs(order + first, ids, n_pairs, expert, lane);
        for (uint i = tile + lane; i < end; i += 32) {
            const uint done = (i - tile) * TILE_PAIRS;
            tiles[i] = expert_tile(expert, first + done, min(total - done, uint(TILE_PAIRS)));
        }
        if (expert + 1 < a.n_experts) continue;
        for (uint i = end + lane; i < a.n_experts + n_pairs / TILE_PAIRS; i += 32) tiles[i] = expert_tile(0, 0, 0);
    }
}

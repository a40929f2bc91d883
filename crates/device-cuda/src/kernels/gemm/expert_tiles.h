// expert_tiles: from the experts chosen for each row to rows in the order of the experts, and the tiles of a grouped product.
//
//   pair p = row * k + j chooses expert ids[p]. The pairs of expert e, ascending, get packed rows from first(e) on, where
//   first(e) is the sum of the pairs of lower experts, each rounded up to 8.
//   pairs[first(e) + i] = its i-th pair, which says what rows_input gathers and where the result goes; NO_ROW up to the next multiple
//   of 8, and after the last expert
//   tiles               = (expert, first packed row, rows), `width` rows at most each, experts ascending
//
// Host contract
//   parameter  ExpertTilesArguments; threads 1024, grid 1, dynamic shared memory 8 * n_experts bytes
// The order of the pairs of an expert is the order of the pairs, so that results do not change from run to run.
#pragma once
#include "gemm/arguments.h"
#include "gemm/ptx.h"

INLINE void write_expert_tiles(const ExpertTilesArguments &a) {
    extern __shared__ u32 expert_shared[];
    __shared__ u32 end_of_all;
    u32 *count = expert_shared, *first = expert_shared + a.n_experts;
    const u32 n_pairs = a.n_rows * a.k;
    for (u32 e = threadIdx.x; e < a.n_experts; e += 1024) count[e] = 0;
    __syncthreads();
    dependency_launch();
    dependency_wait();
    for (u32 p = threadIdx.x; p < n_pairs; p += 1024) atomicAdd(count + a.ids[p], 1);
    __syncthreads();
    if (threadIdx.x == 0) {
        u32 at = 0, n_tiles = 0;
        for (u32 e = 0; e < a.n_experts; e++) {
            first[e] = at;
            for (u32 done = 0; done < count[e]; done += a.width)
                a.tiles[n_tiles++] = make_uint4(e, at + done, min(a.width, count[e] - done), 0);
            at += (count[e] + 7) / 8 * 8;
        }
        *a.n_tiles = n_tiles;
        end_of_all = at;
    }
    __syncthreads();
    // A warp takes an expert and goes through the pairs in order: places by the rank among the lanes.
    const u32 lane = threadIdx.x & 31;
    for (u32 e = threadIdx.x >> 5; e < a.n_experts; e += 32) {
        if (count[e] == 0) continue;
        u32 at = first[e];
#pragma unroll 4
        for (u32 p0 = 0; p0 < n_pairs; p0 += 32) {
            const u32 p = p0 + lane;
            const bool mine = p < n_pairs && a.ids[p] == e;
            const u32 mask = __ballot_sync(~0u, mine);
            if (mine) a.pairs[at + __popc(mask & ((1u << lane) - 1))] = p;
            at += __popc(mask);
        }
        const u32 end = (at + 7) / 8 * 8;
        if (at + lane < end) a.pairs[at + lane] = NO_ROW;
    }
    for (u32 i = end_of_all + threadIdx.x; i < n_pairs + 7 * a.n_experts; i += 1024) a.pairs[i] = NO_ROW;
}

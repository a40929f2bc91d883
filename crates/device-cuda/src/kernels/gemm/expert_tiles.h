// expert_tiles: from the experts chosen for each row to rows in the order of the experts, and the tiles of a grouped product.
//
//   pair p = row * k + j chooses expert ids[p]. The pairs of expert e, ascending, get packed rows from first(e) on, where
//   first(e) is the sum of the pairs of lower experts, each rounded up to 8.
//   pairs[first(e) + i] = its i-th pair, which says what rows_input gathers and where the result goes; NO_ROW up to the next multiple
//   of 8, and after the last expert
//   tiles               = (expert, first packed row, rows), `width` rows at most each, experts ascending
//
// Host contract
//   parameter  ExpertTilesArguments; grid 1; threads: whole warps; dynamic shared memory 4 * n_experts * (warps + 1) bytes
// Every warp counts and places a range of the pairs, in order, so that results do not change from run to run.
#pragma once
#include "gemm/arguments.h"
#include "gemm/ptx.h"

INLINE void write_expert_tiles(const ExpertTilesArguments &a) {
    extern __shared__ u32 expert_shared[];
    __shared__ u32 end_of_all;
    const u32 n = a.n_experts, n_warps = blockDim.x >> 5, warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    u32 *first = expert_shared, *mine = first + n * (1 + warp); // by expert: its first packed row; this warp's pairs
    const u32 n_pairs = a.n_rows * a.k, range = (n_pairs + 32 * n_warps - 1) / (32 * n_warps) * 32;
    const u32 begin = min(n_pairs, warp * range), end = min(n_pairs, begin + range);
    for (u32 i = threadIdx.x; i < n * (n_warps + 1); i += blockDim.x) expert_shared[i] = 0;
    __syncthreads();
    dependency_launch();
    dependency_wait();
    // Of the lanes with the same expert the first counts for all.
    for (u32 p0 = begin; p0 < end; p0 += 32) {
        const u32 expert = p0 + lane < end ? a.ids[p0 + lane] : n;
        const u32 same = __match_any_sync(~0u, expert);
        if (expert < n && (same & ((1u << lane) - 1)) == 0) mine[expert] += __popc(same);
        __syncwarp();
    }
    __syncthreads();
    // What each warp's pairs of an expert come after.
    for (u32 e = threadIdx.x; e < n; e += blockDim.x) {
        u32 before = 0;
        for (u32 w = 0; w < n_warps; w++) {
            u32 &of_warp = first[n * (1 + w) + e];
            const u32 count = of_warp;
            of_warp = before, before += count;
        }
        first[e] = before;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        u32 at = 0, n_tiles = 0;
        for (u32 e = 0; e < n; e++) {
            const u32 count = first[e];
            first[e] = at;
            for (u32 done = 0; done < count; done += a.width)
                a.tiles[n_tiles++] = make_uint4(e, at + done, min(a.width, count - done), 0);
            const u32 next = at + (count + 7) / 8 * 8;
            for (u32 i = at + count; i < next; i++) a.pairs[i] = NO_ROW;
            at = next;
        }
        *a.n_tiles = n_tiles;
        end_of_all = at;
    }
    __syncthreads();
    for (u32 p0 = begin; p0 < end; p0 += 32) {
        const u32 expert = p0 + lane < end ? a.ids[p0 + lane] : n;
        const u32 same = __match_any_sync(~0u, expert), before = same & ((1u << lane) - 1);
        if (expert < n) a.pairs[first[expert] + mine[expert] + __popc(before)] = p0 + lane;
        __syncwarp();
        if (expert < n && before == 0) mine[expert] += __popc(same);
        __syncwarp();
    }
    for (u32 i = end_of_all + threadIdx.x; i < n_pairs + 7 * n; i += blockDim.x) a.pairs[i] = NO_ROW;
}

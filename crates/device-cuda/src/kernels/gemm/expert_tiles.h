// expert_tiles: sorts rows by the experts chosen for them, and lists the tiles of a grouped
// product.
//
//   pair p = row * k + j chooses expert ids[p]. The pairs of expert e, ascending, have packed rows
//   from first(e) on. first(e) is the sum of the pairs of lower experts, each rounded up to 8.
//   pairs[first(e) + i] = its i-th pair, from which rows_input finds the row to gather, and the
//   product the row of the result. It is NO_ROW up to the next multiple of 8, and PAST_ROWS after
//   the last expert
//   tiles = (expert, first packed row, rows), at most `width` rows each, experts ascending
//
// Host contract
//   parameter ExpertTilesArguments; grid 1; threads: whole warps; dynamic shared memory 4 *
//     n_experts * (warps + 1) bytes
// Every warp counts and places a range of the pairs, in order, so that every run has equal results.
#pragma once
#include "gemm/arguments.h"
#include "gemm/ptx.h"

INLINE void write_expert_tiles(const ExpertTilesArguments &a) {
    extern __shared__ u32 expert_shared[];
    __shared__ u32 end_of_all;
    const u32 n = a.n_experts, n_warps = blockDim.x >> 5, warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    // For each expert: its first packed row, and this warp's number of pairs.
    u32 *first = expert_shared, *mine = first + n * (1 + warp);
    const u32 n_pairs = a.n_rows * a.k, range = (n_pairs + 32 * n_warps - 1) / (32 * n_warps) * 32;
    const u32 begin = min(n_pairs, warp * range), end = min(n_pairs, begin + range);
    for (u32 i = threadIdx.x; i < n * (n_warps + 1); i += blockDim.x) expert_shared[i] = 0;
    __syncthreads();
    dependency_launch();
    dependency_wait();
    // The first lane with an expert counts all lanes that have it.
    for (u32 p0 = begin; p0 < end; p0 += 32) {
        const u32 expert = p0 + lane < end ? a.ids[p0 + lane] : n;
        const u32 same = __match_any_sync(~0u, expert);
        if (expert < n && (same & ((1u << lane) - 1)) == 0) mine[expert] += __popc(same);
        __syncwarp();
    }
    __syncthreads();
    // For each warp and expert: the pairs of earlier warps.
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
    if (warp == 0) { // each lane has neighbouring experts
        const u32 each = (n + 31) / 32, e0 = min(n, lane * each), e1 = min(n, e0 + each);
        u32 at = 0, tile = 0;
        for (u32 e = e0; e < e1; e++) at += (first[e] + 7) / 8 * 8, tile += (first[e] + a.width - 1) / a.width;
        const u32 rows = at, tiles = tile; // rows and tiles before the lane's experts
#pragma unroll
        for (int m = 1; m < 32; m *= 2) {
            const u32 rows_before = __shfl_up_sync(~0u, at, m), tiles_before = __shfl_up_sync(~0u, tile, m);
            if (lane >= m) at += rows_before, tile += tiles_before;
        }
        if (lane == 31) *a.n_tiles = tile, end_of_all = at;
        at -= rows, tile -= tiles;
        for (u32 e = e0; e < e1; e++) {
            const u32 count = first[e], next = at + (count + 7) / 8 * 8;
            first[e] = at;
            for (u32 done = 0; done < count; done += a.width) a.tiles[tile++] = make_uint4(e, at + done, min(a.width, count - done), 0);
            for (u32 i = at + count; i < next; i++) a.pairs[i] = NO_ROW;
            at = next;
        }
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
    for (u32 i = end_of_all + threadIdx.x; i < n_pairs + 7 * n; i += blockDim.x) a.pairs[i] = PAST_ROWS;
}

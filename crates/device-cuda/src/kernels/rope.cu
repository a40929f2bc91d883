// Rotary position embedding of the first n_dims columns of every head. The other columns are
// copied. A warp has one head and reads it before it writes, so x and out may be the same. Grid:
// (heads / 4, rows).
#include "kernels.cuh"
#include "rotate.cuh"

// Most columns of a head.
#define MOST 1024

KERNEL(128) rope(const __grid_constant__ RopeArguments a) {
    begin();
    __shared__ float heads[4][MOST];
    const uint lane = threadIdx.x & 31, warp = threadIdx.x >> 5, head = blockIdx.x * 4 + warp, row = blockIdx.y;
    if (head >= a.n_heads) return;
    const ulong at = (ulong(row) * a.n_heads + head) * a.head_dim;
    float *mine = heads[warp];
    for (uint i = lane; i < a.head_dim; i += 32) mine[i] = a.x[at + i];
    __syncwarp();
    const uint position = a.positions[row];
    const auto column = [&](uint i) { return mine[i]; };
    const auto turn = [&](uint pair) { return turn_of(position, a.frequencies[pair], a.scale); };
    for (uint i = lane; i < a.head_dim; i += 32) {
        a.out[at + i] = rotated(column, i, a.n_dims, a.interleaved != 0, turn);
    }
}

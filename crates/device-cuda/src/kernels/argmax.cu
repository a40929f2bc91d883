// The best token of each output that needs it: the index of the largest column. Of equal columns it
// is the lowest index. NaN and -infinity are never chosen. BEST_PARTS blocks find the best of their
// parts of a row, then one warp finds the best of the parts.
//
// Grids: argmax (BEST_PARTS, outputs); argmax_end (outputs). Moves 4 bytes an element.
#include "kernels.cuh"

__device__ __forceinline__ bool better(float value, uint index, float than, uint its) {
    return value > than || (value == than && index < its);
}

__device__ __forceinline__ void warp_best(float &best, uint &index) {
    for (int step = 16; step > 0; step /= 2) {
        const float value = __shfl_xor_sync(0xffffffffu, best, step);
        const uint its = __shfl_xor_sync(0xffffffffu, index, step);
        if (better(value, its, best, index)) best = value, index = its;
    }
}

KERNEL(256) argmax(const __grid_constant__ ChooseArguments a) {
    begin();
    __shared__ float values[8];
    __shared__ uint indices[8];
    const uint part = blockIdx.x, row = blockIdx.y, lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    if (a.choices[row].how != CHOOSE_BEST) return;
    const float *logits = a.logits + ulong(row) * a.cols;
    const uint per = (a.cols + BEST_PARTS - 1) / BEST_PARTS, end = min(a.cols, (part + 1) * per);
    float best = -INFINITY_F;
    uint index = NO_TOKEN;
    for (uint i = part * per + threadIdx.x; i < end; i += 256) {
        if (logits[i] > best) best = logits[i], index = i;
    }
    warp_best(best, index);
    if (lane == 0) values[warp] = best, indices[warp] = index;
    __syncthreads();
    if (warp > 0) return;
    best = lane < 8 ? values[lane] : -INFINITY_F;
    index = lane < 8 ? indices[lane] : NO_TOKEN;
    warp_best(best, index);
    if (lane == 0) {
        uint *to = a.bests + (ulong(row) * BEST_PARTS + part) * 2;
        to[0] = __float_as_uint(best);
        to[1] = index;
    }
}

KERNEL(32) argmax_end(const __grid_constant__ ChooseArguments a) {
    begin();
    const uint row = blockIdx.x, lane = threadIdx.x;
    if (a.choices[row].how != CHOOSE_BEST) return;
    const uint *from = a.bests + (ulong(row) * BEST_PARTS + lane) * 2;
    float best = __uint_as_float(from[0]);
    uint index = from[1];
    warp_best(best, index);
    // The result is NO_TOKEN if no column is larger than -infinity.
    if (lane == 0) {
        a.chosen[a.choices[row].chosen] = index;
        a.host_chosen[a.choices[row].chosen] = index;
    }
}

// Masks logits of outputs in place: minus infinity for each token whose bit is 0. Token t has bit t
// % 32 of word t / 32.
//
// The words are read from pinned memory, once, 128 bytes a warp. A step's masks are ready only
// shortly before its logits, so a copy to the GPU would save no time.
// Grid: (BEST_PARTS, outputs). Moves 4 bytes for 32 tokens over the bus, and writes at most 4 bytes
// for each token.
#include "kernels.cuh"

KERNEL(256) masks(const __grid_constant__ ChooseArguments a) {
    begin();
    const uint mask = a.choices[blockIdx.y].mask;
    if (mask == 0) return;
    const uint lane = threadIdx.x & 31, warp = threadIdx.x >> 5, n_words = (a.cols + 31) / 32;
    float *logits = a.logits + ulong(blockIdx.y) * a.cols;
    for (uint first = (blockIdx.x * 8 + warp) * 32; first < n_words; first += BEST_PARTS * 8 * 32) {
        const uint mine = first + lane < n_words ? a.masks[mask - 1 + first + lane] : 0;
        for (uint w = 0; w < min(32u, n_words - first); w++) {
            const uint bits = __shfl_sync(0xffffffffu, mine, w), token = (first + w) * 32 + lane;
            if ((bits >> lane & 1) == 0 && token < a.cols) logits[token] = -INFINITY_F;
        }
    }
}

// A step's words from the host's pinned memory to the GPU's, some ranges of it: the first work of every step. Grid: (any, 8 ranges).
// Each range has its own blocks, because a word takes a microsecond and more over the bus.
#include "kernels.cuh"

KERNEL(256) step_load(const __grid_constant__ StepLoadArguments a) {
    begin();
    const Copy *copies = &a.copies0;
    const Copy c = copies[blockIdx.y];
    for (uint i = blockIdx.x * 256 + threadIdx.x; i < c.n_words; i += gridDim.x * 256) {
        a.to[c.first_word + i] = __ldcv(a.from + c.first_word + i);
    }
}

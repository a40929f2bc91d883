// Copies ranges of a step's words from the host's pinned memory to the GPU. It is the first work of
// every step. Grid: (any, 8 ranges, steps). Each range has its own blocks, because a word takes
// more than a microsecond over the bus. A thread loads its first word while the previous step ends,
// because the host wrote it before it submitted this step.
#include "kernels.cuh"

KERNEL(256) step_load(const __grid_constant__ StepLoadArguments a) {
    announce();
    const Copy *copies = &a.copies0;
    const Copy c = copies[blockIdx.y];
    const uint *from = a.from + (a.first_region + blockIdx.z) % a.n_regions * a.region_words;
    uint *to = a.to + blockIdx.z * a.region_words;
    const uint first = blockIdx.x * 256 + threadIdx.x;
    const uint word = first < c.n_words ? __ldcv(from + c.first_word + first) : 0;
    await();
    if (first < c.n_words) to[c.first_word + first] = word;
    for (uint i = first + gridDim.x * 256; i < c.n_words; i += gridDim.x * 256) {
        to[c.first_word + i] = __ldcv(from + c.first_word + i);
    }
}

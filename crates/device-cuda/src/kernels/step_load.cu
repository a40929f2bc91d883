// A step's words from the host's pinned memory to the GPU's, some ranges of it: the first work of every step. Grid: any.
#include "kernels.cuh"

__device__ __forceinline__ void copy(const StepLoadArguments &a, const Copy &c) {
    for (uint i = blockIdx.x * 256 + threadIdx.x; i < c.n_words; i += gridDim.x * 256) {
        a.to[c.first_word + i] = __ldcv(a.from + c.first_word + i);
    }
}

KERNEL(256) step_load(const __grid_constant__ StepLoadArguments a) {
    begin();
    copy(a, a.copies0);
    copy(a, a.copies1);
    copy(a, a.copies2);
    copy(a, a.copies3);
    copy(a, a.copies4);
    copy(a, a.copies5);
    copy(a, a.copies6);
    copy(a, a.copies7);
}

// Joins heads: the first `taken` columns of each output head come from a, the other columns up to
// `group` from b. Grid: (columns / 256, rows).
#include "kernels.cuh"

KERNEL(256) join_heads(const __grid_constant__ ElementArguments a) {
    begin();
    const uint column = blockIdx.x * 256 + threadIdx.x;
    if (column >= a.cols) return;
    const uint head = column / a.group, i = column % a.group, n_heads = a.cols / a.group, rest = a.group - a.taken;
    const ulong heads = ulong(blockIdx.y) * n_heads + head;
    a.out[ulong(blockIdx.y) * a.cols + column] = i < a.taken ? a.a[heads * a.taken + i] : a.b[heads * rest + i - a.taken];
}

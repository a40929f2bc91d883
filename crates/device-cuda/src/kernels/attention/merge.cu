// Merges the results of blocks that split a row's positions: weighted sums, in the order of the
// splits, then the sink. Grid: (heads, rows).
#include "kernels.cuh"

KERNEL(128) attention_merge(const __grid_constant__ AttentionArguments a) {
    begin();
    const uint head = blockIdx.x, row = blockIdx.y, dim = a.pages.head_dim;
    const ulong first = (ulong(row) * a.n_heads + head) * a.n_splits;
    float all = a.sinks != nullptr ? a.sinks[head] : -INFINITY_F;
    for (uint s = 0; s < a.n_splits; s++) all = fmaxf(all, a.totals[2 * (first + s)]);
    float sum = a.sinks != nullptr ? expf(a.sinks[head] - all) : 0.0f;
    for (uint s = 0; s < a.n_splits; s++) {
        // An empty split has weight 0, and its sums were never written.
        if (a.totals[2 * (first + s) + 1] != 0.0f) {
            sum = __fmaf_rn(expf(a.totals[2 * (first + s)] - all), a.totals[2 * (first + s) + 1], sum);
        }
    }
    for (uint i = threadIdx.x; i < dim; i += 128) {
        float out = 0.0f;
        for (uint s = 0; s < a.n_splits; s++) {
            if (a.totals[2 * (first + s) + 1] == 0.0f) continue;
            out = __fmaf_rn(expf(a.totals[2 * (first + s)] - all), a.partials[(first + s) * dim + i], out);
        }
        a.out[(ulong(row) * a.n_heads + head) * dim + i] = out / sum;
    }
}

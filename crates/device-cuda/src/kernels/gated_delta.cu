// The gated delta rule: S = diag(exp(rate * step)) S; S += k (beta (v - S^T k))^T; out = scale *
// S^T q. Grid: (heads, rows). There are at least as many rows as spans; spans after the step's last
// one have no rows.
#include "scan.cuh"

KERNEL(256) gated_delta(const __grid_constant__ ScanArguments a) {
    begin();
    __shared__ float keys[MOST_ROWS], queries[MOST_ROWS], decays[MOST_ROWS];
    if (blockIdx.y >= a.n_spans) return;
    const Span span = a.spans[blockIdx.y];
    if (span.n_rows == 0) return;
    const uint head = blockIdx.x, shared = a.tiled ? head % a.n_shared : head / (a.n_heads / a.n_shared);
    float *state = begin_state(a, span, head);
    const float rate = a.rate[head];
    for (uint row = span.first_row; row < span.first_row + span.n_rows; row++) {
        __syncthreads();
        for (uint i = threadIdx.x; i < a.rows; i += blockDim.x) {
            const ulong at = (ulong(row) * a.n_shared + shared) * a.rows + i;
            keys[i] = a.k[at];
            queries[i] = a.q[at];
            const ulong one = ulong(row) * a.n_heads + head;
            decays[i] = expf(rate * a.step[a.step_per_row ? one * a.rows + i : one]);
        }
        __syncthreads();
        const float beta = a.beta[ulong(row) * a.n_heads + head];
        for (uint c = threadIdx.x; c < a.cols; c += blockDim.x) {
            const ulong at = (ulong(row) * a.n_heads + head) * a.cols + c;
            float dot = 0.0f;
            for (uint i = 0; i < a.rows; i++) dot = __fmaf_rn(keys[i], decays[i] * state[i * a.cols + c], dot);
            const float delta = beta * (a.x[at] - dot);
            float out = 0.0f;
            for (uint i = 0; i < a.rows; i++) {
                const float s = __fmaf_rn(keys[i], delta, decays[i] * state[i * a.cols + c]);
                state[i * a.cols + c] = s;
                out = __fmaf_rn(queries[i], s, out);
            }
            a.out[at] = a.scale * out;
        }
    }
}

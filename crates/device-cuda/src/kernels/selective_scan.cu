// The selective scan: S = exp(rate * step) S + b (step * x)^T; out = S^T c + skip * x. Grid:
// (heads, rows). There are at least as many rows as spans; spans after the step's last one have no
// rows.
#include "scan.cuh"

KERNEL(256) selective_scan(const __grid_constant__ ScanArguments a) {
    begin();
    __shared__ float ins[MOST_ROWS], outs[MOST_ROWS];
    if (blockIdx.y >= a.n_spans) return;
    const Span span = a.spans[blockIdx.y];
    if (span.n_rows == 0) return;
    const uint head = blockIdx.x, shared = head / (a.n_heads / a.n_shared);
    float *state = begin_state(a, span, head);
    const float rate = a.rate[head], skip = a.skip != nullptr ? a.skip[head] : 0.0f;
    for (uint row = span.first_row; row < span.first_row + span.n_rows; row++) {
        __syncthreads();
        for (uint i = threadIdx.x; i < a.rows; i += blockDim.x) {
            const ulong at = (ulong(row) * a.n_shared + shared) * a.rows + i;
            ins[i] = a.k[at];
            outs[i] = a.q[at];
        }
        __syncthreads();
        const float step = a.step[ulong(row) * a.n_heads + head], decay = expf(rate * step);
        for (uint c = threadIdx.x; c < a.cols; c += blockDim.x) {
            const ulong at = (ulong(row) * a.n_heads + head) * a.cols + c;
            const float x = a.x[at], in = step * x;
            float out = 0.0f;
            for (uint i = 0; i < a.rows; i++) {
                const float s = __fmaf_rn(ins[i], in, decay * state[i * a.cols + c]);
                state[i * a.cols + c] = s;
                out = __fmaf_rn(outs[i], s, out);
            }
            a.out[at] = __fmaf_rn(skip, x, out);
        }
    }
}

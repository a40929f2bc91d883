// States of heads that are matrices S (rows, cols), updated along the positions of a span. A block
// has one head of a span, and a thread has one column of S. The thread updates it at the address of
// the state after the span. Sums over rows are in order.
#pragma once
#include "kernels.cuh"

// Most rows of a state.
#define MOST_ROWS 512

// Copies the state of a head before the span to the address of the state after it. Returns the
// column of a thread.
__device__ __forceinline__ float *begin_state(const ScanArguments &a, const Span &span, uint head) {
    const ulong at = ulong(head) * a.rows * a.cols;
    float *to = a.states + span.state_to * a.state_stride + at;
    const float *from = span.state_from == STATE_NONE ? nullptr : a.states + span.state_from * a.state_stride + at;
    for (uint i = threadIdx.x; i < a.rows * a.cols; i += blockDim.x) to[i] = from == nullptr ? 0.0f : from[i];
    __syncthreads();
    return to;
}

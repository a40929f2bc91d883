// States of heads that are matrices S (rows, cols), carried along the positions of a span: a block
// has a head of a span, a thread a column of S, which lies where the state after the span goes.
// Sums over rows in order.
#pragma once
#include "kernels.cuh"

// Rows of a state, at most.
#define MOST_ROWS 512

// The state of a head before the span, copied to where the one after it goes; and the column of a
// thread.
__device__ __forceinline__ float *begin_state(const ScanArguments &a, const Span &span, uint head) {
    const ulong at = ulong(head) * a.rows * a.cols;
    float *to = a.states + span.state_to * a.state_stride + at;
    const float *from = span.state_from == STATE_NONE ? nullptr : a.states + span.state_from * a.state_stride + at;
    for (uint i = threadIdx.x; i < a.rows * a.cols; i += blockDim.x) to[i] = from == nullptr ? 0.0f : from[i];
    __syncthreads();
    return to;
}

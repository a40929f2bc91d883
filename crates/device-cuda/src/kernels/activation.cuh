// Element-wise non-linearities.
#pragma once
#include "common.cuh"

__device__ __forceinline__ float activate(uint kind, float x) {
    switch (kind) {
    case ACTIVATE_SILU: return x / (1.0f + expf(-x));
    case ACTIVATE_GELU_TANH: return 0.5f * x * (1.0f + tanhf(0.7978845608028654f * (x + 0.044715f * x * x * x)));
    case ACTIVATE_GELU_ERF: return 0.5f * x * (1.0f + erff(x * 0.7071067811865475f));
    case ACTIVATE_IDENTITY: return x;
    case ACTIVATE_RELU_SQUARED: return fmaxf(x, 0.0f) * fmaxf(x, 0.0f);
    // For x > 20 the logarithm equals x to the last bit.
    case ACTIVATE_SOFTPLUS: return x > 20.0f ? x : log1pf(expf(x));
    case ACTIVATE_RELU: return fmaxf(x, 0.0f);
    default: return 1.0f / (1.0f + expf(-x));
    }
}

// Activation functions. The numbers mirror device::Activation (src/kernels.rs).
#pragma once

#define ACTIVATION_SILU 0
#define ACTIVATION_GELU_TANH 1
#define ACTIVATION_GELU_ERF 2
#define ACTIVATION_RELU 3
#define ACTIVATION_SIGMOID 4
#define ACTIVATION_IDENTITY 5
#define ACTIVATION_RELU_SQUARED 6
#define ACTIVATION_SOFTPLUS 7

// The error function, to 2e-7: Abramowitz and Stegun, Handbook of Mathematical Functions,
// 7.1.26.
static inline float error_function(float x) {
    const float a = fabs(x);
    const float t = 1.0f / (1.0f + 0.3275911f * a);
    const float p = t * (0.254829592f + t * (-0.284496736f + t * (1.421413741f + t * (-1.453152027f + t * 1.061405429f))));
    const float y = 1.0f - p * precise::exp(-a * a);
    return x < 0.0f ? -y : y;
}

// tanh from an exponential that cannot overflow: (1 - exp(-2|x|)) / (1 + exp(-2|x|)), odd in x.
static inline float hyperbolic_tangent(float x) {
    const float e = precise::exp(-2.0f * fabs(x));
    const float y = (1.0f - e) / (1.0f + e);
    return x < 0.0f ? -y : y;
}

// ln(1 + u) for 0 <= u <= 1: twice the inverse hyperbolic tangent of s = u / (2 + u) <= 1/3, from
// its series up to s^15.
static inline float log_1_plus(float u) {
    const float s = u / (2.0f + u), q = s * s;
    const float tail = 1.0f / 9.0f + q * (1.0f / 11.0f + q * (1.0f / 13.0f + q * (1.0f / 15.0f)));
    return 2.0f * s * (1.0f + q * (1.0f / 3.0f + q * (1.0f / 5.0f + q * (1.0f / 7.0f + q * tail))));
}

static inline float activation(uint kind, float x) {
    if (kind == ACTIVATION_SILU) return x / (1.0f + precise::exp(-x));
    if (kind == ACTIVATION_GELU_TANH) {
        return 0.5f * x * (1.0f + hyperbolic_tangent(0.7978845608028654f * (x + 0.044715f * x * x * x)));
    }
    if (kind == ACTIVATION_GELU_ERF) return 0.5f * x * (1.0f + error_function(x * 0.7071067811865476f));
    if (kind == ACTIVATION_RELU) return max(x, 0.0f);
    if (kind == ACTIVATION_IDENTITY) return x;
    if (kind == ACTIVATION_RELU_SQUARED) return max(x, 0.0f) * max(x, 0.0f);
    if (kind == ACTIVATION_SOFTPLUS) return max(x, 0.0f) + log_1_plus(precise::exp(-fabs(x)));
    return 1.0f / (1.0f + precise::exp(-x));
}

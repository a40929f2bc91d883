// Sum over a threadgroup. Every thread of the threadgroup must call it, and gets the result.
#pragma once

// `scratch` has a float for each SIMD-group. Order: within a SIMD-group as simd_sum adds, then
// SIMD-group by SIMD-group.
static inline float threadgroup_sum(float value, threadgroup float *scratch, uint simdgroup, uint lane, uint n_simdgroups) {
    value = simd_sum(value);
    if (n_simdgroups == 1) return value;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (lane == 0) scratch[simdgroup] = value;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    float sum = 0.0f;
    for (uint i = 0; i < n_simdgroups; i++) sum += scratch[i];
    return sum;
}

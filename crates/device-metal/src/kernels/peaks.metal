// Kernels that measure the GPU's peaks: one only reads, one only multiplies and adds.
//
// read_bytes: every thread reads vectors of 16 bytes, neighbouring threads neighbouring vectors. It
// writes a sum, so that the compiler keeps the reads. Buffers: 0 PeakArguments, 1 x (n_vectors of
// float4), 2 out (threadgroups). Grid: (threadgroups) of 256.
//
// multiply_add: `n_vectors` rounds of 16 independent chains of float4, so 128 operations a round
// and thread. Buffers: 0 PeakArguments, 2 out (threadgroups). Grid: (threadgroups) of 256.
#include <metal_stdlib>
using namespace metal;
#include "arguments.h"

kernel void read_bytes(
        constant PeakArguments &args [[buffer(0)]],
        device const float4 *x [[buffer(1)]],
        device float *out [[buffer(2)]],
        uint thread_index [[thread_position_in_grid]],
        uint n_threads [[threads_per_grid]],
        uint group [[threadgroup_position_in_grid]],
        uint in_group [[thread_index_in_threadgroup]]) {
    float4 sum = float4(0.0f);
    for (uint i = thread_index; i < args.n_vectors; i += n_threads) sum += x[i];
    const float total = simd_sum((sum.x + sum.y) + (sum.z + sum.w));
    if (in_group == 0) out[group] = total;
}

kernel void multiply_add(
        constant PeakArguments &args [[buffer(0)]],
        device float *out [[buffer(2)]],
        uint thread_index [[thread_position_in_grid]],
        uint group [[threadgroup_position_in_grid]],
        uint in_group [[thread_index_in_threadgroup]]) {
    float4 chains[16];
    for (uint i = 0; i < 16; i++) chains[i] = float4(float(thread_index + i));
    for (uint round = 0; round < args.n_vectors; round++) {
        for (uint i = 0; i < 16; i++) chains[i] = fma(chains[i], float4(0.5f), float4(1.0f));
    }
    float4 sum = float4(0.0f);
    for (uint i = 0; i < 16; i++) sum += chains[i];
    const float total = simd_sum((sum.x + sum.y) + (sum.z + sum.w));
    if (in_group == 0) out[group] = total;
}

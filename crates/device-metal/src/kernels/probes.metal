// Numbers that show how this compiler and GPU calculate. `ingle metal-selftest` compares their bits
// with the expected ones.
//
// Buffers: 0 PeakArguments (unused), 1 in (PROBES) f32, 2 out (PROBES) u32. Grid: one threadgroup
// of 32. Operands are read from `in`, so that no compiler can fold them.
#include <metal_stdlib>
using namespace metal;
#include "arguments.h"

kernel void numeric_probes(
        constant PeakArguments &args [[buffer(0)]],
        device const float *in [[buffer(1)]],
        device uint *out [[buffer(2)]],
        uint lane [[thread_index_in_simdgroup]]) {
    threadgroup float matrix[64];
    const float third = in[0], tiny = in[1], many = in[2], infinite = in[3], one = in[4];
    // A different number a lane, whose sum depends on the order.
    const float sum = simd_sum(lane == 0 ? 16777216.0f * one : one);
    const float prefix = simd_prefix_inclusive_sum(one);
    simdgroup_float8x8 m = make_filled_simdgroup_matrix<float, 8>(0.0f);
    for (uint i = lane; i < 64; i += 32) matrix[i] = float(i) * one;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    simdgroup_load(m, matrix, 8, ulong2(0, 0), true);
    simdgroup_multiply(m, m, m);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    simdgroup_store(m, matrix, 8, ulong2(0, 0), false);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (lane != 0) return;
    out[0] = as_type<uint>(third * third - in[5]);
    out[1] = as_type<uint>(fma(third, third, -in[5]));
    out[2] = as_type<uint>(tiny * 0.5f);
    out[3] = as_type<uint>(float(as_type<half>(ushort(many))));
    out[4] = as_type<uint>(float(as_type<half>(ushort(many)) * 16384.0h));
    out[5] = as_type<uint>(exp(-infinite));
    out[6] = as_type<uint>(exp(one));
    out[7] = as_type<uint>(rsqrt(third));
    out[8] = as_type<uint>(sin(one));
    out[9] = as_type<uint>(sum);
    out[10] = as_type<uint>(prefix);
    out[11] = as_type<uint>(matrix[8]);
    out[12] = as_type<uint>(max(infinite - infinite, one));
    out[13] = as_type<uint>(rint(2.5f * one));
    out[14] = uint(half(65504.0f * one) == 65504.0h);
    out[15] = as_type<uint>(one / third);
}

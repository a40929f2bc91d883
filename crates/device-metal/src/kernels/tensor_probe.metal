// tensor_probe: y = x w^T on the tensor units, by the two kinds of products that kernels use. It
// exists to be compiled: a compiler that refuses it would refuse every file with tensors.
//
// Buffers: 0 PeakArguments (unused), 1 x (32, 64) f32, 2 y (64, 32) f32: the products of x with
// itself, first as halves and then as floats. Grid: one threadgroup of 128. Without WITH_TENSORS it
// writes nothing.
#include <metal_stdlib>
using namespace metal;
#include "arguments.h"
#include "tensor_units.h"

#ifdef WITH_TENSORS
template<class T>
static inline void multiply_by_itself(device float * x, threadgroup T * staged, device float * y, ushort tid) {
    for (ushort i = tid; i < 32 * 64; i += 128) staged[i] = T(x[i]);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    DeviceTile left(x, dextents<int, 2>(64, 32), array<int, 2>({1, 64}));
    ThreadgroupTile<T> right(staged, dextents<int, 2>(64, 32), array<int, 2>({1, 64}));
    TensorProduct<32, 32, true, is_same<T, half>::value> product;
    auto sums = product.template get_destination_cooperative_tensor<DeviceTile, ThreadgroupTile<T>, float>();
    clear_sums(sums);
    product.run(left, right, sums);
    DeviceTile to(y, dextents<int, 2>(32, 32), array<int, 2>({1, 32}));
    sums.store(to);
    threadgroup_barrier(mem_flags::mem_threadgroup);
}
#endif

kernel void tensor_probe(constant PeakArguments & a [[buffer(0)]],
                         device float * x [[buffer(1)]],
                         device float * y [[buffer(2)]],
                         ushort tid [[thread_index_in_threadgroup]]) {
    (void) a;
#ifdef WITH_TENSORS
    threadgroup float4 staged[32 * 64 / 4];
    multiply_by_itself<half>(x, (threadgroup half *) staged, y, tid);
    multiply_by_itself<float>(x, (threadgroup float *) staged, y + 32 * 32, tid);
#else
    (void) x, (void) y, (void) tid;
#endif
}

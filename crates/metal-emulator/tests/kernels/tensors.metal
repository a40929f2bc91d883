#include <metal_stdlib>
#include <metal_tensor>
#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>
using namespace metal;
using namespace mpp::tensor_ops;

struct Arguments { int rows, columns, k, stride; };

template<class L, class R, int M, int N, bool LEFT, bool RIGHT, bool RELAXED, int SIMDGROUPS>
kernel void multiply(constant Arguments & a [[buffer(0)]],
                     device L * x [[buffer(1)]],
                     device R * w [[buffer(2)]],
                     device float * y [[buffer(3)]],
                     ushort tid [[thread_index_in_threadgroup]]) {
    threadgroup R staged[4096];
    const int w_columns = RIGHT ? a.k : a.columns, w_rows = RIGHT ? a.columns : a.k;
    for (int i = tid; i < w_columns * w_rows; i += 32 * SIMDGROUPS) staged[i] = w[i];
    threadgroup_barrier(mem_flags::mem_threadgroup);
    auto left = tensor(x, LEFT ? dextents<int, 2>(a.rows, a.k) : dextents<int, 2>(a.k, a.rows), array<int, 2>({1, a.stride}));
    auto right = tensor(staged, dextents<int, 2>(w_columns, w_rows));
    matmul2d<matmul2d_descriptor(M, N, static_cast<int>(dynamic_extent), LEFT, RIGHT, RELAXED, matmul2d_descriptor::mode::multiply_accumulate),
             execution_simdgroups<SIMDGROUPS>> product;
    auto sums = product.template get_destination_cooperative_tensor<decltype(left), decltype(right), float>();
    // y holds a first term of each sum, with `columns` floats a row.
    auto to = tensor(y, dextents<int, 2>(a.columns, a.rows));
    sums.load(to);
    product.run(left, right, sums);
    for (ushort i = 0; i < sums.get_capacity(); i++) {
        if (sums.is_valid_element(i) && sums.get_multidimensional_index(i)[0] == 1) sums[i] *= 2.0f;
    }
    threadgroup_barrier(mem_flags::mem_device);
    sums.store(to);
}
#define KERNEL(name, ...)                             \
    typedef decltype(multiply<__VA_ARGS__>) name##_type; \
    template [[host_name(#name)]] kernel name##_type multiply<__VA_ARGS__>;

KERNEL(floats, float, float, 32, 32, false, true, false, 4)
KERNEL(relaxed, float, float, 32, 32, false, true, true, 4)
KERNEL(halves, half, half, 16, 32, false, false, false, 1)
KERNEL(mixed, float, half, 32, 16, true, true, true, 2)
KERNEL(bytes, half, int8_t, 16, 16, false, true, false, 1)
KERNEL(bfloats, bfloat, bfloat, 16, 16, false, true, false, 1)

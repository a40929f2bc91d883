// The tensor units of Metal 4 (M5), for a compiler that has them: WITH_TENSORS.
//
// `matmul2d` of MetalPerformancePrimitives multiplies a tile cooperatively: all threads of the
// scope call `run`, and each holds some elements of the result, in an order that only
// `get_multidimensional_index` knows. Extents are columns, then rows. k is dynamic: it is the
// columns of the operands, so that nothing after the end of a row is read. Operands are of types
// that the first version of the header lists (macOS 26.0): left and right are half or float, and
// the result is float. Pointers are not const, since const elements have no product.
//
// NEVER RUN by a GPU: see NOTES.md.
#pragma once
#ifdef WITH_TENSORS
#if !defined(__METAL_VERSION__) || __METAL_VERSION__ < 400 || !defined(__HAVE_TENSOR__)
#error "WITH_TENSORS is set, but this compiler has no tensors: they need macOS 26 and Metal 4"
#endif
#include <metal_stdlib>
#include <metal_tensor>
#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>
using namespace metal;

// Rows of operands in device and in threadgroup memory.
typedef tensor<device float, dextents<int, 2>, tensor_inline> DeviceTile;
template<class T> using ThreadgroupTile = tensor<threadgroup T, dextents<int, 2>, tensor_inline>;

// Adds left (M, k) times right to a result (M, N), by four simdgroups. Right is (N, k) if it is
// TRANSPOSED, else (k, N). RELAXED lets the unit round floats; it is for products one of whose
// operands is a half anyway.
template<int M, int N, bool TRANSPOSED, bool RELAXED>
using TensorProduct = mpp::tensor_ops::matmul2d<
    mpp::tensor_ops::matmul2d_descriptor(M, N, static_cast<int>(dynamic_extent), false, TRANSPOSED, RELAXED,
                                         mpp::tensor_ops::matmul2d_descriptor::mode::multiply_accumulate),
    execution_simdgroups<4>>;

// Sets a result to 0.
template<class S> static inline void clear_sums(thread S & sums) {
    #pragma clang loop unroll(full)
    for (ushort i = 0; i < sums.get_capacity(); i++) {
        if (sums.is_valid_element(i)) sums[i] = 0.0f;
    }
}
#endif

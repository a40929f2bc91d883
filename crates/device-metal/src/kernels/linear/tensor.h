// The tile of linear/gemm.h on the tensor units of Metal 4 (M5): LINEAR_TENSOR.
//
// NEVER EXECUTED: no machine on which it was written has Metal 4. The emulator omits it, like every
// compiler of an older Metal. It follows the published headers of MetalPerformancePrimitives, and
// is off unless a profile enables it (WITH_TENSORS, an error if the compiler has no tensors). The
// result of `ingle metal-selftest --tensors` on an M5 will decide.
//
// Tiles are those of linear/gemm.h in rows of 32 operands. The four simdgroups of
// the threadgroup multiply them together. BX by 64 sums stay in a cooperative tensor, and are
// stored to threadgroup memory at the end: 256 * BX bytes.
#pragma once

// Number of float4s of threadgroup memory that linear_gemm needs.
#if defined(__METAL_VERSION__) && __METAL_VERSION__ >= 400 && defined(__HAVE_TENSOR__)
#define HAS_TENSORS
#define GEMM_FOURS(BX, size) \
    ((64 + BX) * 32 * (size) > 256 * BX ? (64 + BX) * 2 * (size) : 16 * BX)

#include <metal_tensor>
#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>

// A tile in rows of 32 operands.
struct RowTile {
    static ushort at(ushort row, ushort column) { return row * 32 + column; }
};

// Multiplies a tile. `products` (BX, 64) overlaps the tiles.
template<class D, short BX>
static inline void tensor_products(WeightRow w_row, device const float * x_row, uint n_in,
                                   threadgroup typename D::Operand * tile_w, threadgroup typename D::Operand * tile_x,
                                   threadgroup float * products, ushort tid) {
    typedef typename D::Operand T;
    // Extents are columns, then rows.
    typedef tensor<threadgroup T, extents<int, 32, 64>, tensor_inline> WeightTile;
    typedef tensor<threadgroup T, extents<int, 32, BX>, tensor_inline> InputTile;
    typedef tensor<threadgroup float, extents<int, 64, BX>, tensor_inline> OutputTile;
    WeightTile w(tile_w, extents<int, 32, 64>());
    InputTile x(tile_x, extents<int, 32, BX>());
    OutputTile y(products, extents<int, 64, BX>());
    constexpr auto descriptor = mpp::tensor_ops::matmul2d_descriptor(
        BX, 64, 32, false, true, false, mpp::tensor_ops::matmul2d_descriptor::mode::multiply_accumulate);
    mpp::tensor_ops::matmul2d<descriptor, execution_simdgroups<4>> multiply;
    auto sums = multiply.template get_destination_cooperative_tensor<InputTile, WeightTile, float>();
    for (ushort i = 0; i < sums.get_capacity(); i++) sums[i] = 0.0f;

    TilePart<D, BX> part;
    part.w_row = w_row;
    part.x_row = x_row;
    part.load(0, n_in, tid);
    for (uint k = 0; k < n_in; k += 32) {
        threadgroup_barrier(mem_flags::mem_threadgroup);
        part.template store<RowTile>(tile_w, tile_x, tid);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        if (k + 32 < n_in) part.load(k + 32, n_in, tid);
        multiply.run(x, w, sums);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    sums.store(y);
    threadgroup_barrier(mem_flags::mem_threadgroup);
}
#elif defined(WITH_TENSORS)
#error "WITH_TENSORS is set, but this compiler has no tensors: they need macOS 26 and Metal 4"
#else
#define GEMM_FOURS(BX, size) ((64 + BX) * 2 * (size))
#endif

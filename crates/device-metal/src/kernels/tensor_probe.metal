// tensor_probe: the products of tensor units that kernels use, each with operands whose product is
// known. A compiler that refuses one of them would refuse the file of the kernel, too.
//
// Every product adds two parts to its sums: 64 and 37 columns, or 32 and 5 if its right operand is
// not transposed. Between them the sums of odd rows are doubled, element by element. Left operands
// are read in place, without the last three rows, or staged. Results are written element by
// element, or stored to threadgroup memory.
//
// Buffers: 0 PeakArguments (unused), 1 x (64, 104), x for floats (64, 104) and w (256, 104), all
// f32, 2 y: (M, N) f32 of each product in the order of `tensors.rs`. Grid: one threadgroup of 128.
// Without WITH_TENSORS it writes nothing.
#include <metal_stdlib>
using namespace metal;
#include "arguments.h"
#include "tensor_units.h"

#ifdef WITH_TENSORS
#define STRIDE 104
#define STORED_STRIDE 36

// Rows of x where they are.
struct InPlace {
    enum { ABSENT = 3 };
    typedef DeviceTile Tile;
    device float * x;
    void stage(int, int, int, ushort) {}
    Tile tile(int k, int n, int rows) const { return Tile(x + k, dextents<int, 2>(n, rows - 3), array<int, 2>({1, STRIDE})); }
};

// Rows of x in threadgroup memory.
template<class T> struct Staged {
    enum { ABSENT = 0 };
    typedef ThreadgroupTile<T> Tile;
    device const float * x;
    threadgroup T * staged; // (rows, 64)
    void stage(int k, int n, int rows, ushort tid) {
        for (int i = tid; i < rows * n; i += 128) staged[i / n * 64 + i % n] = T(x[i / n * STRIDE + k + i % n]);
    }
    Tile tile(int, int n, int rows) const { return Tile(staged, dextents<int, 2>(n, rows), array<int, 2>({1, 64})); }
};

struct ProbeMemory {
    threadgroup float4 * right;  // 16 KiB
    threadgroup float * stored;  // (32, STORED_STRIDE)
    device const float * w;
};

// Writes one product to y. Returns the place of the next one.
template<class T, short M, short N, bool TRANSPOSED, bool STORES, class Left>
static inline device float * multiply(Left left, ProbeMemory memory, device float * y, ushort tid) {
    typedef typename Left::Tile X;
    typedef ThreadgroupTile<T> W;
    threadgroup T * right = (threadgroup T *) memory.right;
    TensorProduct<M, N, TRANSPOSED, is_same<T, half>::value> product;
    auto sums = product.template get_destination_cooperative_tensor<X, W, float>();
    clear_sums(sums);
    const int first = TRANSPOSED ? 64 : 32;
    for (int part = 0; part < 2; part++) {
        const int k = part * first, n = part == 0 ? first : TRANSPOSED ? 37 : 5;
        threadgroup_barrier(mem_flags::mem_threadgroup);
        left.stage(k, n, M, tid);
        for (int i = tid; i < N * n; i += 128) {
            right[TRANSPOSED ? i / n * 64 + i % n : i % n * N + i / n] = T(memory.w[i / n * STRIDE + k + i % n]);
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        X x = left.tile(k, n, M);
        W w(right, dextents<int, 2>(TRANSPOSED ? n : N, TRANSPOSED ? N : n), array<int, 2>({1, TRANSPOSED ? 64 : N}));
        product.run(x, w, sums);
        if (part == 1) break;
        #pragma clang loop unroll(full)
        for (ushort i = 0; i < sums.get_capacity(); i++) {
            if (sums.is_valid_element(i) && sums.get_multidimensional_index(i)[1] % 2 == 1) sums[i] *= 2.0f;
        }
    }
    if (STORES) {
        ThreadgroupTile<float> to(memory.stored, dextents<int, 2>(N, M), array<int, 2>({1, STORED_STRIDE}));
        sums.store(to);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (int i = tid; i < M * N; i += 128) y[i] = memory.stored[i / N * STORED_STRIDE + i % N];
        return y + M * N;
    }
    #pragma clang loop unroll(full)
    for (ushort i = 0; i < sums.get_capacity(); i++) {
        if (!sums.is_valid_element(i)) continue;
        const auto at = sums.get_multidimensional_index(i);
        if (at[1] < M - Left::ABSENT) y[at[1] * N + at[0]] = sums[i];
    }
    return y + M * N;
}
#endif

kernel void tensor_probe(constant PeakArguments & a [[buffer(0)]],
                         device float * x [[buffer(1)]],
                         device float * y [[buffer(2)]],
                         ushort tid [[thread_index_in_threadgroup]]) {
    (void) a;
#ifdef WITH_TENSORS
    threadgroup float4 left[64 * 64 / 8], right[32 * 128 / 4];
    threadgroup float stored[32 * STORED_STRIDE];
    device float * large = x + 64 * STRIDE;
    const ProbeMemory memory = {right, stored, large + 64 * STRIDE};
    const InPlace rows = {large};
    const Staged<half> halves = {x, (threadgroup half *) left};
    const Staged<float> floats = {large, (threadgroup float *) left};
    // linear/gemm.h
    y = multiply<half, 32, 32, true, false>(rows, memory, y, tid);
    y = multiply<half, 64, 32, true, false>(rows, memory, y, tid);
    y = multiply<float, 32, 32, true, false>(rows, memory, y, tid);
    y = multiply<float, 64, 32, true, false>(rows, memory, y, tid);
    // expert_linear.h
    y = multiply<half, 32, 32, true, false>(halves, memory, y, tid);
    y = multiply<half, 64, 32, true, false>(halves, memory, y, tid);
    y = multiply<float, 32, 32, true, false>(floats, memory, y, tid);
    // attention/tensor.h: keys, then values
    y = multiply<half, 16, 32, true, true>(halves, memory, y, tid);
    y = multiply<half, 32, 32, true, true>(halves, memory, y, tid);
    y = multiply<float, 16, 32, true, true>(floats, memory, y, tid);
    y = multiply<float, 32, 32, true, true>(floats, memory, y, tid);
    y = multiply<half, 32, 64, false, false>(halves, memory, y, tid);
    y = multiply<half, 32, 128, false, false>(halves, memory, y, tid);
    y = multiply<half, 16, 256, false, false>(halves, memory, y, tid);
    y = multiply<float, 32, 64, false, false>(floats, memory, y, tid);
    multiply<float, 16, 128, false, false>(floats, memory, y, tid);
#else
    (void) x, (void) y, (void) tid;
#endif
}

// Types, conversions and reductions that all kernels share. This file includes no header of the
// CUDA toolkit, so that NVRTC compiles the kernels without one.
#pragma once

typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long long ulong;

#define INFINITY_F __int_as_float(0x7f800000)
#define NAN_F __int_as_float(0x7fffffff)

// An entry point takes its argument struct by value, so the struct is in constant memory.
#define KERNEL(threads) extern "C" __global__ void __launch_bounds__(threads)

// Every kernel begins with `announce` and `await`. After `announce` in all blocks, the next kernel
// of the stream may start on free multiprocessors. `await` returns when the kernels before this one
// have ended. Data that does not depend on them may be read before `await`.
__device__ __forceinline__ void announce() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}
__device__ __forceinline__ void await() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
__device__ __forceinline__ void begin() {
    announce();
    await();
}

// Prefetches to L2, which all multiprocessors share and which stays coherent with later stores.
__device__ __forceinline__ void prefetch(const void *p) { asm volatile("prefetch.global.L2 [%0];" ::"l"(p)); }

struct alignas(16) Vec4 {
    float x, y, z, w;
};
struct alignas(16) Word4 {
    uint x, y, z, w;
};
struct alignas(8) Word2 {
    uint x, y;
};

__device__ __forceinline__ float f32_of_f16(ushort bits) {
    float out;
    asm("cvt.f32.f16 %0, %1;" : "=f"(out) : "h"(bits));
    return out;
}

// Rounds to nearest, ties to even. Values that are too large become infinite.
__device__ __forceinline__ ushort f16_of_f32(float x) {
    ushort out;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(out) : "f"(x));
    return out;
}

// Two halves in a word, the first in the lower 16 bits.
__device__ __forceinline__ uint f16x2_of_f32(float low, float high) {
    return uint(f16_of_f32(low)) | (uint(f16_of_f32(high)) << 16);
}

__device__ __forceinline__ float f32_of_bf16(ushort bits) {
    return __uint_as_float(uint(bits) << 16);
}

__device__ __forceinline__ float low_f16(uint word) { return f32_of_f16(ushort(word & 0xffff)); }
__device__ __forceinline__ float high_f16(uint word) { return f32_of_f16(ushort(word >> 16)); }

// 2^(e - 128), half of the value of the E8M0 exponent e.
__device__ __forceinline__ float e8m0_half(uint e) {
    return __uint_as_float(e < 2 ? 0x00200000u << e : (e - 1) << 23);
}

__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
    return x;
}

__device__ __forceinline__ float warp_max(float x) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, step));
    return x;
}

// The sum over a block of whole warps. All threads call it, and all get the sum. `shared` has 33
// floats.
__device__ __forceinline__ float block_sum(float x, float *shared) {
    const uint lane = threadIdx.x & 31, warp = threadIdx.x >> 5, n_warps = blockDim.x >> 5;
    x = warp_sum(x);
    __syncthreads();
    if (lane == 0) shared[warp] = x;
    __syncthreads();
    if (warp == 0) {
        const float total = warp_sum(lane < n_warps ? shared[lane] : 0.0f);
        if (lane == 0) shared[32] = total;
    }
    __syncthreads();
    return shared[32];
}

__device__ __forceinline__ float block_max(float x, float *shared) {
    const uint lane = threadIdx.x & 31, warp = threadIdx.x >> 5, n_warps = blockDim.x >> 5;
    x = warp_max(x);
    __syncthreads();
    if (lane == 0) shared[warp] = x;
    __syncthreads();
    if (warp == 0) {
        const float most = warp_max(lane < n_warps ? shared[lane] : -INFINITY_F);
        if (lane == 0) shared[32] = most;
    }
    __syncthreads();
    return shared[32];
}

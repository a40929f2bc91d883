// The entry points of a type. A file for each type (q4_0.cu and others) calls one of these macros.
#pragma once
#include "common.cuh"
#include "step.h"
#include "linear/arguments.h"
#include "arguments.h"
#include "linear/gemv.cuh"
#include "linear/gemv_one.cuh"
#include "linear/gemm.cuh"
#include "linear/float.cuh"
#include "linear/embed.cuh"

#define ONE_KERNEL(T, NR, L)                                                                                      \
    extern "C" __global__ void __launch_bounds__(ONE_THREADS, L * NR * sizeof(T::Raw) <= 160 ? 2 : 1)             \
        gemv_one_n##NR##_l##L(const __grid_constant__ LinearArguments a) {                                        \
        gemv_one<T, NR, L>(a);                                                                                    \
    }

#define EXPERTS_KERNEL(T, L)                                                                                        \
    extern "C" __global__ void __launch_bounds__(ONE_THREADS, L * sizeof(T::Raw) <= 160 ? 2 : 1)                  \
        gemv_experts_l##L(const __grid_constant__ LinearArguments a) {                                            \
        gemv_one<T, 1, L, true>(a);                                                                               \
    }

#define BLOCK_KERNELS(T)                                                                              \
    ONE_KERNEL(T, 1, 1)                                                                               \
    ONE_KERNEL(T, 2, 1)                                                                               \
    ONE_KERNEL(T, 4, 1)                                                                               \
    ONE_KERNEL(T, 1, 2)                                                                               \
    ONE_KERNEL(T, 2, 2)                                                                               \
    ONE_KERNEL(T, 4, 2)                                                                               \
    EXPERTS_KERNEL(T, 1)                                                                              \
    EXPERTS_KERNEL(T, 2)                                                                              \
    KERNEL(GEMV_THREADS) gemv_r1_n1(const __grid_constant__ LinearArguments a) { gemv<T, 1, 1>(a); }  \
    KERNEL(GEMV_THREADS) gemv_r1_n2(const __grid_constant__ LinearArguments a) { gemv<T, 1, 2>(a); }  \
    KERNEL(GEMV_THREADS) gemv_r1_n4(const __grid_constant__ LinearArguments a) { gemv<T, 1, 4>(a); }  \
    KERNEL(GEMV_THREADS) gemv_r2_n2(const __grid_constant__ LinearArguments a) { gemv<T, 2, 2>(a); }  \
    KERNEL(GEMV_THREADS) gemv_r4_n2(const __grid_constant__ LinearArguments a) { gemv<T, 4, 2>(a); }  \
    KERNEL(GEMV_THREADS) gemv_r8_n2(const __grid_constant__ LinearArguments a) { gemv<T, 8, 2>(a); }  \
    KERNEL(GEMM_THREADS) gemm_64(const __grid_constant__ LinearArguments a) { gemm<FromBlocks<T>>(a); } \
    KERNEL(128) embed_rows(const __grid_constant__ EmbedArguments a) { embed<T>(a); }

#define FLOAT_KERNELS(T)                                                                                   \
    KERNEL(GEMV_THREADS) gemv_r1_n1(const __grid_constant__ LinearArguments a) { float_gemv<T, 1, 1>(a); } \
    KERNEL(GEMV_THREADS) gemv_r1_n2(const __grid_constant__ LinearArguments a) { float_gemv<T, 1, 2>(a); } \
    KERNEL(GEMV_THREADS) gemv_r1_n4(const __grid_constant__ LinearArguments a) { float_gemv<T, 1, 4>(a); } \
    KERNEL(GEMV_THREADS) gemv_r2_n2(const __grid_constant__ LinearArguments a) { float_gemv<T, 2, 2>(a); } \
    KERNEL(GEMV_THREADS) gemv_r4_n2(const __grid_constant__ LinearArguments a) { float_gemv<T, 4, 2>(a); } \
    KERNEL(GEMV_THREADS) gemv_r8_n2(const __grid_constant__ LinearArguments a) { float_gemv<T, 8, 2>(a); } \
    KERNEL(GEMM_THREADS) gemm_64(const __grid_constant__ LinearArguments a) { gemm<FromFloats<T>>(a); }    \
    KERNEL(128) embed_rows(const __grid_constant__ EmbedArguments a) { float_embed<T>(a); }

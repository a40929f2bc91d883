// The kernels of one type of weight. `linear/q4_0.metal` is INSTANTIATE_LINEAR(q4_0, Q4_0).
#pragma once
#include "embed.h"
#include "expert_linear.h"
#include "instantiate.h"
#include "linear/gemm.h"
#include "linear/gemv.h"
#include "linear/joined.h"
#include "linear/merged.h"

#define INSTANTIATE_LINEAR(type, D)                                \
    INSTANTIATE(linear_##type##_gemv_1, linear_gemv<D, D, 1, 4>)   \
    INSTANTIATE(linear_##type##_gemv_1x8, linear_gemv<D, D, 1, 8>) \
    INSTANTIATE(linear_##type##_gemv_2, linear_gemv<D, D, 2, 4>)   \
    INSTANTIATE(linear_##type##_gemv_4, linear_gemv<D, D, 4, 4>)   \
    INSTANTIATE(linear_##type##_gemv_8, linear_gemv<D, D, 8, 4>)   \
    INSTANTIATE(linear_##type##_merged, linear_merged<D>)          \
    INSTANTIATE(linear_##type##_joined, linear_joined<D, D>)       \
    INSTANTIATE(linear_##type##_gemm_32, linear_gemm<D, 32>)       \
    INSTANTIATE(linear_##type##_gemm_64, linear_gemm<D, 64>)       \
    INSTANTIATE(expert_linear_##type##_gemv, expert_gemv<D, 4>)    \
    INSTANTIATE(expert_linear_##type##_gemv_x8, expert_gemv<D, 8>) \
    INSTANTIATE(expert_linear_##type##_gemm, expert_gemm<D>)       \
    INSTANTIATE(embed_##type, embed<D>)

// The common parameter list of all products with weights: linear/gemv.h, gemm.h, joined.h, merged.h
// and expert_linear.h. A kernel adds its arguments at 0 and its own buffers from 20 on.
//
//   1 x                             2 norm                       3, 4, 5 codes of weights 0, 1, 2
//   6, 7, 8 their planes of scales  9, 10, 11 planes of offsets  12, 13, 14 biases
//   15 other: residual, or up       16, 17, 18 y_0, y_1, y_2     19 partials
//
// A kernel may leave parameters unused; the host binds any buffer to them.
#pragma once

#define PRODUCT_BUFFERS                                    \
    device const float * x [[buffer(1)]],                  \
    device const float * norm [[buffer(2)]],               \
    device const uchar * codes_0 [[buffer(3)]],            \
    device const uchar * codes_1 [[buffer(4)]],            \
    device const uchar * codes_2 [[buffer(5)]],            \
    device const uchar * scales_0 [[buffer(6)]],           \
    device const uchar * scales_1 [[buffer(7)]],           \
    device const uchar * scales_2 [[buffer(8)]],           \
    device const uchar * offsets_0 [[buffer(9)]],          \
    device const uchar * offsets_1 [[buffer(10)]],         \
    device const uchar * offsets_2 [[buffer(11)]],         \
    device const float * bias_0 [[buffer(12)]],            \
    device const float * bias_1 [[buffer(13)]],            \
    device const float * bias_2 [[buffer(14)]],            \
    device const float * other [[buffer(15)]],             \
    device float * y_0 [[buffer(16)]],                     \
    device float * y_1 [[buffer(17)]],                     \
    device float * y_2 [[buffer(18)]],                     \
    device uint2 * partials [[buffer(19)]]

// The weights of PRODUCT_BUFFERS, as a BoundWeights (linear/target.h).
#define PRODUCT_WEIGHTS                                    \
    {{codes_0, codes_1, codes_2},                          \
     {scales_0, scales_1, scales_2},                       \
     {offsets_0, offsets_1, offsets_2},                    \
     {bias_0, bias_1, bias_2},                             \
     {y_0, y_1, y_2}}

// Place of a thread.
#define PRODUCT_THREAD                                     \
    uint2 place [[threadgroup_position_in_grid]],          \
    uint2 n_places [[threadgroups_per_grid]],              \
    ushort tid [[thread_index_in_threadgroup]],            \
    ushort sg [[simdgroup_index_in_threadgroup]],          \
    ushort n_sg [[simdgroups_per_threadgroup]],            \
    ushort lane [[thread_index_in_simdgroup]]

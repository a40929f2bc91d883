// Function constants of the kernels that multiply with weights: linear, expert_linear, embed.
// Indices 0 to 31.
//
// A pipeline sets the constants that its kernel's header names. Apple's compiler knows them when it
// generates machine code, so that a branch on one costs nothing.
#pragma once
#include <metal_stdlib>
using namespace metal;

// x is normalised first: x / sqrt(mean(x^2) + eps) * norm. GEMV only, also of experts.
constant bool LINEAR_NORM [[function_constant(0)]];
// Each weight has a bias of n_out floats.
constant bool LINEAR_BIAS [[function_constant(1)]];
// out = residual + product.
constant bool LINEAR_RESIDUAL [[function_constant(2)]];
// Weight 0 is the gate projection, weight 1 the up projection: out = activation(gate) * up.
constant bool LINEAR_GATE [[function_constant(3)]];
// Activation of LINEAR_GATE and LINEAR_UP, by the numbers of activation.h.
constant uint LINEAR_ACTIVATION [[function_constant(4)]];
// Number of weights that are multiplied with one x: 1, 2 or 3 (with LINEAR_GATE: 2).
constant uint LINEAR_WEIGHTS [[function_constant(5)]];
// Number of simdgroups that share a row of a weight: 1, 2, 4, 8 or more, a divisor of the
// simdgroups of a threadgroup. GEMV only.
constant uint LINEAR_SPLIT [[function_constant(6)]];
// The kernel also writes the largest output of each threadgroup, and its column. GEMV only.
constant bool LINEAR_ARGMAX [[function_constant(7)]];
// out = softcap * tanh(out / softcap).
constant bool LINEAR_SOFTCAP [[function_constant(8)]];
// For F32, F16 and BF16: n_in is not a multiple of 4, or rows are not aligned to 16 bytes (F32) or
// 8 bytes (F16, BF16).
constant bool LINEAR_SCALAR [[function_constant(9)]];
// For affine types: number of columns that share a scale: 32, 64 or 128.
constant uint AFFINE_GROUP [[function_constant(10)]];
// For affine types: type of the scales: 0 F32, 1 F16, 2 BF16, 3 E8M0.
constant uint AFFINE_SCALE [[function_constant(11)]];
// For affine types: there are no offsets, codes count from the middle.
constant bool AFFINE_SYMMETRIC [[function_constant(12)]];
// For affine types of 4 and 8 bits: the codes of all weights start at multiples of 8 or 16 bytes,
// those of 16 columns.
constant bool AFFINE_WIDE [[function_constant(19)]];
// For expert_linear: each chosen expert has its own part of x.
constant bool EXPERTS_OWN_INPUT [[function_constant(13)]];
// For expert_linear: out = sum over the chosen experts of weight * product, for one row of x.
constant bool EXPERTS_SUM [[function_constant(15)]];
// For expert_linear, with EXPERTS_SUM: the dispatch also computes a dense product.
constant bool EXPERTS_BESIDE [[function_constant(16)]];
// The only weight is a gate projection, up is an input: out = activation(product) * up.
constant bool LINEAR_UP [[function_constant(17)]];
// Each row has a gate: out = residual + sigmoid(row_gate) * product. With LINEAR_RESIDUAL.
constant bool LINEAR_ROW_GATE [[function_constant(18)]];
// GEMM only, also of experts: no value of x exceeds the range of a half.
constant bool LINEAR_BOUNDED [[function_constant(29)]];
// Tiles are multiplied on the tensor units of Metal 4 (linear/tensor.h).
constant bool LINEAR_TENSOR [[function_constant(14)]];

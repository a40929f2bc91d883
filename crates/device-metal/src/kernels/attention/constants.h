// Function constants of the attention kernels: indices 32 to 63.
#pragma once
#include <metal_stdlib>
using namespace metal;

// Columns of a head, 1 to 576.
constant uint ATTENTION_HEAD_DIM [[function_constant(32)]];
// Query heads that a threadgroup computes at once, among those that share a KV head: 1 to 8.
constant uint ATTENTION_HEADS [[function_constant(33)]];
// Scores are softcap * tanh(score / softcap).
constant bool ATTENTION_SOFTCAP [[function_constant(34)]];
// Each query head has a sink: a logit that is added to the sum of the softmax.
constant bool ATTENTION_SINKS [[function_constant(35)]];
// A row sees only the last `window` positions, its own included. In self_attention it sees `window`
// rows to each side of itself.
constant bool ATTENTION_WINDOW [[function_constant(36)]];
// Decode: positions are split over threadgroups; attention_merge or linear/merged.h merges the
// parts.
constant bool ATTENTION_SPLIT [[function_constant(37)]];
// Decode: k and v of the row come from activations. The kernel normalises, rotates and stores them,
// and attends to them.
constant bool ATTENTION_FUSED [[function_constant(38)]];
// Decode: query heads, and with ATTENTION_FUSED key heads, have a norm, a norm with a weight, and a
// style of RoPE (rotate.h).
constant bool ATTENTION_Q_NORM [[function_constant(39)]];
constant bool ATTENTION_K_NORM [[function_constant(40)]];
constant bool ATTENTION_Q_WEIGHT [[function_constant(41)]];
constant bool ATTENTION_K_WEIGHT [[function_constant(42)]];
constant uint ATTENTION_Q_ROPE [[function_constant(43)]];
constant uint ATTENTION_K_ROPE [[function_constant(44)]];
// With ATTENTION_FUSED: value heads have a norm without a weight.
constant bool ATTENTION_V_NORM [[function_constant(45)]];
// With ATTENTION_FUSED: one norm spans all query heads of a row, and one all key heads.
constant bool ATTENTION_WHOLE_ROWS [[function_constant(46)]];
// Keys are stored without their bias (key_bias.h).
constant bool ATTENTION_KEY_BIAS [[function_constant(47)]];
// The window does not slide: it begins at the last multiple of its length, at or before the row.
constant bool ATTENTION_CHUNKED [[function_constant(48)]];
// A row also sees the later rows of its span.
constant bool ATTENTION_BOTH_WAYS [[function_constant(49)]];
// Decode: number of lanes that share a key, and of neighbouring keys that they load at once: 4, 8
// or 16.
constant uint ATTENTION_KEY_LANES [[function_constant(50)]];
// Prefill: tiles are multiplied on the tensor units of Metal 4 (attention/tensor.h).
constant bool ATTENTION_TENSOR [[function_constant(51)]];

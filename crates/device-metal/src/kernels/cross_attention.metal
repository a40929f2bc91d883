// Attention of each row over all encoder states of a layer. Contracts: attention/decode.h for few
// rows and any head size, attention/prefill.h for many rows with heads of up to 128 columns.
#include <metal_stdlib>
using namespace metal;
#include "attention/decode.h"
#include "attention/prefill.h"
#include "instantiate.h"

INSTANTIATE(cross_attention_decode_f32, attention_decode<KvF32, true>)
INSTANTIATE(cross_attention_decode_f16, attention_decode<KvF16, true>)
INSTANTIATE(cross_attention_decode_q8_0, attention_decode<KvQ8_0, true>)

INSTANTIATE(cross_attention_prefill_f32_64, attention_prefill<KvF32, 4, 1, SOURCE_ENCODER>)
INSTANTIATE(cross_attention_prefill_f32_128, attention_prefill<KvF32, 2, 2, SOURCE_ENCODER>)
INSTANTIATE(cross_attention_prefill_f16_64, attention_prefill<KvF16, 4, 1, SOURCE_ENCODER>)
INSTANTIATE(cross_attention_prefill_f16_128, attention_prefill<KvF16, 4, 2, SOURCE_ENCODER>)
INSTANTIATE(cross_attention_prefill_q8_0_64, attention_prefill<KvQ8_0, 4, 1, SOURCE_ENCODER>)
INSTANTIATE(cross_attention_prefill_q8_0_128, attention_prefill<KvQ8_0, 4, 2, SOURCE_ENCODER>)

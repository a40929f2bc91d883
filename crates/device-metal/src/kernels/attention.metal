// Attention over the pages of the row's own sequence: decode, the merge of split decode, prefill.
#include <metal_stdlib>
using namespace metal;
#include "attention/decode.h"
#include "attention/merge.h"
#include "attention/prefill.h"
#include "instantiate.h"

INSTANTIATE(attention_decode_f32, attention_decode<KvF32, false>)
INSTANTIATE(attention_decode_f16, attention_decode<KvF16, false>)
INSTANTIATE(attention_decode_q8_0, attention_decode<KvQ8_0, false>)

INSTANTIATE(attention_prefill_f32_64, attention_prefill<KvF32, 4, 1, SOURCE_CACHE>)
INSTANTIATE(attention_prefill_f32_128, attention_prefill<KvF32, 2, 2, SOURCE_CACHE>)
INSTANTIATE(attention_prefill_f32_256, attention_prefill<KvF32, 1, 4, SOURCE_CACHE>)
INSTANTIATE(attention_prefill_f32_512, attention_prefill<KvF32, 1, 8, SOURCE_CACHE>)
INSTANTIATE(attention_prefill_f32_576, attention_prefill<KvF32, 1, 9, SOURCE_CACHE>)
INSTANTIATE(attention_prefill_f16_64, attention_prefill<KvF16, 4, 1, SOURCE_CACHE>)
INSTANTIATE(attention_prefill_f16_128, attention_prefill<KvF16, 4, 2, SOURCE_CACHE>)
INSTANTIATE(attention_prefill_f16_256, attention_prefill<KvF16, 2, 4, SOURCE_CACHE>)
INSTANTIATE(attention_prefill_f16_512, attention_prefill<KvF16, 1, 8, SOURCE_CACHE>)
INSTANTIATE(attention_prefill_f16_576, attention_prefill<KvF16, 1, 9, SOURCE_CACHE>)
INSTANTIATE(attention_prefill_q8_0_64, attention_prefill<KvQ8_0, 4, 1, SOURCE_CACHE>)
INSTANTIATE(attention_prefill_q8_0_128, attention_prefill<KvQ8_0, 4, 2, SOURCE_CACHE>)
INSTANTIATE(attention_prefill_q8_0_256, attention_prefill<KvQ8_0, 2, 4, SOURCE_CACHE>)
INSTANTIATE(attention_prefill_q8_0_512, attention_prefill<KvQ8_0, 1, 8, SOURCE_CACHE>)
INSTANTIATE(attention_prefill_q8_0_576, attention_prefill<KvQ8_0, 1, 9, SOURCE_CACHE>)

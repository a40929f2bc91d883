// self_attention_<D>: attention of each row over all rows of its span, later ones included, without
// a cache.
// Contract: attention/prefill.h.
#include <metal_stdlib>
using namespace metal;
#include "attention/prefill.h"
#include "instantiate.h"

INSTANTIATE(self_attention_64, attention_prefill<KvF32, 4, 1, SOURCE_ROWS>)
INSTANTIATE(self_attention_128, attention_prefill<KvF32, 2, 2, SOURCE_ROWS>)
INSTANTIATE(self_attention_256, attention_prefill<KvF32, 1, 4, SOURCE_ROWS>)
INSTANTIATE(self_attention_512, attention_prefill<KvF32, 1, 8, SOURCE_ROWS>)

// Attention of each row over rows of its span (attention/decode.cuh): a query head by itself.
#include "attention/decode.cuh"

ATTENTION(self_attention_d2, OfStep, 1, 2)
ATTENTION(self_attention_d4, OfStep, 1, 4)
ATTENTION(self_attention_d8, OfStep, 1, 8)
ATTENTION(self_attention_d16, OfStep, 1, 16)
ATTENTION(self_attention_d20, OfStep, 1, 20)

// Attention of each row over all rows of its span (attention/decode.cuh): a head by itself.
#include "attention/decode.cuh"

ATTENTION(self_attention_d2, OfStep, 1, 2)
ATTENTION(self_attention_d4, OfStep, 1, 4)
ATTENTION(self_attention_d8, OfStep, 1, 8)
ATTENTION(self_attention_d16, OfStep, 1, 16)

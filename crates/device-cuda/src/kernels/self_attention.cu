// Attention of each row to rows of its span (attention/decode.cuh), one query head a block.
#include "attention/decode.cuh"

ATTENTION(self_attention_d2, OfStep, 1, 2)
ATTENTION(self_attention_d4, OfStep, 1, 4)
ATTENTION(self_attention_d8, OfStep, 1, 8)
ATTENTION(self_attention_d16, OfStep, 1, 16)
ATTENTION(self_attention_d20, OfStep, 1, 20)

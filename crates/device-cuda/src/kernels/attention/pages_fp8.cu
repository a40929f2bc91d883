// Attention over pages of FP8 (attention/decode.cuh): a kernel for each number of query heads in a
// block (g) and of columns in a lane (d).
#include "attention/decode.cuh"

ATTENTION(attention_fp8_g1_d2, Paged<KvFp8>, 1, 2)
ATTENTION(attention_fp8_g2_d2, Paged<KvFp8>, 2, 2)
ATTENTION(attention_fp8_g4_d2, Paged<KvFp8>, 4, 2)
ATTENTION(attention_fp8_g8_d2, Paged<KvFp8>, 8, 2)
ATTENTION(attention_fp8_g1_d4, Paged<KvFp8>, 1, 4)
ATTENTION(attention_fp8_g2_d4, Paged<KvFp8>, 2, 4)
ATTENTION(attention_fp8_g4_d4, Paged<KvFp8>, 4, 4)
ATTENTION(attention_fp8_g8_d4, Paged<KvFp8>, 8, 4)
ATTENTION(attention_fp8_g1_d8, Paged<KvFp8>, 1, 8)
ATTENTION(attention_fp8_g2_d8, Paged<KvFp8>, 2, 8)
ATTENTION(attention_fp8_g4_d8, Paged<KvFp8>, 4, 8)
ATTENTION(attention_fp8_g8_d8, Paged<KvFp8>, 8, 8)
ATTENTION(attention_fp8_g1_d16, Paged<KvFp8>, 1, 16)
ATTENTION(attention_fp8_g2_d16, Paged<KvFp8>, 2, 16)
ATTENTION(attention_fp8_g4_d16, Paged<KvFp8>, 4, 16)
ATTENTION(attention_fp8_g1_d20, Paged<KvFp8>, 1, 20)
ATTENTION(attention_fp8_g2_d20, Paged<KvFp8>, 2, 20)
ATTENTION(attention_fp8_g4_d20, Paged<KvFp8>, 4, 20)

// Attention over pages of f16 (attention/decode.cuh): a kernel for each number of query heads in a
// block (g) and of columns in a lane (d).
#include "attention/decode.cuh"

ATTENTION(attention_f16_g1_d2, Paged<KvF16>, 1, 2)
ATTENTION(attention_f16_g2_d2, Paged<KvF16>, 2, 2)
ATTENTION(attention_f16_g4_d2, Paged<KvF16>, 4, 2)
ATTENTION(attention_f16_g8_d2, Paged<KvF16>, 8, 2)
ATTENTION(attention_f16_g1_d4, Paged<KvF16>, 1, 4)
ATTENTION(attention_f16_g2_d4, Paged<KvF16>, 2, 4)
ATTENTION(attention_f16_g4_d4, Paged<KvF16>, 4, 4)
ATTENTION(attention_f16_g8_d4, Paged<KvF16>, 8, 4)
ATTENTION(attention_f16_g1_d8, Paged<KvF16>, 1, 8)
ATTENTION(attention_f16_g2_d8, Paged<KvF16>, 2, 8)
ATTENTION(attention_f16_g4_d8, Paged<KvF16>, 4, 8)
ATTENTION(attention_f16_g8_d8, Paged<KvF16>, 8, 8)
ATTENTION(attention_f16_g1_d16, Paged<KvF16>, 1, 16)
ATTENTION(attention_f16_g2_d16, Paged<KvF16>, 2, 16)
ATTENTION(attention_f16_g4_d16, Paged<KvF16>, 4, 16)
ATTENTION(attention_f16_g1_d20, Paged<KvF16>, 1, 20)
ATTENTION(attention_f16_g2_d20, Paged<KvF16>, 2, 20)
ATTENTION(attention_f16_g4_d20, Paged<KvF16>, 4, 20)

// Attention over pages of Q8_0 (attention/decode.cuh): a kernel for each number of query heads in a
// block (g) and of columns in a lane (d).
#include "attention/decode.cuh"

ATTENTION(attention_q8_0_g1_d2, Paged<KvQ8_0>, 1, 2)
ATTENTION(attention_q8_0_g2_d2, Paged<KvQ8_0>, 2, 2)
ATTENTION(attention_q8_0_g4_d2, Paged<KvQ8_0>, 4, 2)
ATTENTION(attention_q8_0_g8_d2, Paged<KvQ8_0>, 8, 2)
ATTENTION(attention_q8_0_g1_d4, Paged<KvQ8_0>, 1, 4)
ATTENTION(attention_q8_0_g2_d4, Paged<KvQ8_0>, 2, 4)
ATTENTION(attention_q8_0_g4_d4, Paged<KvQ8_0>, 4, 4)
ATTENTION(attention_q8_0_g8_d4, Paged<KvQ8_0>, 8, 4)
ATTENTION(attention_q8_0_g1_d8, Paged<KvQ8_0>, 1, 8)
ATTENTION(attention_q8_0_g2_d8, Paged<KvQ8_0>, 2, 8)
ATTENTION(attention_q8_0_g4_d8, Paged<KvQ8_0>, 4, 8)
ATTENTION(attention_q8_0_g8_d8, Paged<KvQ8_0>, 8, 8)
ATTENTION(attention_q8_0_g1_d16, Paged<KvQ8_0>, 1, 16)
ATTENTION(attention_q8_0_g2_d16, Paged<KvQ8_0>, 2, 16)
ATTENTION(attention_q8_0_g4_d16, Paged<KvQ8_0>, 4, 16)
ATTENTION(attention_q8_0_g1_d20, Paged<KvQ8_0>, 1, 20)
ATTENTION(attention_q8_0_g2_d20, Paged<KvQ8_0>, 2, 20)
ATTENTION(attention_q8_0_g4_d20, Paged<KvQ8_0>, 4, 20)

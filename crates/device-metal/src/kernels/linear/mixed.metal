// Products with three weights, the last of which has another type: q, k and v of files that store v
// with more bits. Contract: linear/gemv.h and linear/joined.h.
#include "linear/q2_k.h"
#include "linear/q3_k.h"
#include "linear/q4_k.h"
#include "linear/q5_0.h"
#include "linear/q5_k.h"
#include "linear/q6_k.h"
#include "linear/q8_0.h"
#include "instantiate.h"
#include "linear/gemv.h"
#include "linear/joined.h"

INSTANTIATE(linear_q2_k_q4_k_gemv_1, linear_gemv<Q2_K, Q4_K, 1, 4>)
INSTANTIATE(linear_q2_k_q4_k_gemv_1x8, linear_gemv<Q2_K, Q4_K, 1, 8>)
INSTANTIATE(linear_q2_k_q4_k_joined, linear_joined<Q2_K, Q4_K>)
INSTANTIATE(linear_q3_k_q5_k_gemv_1, linear_gemv<Q3_K, Q5_K, 1, 4>)
INSTANTIATE(linear_q3_k_q5_k_gemv_1x8, linear_gemv<Q3_K, Q5_K, 1, 8>)
INSTANTIATE(linear_q3_k_q5_k_joined, linear_joined<Q3_K, Q5_K>)
INSTANTIATE(linear_q4_k_q5_k_gemv_1, linear_gemv<Q4_K, Q5_K, 1, 4>)
INSTANTIATE(linear_q4_k_q5_k_gemv_1x8, linear_gemv<Q4_K, Q5_K, 1, 8>)
INSTANTIATE(linear_q4_k_q5_k_joined, linear_joined<Q4_K, Q5_K>)
INSTANTIATE(linear_q4_k_q6_k_gemv_1, linear_gemv<Q4_K, Q6_K, 1, 4>)
INSTANTIATE(linear_q4_k_q6_k_gemv_1x8, linear_gemv<Q4_K, Q6_K, 1, 8>)
INSTANTIATE(linear_q4_k_q6_k_joined, linear_joined<Q4_K, Q6_K>)
INSTANTIATE(linear_q5_0_q8_0_gemv_1, linear_gemv<Q5_0, Q8_0, 1, 4>)
INSTANTIATE(linear_q5_0_q8_0_gemv_1x8, linear_gemv<Q5_0, Q8_0, 1, 8>)
INSTANTIATE(linear_q5_0_q8_0_joined, linear_joined<Q5_0, Q8_0>)
INSTANTIATE(linear_q5_k_q6_k_gemv_1, linear_gemv<Q5_K, Q6_K, 1, 4>)
INSTANTIATE(linear_q5_k_q6_k_gemv_1x8, linear_gemv<Q5_K, Q6_K, 1, 8>)
INSTANTIATE(linear_q5_k_q6_k_joined, linear_joined<Q5_K, Q6_K>)

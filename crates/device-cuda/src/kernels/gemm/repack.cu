// Repacks each type of file to its codec. Affine types have 4, 8, 2, 3, 5 or 6 bits, symmetric or
// not, and groups of 32 or more.
#include "gemm/repack.h"

REPACK(q4_0, q4)
REPACK(q4_1, q4m)
REPACK(q5_0, q5)
REPACK(q5_1, q5m)
REPACK(q8_0, q8)
REPACK(q2_k, q2m)
REPACK(q3_k, q3)
REPACK(q4_k, q4m)
REPACK(q5_k, q5m)
REPACK(q6_k, q6)
REPACK(iq4_nl, nl)
REPACK(iq4_xs, nl)
REPACK(mxfp4, fp4)
REPACK(nvfp4, fp4_16)
REPACK(f16, f16)
REPACK(bf16, f16)
typedef Type_affine Type_affine_2, Type_affine_3, Type_affine_4, Type_affine_5, Type_affine_6, Type_affine_8;
REPACK(affine_2, q2m)
REPACK(affine_3, q3m)
REPACK(affine_4, q4m)
REPACK(affine_5, q5m)
REPACK(affine_6, q6m)
REPACK(affine_8, q8m)

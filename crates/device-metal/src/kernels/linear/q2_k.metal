// All kernels that multiply with, or decode, weights of type Q2_K.
#include "linear/q2_k.h"
#include "linear/kernels.h"

INSTANTIATE_LINEAR(q2_k, Q2_K)

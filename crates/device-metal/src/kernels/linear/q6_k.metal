// All kernels that multiply with, or decode, weights of type Q6_K.
#include "linear/q6_k.h"
#include "linear/kernels.h"

INSTANTIATE_LINEAR(q6_k, Q6_K)

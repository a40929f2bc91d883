// All kernels that multiply with, or decode, weights of type Q4_K.
#include "linear/q4_k.h"
#include "linear/kernels.h"

INSTANTIATE_LINEAR(q4_k, Q4_K)

// All kernels that multiply with, or decode, weights of type Q3_K.
#include "linear/q3_k.h"
#include "linear/kernels.h"

INSTANTIATE_LINEAR(q3_k, Q3_K)

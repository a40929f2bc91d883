// All kernels that multiply with, or decode, weights of type Q5_K.
#include "linear/q5_k.h"
#include "linear/kernels.h"

INSTANTIATE_LINEAR(q5_k, Q5_K)

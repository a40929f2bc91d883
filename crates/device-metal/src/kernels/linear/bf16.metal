// All kernels that multiply with, or decode, weights of type BF16.
#include "linear/bf16.h"
#include "linear/kernels.h"

INSTANTIATE_LINEAR(bf16, BF16)

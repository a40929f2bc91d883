// All kernels that multiply with, or decode, weights of type F16.
#include "linear/f16.h"
#include "linear/kernels.h"

INSTANTIATE_LINEAR(f16, F16)

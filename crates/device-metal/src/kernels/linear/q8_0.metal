// All kernels that multiply with, or decode, weights of type Q8_0.
#include "linear/q8_0.h"
#include "linear/kernels.h"

INSTANTIATE_LINEAR(q8_0, Q8_0)

// All kernels that multiply with, or decode, weights of type Q4_0.
#include "linear/q4_0.h"
#include "linear/kernels.h"

INSTANTIATE_LINEAR(q4_0, Q4_0)

// All kernels that multiply with, or decode, weights of type Q4_1.
#include "linear/q4_1.h"
#include "linear/kernels.h"

INSTANTIATE_LINEAR(q4_1, Q4_1)

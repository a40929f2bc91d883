// All kernels that multiply with, or decode, weights of type Q5_1.
#include "linear/q5_1.h"
#include "linear/kernels.h"

INSTANTIATE_LINEAR(q5_1, Q5_1)

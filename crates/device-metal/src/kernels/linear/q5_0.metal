// All kernels that multiply with, or decode, weights of type Q5_0.
#include "linear/q5_0.h"
#include "linear/kernels.h"

INSTANTIATE_LINEAR(q5_0, Q5_0)

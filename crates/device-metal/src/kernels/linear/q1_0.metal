// All kernels that multiply with, or decode, weights of type Q1_0.
#include "linear/q1_0.h"
#include "linear/kernels.h"

INSTANTIATE_LINEAR(q1_0, Q1_0)

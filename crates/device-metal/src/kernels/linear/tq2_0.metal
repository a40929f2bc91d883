// All kernels that multiply with, or decode, weights of type TQ2_0.
#include "linear/tq2_0.h"
#include "linear/kernels.h"

INSTANTIATE_LINEAR(tq2_0, TQ2_0)

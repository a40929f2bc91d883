// All kernels that multiply with, or decode, weights of type TQ1_0.
#include "linear/tq1_0.h"
#include "linear/kernels.h"

INSTANTIATE_LINEAR(tq1_0, TQ1_0)

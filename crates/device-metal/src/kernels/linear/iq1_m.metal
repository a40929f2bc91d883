// All kernels that multiply with, or decode, weights of type IQ1_M.
#include "linear/iq1_m.h"
#include "linear/kernels.h"

INSTANTIATE_LINEAR(iq1_m, IQ1_M)

// All kernels that multiply with, or decode, weights of type IQ1_S.
#include "linear/iq1_s.h"
#include "linear/kernels.h"

INSTANTIATE_LINEAR(iq1_s, IQ1_S)

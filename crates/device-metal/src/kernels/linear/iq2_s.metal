// All kernels that multiply with, or decode, weights of type IQ2_S.
#include "linear/iq2_s.h"
#include "linear/kernels.h"

INSTANTIATE_LINEAR(iq2_s, IQ2_S)

// All kernels that multiply with, or decode, weights of type IQ3_S.
#include "linear/iq3_s.h"
#include "linear/kernels.h"

INSTANTIATE_LINEAR(iq3_s, IQ3_S)

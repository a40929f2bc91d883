// All kernels that multiply with, or decode, weights of type IQ4_NL.
#include "linear/iq4_nl.h"
#include "linear/kernels.h"

INSTANTIATE_LINEAR(iq4_nl, IQ4_NL)

// All kernels that multiply with, or decode, weights of type IQ4_XS.
#include "linear/iq4_xs.h"
#include "linear/kernels.h"

INSTANTIATE_LINEAR(iq4_xs, IQ4_XS)

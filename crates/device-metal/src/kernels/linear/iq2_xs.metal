// All kernels that multiply with, or decode, weights of type IQ2_XS.
#include "linear/iq2_xs.h"
#include "linear/kernels.h"

INSTANTIATE_LINEAR(iq2_xs, IQ2_XS)

// All kernels that multiply with, or decode, weights of type MXFP4.
#include "linear/mxfp4.h"
#include "linear/kernels.h"

INSTANTIATE_LINEAR(mxfp4, MXFP4)

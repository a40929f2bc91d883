// All kernels that multiply with, or decode, weights of type NVFP4.
#include "linear/nvfp4.h"
#include "linear/kernels.h"

INSTANTIATE_LINEAR(nvfp4, NVFP4)

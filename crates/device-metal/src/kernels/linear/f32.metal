// All kernels that multiply with, or decode, weights of type F32.
#include "linear/f32.h"
#include "linear/kernels.h"

INSTANTIATE_LINEAR(f32, F32)

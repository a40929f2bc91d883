// All kernels that multiply with, or decode, weights of type IQ3_XXS.
#include "linear/iq3_xxs.h"
#include "linear/kernels.h"

INSTANTIATE_LINEAR(iq3_xxs, IQ3_XXS)

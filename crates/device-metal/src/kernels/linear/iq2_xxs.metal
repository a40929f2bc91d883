// All kernels that multiply with, or decode, weights of type IQ2_XXS.
#include "linear/iq2_xxs.h"
#include "linear/kernels.h"

INSTANTIATE_LINEAR(iq2_xxs, IQ2_XXS)

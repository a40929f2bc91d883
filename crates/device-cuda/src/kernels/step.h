// What a step is, as kernels see it: the parts of the step buffer, which the host writes before it
// submits the step.
#pragma once
#include "step_parts.h"

// The parts of the step buffer. The host writes them before it submits the step.
#pragma once
#include "step_parts.h"

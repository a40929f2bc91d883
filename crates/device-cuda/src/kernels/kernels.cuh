// Includes of every kernel without weights.
#pragma once
#include "common.cuh"
#include "step.h"
#include "linear/arguments.h"
#include "arguments.h"
#include "activation.cuh"

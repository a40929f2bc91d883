// What a file of a kernel without weights includes.
#pragma once
#include "common.cuh"
#include "step.h"
#include "linear/arguments.h"
#include "arguments.h"
#include "activation.cuh"

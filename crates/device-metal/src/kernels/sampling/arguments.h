// Arguments of the kernels that choose tokens. build.rs gives the host the same structs.
#pragma once
#include "step_parts.h"

// argmax, and the kernels of this folder.
struct ChooseArguments {
    uint cols; // of a row of logits; of argmax with FC_BESTS: parts of the row
    uint reserved0;
    uint reserved1;
    uint reserved2;
};

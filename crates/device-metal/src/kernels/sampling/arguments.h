// Arguments of the kernels that choose tokens. build.rs translates them to Rust for the host.
#pragma once
#include "step_parts.h"

// Arguments of argmax and of the kernels of this folder.
struct ChooseArguments {
    uint cols; // logits of a row; for argmax with FC_BESTS parts of the row
    uint reserved0;
    uint reserved1;
    uint reserved2;
};

// Rotary position embedding of one head (Su et al., "RoFormer", 2021). turns.h has its cosines and
// sines.
#pragma once

#define ROPE_NONE 0
#define ROPE_HALF 1        // pairs (i, i + n_dims / 2)
#define ROPE_INTERLEAVED 2 // pairs (2i, 2i + 1)

// The two columns of a pair.
static inline uint2 pair_of(uint style, uint pair, uint n_dims) {
    return style == ROPE_HALF ? uint2(pair, pair + n_dims / 2) : uint2(2 * pair, 2 * pair + 1);
}

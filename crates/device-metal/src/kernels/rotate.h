// Rotary position embedding of one head (Su et al., "RoFormer", 2021).
#pragma once

#define ROPE_NONE 0
#define ROPE_HALF 1        // pairs (i, i + n_dims / 2)
#define ROPE_INTERLEAVED 2 // pairs (2i, 2i + 1)

// The two columns of a pair.
static inline uint2 pair_of(uint style, uint pair, uint n_dims) {
    return style == ROPE_HALF ? uint2(pair, pair + n_dims / 2) : uint2(2 * pair, 2 * pair + 1);
}

// Cosine and sine of a position, times a factor. The angle is an f32 product, as in the reference.
static inline float2 turn_of(uint position, float frequency, float scale) {
    const float angle = float(position) * frequency;
    return float2(precise::cos(angle) * scale, precise::sin(angle) * scale);
}

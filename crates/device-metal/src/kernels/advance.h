// Between two steps of a chain: the token that was chosen becomes the next step's, one position on. The kernels that choose end
// with it, so that it is no dispatch of its own.
#pragma once
#include "sampling/arguments.h"
#include "step.h"

// One thread calls it, when nobody reads the step's `n_chained` any more. `chosen` has room for the tokens of a chain, `recent` for
// `n_recent` tokens and as many. Where no token could be chosen the step runs once more with the token that it had: the host ends
// the chain there, and every token stays one of the vocabulary.
static inline void advance(uint token, device Step *step, device uint *tokens, device uint *positions, device Span *spans,
                           device uint *chosen, device uint *recent) {
    const uint n = step->n_chained;
    chosen[n] = token;
    if (token != NO_TOKEN) tokens[0] = token;
    recent[step->n_recent + n] = tokens[0];
    positions[0] += 1;
    spans[0].first_position += 1;
    step->n_chained = n + 1;
}

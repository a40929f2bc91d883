// Logits of recent tokens, in place: for a token that occurs c > 0 times in the window, l = l / repeat if l > 0, else l * repeat;
// then l -= presence + frequency * c. The window are the last tokens of `recent`, to which each step of a chain adds one.
//
// A thread for each token of the window; where a token occurs more than once, the first occurrence does the work. Every thread
// reads the window: n * n words from caches.
//
// Buffers: 1 step, 2 Sampling, 3 recent (step.n_recent + step.n_chained), 4 logits (n_vocab). Grid: a thread for each token of
// the window.
#include <metal_stdlib>
using namespace metal;
#include "sampling/arguments.h"
#include "step.h"

kernel void penalties(
        device const Step *step [[buffer(1)]],
        device const Sampling *sampling [[buffer(2)]],
        device const uint *recent [[buffer(3)]],
        device float *logits [[buffer(4)]],
        uint index [[thread_position_in_grid]]) {
    const uint n_tokens = step->n_recent + step->n_chained;
    const uint window = min(sampling->window, n_tokens);
    if (index >= window) return;
    device const uint *tokens = recent + (n_tokens - window);
    const uint token = tokens[index];
    uint count = 0;
    for (uint i = 0; i < window; i++) {
        if (tokens[i] != token) continue;
        if (i < index) return;
        count++;
    }
    const float logit = logits[token];
    const float repeated = logit > 0.0f ? logit / sampling->repeat : logit * sampling->repeat;
    logits[token] = repeated - (sampling->presence + sampling->frequency * float(count));
}

// Penalties on the logits of outputs, in place: for a token that occurs c > 0 times among the output's recent and pending tokens,
// l = l / repeat if l > 0, else l * repeat; then l -= presence + frequency * c. Pending tokens were chosen by earlier steps; one
// that chose nothing counts for nothing.
//
// A thread for each of these tokens; where a token occurs more than once, the first occurrence does the work. Every thread
// reads them all: n * n words from caches.
//
// Buffers: 0 ChooseArguments, 1 step, 2 choices (outputs), 3 logits (outputs, cols), 4 recent, 5 pending: indices into 6 chosen.
// Grid: (ceil(most tokens of an output / threads), outputs). Outputs without penalties have no tokens.
#include <metal_stdlib>
using namespace metal;
#include "sampling/arguments.h"
#include "step.h"

kernel void penalties(
        constant ChooseArguments &args [[buffer(0)]],
        device const Step *step [[buffer(1)]],
        device const Choice *choices [[buffer(2)]],
        device float *logits [[buffer(3)]],
        device const uint *recent [[buffer(4)]],
        device const uint *pending [[buffer(5)]],
        device const uint *chosen [[buffer(6)]],
        uint2 position [[thread_position_in_grid]]) {
    const uint index = position.x, row = position.y;
    if (row >= step->n_outputs) return;
    device const Choice &choice = choices[row];
    const uint n_recent = choice.n_recent, n_tokens = n_recent + choice.n_pending;
    if (index >= n_tokens) return;
    recent += choice.first_recent;
    pending += choice.first_pending;
    const uint token = index < n_recent ? recent[index] : chosen[pending[index - n_recent]];
    if (token == NO_TOKEN) return;
    uint count = 0;
    for (uint i = 0; i < n_tokens; i++) {
        if ((i < n_recent ? recent[i] : chosen[pending[i - n_recent]]) != token) continue;
        if (i < index) return;
        count++;
    }
    logits += ulong(row) * args.cols;
    const float logit = logits[token];
    const float repeated = logit > 0.0f ? logit / choice.repeat : logit * choice.repeat;
    logits[token] = repeated - (choice.presence + choice.frequency * float(count));
}

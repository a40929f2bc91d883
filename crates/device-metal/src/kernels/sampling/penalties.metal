// Biases and penalties on the logits of outputs, in place. First the token's biases are added. Then
// penalties apply to a token that occurs c > 0 times among the output's recent and pending tokens:
// l = l / repeat if l > 0, else l * repeat; then l -= presence + frequency * c. Pending tokens are
// chosen by earlier steps; an output without a chosen token counts nothing.
//
// One thread for each of these tokens and each bias. If a token occurs more than once, the thread
// of the first occurrence does the work, so that no sum depends on the order of threads. Every
// thread reads all tokens: n * n words from caches.
//
// Buffers: 0 ChooseArguments, 1 step, 2 choices (outputs), 3 logits (outputs, cols), 4 recent, 5
// pending: indices into 6 chosen, 7 biases. Grid: (ceil(most tokens and biases of an output /
// threads), outputs).
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
        device const Bias *biases [[buffer(7)]],
        uint2 position [[thread_position_in_grid]]) {
    const uint index = position.x, row = position.y;
    if (row >= step->n_outputs) return;
    device const Choice &choice = choices[row];
    const uint n_recent = choice.n_recent, n_tokens = n_recent + choice.n_pending, n_biases = choice.n_biases;
    if (index >= n_tokens + n_biases) return;
    recent += choice.first_recent;
    pending += choice.first_pending;
    biases += choice.first_bias;
    uint token;
    if (index < n_recent) token = recent[index];
    else if (index < n_tokens) token = chosen[pending[index - n_recent]];
    else token = biases[index - n_tokens].token;
    // This includes NO_TOKEN.
    if (token >= args.cols) return;
    uint count = 0;
    for (uint i = 0; i < n_tokens; i++) {
        if ((i < n_recent ? recent[i] : chosen[pending[i - n_recent]]) != token) continue;
        if (i < index) return;
        count++;
    }
    for (uint i = 0; n_tokens + i < index; i++) {
        if (biases[i].token == token) return;
    }
    // No other thread changes this token's logit.
    logits += ulong(row) * args.cols;
    float logit = logits[token];
    for (uint i = 0; i < n_biases; i++) {
        if (biases[i].token == token) logit += biases[i].value;
    }
    if (count > 0) {
        const float repeated = logit > 0.0f ? logit / choice.repeat : logit * choice.repeat;
        logit = repeated - (choice.presence + choice.frequency * float(count));
    }
    logits[token] = logit;
}

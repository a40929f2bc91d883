// Biases and penalties on the logits of outputs, in place. Biases are added first. Then, for a
// token that occurs c > 0 times among the output's recent and pending tokens: l = l / repeat if l >
// 0, else l * repeat; then l -= presence + frequency * c. Pending tokens were chosen by earlier
// steps; NO_TOKEN is not counted.
//
// A thread has one of these tokens at a time. If a token occurs more than once, only its first
// occurrence changes the logit, so no sum depends on the order of threads.
// Grid: (outputs).
#include "kernels.cuh"

KERNEL(256) penalties(const __grid_constant__ ChooseArguments a) {
    begin();
    const Choice &choice = a.choices[blockIdx.x];
    const uint n_recent = choice.n_recent, n_tokens = n_recent + choice.n_pending;
    const uint *recent = a.recent + choice.first_recent, *pending = a.pending + choice.first_pending;
    float *logits = a.logits + ulong(blockIdx.x) * a.cols;
    const Bias *biases = a.biases + choice.first_bias;
    for (uint index = threadIdx.x; index < choice.n_biases; index += 256) {
        const uint token = biases[index].token;
        if (token >= a.cols) continue;
        bool first = true;
        for (uint i = 0; i < index && first; i++) first = biases[i].token != token;
        if (!first) continue;
        float logit = logits[token];
        for (uint i = index; i < choice.n_biases; i++) {
            if (biases[i].token == token) logit += biases[i].value;
        }
        logits[token] = logit;
    }
    __syncthreads();
    for (uint index = threadIdx.x; index < n_tokens; index += 256) {
        const auto at = [&](uint i) { return i < n_recent ? recent[i] : a.chosen[pending[i - n_recent]]; };
        const uint token = at(index);
        if (token >= a.cols) continue;
        uint count = 0;
        bool first = true;
        for (uint i = 0; i < n_tokens && first; i++) {
            if (at(i) != token) continue;
            first = i >= index;
            count++;
        }
        if (!first) continue;
        const float logit = logits[token];
        const float repeated = logit > 0.0f ? logit / choice.repeat : logit * choice.repeat;
        logits[token] = repeated - (choice.presence + choice.frequency * float(count));
    }
}

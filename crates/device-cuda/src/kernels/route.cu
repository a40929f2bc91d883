// The k largest of a softmax over all experts, best first, of equals the lower; the weights of those chosen. A warp a
// row. Grid: (rows).
#include "kernels.cuh"

KERNEL(32) route(const __grid_constant__ RouteArguments a) {
    begin();
    extern __shared__ float p[]; // (n_experts)
    const uint lane = threadIdx.x, row = blockIdx.x;
    const float *x = a.x + ulong(row) * a.n_experts;
    float most = -INFINITY_F;
    for (uint i = lane; i < a.n_experts; i += 32) most = fmaxf(most, x[i]);
    most = warp_max(most);
    float sum = 0.0f;
    for (uint i = lane; i < a.n_experts; i += 32) {
        p[i] = expf(x[i] - most);
        sum += p[i];
    }
    sum = warp_sum(sum);
    __syncwarp();
    float chosen = 0.0f;
    for (uint j = 0; j < a.k; j++) {
        float best = -1.0f;
        uint index = 0xffffffffu;
        for (uint i = lane; i < a.n_experts; i += 32) {
            if (p[i] > best) best = p[i], index = i;
        }
        for (int step = 16; step > 0; step /= 2) {
            const float other = __shfl_xor_sync(0xffffffffu, best, step);
            const uint other_index = __shfl_xor_sync(0xffffffffu, index, step);
            if (other > best || (other == best && other_index < index)) best = other, index = other_index;
        }
        // NaN everywhere: some expert, so that ids are below n_experts.
        if (index >= a.n_experts) index = min(j, a.n_experts - 1), best = p[index];
        __syncwarp();
        if (lane == 0) {
            a.ids[ulong(row) * a.k + j] = index;
            a.weights[ulong(row) * a.k + j] = best;
            p[index] = -2.0f;
        }
        chosen += best;
        __syncwarp();
    }
    const float by = a.factor / (a.normalise ? chosen : sum);
    for (uint j = lane; j < a.k; j += 32) {
        const ulong at = ulong(row) * a.k + j;
        float weight = a.weights[at] * by;
        if (a.scales != nullptr) weight *= a.scales[a.ids[at]];
        a.weights[at] = weight;
    }
}

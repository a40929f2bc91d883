// The k largest experts of each row and their weights, best first. Of equal experts the lower comes
// first. NaN counts as the smallest value.
//
//   scores: a softmax over all experts, or a sigmoid of each
//   sizes: the values that choose the experts: x, or scores + bias if there are biases or groups.
//   With groups of neighbouring experts, only experts of n_used groups can be chosen. These are the
//   groups with the largest sums of their n_best largest sizes.
//   weights: scores of the chosen experts, divided by their sum if `normalise`, times the factors
//
// A warp has one row. Grid: (rows). Shared memory: 2 * n_experts + n_groups floats.
#include "kernels.cuh"

// Returns true if (a, i) comes before (b, j).
__device__ __forceinline__ bool before(float a, uint i, float b, uint j) { return a > b || (a == b && i < j); }

#if __CUDA_ARCH__ >= 800
// Bits of a value in ascending order, above 0. Both zeros are equal.
__device__ __forceinline__ uint order_of(float x) {
    const uint bits = __float_as_uint(x + 0.0f);
    return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

// Chooses the row's k experts, of at most 32 * M, and returns expert j in lane j. A lane keeps its
// sizes in registers, and each expert takes two reductions of the warp. `chosen` is the sum of
// their scores.
template <int M> __device__ __forceinline__ uint choose(const float *sizes, const float *scores, uint n, uint k, uint lane, float &chosen) {
    uint keys[M], mine = 0;
#pragma unroll
    for (int i = 0; i < M; i++) keys[i] = 32 * i + lane < n ? order_of(sizes[32 * i + lane]) : 0;
    for (uint j = 0; j < k; j++) {
        uint best = keys[0], at = 0;
#pragma unroll
        for (int i = 1; i < M; i++) {
            if (keys[i] > best) best = keys[i], at = i;
        }
        const uint all = __reduce_max_sync(0xffffffffu, best);
        const uint index = __reduce_min_sync(0xffffffffu, best == all ? 32 * at + lane : 0xffffffffu);
#pragma unroll
        for (int i = 0; i < M; i++) {
            if (32 * i + lane == index) keys[i] = 0;
        }
        if (lane == j) mine = index;
        chosen += scores[index];
    }
    return mine;
}
#endif

__device__ __forceinline__ float number(float x) { return x == x ? x : -INFINITY_F; }

KERNEL(32) route(const __grid_constant__ RouteArguments a) {
    begin();
    extern __shared__ float scores[]; // (n_experts)
    float *sizes = scores + a.n_experts; // (n_experts); NaN: already chosen
    float *sums = sizes + a.n_experts;   // (n_groups)
    const uint lane = threadIdx.x, row = blockIdx.x, n = a.n_experts;
    const float *x = a.x + ulong(row) * n;
    float by = 1.0f;
    if (a.sigmoid) {
        for (uint i = lane; i < n; i += 32) scores[i] = 1.0f / (1.0f + expf(-x[i]));
    } else {
        float most = -INFINITY_F, sum = 0.0f;
        for (uint i = lane; i < n; i += 32) most = fmaxf(most, x[i]);
        most = warp_max(most);
        for (uint i = lane; i < n; i += 32) {
            scores[i] = expf(x[i] - most);
            sum += scores[i];
        }
        by = 1.0f / warp_sum(sum);
    }
    const bool plain = a.bias == nullptr && a.n_groups == 0;
    for (uint i = lane; i < n; i += 32) {
        scores[i] *= by;
        sizes[i] = number(plain ? x[i] : a.bias != nullptr ? scores[i] + a.bias[i] : scores[i]);
    }
    __syncwarp();
    if (a.n_groups > 0) {
        const uint group = n / a.n_groups;
        for (uint g = lane; g < a.n_groups; g += 32) {
            const float *mine = sizes + g * group;
            float sum = 0.0f, last = INFINITY_F;
            uint last_index = 0;
            for (uint j = 0; j < min(a.n_best, group); j++) {
                float best = -INFINITY_F;
                uint index = group;
                for (uint i = 0; i < group; i++) {
                    const bool left = j == 0 || before(last, last_index, mine[i], i);
                    if (left && (index == group || mine[i] > best)) best = mine[i], index = i;
                }
                sum += best;
                last = best, last_index = index;
            }
            sums[g] = number(sum);
        }
        __syncwarp();
        for (uint i = lane; i < n; i += 32) {
            uint rank = 0;
            for (uint g = 0; g < a.n_groups; g++) rank += before(sums[g], g, sums[i / group], i / group);
            if (rank >= a.n_used) sizes[i] = -INFINITY_F;
        }
        __syncwarp();
    }
    float chosen = 0.0f;
    const auto give = [&](uint j, uint id) {
        const float factor = a.normalise ? a.factor / fmaxf(chosen, 1.17549435e-38f) : a.factor;
        const ulong at = ulong(row) * a.k + j;
        float weight = scores[id] * factor;
        if (a.scales != nullptr) weight *= a.scales[id];
        a.ids[at] = id;
        a.weights[at] = weight;
    };
#if __CUDA_ARCH__ >= 800
    if (n <= 512 && a.k <= 32) {
        const uint mine = n <= 128 ? choose<4>(sizes, scores, n, a.k, lane, chosen) : choose<16>(sizes, scores, n, a.k, lane, chosen);
        if (lane < a.k) give(lane, mine);
        return;
    }
#endif
    for (uint j = 0; j < a.k; j++) {
        float best = -INFINITY_F;
        uint index = n;
        for (uint i = lane; i < n; i += 32) {
            const float size = sizes[i];
            if (size == size && (index == n || size > best)) best = size, index = i;
        }
        for (int step = 16; step > 0; step /= 2) {
            const float other = __shfl_xor_sync(0xffffffffu, best, step);
            const uint other_index = __shfl_xor_sync(0xffffffffu, index, step);
            if (other_index < n && (index == n || before(other, other_index, best, index))) best = other, index = other_index;
        }
        __syncwarp();
        if (lane == 0) {
            a.ids[ulong(row) * a.k + j] = index;
            sizes[index] = NAN_F;
        }
        chosen += scores[index];
        __syncwarp();
    }
    for (uint j = lane; j < a.k; j += 32) give(j, a.ids[ulong(row) * a.k + j]);
}

// A random token for each output that is sampled, after top-k, top-p and min-p. Each of these keeps
// the best of the remaining tokens.
//
// The remaining tokens are always a prefix of the order (rank.cuh), so each stage only determines
// where the prefix ends. The chosen token is the first at which the sum of the weights, best first,
// exceeds a random part of the prefix's sum: chosen = nth(u * mass). The random number comes from
// the host.
//
// The vocabulary is read two or three times. The first pass finds the best token of each thread.
// The second lists all tokens that are at least as good as the 512th of these (or the k-th) in
// shared memory. The list has at least the wanted number of tokens, and seldom twice that. Without
// top-k a third pass sums all weights. Later searches use the list if the goal is within it, and
// otherwise the vocabulary, up to 9 passes each. That happens for flat distributions.
//
// An output without a logit above -infinity, or with an infinite one, gets NO_TOKEN. Grid:
// (outputs) blocks of 1,024 threads. Blocks of outputs that are not sampled return at once.
#include "sampling/rank.cuh"

// Number of best tokens that the list certainly has, if there are twice as many threads.
#define HEAD 512
// Capacity of the list. Only many equal tokens exceed it, and then the vocabulary is searched.
#define LIST 2048

__device__ __forceinline__ void give(const ChooseArguments &a, const Choice &choice, uint token) {
    a.chosen[choice.chosen] = token;
    a.host_chosen[choice.chosen] = token;
}

KERNEL(1024) sample(const __grid_constant__ ChooseArguments a) {
    begin();
    const uint row = blockIdx.x, thread_index = threadIdx.x, n_threads = blockDim.x;
    __shared__ Bins bins;
    __shared__ Word2 list[LIST];
    __shared__ uint best;
    __shared__ uint n_good;
    __shared__ uint n_bests;
    __shared__ uint n_listed;
    const Lane lane = { thread_index, n_threads };
    if (a.choices[row].how != CHOOSE_SAMPLE) return;
    const Choice &choice = a.choices[row];
    const uint n_vocab = a.cols;
    const uint top_k = choice.top_k;
    const float *logits = a.logits + ulong(row) * n_vocab;
    if (thread_index == 0) {
        store_word(&best, 0);
        store_word(&n_good, 0);
        store_word(&n_bests, 0);
        store_word(&n_listed, 0);
    }
    __syncthreads();

    // The best token of each thread, then of all.
    uint mine = 0, n_mine = 0;
    for (uint id = thread_index; id < n_vocab; id += n_threads) {
        const uint key = key_of(logits[id]);
        mine = max(mine, key);
        n_mine += key != 0 ? 1 : 0;
    }
    list[thread_index] = make_token(mine, thread_index);
    if (mine != 0) {
        atomicMax(&best, mine);
        atomicAdd(&n_good, n_mine);
        atomicAdd(&n_bests, 1u);
    }
    __syncthreads();
    const Scale scale = { logit_of(max(load_word(&best), 1u)), choice.temperature };
    if (load_word(&best) == 0 || scale.best == INFINITY_F) {
        if (thread_index == 0) give(a, choice, NO_TOKEN);
        return;
    }

    // `bound` is such that the wanted number of threads have a token at least as good.
    const uint most = min(uint(HEAD), n_threads / 2);
    const uint wanted = top_k == 0 ? most : min(top_k, most);
    const Tokens bests = { logits, list, n_threads, true };
    const uint bound = load_word(&n_bests) < wanted ? 1 : nth(bests, wanted, true, scale, &bins, lane).x;
    for (uint id = thread_index; id < n_vocab; id += n_threads) {
        const uint key = key_of(logits[id]);
        if (key < bound) continue;
        const uint place = atomicAdd(&n_listed, 1u);
        if (place < LIST) list[place] = make_token(key, id);
    }
    __syncthreads();
    const uint n_list = load_word(&n_listed) <= LIST ? load_word(&n_listed) : 0;
    const Tokens all = { logits, list, n_vocab, false };
    const Tokens head = { logits, list, n_list, true };

    // Sums the tokens up to `last`, which may be outside the list.
    Word2 last = make_token(0, 0xffffffffu);
    bool in_list = n_list == load_word(&n_good);
    if (top_k != 0 && top_k < load_word(&n_good)) {
        in_list = top_k <= n_list;
        last = nth(in_list ? head : all, top_k, true, scale, &bins, lane);
    }
    const ulong head_mass = mass_of(head, make_token(0, 0xffffffffu), -INFINITY_F, scale, &bins, lane);
    if (choice.nucleus != 0) {
        const ulong mass = mass_of(in_list ? head : all, last, -INFINITY_F, scale, &bins, lane);
        const ulong goal = max(part_of(mass, ulong(choice.nucleus) << 32), ulong(1));
        in_list = goal <= head_mass;
        last = nth(in_list ? head : all, goal, false, scale, &bins, lane);
    }
    const ulong mass = mass_of(in_list ? head : all, last, choice.floor, scale, &bins, lane);
    const ulong random = (ulong(choice.random_high) << 32) | choice.random_low;
    const ulong goal = part_of(mass, random) + 1;
    const uint token = nth(goal <= head_mass ? head : all, goal, false, scale, &bins, lane).y;
    if (thread_index == 0) give(a, choice, token);
}

// Samples one token for each output that needs one, after top-k, top-p and min-p. Each of these
// keeps the best of the tokens that are left.
//
// The kept tokens are always a prefix of the order (rank.h), so each stage only computes its end.
// The choice is the token at which the weights, best first, exceed a random part of the kept mass:
// chosen = nth(u * mass). The host provides the random number.
//
// The kernel reads the vocabulary two or three times. The first pass finds the best token of each
// thread. The second pass lists all tokens that are at least as good as the 512th of these (or the
// k-th), in threadgroup memory. The list has at least as many tokens as needed, and rarely twice as
// many. Without top-k a third pass sums all weights. Searches use the list if the goal is in it.
// Otherwise the distribution is flat, and they use the vocabulary (up to 9 passes each).
//
// Buffers: 0 ChooseArguments, 1 step, 2 choices (outputs), 3 logits (outputs, cols), 4 chosen: from
// step.first_chosen on the token of each output, NO_TOKEN if no logit is above -infinity, or one is
// +infinity. Grid: (outputs) threadgroups of at most 1024 threads, whole SIMD-groups. Threadgroups
// of outputs that are not sampled return at once.
#include <metal_stdlib>
using namespace metal;
#include "sampling/arguments.h"
#include "sampling/rank.h"
#include "step.h"

// Number of best tokens that the list surely holds, with at least twice as many threads.
#define HEAD 512
// Capacity of the list. If more tokens qualify, because many are equal, searches use the
// vocabulary.
#define LIST 2048

kernel void sample(
        constant ChooseArguments &args [[buffer(0)]],
        device const Step *step [[buffer(1)]],
        device const Choice *choices [[buffer(2)]],
        device const float *logits [[buffer(3)]],
        device uint *chosen [[buffer(4)]],
        uint row [[threadgroup_position_in_grid]],
        uint thread_index [[thread_index_in_threadgroup]],
        uint n_threads [[threads_per_threadgroup]]) {
    threadgroup Bins bins;
    threadgroup uint2 list[LIST];
    threadgroup atomic_uint best;
    threadgroup atomic_uint n_good;
    threadgroup atomic_uint n_bests;
    threadgroup atomic_uint n_listed;
    const Lane lane = { thread_index, n_threads };
    if (row >= step->n_outputs || choices[row].how != CHOOSE_SAMPLE) return;
    device const Choice &choice = choices[row];
    const uint n_vocab = args.cols;
    const uint top_k = choice.top_k;
    logits += ulong(row) * n_vocab;
    chosen += step->first_chosen + row;
    if (thread_index == 0) {
        store_word(&best, 0);
        store_word(&n_good, 0);
        store_word(&n_bests, 0);
        store_word(&n_listed, 0);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);

    // The best token of each thread, and the best of all.
    uint mine = 0, n_mine = 0;
    for (uint id = thread_index; id < n_vocab; id += n_threads) {
        const uint key = key_of(logits[id]);
        mine = max(mine, key);
        n_mine += key != 0 ? 1 : 0;
    }
    list[thread_index] = uint2(mine, thread_index);
    if (mine != 0) {
        atomic_fetch_max_explicit(&best, mine, memory_order_relaxed);
        atomic_fetch_add_explicit(&n_good, n_mine, memory_order_relaxed);
        atomic_fetch_add_explicit(&n_bests, 1u, memory_order_relaxed);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const Scale scale = { logit_of(max(load_word(&best), 1u)), choice.temperature };
    if (load_word(&best) == 0 || isinf(scale.best)) {
        if (thread_index == 0) *chosen = NO_TOKEN;
        return;
    }

    // At least `wanted` threads have a token as good as `bound`.
    const uint most = min(uint(HEAD), n_threads / 2);
    const uint wanted = top_k == 0 ? most : min(top_k, most);
    const Tokens bests = { logits, list, n_threads, true };
    const uint bound = load_word(&n_bests) < wanted ? 1 : nth(bests, wanted, true, scale, &bins, lane).x;
    for (uint id = thread_index; id < n_vocab; id += n_threads) {
        const uint key = key_of(logits[id]);
        if (key < bound) continue;
        const uint place = atomic_fetch_add_explicit(&n_listed, 1u, memory_order_relaxed);
        if (place < LIST) list[place] = uint2(key, id);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const uint n_list = load_word(&n_listed) <= LIST ? load_word(&n_listed) : 0;
    const Tokens all = { logits, list, n_vocab, false };
    const Tokens head = { logits, list, n_list, true };

    // Tokens down to `last` are kept; in_list is true if all of them are in the list.
    uint2 last = uint2(0, 0xffffffffu);
    bool in_list = n_list == load_word(&n_good);
    if (top_k != 0 && top_k < load_word(&n_good)) {
        in_list = top_k <= n_list;
        last = nth(in_list ? head : all, top_k, true, scale, &bins, lane);
    }
    const ulong head_mass = mass_of(head, uint2(0, 0xffffffffu), -INFINITY, scale, &bins, lane);
    if (choice.nucleus != 0) {
        const ulong mass = mass_of(in_list ? head : all, last, -INFINITY, scale, &bins, lane);
        const ulong goal = max(part_of(mass, ulong(choice.nucleus) << 32), ulong(1));
        in_list = goal <= head_mass;
        last = nth(in_list ? head : all, goal, false, scale, &bins, lane);
    }
    const ulong mass = mass_of(in_list ? head : all, last, choice.floor, scale, &bins, lane);
    const ulong random = (ulong(choice.random_high) << 32) | choice.random_low;
    const ulong goal = part_of(mass, random) + 1;
    const uint token = nth(goal <= head_mass ? head : all, goal, false, scale, &bins, lane).y;
    if (thread_index == 0) *chosen = token;
}

// Tokens in descending order of their logits; of equal logits the lower id comes first.
//
// A token is (key, id). A key has the logit's bits, mapped to unsigned integers of the same order;
// 0 marks tokens that are never chosen. Nothing is sorted: `nth` finds the token at which a sum in
// this order reaches a goal. It searches by digits of key and id, with histograms in shared memory.
// Sums are integers and weights are fixed point, so no result depends on the order of lanes.
//
// Metal's `sampling/rank.h` is the same algorithm. They stay two files, since every line that a
// header for both would share is about lanes, barriers or atomics, which the languages spell
// differently.
#pragma once
#include "kernels.cuh"

__device__ __forceinline__ Word2 make_token(uint key, uint id) { return {key, id}; }

// The key of a logit: 0 for NaN or -infinity, equal for both zeros.
__device__ __forceinline__ uint key_of(float logit) {
    if (!(logit > -INFINITY_F)) return 0;
    const uint bits = __float_as_uint(logit == 0.0f ? 0.0f : logit);
    return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

__device__ __forceinline__ float logit_of(uint key) {
    return __uint_as_float((key & 0x80000000u) != 0 ? key & 0x7fffffffu : ~key);
}

// The weight of a token is exp((l - l_max) / temperature).
struct Scale {
    float best; // l_max
    float temperature;
};

__device__ __forceinline__ float exponent_of(uint key, Scale scale) {
    return (logit_of(key) - scale.best) / scale.temperature;
}

// The weight in units of 2^-40, rounded down. The best token has 2^40, so the sum of 2^23 tokens
// fits in 64 bits. A token with a smaller weight than 2^-40 of the best is never chosen.
__device__ __forceinline__ ulong weight_of(uint key, Scale scale) {
    return ulong(expf(exponent_of(key, scale)) * 1099511627776.0f);
}

// Tokens to search: the vocabulary's logits, or a list of some of them.
struct Tokens {
    const float *logits;
    const Word2 *list;
    uint n;
    bool listed; // true: `list`, false: `logits`
};

__device__ __forceinline__ Word2 token_at(Tokens tokens, uint index) {
    if (tokens.listed) return tokens.list[index];
    return make_token(key_of(tokens.logits[index]), index);
}

// The index of a thread among the threads that share the work.
struct Lane {
    uint index;
    uint n_threads; // at least 32
};

#define N_BINS 256
#define BINS_OF_LANE 8 // 32 lanes search the bins

// Shared memory of the searches.
struct Bins {
    uint counts[N_BINS];
    uint low[N_BINS]; // sums of 64 bits in two words
    uint high[N_BINS];
    ulong parts[32];
    ulong before; // sum of the bins before the chosen one
    uint digit;
    uint count; // tokens in the chosen bin
    Word2 token;
};

__device__ __forceinline__ void store_word(uint *to, uint value) {
    *(volatile uint *)to = value;
}

__device__ __forceinline__ uint load_word(uint *from) {
    return *(volatile uint *)from;
}

// Adds to a sum of two words, and carries from the lower to the upper.
__device__ __forceinline__ void add_wide(Bins *bins, uint bin, ulong value) {
    const uint low = uint(value);
    const uint old = atomicAdd(&bins->low[bin], low);
    const uint carry = old > 0xffffffffu - low ? 1 : 0;
    const uint high = uint(value >> 32) + carry;
    if (high != 0) atomicAdd(&bins->high[bin], high);
}

__device__ __forceinline__ ulong sum_of(Bins *bins, uint bin, bool by_count) {
    if (by_count) return load_word(&bins->counts[bin]);
    return (ulong(load_word(&bins->high[bin])) << 32) | load_word(&bins->low[bin]);
}

// The first token at which the count (or the weights) of the tokens, best first, reaches `goal`.
// `goal` is at least 1 and at most the sum of all. All threads call it, and all get the result. It
// has up to 4 digits of the key and 4 of the id, and stops when one token is left.
__device__ __forceinline__ Word2 nth(Tokens tokens, ulong goal, bool by_count, Scale scale, Bins *bins, Lane lane) {
    Word2 prefix = make_token(0, 0);
    Word2 known = make_token(0, 0);
    for (uint level = 0; level < 8; level++) {
        const bool of_key = level < 4;
        const uint shift = 24 - 8 * (level & 3);
        for (uint bin = lane.index; bin < N_BINS; bin += lane.n_threads) {
            store_word(&bins->counts[bin], 0);
            store_word(&bins->low[bin], 0);
            store_word(&bins->high[bin], 0);
        }
        __syncthreads();
        for (uint i = lane.index; i < tokens.n; i += lane.n_threads) {
            const Word2 token = token_at(tokens, i);
            if (token.x == 0 || (token.x & known.x) != prefix.x || (token.y & known.y) != prefix.y) continue;
            // The larger key is better; of equal keys, the lower id.
            const uint bin = of_key ? 255 - ((token.x >> shift) & 255) : (token.y >> shift) & 255;
            atomicAdd(&bins->counts[bin], 1u);
            if (!by_count) add_wide(bins, bin, weight_of(token.x, scale));
        }
        __syncthreads();
        const uint first = BINS_OF_LANE * lane.index;
        ulong part = 0;
        if (lane.index < 32) {
            for (uint i = 0; i < BINS_OF_LANE; i++) part += sum_of(bins, first + i, by_count);
            bins->parts[lane.index] = part;
        }
        __syncthreads();
        if (lane.index < 32) {
            ulong before = 0;
            for (uint i = 0; i < lane.index; i++) before += bins->parts[i];
            if (before < goal && goal <= before + part) {
                uint bin = first;
                while (before + sum_of(bins, bin, by_count) < goal) before += sum_of(bins, bin++, by_count);
                bins->before = before;
                bins->digit = bin;
                bins->count = load_word(&bins->counts[bin]);
            }
        }
        __syncthreads();
        goal -= bins->before;
        if (of_key) {
            prefix.x |= (255 - bins->digit) << shift;
            known.x |= 255u << shift;
        } else {
            prefix.y |= bins->digit << shift;
            known.y |= 255u << shift;
        }
        if (bins->count == 1) break;
    }
    for (uint i = lane.index; i < tokens.n; i += lane.n_threads) {
        const Word2 token = token_at(tokens, i);
        if (token.x != 0 && (token.x & known.x) == prefix.x && (token.y & known.y) == prefix.y) bins->token = token;
    }
    __syncthreads();
    return bins->token;
}

// Sum of the weights of the tokens up to `last`, of those whose exponent is at least `floor`. All
// threads call it, and all get the result.
__device__ __forceinline__ ulong mass_of(Tokens tokens, Word2 last, float floor, Scale scale, Bins *bins, Lane lane) {
    ulong sum = 0;
    for (uint i = lane.index; i < tokens.n; i += lane.n_threads) {
        const Word2 token = token_at(tokens, i);
        const bool after = token.x < last.x || (token.x == last.x && token.y > last.y);
        if (token.x == 0 || after || !(exponent_of(token.x, scale) >= floor)) continue;
        sum += weight_of(token.x, scale);
    }
    if (lane.index == 0) {
        store_word(&bins->low[0], 0);
        store_word(&bins->high[0], 0);
    }
    __syncthreads();
    if (sum != 0) add_wide(bins, 0, sum);
    __syncthreads();
    sum = sum_of(bins, 0, false);
    // The next search clears the bins.
    __syncthreads();
    return sum;
}

// value * fraction / 2^64, rounded down, for values below 2^63.
__device__ __forceinline__ ulong part_of(ulong value, ulong fraction) {
    const ulong word = 0xffffffffu;
    const ulong v1 = value >> 32, v0 = value & word, f1 = fraction >> 32, f0 = fraction & word;
    const ulong a = v1 * f0, b = v0 * f1, c = (v0 * f0) >> 32;
    return v1 * f1 + (a >> 32) + (b >> 32) + (((a & word) + (b & word) + c) >> 32);
}

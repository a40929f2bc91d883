// Order of tokens, best first: the larger logit, then the lower id.
//
// A token is (key, id). A key is the bits of a logit, mapped so that unsigned integers have the
// same order; key 0 marks tokens that are never chosen. Nothing is sorted: `nth` finds the token at
// which a sum down the order reaches a goal. It finds it digit by digit of key and id, with
// histograms in threadgroup memory. Weights are fixed-point integers, so no result depends on the
// order of lanes.
#pragma once

// Returns the key of a logit: 0 for NaN and -infinity, the same key for 0.0 and -0.0.
static inline uint key_of(float logit) {
    if (!(logit > -INFINITY)) return 0;
    const uint bits = as_type<uint>(logit == 0.0f ? 0.0f : logit);
    return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

static inline float logit_of(uint key) {
    return as_type<float>((key & 0x80000000u) != 0 ? key & 0x7fffffffu : ~key);
}

// Scale of weights: a token of logit l weighs exp((l - l_max) / temperature).
struct Scale {
    float best; // l_max
    float temperature;
};

static inline float exponent_of(uint key, Scale scale) {
    return (logit_of(key) - scale.best) / scale.temperature;
}

// Returns a token's weight in units of 2^-40, rounded down. The best token weighs 2^40, and the sum
// of 2^23 tokens fits in 64 bits. Tokens below 2^-40 of the best are never chosen.
static inline ulong weight_of(uint key, Scale scale) {
    return ulong(precise::exp(exponent_of(key, scale)) * 1099511627776.0f);
}

// Source of tokens: the logits of the vocabulary, or a list of some tokens.
struct Tokens {
    device const float *logits;
    threadgroup const uint2 *list;
    uint n;
    bool listed; // tokens are in `list`
};

static inline uint2 token_at(Tokens tokens, uint index) {
    if (tokens.listed) return tokens.list[index];
    return uint2(key_of(tokens.logits[index]), index);
}

// A thread's place in its threadgroup.
struct Lane {
    uint index;
    uint n_threads; // at least 32
};

#define N_BINS 256
#define BINS_OF_LANE 8 // 32 lanes search the bins

// Threadgroup memory of the searches.
struct Bins {
    atomic_uint counts[N_BINS];
    atomic_uint low[N_BINS]; // sums of 64 bits in two words
    atomic_uint high[N_BINS];
    ulong parts[32];
    ulong before; // sum of the bins before the one that was found
    uint digit;
    uint count; // tokens in the bin that was found
    uint2 token;
};

static inline void store_word(threadgroup atomic_uint *to, uint value) {
    atomic_store_explicit(to, value, memory_order_relaxed);
}

static inline uint load_word(threadgroup atomic_uint *from) {
    return atomic_load_explicit(from, memory_order_relaxed);
}

// Adds to a bin's 64-bit sum; the carry of the low word is added to the high word.
static inline void add_wide(threadgroup Bins *bins, uint bin, ulong value) {
    const uint low = uint(value);
    const uint old = atomic_fetch_add_explicit(&bins->low[bin], low, memory_order_relaxed);
    const uint carry = old > 0xffffffffu - low ? 1 : 0;
    const uint high = uint(value >> 32) + carry;
    if (high != 0) atomic_fetch_add_explicit(&bins->high[bin], high, memory_order_relaxed);
}

static inline ulong sum_of(threadgroup Bins *bins, uint bin, bool by_count) {
    if (by_count) return load_word(&bins->counts[bin]);
    return (ulong(load_word(&bins->high[bin])) << 32) | load_word(&bins->low[bin]);
}

// Returns the first token in the order at which the running sum of weights (with `by_count` the
// number of tokens) reaches `goal`, which is at least 1 and at most the sum of all. All threads
// call it and get the token. The search visits 4 digits of the key and 4 of the id, until one token
// is left.
static inline uint2 nth(Tokens tokens, ulong goal, bool by_count, Scale scale, threadgroup Bins *bins, Lane lane) {
    uint2 prefix = uint2(0, 0);
    uint2 known = uint2(0, 0);
    for (uint level = 0; level < 8; level++) {
        const bool of_key = level < 4;
        const uint shift = 24 - 8 * (level & 3);
        for (uint bin = lane.index; bin < N_BINS; bin += lane.n_threads) {
            store_word(&bins->counts[bin], 0);
            store_word(&bins->low[bin], 0);
            store_word(&bins->high[bin], 0);
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint i = lane.index; i < tokens.n; i += lane.n_threads) {
            const uint2 token = token_at(tokens, i);
            if (token.x == 0 || (token.x & known.x) != prefix.x || (token.y & known.y) != prefix.y) continue;
            // A larger key is better, and a lower id.
            const uint bin = of_key ? 255 - ((token.x >> shift) & 255) : (token.y >> shift) & 255;
            atomic_fetch_add_explicit(&bins->counts[bin], 1u, memory_order_relaxed);
            if (!by_count) add_wide(bins, bin, weight_of(token.x, scale));
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        const uint first = BINS_OF_LANE * lane.index;
        ulong part = 0;
        if (lane.index < 32) {
            for (uint i = 0; i < BINS_OF_LANE; i++) part += sum_of(bins, first + i, by_count);
            bins->parts[lane.index] = part;
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
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
        threadgroup_barrier(mem_flags::mem_threadgroup);
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
        const uint2 token = token_at(tokens, i);
        if (token.x != 0 && (token.x & known.x) == prefix.x && (token.y & known.y) == prefix.y) bins->token = token;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    return bins->token;
}

// Returns the sum of the weights down to the token `last`, without tokens whose exponent is below
// `floor`. All threads call it and get the sum.
static inline ulong mass_of(Tokens tokens, uint2 last, float floor, Scale scale, threadgroup Bins *bins, Lane lane) {
    ulong sum = 0;
    for (uint i = lane.index; i < tokens.n; i += lane.n_threads) {
        const uint2 token = token_at(tokens, i);
        const bool after = token.x < last.x || (token.x == last.x && token.y > last.y);
        if (token.x == 0 || after || !(exponent_of(token.x, scale) >= floor)) continue;
        sum += weight_of(token.x, scale);
    }
    if (lane.index == 0) {
        store_word(&bins->low[0], 0);
        store_word(&bins->high[0], 0);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (sum != 0) add_wide(bins, 0, sum);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    sum = sum_of(bins, 0, false);
    // The next search clears the bin.
    threadgroup_barrier(mem_flags::mem_threadgroup);
    return sum;
}

// Returns value * fraction / 2^64, rounded down, for values below 2^63.
static inline ulong part_of(ulong value, ulong fraction) {
    const ulong word = 0xffffffffu;
    const ulong v1 = value >> 32, v0 = value & word, f1 = fraction >> 32, f0 = fraction & word;
    const ulong a = v1 * f0, b = v0 * f1, c = (v0 * f0) >> 32;
    return v1 * f1 + (a >> 32) + (b >> 32) + (((a & word) + (b & word) + c) >> 32);
}

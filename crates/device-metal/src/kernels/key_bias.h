// What keys are stored without: the bias of their projection, turned to the key's position.
// device::key_bias has the formula.
//
// The buffer of a layer, in words of 4 bytes: n_constant, n_pairs, 0, 0; n_constant columns that do
// not turn; n_pairs times two that turn together; (n_kv_heads, n_constant + 2 * n_pairs) biases of
// these columns; (n_pairs, 2, KEY_BLOCK) cosines and sines from the first position of a block on;
// (blocks, n_pairs, 2) those at the first position.
//
// A query's terms: one number of all columns that do not turn, then two of each pair, which meet
// cosine and sine.
#pragma once
#include <metal_stdlib>
using namespace metal;

// Positions of a block.
#define KEY_BLOCK 128

struct KeyBias {
    uint n_constant;
    uint n_pairs;
    device const uint * columns;  // n_constant, then n_pairs times two
    device const float * values;  // as many biases of the head
    device const float * within;
    device const float * starts;

    // Cosine and sine of a pair at a position.
    float2 turn(uint pair, uint position) const {
        const uint start = (position / KEY_BLOCK * n_pairs + pair) * 2, at = pair * 2 * KEY_BLOCK + position % KEY_BLOCK;
        const float cos_s = starts[start], sin_s = starts[start + 1], cos_j = within[at], sin_j = within[at + KEY_BLOCK];
        return float2(cos_s * cos_j - sin_s * sin_j, sin_s * cos_j + cos_s * sin_j);
    }

    uint2 columns_of(uint pair) const { return uint2(columns[n_constant + 2 * pair], columns[n_constant + 2 * pair + 1]); }

    // The two terms of a pair for a query.
    template<class Q> float2 terms_of(uint pair, Q q) const {
        const uint2 c = columns_of(pair);
        const float a = values[n_constant + 2 * pair], b = values[n_constant + 2 * pair + 1], qa = q[c.x], qb = q[c.y];
        return float2(qa * a + qb * b, qb * a - qa * b);
    }

    // The term of all columns that do not turn. One simdgroup calls it.
    template<class Q> float constant_term(Q q, ushort lane) const {
        float sum = 0.0f;
        for (uint i = lane; i < n_constant; i += 32) sum += q[columns[i]] * values[i];
        return simd_sum(sum);
    }

    // Subtract it from a key. One simdgroup calls it, and a barrier before others read the key.
    void subtract(threadgroup float * key, uint position, ushort lane) const {
        for (uint i = lane; i < n_constant; i += 32) key[columns[i]] -= values[i];
        for (uint pair = lane; pair < n_pairs; pair += 32) {
            const float a = values[n_constant + 2 * pair], b = values[n_constant + 2 * pair + 1];
            const float2 t = turn(pair, position);
            const uint2 c = columns_of(pair);
            key[c.x] -= a * t.x - b * t.y;
            key[c.y] -= b * t.x + a * t.y;
        }
    }
};

static inline KeyBias key_bias(device const uint * words, uint n_kv_heads, uint head) {
    KeyBias k;
    k.n_constant = words[0];
    k.n_pairs = words[1];
    const uint n = k.n_constant + 2 * k.n_pairs;
    k.columns = words + 4;
    k.values = (device const float *) (k.columns + n) + head * n;
    k.within = (device const float *) (k.columns + n) + n_kv_heads * n;
    k.starts = k.within + 2 * KEY_BLOCK * k.n_pairs;
    return k;
}

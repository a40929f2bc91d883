// Part of a key that is not stored: the bias of its projection, rotated to the key's position.
// device::key_bias has the formula.
//
// The buffer of a layer, in words of 4 bytes:
//   n_constant, n_pairs, 0, 0
//   (n_constant) columns that RoPE leaves unchanged
//   (n_pairs, 2) pairs of columns that RoPE rotates
//   (n_kv_heads, n_constant + 2 * n_pairs) biases of these columns
//   (n_pairs, 2, KEY_BLOCK) cosines and sines of the position within a block
//   (blocks, n_pairs, 2) cosines and sines of the first position of a block
//
// The terms of a query: one number for all unrotated columns, then two for each pair, which are
// multiplied by the cosine and the sine of the key's position.
#pragma once
#include <metal_stdlib>
using namespace metal;

// Positions of a block.
#define KEY_BLOCK 128

struct KeyBias {
    uint n_constant;
    uint n_pairs;
    device const uint * columns;  // (n_constant), then (n_pairs, 2)
    device const float * values;  // (n_constant + 2 * n_pairs), biases of the head
    device const float * within;  // (n_pairs, 2, KEY_BLOCK)
    device const float * starts;  // (blocks, n_pairs, 2)

    // Cosine and sine of a pair at a position.
    float2 turn(uint pair, uint position) const {
        const uint start = (position / KEY_BLOCK * n_pairs + pair) * 2, at = pair * 2 * KEY_BLOCK + position % KEY_BLOCK;
        const float cos_s = starts[start], sin_s = starts[start + 1], cos_j = within[at], sin_j = within[at + KEY_BLOCK];
        return float2(cos_s * cos_j - sin_s * sin_j, sin_s * cos_j + cos_s * sin_j);
    }

    uint2 columns_of(uint pair) const { return uint2(columns[n_constant + 2 * pair], columns[n_constant + 2 * pair + 1]); }

    // Returns the two terms of a pair for a query.
    template<class Q> float2 terms_of(uint pair, Q q) const {
        const uint2 c = columns_of(pair);
        const float a = values[n_constant + 2 * pair], b = values[n_constant + 2 * pair + 1], qa = q[c.x], qb = q[c.y];
        return float2(qa * a + qb * b, qb * a - qa * b);
    }

    // Returns the term of all unrotated columns. One simdgroup calls it.
    template<class Q> float constant_term(Q q, ushort lane) const {
        float sum = 0.0f;
        for (uint i = lane; i < n_constant; i += 32) sum += q[columns[i]] * values[i];
        return simd_sum(sum);
    }

    // Subtracts the bias from a key. One simdgroup calls it; a barrier must follow before other
    // lanes read the key.
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

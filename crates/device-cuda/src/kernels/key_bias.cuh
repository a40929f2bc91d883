// The bias of the key projection, with RoPE at the key's position. Keys are stored without it.
// device::key_bias has the formula.
//
// The data of a layer, in words of 4 bytes: n_constant, n_pairs, 0, 0; n_constant columns without
// RoPE; n_pairs times two columns that RoPE rotates together; (n_kv_heads, n_constant + 2 *
// n_pairs) biases of these columns; (n_pairs, 2, KEY_BLOCK) cosines and sines of the positions in a
// block, relative to its first one; (blocks, n_pairs, 2) cosine and sine of each block's first
// position.
//
// The terms of a query are one value for all columns without RoPE, then two values for each pair,
// which are multiplied by cosine and sine.
#pragma once
#include "common.cuh"

// Positions of a block.
#define KEY_BLOCK 128
// Most columns of a head for which attention has room for terms.
#define MOST_BIASED_COLUMNS 256

struct KeyBias {
    uint n_constant, n_pairs;
    const uint *columns; // n_constant, then n_pairs times two
    const float *values; // biases of the head, one for each of `columns`
    const float *within, *starts;

    __device__ __forceinline__ KeyBias(const uint *words, uint n_kv_heads, uint head) : n_constant(words[0]), n_pairs(words[1]) {
        const uint n = n_constant + 2 * n_pairs;
        columns = words + 4;
        values = (const float *)(columns + n) + head * n;
        within = (const float *)(columns + n) + n_kv_heads * n;
        starts = within + 2 * KEY_BLOCK * n_pairs;
    }

    // Cosine and sine of a pair at a position.
    __device__ __forceinline__ void turn(uint pair, uint position, float &cosine, float &sine) const {
        const uint start = (position / KEY_BLOCK * n_pairs + pair) * 2, at = pair * 2 * KEY_BLOCK + position % KEY_BLOCK;
        const float cos_s = starts[start], sin_s = starts[start + 1], cos_j = within[at], sin_j = within[at + KEY_BLOCK];
        cosine = cos_s * cos_j - sin_s * sin_j;
        sine = sin_s * cos_j + cos_s * sin_j;
    }

    // Computes the terms of a query: 1 + 2 * n_pairs values. All lanes of a warp call it.
    __device__ __forceinline__ void terms_of(const float *q, uint lane, float *terms) const {
        float sum = 0.0f;
        for (uint i = lane; i < n_constant; i += 32) sum = __fmaf_rn(q[columns[i]], values[i], sum);
        sum = warp_sum(sum);
        if (lane == 0) terms[0] = sum;
        for (uint pair = lane; pair < n_pairs; pair += 32) {
            const uint at = n_constant + 2 * pair;
            const float x = values[at], y = values[at + 1], qx = q[columns[at]], qy = q[columns[at + 1]];
            terms[1 + 2 * pair] = qx * x + qy * y;
            terms[2 + 2 * pair] = qy * x - qx * y;
        }
    }

    // Subtracts the bias from a key. All lanes of a warp call it.
    __device__ __forceinline__ void subtract(float *key, uint position, uint lane) const {
        for (uint i = lane; i < n_constant; i += 32) key[columns[i]] -= values[i];
        for (uint pair = lane; pair < n_pairs; pair += 32) {
            const uint at = n_constant + 2 * pair;
            const float x = values[at], y = values[at + 1];
            float cosine, sine;
            turn(pair, position, cosine, sine);
            key[columns[at]] -= x * cosine - y * sine;
            key[columns[at + 1]] -= y * cosine + x * sine;
        }
    }
};

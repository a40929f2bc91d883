// Scores of 32 neighbouring positions with up to 8 query heads, by one simdgroup.
//
// Four lanes share four neighbouring keys: each takes every fourth vector of four columns, so that 4 lanes read 32 or 64
// neighbouring bytes and q is read from threadgroup memory once for four keys. Three exchanges a head then leave each lane with
// the score of the position that is its own.
#pragma once
#include "attention/vectors.h"

// `sum` and the product of two vectors, with four roundings.
static inline float fma_dot(float4 a, float4 b, float sum) {
    return fma(a.w, b.w, fma(a.z, b.z, fma(a.y, b.y, fma(a.x, b.x, sum))));
}

struct TileScores {
    float s[8]; // of the lane's own position, by head
};

// `q` (ATTENTION_HEADS, HEAD_FOURS), scaled. Positions `start` to `start + 31` of which first to last are read (those outside get
// the score of one inside); `start` is a multiple of 32.
template<class K>
static inline TileScores tile_scores(threadgroup const float4 * q, HeadPages pages, uint start, uint first, uint last,
                                     ushort lane) {
    // Sixteen neighbours lie in one page.
    const uint half_start = start + lane / 16 * 16;
    uint low = max(half_start, first), high = min(half_start + 15, last);
    if (low > high) {
        low = min(max(half_start, first), last);
        high = low;
    }
    device const uchar * page = pages.key(low) - (low & pages.mask) * pages.vector;
    device const uchar * keys[4];
    for (uint c = 0; c < 4; c++) {
        const uint position = clamp(start + lane / 4 * 4 + c, low, high);
        keys[c] = page + (position & pages.mask) * pages.vector;
    }
    float s[8][4];
    for (uint h = 0; h < ATTENTION_HEADS; h++) {
        for (uint c = 0; c < 4; c++) s[h][c] = 0.0f;
    }
    for (uint i = lane % 4; i < HEAD_FOURS; i += 4) {
        float4 k[4];
        #pragma clang loop unroll(full)
        for (uint c = 0; c < 4; c++) k[c] = K::four(keys[c], i);
        for (uint h = 0; h < ATTENTION_HEADS; h++) {
            const float4 qh = q[h * HEAD_FOURS + i];
            #pragma clang loop unroll(full)
            for (uint c = 0; c < 4; c++) s[h][c] = fma_dot(qh, k[c], s[h][c]);
        }
    }
    TileScores scores;
    const bool odd = lane % 2 == 1, upper = lane % 4 >= 2;
    for (uint h = 0; h < ATTENTION_HEADS; h++) {
        float a = odd ? s[h][1] : s[h][0], b = odd ? s[h][3] : s[h][2];
        a += simd_shuffle_xor(odd ? s[h][0] : s[h][1], 1);
        b += simd_shuffle_xor(odd ? s[h][2] : s[h][3], 1);
        const float kept = upper ? b : a, sent = upper ? a : b;
        scores.s[h] = kept + simd_shuffle_xor(sent, 2);
    }
    return scores;
}

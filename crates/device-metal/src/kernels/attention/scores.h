// Scores of 32 neighbouring positions with up to 8 query heads, by one simdgroup.
//
// ATTENTION_KEY_LANES lanes share as many neighbouring keys: of 4, each takes every fourth vector
// of four columns, so that they read 32 or 64 neighbouring bytes, and q is read from threadgroup
// memory once for four keys. Three exchanges a head then leave each lane with the score of the
// position that is its own. 8 lanes read twice as many neighbours and q half as often, for seven
// exchanges and twice the registers; 16 again twice and half, for fifteen.
#pragma once
#include "attention/vectors.h"

// `sum` and the product of two vectors, with four roundings.
static inline float fma_dot(float4 a, float4 b, float sum) {
    return fma(a.w, b.w, fma(a.z, b.z, fma(a.y, b.y, fma(a.x, b.x, sum))));
}

struct TileScores {
    float s[8]; // of the lane's own position, by head
};

// `q` (ATTENTION_HEADS, HEAD_FOURS), scaled. Positions `start` to `start + 31` of which first to
// last are read (those outside get the score of one inside); `start` is a multiple of 32.
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
    device const uchar * keys[16];
    #pragma clang loop unroll(full)
    for (uint c = 0; c < ATTENTION_KEY_LANES; c++) {
        const uint position = clamp(start + lane / ATTENTION_KEY_LANES * ATTENTION_KEY_LANES + c, low, high);
        keys[c] = page + (position & pages.mask) * pages.vector;
    }
    float s[8][16];
    #pragma clang loop unroll(full)
    for (uint h = 0; h < ATTENTION_HEADS; h++) {
        #pragma clang loop unroll(full)
        for (uint c = 0; c < ATTENTION_KEY_LANES; c++) s[h][c] = 0.0f;
    }
    for (uint i = lane % ATTENTION_KEY_LANES; i < HEAD_FOURS; i += ATTENTION_KEY_LANES) {
        float4 k[16];
        #pragma clang loop unroll(full)
        for (uint c = 0; c < ATTENTION_KEY_LANES; c++) k[c] = K::four(keys[c], i);
        #pragma clang loop unroll(full)
        for (uint h = 0; h < ATTENTION_HEADS; h++) {
            const float4 qh = q[h * HEAD_FOURS + i];
            #pragma clang loop unroll(full)
            for (uint c = 0; c < ATTENTION_KEY_LANES; c++) s[h][c] = fma_dot(qh, k[c], s[h][c]);
        }
    }
    TileScores scores;
    #pragma clang loop unroll(full)
    for (uint h = 0; h < ATTENTION_HEADS; h++) {
        // Of the keys whose sums a lane has, it keeps those of its own bit and sends the others.
        // Bounds are literals, so that loops are unrolled from the inside out and the sums stay in
        // registers.
        #pragma clang loop unroll(full)
        for (uint level = 0; level < 4; level++) {
            const uint bit = 1u << level, n_pairs = ATTENTION_KEY_LANES / bit / 2;
            const bool odd = (lane & bit) != 0;
            #pragma clang loop unroll(full)
            for (uint c = 0; c < 8; c++) {
                if (c >= n_pairs) continue;
                const float kept = odd ? s[h][2 * c + 1] : s[h][2 * c], sent = odd ? s[h][2 * c] : s[h][2 * c + 1];
                s[h][c] = kept + simd_shuffle_xor(sent, ushort(bit));
            }
        }
        scores.s[h] = s[h][0];
    }
    return scores;
}

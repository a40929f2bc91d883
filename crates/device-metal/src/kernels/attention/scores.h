// Scores of 32 neighbouring positions with up to 8 query heads, by one simdgroup.
//
// Groups of ATTENTION_KEY_LANES lanes share the same number of neighbouring keys. With 4 lanes,
// each lane loads every fourth vector of four columns, so that together they read 32 neighbouring
// bytes (F16) or 64 (F32). q is then read from threadgroup memory once for four keys. Three
// exchanges a head leave each lane with the score of its own position. 8 lanes read twice as many
// neighbouring bytes, and q half as often, for seven exchanges and twice the registers. 16 lanes
// double and halve that again, for fifteen exchanges.
#pragma once
#include "attention/vectors.h"

// Returns `sum` plus the dot product of two vectors, with four roundings.
static inline float fma_dot(float4 a, float4 b, float sum) {
    return fma(a.w, b.w, fma(a.z, b.z, fma(a.y, b.y, fma(a.x, b.x, sum))));
}

struct TileScores {
    float s[8]; // scores of the lane's own position, by head
};

// Returns the scores of positions `start` to `start + 31` with `q` (ATTENTION_HEADS, HEAD_FOURS),
// which is scaled; `start` is a multiple of 32. Only keys of positions first to last are read.
// Other positions get the score of one of these.
template<class K>
static inline TileScores tile_scores(threadgroup const float4 * q, HeadPages pages, uint start, uint first, uint last,
                                     ushort lane) {
    // Sixteen neighbouring positions are in one page.
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
        // A lane keeps the sums of the keys whose bit equals its own, and sends the others. Bounds
        // are literals, so that loops are unrolled from the inside out and the sums stay in
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

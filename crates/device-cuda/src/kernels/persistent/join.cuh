// Warp 8, for any number of rows: joins what several blocks have, partial attentions and the best tokens.
#pragma once
#include "persistent/block.cuh"

template <int D, int H, int ROWS> struct PersistentJoin : PersistentBlock<D, H, ROWS> {
    typedef PersistentBlock<D, H, ROWS> Block;
    INLINE explicit PersistentJoin(const Block &block) : Block(block) {}
    using Block::a;
    using Block::block;
    using Block::kv_head;
    using Block::lane;
    using Block::n_blocks;
    using Block::n_splits;
    using Block::part;
    using Block::position;
    using Block::split;
    static constexpr u32 PARTIAL_BYTES = Block::PARTIAL_BYTES;

    // 0: what follows the wait for other warps is done once before, for nothing, so that its instructions are in the caches when it
    // matters: a layer is more code than the nearest cache holds, and this warp has time. From n_rows, which is less than 16, so that the
    // compiler does not see how often: it would make two copies of the code.
    INLINE u32 rehearsal() const { return a.n_rows >> 4; }
    // Joins the partial attentions of the block's KV head; the block has every n_splits-th chunk of 8 values of its heads. Four lanes
    // have two chunks of one partial, so that eight partials are in flight, and eight more in other registers; and two more chunks.
    INLINE void merge(u32 tag) {
        if (!this->has_head()) return;
        constexpr u32 STRIDE = PARTIAL_BYTES, CHUNKS = H * D / 8;
        const u32 n_partials = min(n_splits(), position / PERSISTENT_TILE + 1);
        const u8 *from = part(EXCHANGE_PARTIALS) + (u64)(block - split) * STRIDE;
        const u32 half = lane & 1, index = lane >> 2;
        for (u32 c0 = split + ((lane >> 1) & 1) * n_splits(), first = split; first < CHUNKS; c0 += 4 * n_splits(), first += 4 * n_splits()) {
            uint4 v[2][2] = {};
            uint2 ml[2][2] = {};
            bool there[2][2];
#pragma unroll
            for (int r = 0; r < 2; r++)
#pragma unroll
                for (int i = 0; i < 2; i++) there[r][i] = c0 + 2 * r * n_splits() < CHUNKS && index + 8 * i < n_partials;
            for (u32 turn = rehearsal(); turn < 2; turn++) {
                const bool real = turn == 1;
                bool all = true;
                if (real) do {
                    all = true;
#pragma unroll
                    for (int r = 0; r < 2; r++)
#pragma unroll
                        for (int i = 0; i < 2; i++) {
                            if (!there[r][i]) continue;
                            const u32 c = c0 + 2 * r * n_splits();
                            const u8 *partial = from + (index + 8 * i) * STRIDE;
                            v[r][i] = load_relaxed_4(partial + c * 32 + half * 16);
                            ml[r][i] = load_relaxed_2(partial + (H * D + 2 * (c * 8 / D)) * 4);
                        }
#pragma unroll
                    for (int r = 0; r < 2; r++)
#pragma unroll
                        for (int i = 0; i < 2; i++)
                            if (there[r][i])
                                all = all && ((((v[r][i].x ^ tag) | (v[r][i].y ^ tag) | (v[r][i].z ^ tag) | (v[r][i].w ^ tag) | (ml[r][i].x ^ tag) | (ml[r][i].y ^ tag)) & 15) == 0);
                } while (!__all_sync(~0u, all));
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    if (first + 2 * r * n_splits() >= CHUNKS) break;
                    float high = -1e30f;
#pragma unroll
                    for (int i = 0; i < 2; i++)
                        if (there[r][i]) high = fmaxf(high, untag_word(ml[r][i].x));
#pragma unroll
                    for (int m = 4; m < 32; m *= 2) high = fmaxf(high, __shfl_xor_sync(~0u, high, m));
                    float total = 0, f[4] = {0, 0, 0, 0};
#pragma unroll
                    for (int i = 0; i < 2; i++) {
                        if (!there[r][i]) continue;
                        const float factor = exp2_fast(untag_word(ml[r][i].x) - high);
                        total += factor * untag_word(ml[r][i].y);
                        f[0] += factor * untag_word(v[r][i].x), f[1] += factor * untag_word(v[r][i].y);
                        f[2] += factor * untag_word(v[r][i].z), f[3] += factor * untag_word(v[r][i].w);
                    }
#pragma unroll
                    for (int m = 4; m < 32; m *= 2) {
                        total += __shfl_xor_sync(~0u, total, m);
#pragma unroll
                        for (int e = 0; e < 4; e++) f[e] += __shfl_xor_sync(~0u, f[e], m);
                    }
                    const float inverse = reciprocal_fast(total);
#pragma unroll
                    for (int e = 0; e < 4; e++) f[e] *= inverse;
                    const uint4 chunk = make_chunk_of_2(f, 0.0f, tag);
                    const u32 c = c0 + 2 * r * n_splits();
                    if (real && half == 0 && index == 0 && c < CHUNKS) store_relaxed_4(this->chunk(EXCHANGE_ATTENDED, kv_head * CHUNKS + c, this->row), chunk);
                }
            }
        }
    }
    // A logit and its token in order: 32 bits of ordered logit, 18 of row, of equals the lowest row first.
    static INLINE u64 order_of(float logit, u32 row) {
        u32 ordered = __float_as_uint(logit);
        ordered = (ordered & 0x80000000u) ? ~ordered : ordered | 0x80000000u;
        return (u64)ordered << 18 | (262143 - row);
    }
    // The largest in lanes that differ in bits from FIRST on.
    template <int FIRST> static INLINE u64 largest(u64 key) {
#pragma unroll
        for (int m = FIRST; m < 32; m *= 2) {
            const u64 other = __shfl_xor_sync(~0u, key, m);
            if (other > key) key = other;
        }
        return key;
    }
    // The block's best of a row of the step, with 14 bits that say that it is there.
    INLINE void give_best(u64 key, u32 of) const { store_relaxed_64(part(EXCHANGE_BEST) + (of * 256 + block) * 8, key << 14 | 1); }
    // The best of all blocks. NaN and -infinity are never chosen. The last thing of a launch: then all blocks have read the turn.
    INLINE void choose(u32 of) {
        u64 v[5];
        bool all;
        do {
            all = true;
#pragma unroll
            for (int i = 0; i < 5; i++) {
                v[i] = 0;
                if (i * 32 + lane < n_blocks) {
                    v[i] = load_relaxed_64(part(EXCHANGE_BEST) + (of * 256 + i * 32 + lane) * 8);
                    all = all && (v[i] & 16383) == 1;
                }
            }
        } while (!__all_sync(~0u, all));
#pragma unroll
        for (int i = 1; i < 5; i++)
            if (v[i] > v[0]) v[0] = v[i];
        const u64 winner = largest<1>(v[0]) >> 14;
        if (lane != 0) return;
        if (block == 0) *this->turn_word() = this->turn ^ 1;
        if (!a.choice || a.choice[of].how != CHOOSE_BEST) return;
        // 0x007fffff is -infinity in this order.
        const u32 token = (u32)(winner >> 18) > 0x007fffffu ? 262143 - (u32)(winner & 262143) : NO_TOKEN;
        a.chosen[a.choice[of].chosen] = token;
        a.host_chosen[a.choice[of].chosen] = token;
    }
};

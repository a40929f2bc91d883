// Warp 8: the best token of all blocks, for any number of rows.
#pragma once
#include "persistent/block.cuh"

template <int D, int H, int ROWS> struct PersistentBest : PersistentBlock<D, H, ROWS> {
    typedef PersistentBlock<D, H, ROWS> Block;
    INLINE explicit PersistentBest(const Block &block) : Block(block) {}
    using Block::a;
    using Block::block;
    using Block::lane;
    using Block::n_blocks;
    using Block::part;

    // 0 if warp 8 rehearses: it runs the code after a wait once before it waits, without effect.
    // The instructions are then in the caches when they matter. A layer is more code than the
    // nearest cache holds. The value comes from n_rows, which is less than 16. So the compiler does
    // not know it and makes no second copy of the code.
    INLINE u32 rehearsal() const { return a.n_rows >> 4; }
    // Bits of the row, and below them of the step of the launch, in the words that blocks exchange.
    // The rest is the logit.
    static constexpr int ROW_BITS = 19, STEP_BITS = 13;
    static_assert(1 << ROW_BITS == PERSISTENT_MAX_VOCAB && ROW_BITS + STEP_BITS == 32, "a word of 64 bits");
    // A logit and its token as a number in ascending order; the lowest row is the largest of equal
    // logits.
    static INLINE u64 order_of(float logit, u32 row) {
        u32 ordered = __float_as_uint(logit);
        ordered = (ordered & 0x80000000u) ? ~ordered : ordered | 0x80000000u;
        return (u64)ordered << ROW_BITS | (PERSISTENT_MAX_VOCAB - 1 - row);
    }
    // The largest key of the lanes that differ in bits from FIRST on.
    template <int FIRST> static INLINE u64 largest(u64 key) {
#pragma unroll
        for (int m = FIRST; m < 32; m *= 2) {
            const u64 other = __shfl_xor_sync(~0u, key, m);
            if (other > key) key = other;
        }
        return key;
    }
    // Publishes the block's best token of a row of the step, with the step of the launch.
    INLINE void give_best(u64 key, u32 of) const { store_relaxed_64(part(EXCHANGE_BEST) + (of * 256 + block) * 8, key << STEP_BITS | (this->step_of_launch + 1)); }
    // The best token of all blocks for a row. The of-th block stores it for the host and for later
    // steps. NaN and -infinity are never chosen. In the last step of a launch this comes last, when
    // all blocks have read the turn.
    INLINE u32 choose(u32 of) {
        u64 v[5];
        bool all;
        do {
            all = true;
#pragma unroll
            for (int i = 0; i < 5; i++) {
                v[i] = 0;
                if (i * 32 + lane < n_blocks) {
                    v[i] = load_relaxed_64(part(EXCHANGE_BEST) + (of * 256 + i * 32 + lane) * 8);
                    all = all && (v[i] & ((1 << STEP_BITS) - 1)) == this->step_of_launch + 1;
                }
            }
        } while (!__all_sync(~0u, all));
#pragma unroll
        for (int i = 1; i < 5; i++)
            if (v[i] > v[0]) v[0] = v[i];
        const u64 winner = largest<1>(v[0]) >> STEP_BITS;
        // -infinity is 0x007fffff in this order.
        const u32 token = (u32)(winner >> ROW_BITS) > 0x007fffffu ? PERSISTENT_MAX_VOCAB - 1 - (u32)(winner & (PERSISTENT_MAX_VOCAB - 1)) : NO_TOKEN;
        if (lane != 0 || block != of) return token;
        if (block == 0 && this->is_last()) *this->turn_word() = this->turn ^ 1;
        const Choice *choice = this->of_this_step(a.choice);
        if (a.choice && choice[of].how == CHOOSE_BEST) a.chosen[choice[of].chosen] = a.host_chosen[choice[of].chosen] = token;
        return token;
    }
};

// Warp 9: streams weights, and keys and values of earlier positions, into the ring. For one row it
// also chooses the experts whose weights come next.
#pragma once
#include "persistent/mixture_rows.cuh"

// VECTOR is the bytes of a vector of keys or values.
template <class Block, u32 VECTOR, bool MIXTURE> struct PersistentStream : Block {
    INLINE explicit PersistentStream(const Block &block) : Block(block) {}
    using Block::a;
    using Block::block;
    using Block::empty;
    using Block::full;
    using Block::lane;
    using Block::n_blocks;
    using Block::next_slot;
    using Block::parity;
    using Block::part;
    using Block::ring;
    using Block::s;
    using Block::slot;

    static constexpr u32 TILE_BYTES = PERSISTENT_TILE * VECTOR, TILES_A_SLOT = tiles_a_slot(VECTOR);
    static constexpr u32 TOGETHER = 2; // slots of tiles that lanes fill at the same time (NOTES.md)
    static_assert(TILE_BYTES % 16 == 0, "what a copy takes");

    template <class P> INLINE void choose(const P &p, u32 tag) {
        PersistentChoice &choice = choice_of(*this);
        auto scale = [&] {
            wait_scale();
            return choice.scale;
        };
        if (a.n_experts <= 128) choose_experts<1>(a, p, part(EXCHANGE_SCORES), tag, lane, scale, choice.id, choice.weight);
        else choose_experts<2>(a, p, part(EXCHANGE_SCORES), tag, lane, scale, choice.id, choice.weight);
        __syncwarp();
        arrive_choice();
    }
    // The j-th expert that is multiplied.
    INLINE u32 chosen(u32 j) const {
        if constexpr (Block::SEVERAL) return choice_of(*this).experts[j];
        else return choice_of(*this).id[j];
    }

    // Fills the ring in the order of use. Weights of experts come after their choice. Tiles that
    // the block attends to come after the weights of q, k and v, keys before values. All lanes take
    // part; one lane copies weights.
    //
    // `wait` waits until the n-th piece may be loaded into its slot. At most in_flight pieces are
    // loaded at once, unless refills wait for gates. `send_tiles` gives each lane a slot to fill:
    // one lane would take longer from a tile's number to its copies than memory takes for the tile
    // (NOTES.md). Its `from` has the addresses of keys for 32 slots, one slot a lane. Positions of
    // the last tile from the step's own on are not used.
    INLINE void stream() {
        const u64 policy = evict_first_policy();
        u32 n = 0, epoch = 0;
        auto wait = [&](u32 n, u32 slot, u32 parity) {
            if (n >= a.n_slots) mbarrier_wait(empty + 8 * slot, parity ^ 1);
            if (!MIXTURE && s.gates) {
                while (n >= a.n_slots && (int)(*(volatile u32 *)&s.credit + a.n_slots - n) <= 0) {}
            } else if (n >= a.in_flight) { // words of other blocks would queue behind more
                const bool same_turn = slot >= a.in_flight;
                mbarrier_wait(full + 8 * (same_turn ? slot - a.in_flight : slot + a.n_slots - a.in_flight), same_turn ? parity : parity ^ 1);
            }
        };
        auto send = [&](const u8 *from, u32 left, u32 each) {
            while (left > 0) {
                const u32 bytes = min(left, each);
                if (lane == 0) {
                    wait(n, slot, parity);
                    mbarrier_expect(full + 8 * slot, bytes);
                    bulk_copy(shared_address(ring + slot * a.slot_bytes), from, bytes, full + 8 * slot, policy);
                }
                n++, next_slot();
                from += bytes, left -= bytes;
            }
            __syncwarp();
        };
        auto send_tiles = [&](const auto &p) {
            if (!this->streams(TILES_A_SLOT)) return;
            if (Block::CHAINS) wait_written();
            const PersistentTiles tiles = this->tiles(p);
            const u32 to_values = a.n_kv_heads * a.page_len * VECTOR;
            const u8 *from[TILES_A_SLOT];
            for (u32 k = tiles.begin, known = 0; k < tiles.end;) {
                if (known == 0) {
                    known = 32;
#pragma unroll
                    for (u32 j = 0; j < TILES_A_SLOT; j++) {
                        const u32 tile = min(k + lane * TILES_A_SLOT + j, tiles.end - 1), position = (this->split + tile * this->stride()) * PERSISTENT_TILE;
                        from[j] = this->template vector_of<VECTOR>(p, this->page_of(p, position), position, this->kv_head);
                    }
                }
                const u32 slots = min(min(min(TOGETHER, a.in_flight), known), (tiles.end - k + TILES_A_SLOT - 1) / TILES_A_SLOT), lane_0 = 32 - known;
                if (lane - lane_0 < slots) {
                    const u32 mine = lane - lane_0, at = slot + mine, some = min(TILES_A_SLOT, tiles.end - k - mine * TILES_A_SLOT);
                    const bool turned = at >= a.n_slots;
                    const u32 to = turned ? at - a.n_slots : at, barrier = full + 8 * to;
                    wait(n + mine, to, turned ? parity ^ 1 : parity);
                    mbarrier_expect(barrier, some * 2 * TILE_BYTES);
                    const u32 place = shared_address(ring + to * a.slot_bytes);
#pragma unroll
                    for (u32 j = 0; j < TILES_A_SLOT; j++) {
                        if (j >= some) break;
                        bulk_copy(place + 2 * j * TILE_BYTES, from[j], TILE_BYTES, barrier);
                        bulk_copy(place + (2 * j + 1) * TILE_BYTES, from[j] + to_values, TILE_BYTES, barrier);
                    }
                }
                __syncwarp();
                n += slots, known -= slots, k += slots * TILES_A_SLOT;
                this->skip_slots(slots);
            }
        };
        do {
            u32 i = 0;
            this->each_phase([&](const auto &p) {
                i++;
                const u32 unit = unit_bytes<Block::SEVERAL>(p.codec), step = step_bytes<Block::SEVERAL>(p.codec, p.warps);
                if (p.kind == PERSISTENT_QKV && !(p.qkv_part & PERSISTENT_CONTINUES)) epoch++;
                if constexpr (MIXTURE) {
                    if (p.kind == PERSISTENT_ROUTE) {
                        for (u32 e = 0; e < p.own_groups; e++)
                            send(p.weights + (u64)(p.own_first + e) * p.k_quads * PERSISTENT_ROUTER_STEP, p.k_quads * PERSISTENT_ROUTER_STEP, a.slot_bytes / PERSISTENT_ROUTER_STEP * PERSISTENT_ROUTER_STEP);
                        if constexpr (Block::SEVERAL) wait_row_choice();
                        else if (i < a.stop_phase) choose(p, tag_of(epoch));
                        return;
                    }
                    if (p.kind == PERSISTENT_EXPERTS) {
                        const u32 of_expert = p.groups / a.n_used, bytes = PERSISTENT_BUNDLE * p.k_quads * step;
                        u32 first = p.own_first, end = p.own_first + p.own_groups;
                        if constexpr (Block::SEVERAL) {
                            const u32 bundles = choice_of(*this).n * of_expert;
                            first = this->first_group(bundles, block), end = this->first_group(bundles, block + 1);
                        }
                        for (u32 b = first; b < end; b++) {
                            const u32 j = b / of_expert;
                            send(p.weights + ((u64)chosen(j) * of_expert + (b - j * of_expert)) * bytes, bytes, whole_steps<Block::SEVERAL>(a.slot_bytes, p.codec, p.warps) * step);
                        }
                        return;
                    }
                    if (p.kind == PERSISTENT_ADD_EXPERTS) {
                        const u32 bytes = (a.expert_ffn + 127) / 128 * unit; // bytes of a group
                        u32 n = a.n_used, each = a.slot_bytes / bytes;
                        if constexpr (Block::SEVERAL) n = choice_of(*this).n, each = down_groups_a_slot(a.slot_bytes, bytes);
                        for (u32 j = 0; j < n; j++) send(p.weights + ((u64)chosen(j) * p.groups + p.own_first) * bytes, p.own_groups * bytes, each * bytes);
                        return;
                    }
                }
                send(p.weights + (u64)p.own_first * p.k_quads * step, p.own_groups * p.k_quads * step, whole_steps<Block::SEVERAL>(a.slot_bytes, p.codec, p.warps) * step);
                send_tiles(p);
            });
        } while (this->next_step());
    }
    // Waits until keys and values of the launch's earlier steps are in their pages, where copies
    // read them.
    INLINE void wait_written() const {
        while (*(volatile u32 *)&s.written < this->step_of_launch) {}
        __threadfence_block();
        asm volatile("fence.proxy.async.global;" ::: "memory");
    }
    // Clears this block's part of the exchange of the next launch.
    INLINE void clear() {
        constexpr u32 BYTES = Block::Shared::EXCHANGE;
        uint4 *other = (uint4 *)(a.exchange + (this->turn ^ 1) * BYTES);
        for (u32 i = block * 32 + lane; i < BYTES / 16; i += n_blocks * 32) other[i] = make_uint4(0, 0, 0, 0);
    }
};

// The state that all warps of a block share: shared memory, the table, positions in the ring, the
// exchange of this launch.
#pragma once
#include "persistent/arguments.h"
#include "persistent/barriers.cuh"
#include "persistent/exchange.cuh"
#include "persistent/units.cuh"
#include "vector_bytes.h"

// A fixed kernel (`persistent/fixed.rs` prints its text) makes numbers of the table constants.
// Before this header it declares PersistentTable and a type for each phase of a layer, whose
// constants hide the fields of the same names. PERSISTENT_FIXED lists these types.
//
// A fixed kernel may define PERSISTENT_EMBEDDING, the type that reads the embedding. A launch can
// then compute several steps of one row, one after the other.
#ifndef PERSISTENT_FIXED
typedef PersistentArguments PersistentTable;
#define PERSISTENT_IS_FIXED false
#define PERSISTENT_SLOT 0u
#else
#define PERSISTENT_IS_FIXED true
#define PERSISTENT_SLOT PersistentTable::slot_bytes
#endif

// Shared memory after the ring, for any number of rows.
template <int D, int H> struct PersistentCommon {
    // cosines and sines of the row's position: no rotation, frequencies1, frequencies2
    float2 rotary[3][D / 2];
    float queries[H * D];
    float outputs[8][H * D]; // by warp
    float most[H][8], total[H][8];
    u64 full[PERSISTENT_MAX_SLOTS], empty[PERSISTENT_MAX_SLOTS];
    u32 credit;              // pieces of the ring whose phases have ended
    u32 gates;               // 1: refills wait for gates
    u32 written;             // steps of the launch whose keys and values are in their pages
    u32 padding;
};
// Shared memory for one row: PERSISTENT_SHARED bytes, then the input, then the phases.
template <int D, int H, int ROWS> struct PersistentShared : PersistentCommon<D, H> {
    // sums of a pass by parity; during attention, the step's own keys and values
    float partial[2][8][PERSISTENT_PASS * 8];
    InputBlock input[1];                      // 8 warps x most_quads x 4
    static constexpr u32 BEFORE_INPUT = PERSISTENT_SHARED(D, H), INPUT = PERSISTENT_INPUT, EXCHANGE = PERSISTENT_EXCHANGE;
};
// Words from one group (8 rows of weights by 8 rows of the step) to the next. With 72 of them,
// reads of four groups at once have no bank conflicts.
#define PERSISTENT_SUMS 72
// Shared memory for several rows: PERSISTENT_SHARED_ROWS bytes, then the input, then the phases.
template <int D, int H> struct PersistentShared<D, H, PERSISTENT_MOST_ROWS> : PersistentCommon<D, H> {
    // (groups, rows of weights, rows of the step); otherwise as for one row
    float partial[2][8][PERSISTENT_PASS * PERSISTENT_SUMS];
    float squares[8][PERSISTENT_MOST_ROWS];                 // squares of the input, by warp
    // 8 warps x most_quads x halves of 128 lanes; then a factor for each warp, quad and row
    uint4 input[1];
    static constexpr u32 BEFORE_INPUT = PERSISTENT_SHARED_ROWS(D, H), INPUT = PERSISTENT_ROWS_INPUT, EXCHANGE = PERSISTENT_ROWS_EXCHANGE;
};

// Names of the pointers of a phase that have two uses, by kind of phase. P is a phase, or one with
// constants.
// QKV
template <class P> INLINE const float *sinks(const P &p) { return p.norm_or_sinks; }
template <class P> INLINE const float *q_norm(const P &p) { return p.q_norm_or_second_bias; }
template <class P> INLINE const float *k_norm(const P &p) { return p.k_norm_or_factors; }
// ROUTE
template <class P> INLINE const float *choice_bias(const P &p) { return p.q_norm_or_second_bias; }
template <class P> INLINE const float *expert_factors(const P &p) { return p.k_norm_or_factors; }
// EXPERTS
template <class P> INLINE const float *up_bias(const P &p) { return p.q_norm_or_second_bias; }

enum PersistentPages { PAGES_F16, PAGES_Q8_0, PAGES_FP8 };
template <PersistentPages PAGES, int D> INLINE constexpr u32 persistent_vector() {
    return PAGES == PAGES_FP8 ? vector_bytes_fp8(D) : PAGES == PAGES_Q8_0 ? vector_bytes_q8_0(D) : vector_bytes_f16(D);
}
// Tiles that a slot of the ring holds, for keys and values of `vector` bytes: a power of two. If
// one tile is larger than the least slot, the host makes slots large enough.
INLINE constexpr u32 tiles_a_slot(u32 vector) {
    const u32 fit = PERSISTENT_LEAST_SLOT / (2 * PERSISTENT_TILE * vector);
    return fit >= 4 ? 4 : fit >= 2 ? 2 : 1;
}

// Tiles that a block attends to in a layer, as numbers among the block's own tiles: begin to end -
// 1.
struct PersistentTiles {
    u32 begin, end;
    INLINE u32 slots(u32 each) const { return (end - begin + each - 1) / each; }
};

// ROWS is 1 or PERSISTENT_MOST_ROWS.
template <int D, int H, int ROWS = 1> struct PersistentBlock {
    typedef PersistentShared<D, H, ROWS> Shared;
    static_assert(sizeof(Shared) - sizeof(Shared::input) == Shared::BEFORE_INPUT, "what the host asks for");
    static_assert(PERSISTENT_INPUT == 32 * sizeof(InputBlock), "what the host asks for");
    static_assert(sizeof(Shared::partial) >= 2 * ROWS * 4 * D, "room for own_vector");
    static constexpr bool SEVERAL = ROWS > 1;
    // Positions up to which one block attends to a KV head of a row alone, so that nothing has to
    // be merged: one or two tiles for each warp (NOTES.md). Heads of 256 columns have none, because
    // their tiles come through the ring: registers have no room for them.
    static constexpr u32 ALONE = D == 64 ? 256 : D == 128 ? 128 : 0;
    // Splits that share up to MANY positions. More of them would wait longer for each other than
    // they save (NOTES.md).
    static constexpr u32 FEW = 16, MANY = 4096;
    static_assert(ALONE % PERSISTENT_TILE == 0 && MANY % PERSISTENT_TILE == 0, "so steps of one launch agree");
    static constexpr u32 PARTIAL_BYTES = (H * D + 2 * H + 3) / 4 * 16;
    const PersistentTable &a;
    u8 *ring;
    Shared &s;
    const PersistentPhase *phases; // in shared memory
    u8 *exchange;
    u32 full, empty, slot = 0, parity = 0, block, n_blocks, pass_parity = 0, turn, position, step_of_launch = 0;
    // The row of the step, the KV head and the split that the block attends to.
    u32 row = 0, kv_head, split, splits_of_row = 0;
    // sequence of the row; rows of that sequence before it in the step
    u32 sequence = 0, n_before = 0;
    bool alone; // true if the first split has all positions
    float inverse_hidden;
    int warp, lane;

    INLINE PersistentBlock(const PersistentTable &a, u8 *shared)
        : a(a), ring(shared), s(*(Shared *)(shared + a.n_slots * a.slot_bytes)), block(blockIdx.x), n_blocks(gridDim.x), warp(threadIdx.x >> 5),
          lane(threadIdx.x & 31) {
        full = shared_address(s.full), empty = shared_address(s.empty);
        if constexpr (SEVERAL) {
            splits_of_row = min((u32)PERSISTENT_MAX_SPLITS, n_blocks / (a.n_kv_heads * a.n_rows));
            row = block / (splits_of_row * a.n_kv_heads), kv_head = block / splits_of_row % a.n_kv_heads, split = block % splits_of_row;
            position = 0;
            if (row < a.n_rows) position = a.position[row], sequence = a.row_spans[row], n_before = row - a.spans[sequence].first_row;
        } else {
            kv_head = block / a.n_splits, split = block % a.n_splits;
            position = *a.position;
        }
        alone = position < ALONE;
        turn = load_relaxed_1(turn_word()) & 1, exchange = a.exchange + turn * Shared::EXCHANGE;
        inverse_hidden = 1.0f / (float)a.hidden;
    }
#ifdef PERSISTENT_EMBEDDING
    static constexpr bool CHAINS = !SEVERAL;
#else
    static constexpr bool CHAINS = false;
#endif
    INLINE bool is_last() const { return !CHAINS || step_of_launch == a.more_steps; }
    // Begins the next step of the launch and returns false if there is none. All warps call it.
    // Epochs, the ring and the order of barriers continue. The block has equally many tiles in all
    // steps of a launch.
    INLINE bool next_step() {
        if (is_last()) return false;
        step_of_launch++, position++;
        // The `asm` makes these values unknown to the compiler. It would keep what it derives from
        // them in registers for the whole launch (NOTES.md).
        asm volatile("" : "+r"(lane), "+r"(warp), "+r"(block), "+r"(n_blocks), "+l"(exchange), "+l"(ring), "+r"(full), "+r"(empty), "+r"(split), "+r"(kv_head));
        return true;
    }
    // Address of this step's numbers, from the address of the first step's numbers.
    template <class T> INLINE const T *of_this_step(const T *of_first) const {
        return CHAINS ? (const T *)((const u8 *)of_first + step_of_launch * a.step_bytes) : of_first;
    }
    // The word that selects the exchange of a launch. The launch clears the other exchange.
    INLINE u32 *turn_word() const { return (u32 *)(a.exchange + 2 * Shared::EXCHANGE); }
    // Copies the table into shared memory and fills in the block's own fields. All threads call it
    // and then wait. A slot of the ring holds `tiles_a_slot` tiles of keys and values.
    INLINE void prepare(u32 tiles_a_slot) {
        PersistentPhase *table = (PersistentPhase *)((u8 *)s.input + Shared::INPUT * a.most_quads);
        phases = table;
        for (u32 i = threadIdx.x; i < a.n_phases; i += blockDim.x) {
            PersistentPhase p = a.phases[i];
            const u32 share = p.qkv_part & PERSISTENT_REVERSED ? n_blocks - 1 - block : block;
            p.own_first = first_group(p, share), p.own_groups = first_group(p, share + 1) - p.own_first;
            const u32 each = whole_steps<SEVERAL>(a.slot_bytes, p.codec, p.warps);
            p.pieces = (p.own_groups * p.k_quads + each - 1) / each + (streams(tiles_a_slot) ? tiles(p).slots(tiles_a_slot) : 0);
            table[i] = p;
        }
        if (threadIdx.x == 0) s.gates = a.refill_gates;
        __syncthreads();
        for (u32 i = threadIdx.x; i < a.n_phases; i += blockDim.x) {
            u32 n = 0, j = i;
            if (table[i].gate_refill) do {
                if (table[j].kind != PERSISTENT_HEAD) n += table[j].pieces;
                j = j == 0 ? a.n_phases - 1 : j - 1;
            } while (!table[j].gate_refill && j != i);
            table[i].credit = n;
            if (n > a.n_slots) s.gates = 0; // the ring is too short for a whole layer
        }
    }
    // An entry of the table in registers, since every barrier makes references read memory again.
    // Its numbers pass through a shuffle, so that the compiler knows that all lanes agree.
    INLINE PersistentPhase phase(u32 i) const {
        PersistentPhase p = phases[i];
        p.kind = uniform(p.kind), p.codec = uniform(p.codec), p.own_groups = uniform(p.own_groups), p.own_first = uniform(p.own_first);
        p.k_quads = uniform(p.k_quads), p.warps = uniform(p.warps), p.chunks = uniform(p.chunks), p.input = uniform(p.input), p.qkv_part = uniform(p.qkv_part);
        return p;
    }
    // Like `phase`, with the constants of P.
    template <class P> INLINE P fixed_phase(u32 i) const {
        P p;
        PersistentPhase &all = p;
        all = phases[i], all.own_groups = uniform(all.own_groups);
        return p;
    }
    // Calls f for all phases in order, up to stop_phase.
    template <class F> INLINE void each_phase(F f) const {
#ifdef PERSISTENT_FIXED
        for (u32 i = 0; i + 1 < a.n_phases;) {
#define PERSISTENT_ONE(P)                 \
    if (i >= a.stop_phase) return;        \
    f(fixed_phase<P>(i)), i++;
            PERSISTENT_FIXED(PERSISTENT_ONE)
        }
        if (a.n_phases - 1 < a.stop_phase) f(fixed_phase<PersistentHead>(a.n_phases - 1));
#else
        for (u32 i = 0; i < a.n_phases && i < a.stop_phase; i++) f(phase(i));
#endif
    }
    INLINE u32 uniform(u32 x) const {
        return __shfl_sync(~0u, x, 0);
    }
    INLINE void next_slot() {
        if (++slot == a.n_slots) slot = 0, parity ^= 1;
    }
    // One of warps 0..7 has read the slot. When all have, it can be loaded again.
    INLINE void free_slot() {
        __syncwarp();
        if (lane == 0) mbarrier_arrive(empty + 8 * slot);
        next_slot();
    }
    INLINE void skip_slots(u32 n) {
        for (slot += n; slot >= a.n_slots; slot -= a.n_slots) parity ^= 1;
    }
    INLINE u32 first_group(u32 groups, u32 b) const { return b * groups / n_blocks; }
    // First group of the b-th share of a phase's groups. Pairs of gate and up stay together.
    INLINE u32 first_group(const PersistentPhase &p, u32 b) const {
        return p.kind == PERSISTENT_GATE ? 2 * first_group(p.groups / 2, b) : first_group(p.groups, b);
    }
    // Address of a part of the exchange. `at` is its offset in the exchange for one row.
    INLINE u8 *part(u32 at) const {
        if constexpr (!SEVERAL) return exchange + at;
        return exchange + (at == EXCHANGE_INPUT      ? EXCHANGE_ROWS_INPUT
                           : at == EXCHANGE_MIDDLE   ? EXCHANGE_ROWS_MIDDLE
                           : at == EXCHANGE_ATTENDED ? EXCHANGE_ROWS_ATTENDED
                           : at == EXCHANGE_GATED    ? EXCHANGE_ROWS_GATED
                           : at == EXCHANGE_QKV      ? EXCHANGE_ROWS_QKV
                           : at == EXCHANGE_PARTIALS ? EXCHANGE_ROWS_PARTIALS
                           : at == EXCHANGE_SQUARES  ? EXCHANGE_ROWS_SQUARES
                           : at == EXCHANGE_WIDE     ? EXCHANGE_ROWS_WIDE
                           : at == EXCHANGE_SCORES   ? EXCHANGE_ROWS_SCORES
                                                     : EXCHANGE_ROWS_BEST);
    }
    // Address of a row's chunk in a part.
    INLINE u8 *chunk(u32 at, u32 index, u32 row) const { return part(at) + (SEVERAL ? index * PERSISTENT_MOST_ROWS + row : index) * 16; }
    // Blocks of a KV head of a row. All of them share its positions if `many`, otherwise only `few`
    // do.
    INLINE u32 n_splits() const { return SEVERAL ? splits_of_row : a.n_splits; }
    INLINE bool many() const { return n_splits() > FEW && position >= MANY; }
    INLINE u32 few() const { return min(FEW, n_splits()); }
    INLINE u32 n_sharing() const { return many() ? n_splits() : few(); }
    // This block's share of x tiles, every n_sharing-th, or all if it is alone. Each case divides
    // by a number that the compiler may know.
    INLINE u32 share(u32 x) const { return alone ? x : many() ? (x + n_splits() - 1) / n_splits() : (x + few() - 1) / few(); }
    INLINE u32 qkv_rows() const { return a.n_kv_heads * (H + 2) * D; }
    // Warp 8 has published the block's own words. Warps 0..7 poll only after that, so that polls do
    // not delay stores.
    INLINE void published() { barrier_arrive(BARRIER_PUBLISHED, WARPS_0_TO_8); }
    INLINE void wait_published(u32 input) {
        barrier(BARRIER_PUBLISHED, WARPS_0_TO_8);
        // A block that attends alone ends when the blocks of other heads do, so its input is nearly
        // there.
        if (!(input == EXCHANGE_ATTENDED && alone && attends())) pause_cycles(a.poll_delay);
    }
    // True if the block has a KV head of a row; `attends` if it also has positions of it.
    INLINE bool has_head() const { return SEVERAL ? row < a.n_rows : block < a.n_kv_heads * a.n_splits; }
    INLINE bool attends() const { return has_head() && (alone ? split == 0 : split <= position / PERSISTENT_TILE && (n_splits() <= FEW || split < n_sharing())); }
    // Number of blocks of a KV head that attend.
    INLINE u32 n_partials() const { return min(n_sharing(), position / PERSISTENT_TILE + 1); }
    // Distance between the block's tiles. It has every stride-th tile of its KV head, from split
    // on.
    INLINE u32 stride() const { return alone ? 1 : n_sharing(); }
    // True if tiles come through the ring. The ring must hold eight tiles: a warp has every eighth
    // one and must not be more than a turn of the ring ahead. A block that attends alone has few
    // tiles. Its warps load them from the pages while they wait for queries.
    INLINE bool streams(u32 tiles_a_slot) const { return !alone && a.n_slots * tiles_a_slot >= 8; }
    // First position whose keys and values belong to this step.
    INLINE u32 first_own() const { return position - n_before; }
    // Address of the key (which = 0) or value (1) of an own row of the sequence, stored as in a
    // page.
    INLINE u8 *own_vector(u32 which, u32 own) const { return (u8 *)s.partial + (2 * own + which) * (4 * D); }
    // Cosines and sines of the row that comes `back` rows before the block's own one.
    INLINE float2 *rotary_of(u32 back) const {
        if (!SEVERAL || back == 0) return s.rotary[0];
        return (float2 *)(a.exchange + PERSISTENT_ROTARY_AT + block * PERSISTENT_ROTARY) + (back - 1) * (3 * D / 2);
    }
    // First position that a phase's layer sees.
    template <class P> INLINE u32 first_seen(const P &p) const { return p.window && position + 1 > p.window ? position + 1 - p.window : 0; }
    // Tiles of a phase: none unless attention follows it.
    template <class P> INLINE PersistentTiles tiles(const P &p) const {
        if (p.kind != PERSISTENT_QKV || p.qkv_part & PERSISTENT_CONTINUED || !attends()) return {0, 0};
        const u32 first = first_seen(p) / PERSISTENT_TILE, end = share(position / PERSISTENT_TILE + 1 - split);
        return {first > split ? min(share(first - split), end) : 0, end};
    }
    // Page of a position. A page has keys of all heads, then values, each (positions, bytes of a
    // vector).
    template <class P> INLINE u32 page_of(const P &p, u32 position) const {
        return of_this_step(a.page_table)[(SEVERAL ? sequence * a.table_stride : 0) + p.table + (position >> (31 - __clz(a.page_len)))];
    }
    template <u32 VECTOR, class P> INLINE u8 *vector_of(const P &p, u32 page, u32 position, u32 head) const {
        return p.pages + (u64)page * p.page_bytes + (head * a.page_len + (position & (a.page_len - 1))) * VECTOR;
    }
};

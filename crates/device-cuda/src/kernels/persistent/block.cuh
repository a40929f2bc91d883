// What all warps of a block know: shared memory, the table, the ring's places, the exchange of this launch.
#pragma once
#include "persistent/exchange.cuh"
#include "persistent/units.cuh"
#include "vector_bytes.h"

#define PERSISTENT_PASS 8 // groups

// A kernel for one model alone (`persistent/fixed.rs` writes its source) declares these before: what never changes as constants that
// hide the fields of the same names, and the phases of a layer. Other kernels read all numbers.
//
// Such a kernel may have the type of the embedding, PERSISTENT_EMBEDDING: then a launch can compute several steps of one row, one after the other.
#ifndef PERSISTENT_FIXED
typedef PersistentArguments PersistentTable;
#define PERSISTENT_IS_FIXED false
#define PERSISTENT_SLOT 0u
#else
#define PERSISTENT_IS_FIXED true
#define PERSISTENT_SLOT PersistentTable::slot_bytes
#endif

// The part of shared memory after the ring, of any number of rows.
template <int D, int H> struct PersistentCommon {
    float2 turns[3][D / 2];                   // cosines and sines of the row's position: of no rotation, and by both frequencies
    float queries[H * D];
    float outputs[8][H * D]; // of each warp
    float most[H][8], total[H][8];
    u64 full[PERSISTENT_MAX_SLOTS], empty[PERSISTENT_MAX_SLOTS];
    u32 credit;              // pieces whose phases are over
    u32 gates;               // whether refills wait for gates
    u32 written;             // steps of the launch whose keys and values are in their pages
    u32 padding;
};
// PERSISTENT_SHARED bytes, then the input, then the phases.
template <int D, int H, int ROWS> struct PersistentShared : PersistentCommon<D, H> {
    float partial[2][8][PERSISTENT_PASS * 8]; // sums of a pass, by parity; while the block attends, keys and values that the step itself adds
    InputBlock input[1];                      // 8 warps x the most k_quads x 4
    static constexpr u32 BEFORE_INPUT = PERSISTENT_SHARED(D, H), INPUT = 32 * sizeof(InputBlock), EXCHANGE = PERSISTENT_EXCHANGE;
};
// Of a group of 8 rows of weights by 8 rows of the step, words from one to the next: no conflicts of banks where four are read at once.
#define PERSISTENT_SUMS 72
// The same of a kernel for several rows: PERSISTENT_SHARED_ROWS bytes, then the input.
template <int D, int H> struct PersistentShared<D, H, PERSISTENT_MOST_ROWS> : PersistentCommon<D, H> {
    float partial[2][8][PERSISTENT_PASS * PERSISTENT_SUMS]; // (groups, rows of weights, rows of the step); else as of one row
    float squares[8][PERSISTENT_MOST_ROWS];                 // of the input, by warp
    uint4 input[1];                                         // 8 warps x the most k_quads x 128 lanes' halves; then a factor for each warp, quad and row
    static constexpr u32 BEFORE_INPUT = PERSISTENT_SHARED_ROWS(D, H), INPUT = PERSISTENT_ROWS_INPUT, EXCHANGE = PERSISTENT_ROWS_EXCHANGE;
};

enum PersistentPages { PAGES_F16, PAGES_Q8_0, PAGES_FP8 };
template <PersistentPages PAGES, int D> INLINE constexpr u32 persistent_vector() {
    return PAGES == PAGES_FP8 ? vector_bytes_fp8(D) : PAGES == PAGES_Q8_0 ? vector_bytes_q8_0(D) : vector_bytes_f16(D);
}
// Tiles of such vectors of keys and values that a slot of the ring holds: a power of two. Where one is larger than the least slot the host sees to it that
// slots are large enough.
INLINE constexpr u32 tiles_a_slot(u32 vector) {
    const u32 fit = PERSISTENT_LEAST_SLOT / (2 * PERSISTENT_TILE * vector);
    return fit >= 4 ? 4 : fit >= 2 ? 2 : 1;
}

// Tiles that a block attends to in a layer: of those that are the block's, from the begin-th to before the end-th.
struct PersistentTiles {
    u32 begin, end;
    INLINE u32 slots(u32 each) const { return (end - begin + each - 1) / each; }
};

// ROWS: 1, or PERSISTENT_MOST_ROWS.
template <int D, int H, int ROWS = 1> struct PersistentBlock {
    typedef PersistentShared<D, H, ROWS> Shared;
    static_assert(sizeof(Shared) - sizeof(Shared::input) == Shared::BEFORE_INPUT, "what the host asks for");
    static_assert(sizeof(Shared::partial) >= 2 * ROWS * 4 * D, "room for own_vector");
    static constexpr bool SEVERAL = ROWS > 1;
    // Positions up to which one block attends to a KV head of a row, so that nothing has to be joined: a tile or two for each warp (NOTES.md).
    // None with heads of 256 columns, whose tiles are too much for registers and so come through the ring.
    static constexpr u32 ALONE = D == 64 ? 256 : D == 128 ? 128 : 0;
    // Splits that share up to MANY positions: more would wait longer for each other than they save (NOTES.md).
    static constexpr u32 FEW = 16, MANY = 4096;
    static_assert(ALONE % PERSISTENT_TILE == 0 && MANY % PERSISTENT_TILE == 0, "so steps of one launch agree");
    static constexpr u32 PARTIAL_BYTES = (H * D + 2 * H + 3) / 4 * 16;
    const PersistentTable &a;
    u8 *ring;
    Shared &s;
    const PersistentPhase *phases; // in shared memory
    u8 *exchange;
    u32 full, empty, slot = 0, parity = 0, block, n_blocks, pass_parity = 0, turn, position, step_of_launch = 0;
    // What the block attends to: of a row of the step a KV head and one of its splits.
    u32 row = 0, kv_head, split, splits_of_row = 0;
    u32 sequence = 0, n_before = 0; // the row's, and how many rows of it come before the row in the step
    bool alone; // the first split has all positions
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
    // Go on with the next step of the launch; false: there is none. All warps call it. Epochs go on, and so do the ring and the order of the barriers; the
    // tiles that a block attends to are as many as before.
    INLINE bool next_step() {
        if (is_last()) return false;
        step_of_launch++, position++;
        // So that the compiler does not keep in registers, for all of a launch, what it computes of these at the ends of a step (NOTES.md).
        asm volatile("" : "+r"(lane), "+r"(warp), "+r"(block), "+r"(n_blocks), "+l"(exchange), "+l"(ring), "+r"(full), "+r"(empty), "+r"(split), "+r"(kv_head));
        return true;
    }
    // What the host says of this step, given where it says it of the launch's first.
    template <class T> INLINE const T *of_this_step(const T *of_first) const {
        return CHAINS ? (const T *)((const u8 *)of_first + step_of_launch * a.step_bytes) : of_first;
    }
    // Which exchange the launch uses; it clears the other for the next one.
    INLINE u32 *turn_word() const { return (u32 *)(a.exchange + 2 * Shared::EXCHANGE); }
    // The table into shared memory, with what it means for this block. All threads call it, and wait afterwards. Of keys and values a slot of the ring holds
    // so many tiles.
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
            if (n > a.n_slots) s.gates = 0; // the ring could never be filled for it
        }
    }
    // An entry of the table in registers: every barrier would make references read again. Its numbers pass through a shuffle, so that
    // the compiler knows that all lanes agree.
    INLINE PersistentPhase phase(u32 i) const {
        PersistentPhase p = phases[i];
        p.kind = uniform(p.kind), p.codec = uniform(p.codec), p.own_groups = uniform(p.own_groups), p.own_first = uniform(p.own_first);
        p.k_quads = uniform(p.k_quads), p.warps = uniform(p.warps), p.chunks = uniform(p.chunks), p.input = uniform(p.input), p.qkv_part = uniform(p.qkv_part);
        return p;
    }
    // The same with what P has as constants.
    template <class P> INLINE P fixed_phase(u32 i) const {
        P p;
        PersistentPhase &all = p;
        all = phases[i], all.own_groups = uniform(all.own_groups);
        return p;
    }
    // All phases in order, up to the one at which the launch stops.
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
    // One of the warps 0..7 is done with the slot; when all are, it is loaded again.
    INLINE void free_slot() {
        __syncwarp();
        if (lane == 0) mbarrier_arrive(empty + 8 * slot);
        next_slot();
    }
    INLINE void skip_slots(u32 n) {
        for (slot += n; slot >= a.n_slots; slot -= a.n_slots) parity ^= 1;
    }
    INLINE u32 first_group(u32 groups, u32 b) const { return b * groups / n_blocks; }
    // Of a phase, of the b-th share of its groups; gate and up stay together.
    INLINE u32 first_group(const PersistentPhase &p, u32 b) const {
        return p.kind == PERSISTENT_GATE ? 2 * first_group(p.groups / 2, b) : first_group(p.groups, b);
    }
    // A part of the exchange, by its place in that of one row.
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
    // Of the chunks in a part, one of a row.
    INLINE u8 *chunk(u32 at, u32 index, u32 row) const { return part(at) + (SEVERAL ? index * PERSISTENT_MOST_ROWS + row : index) * 16; }
    // Blocks of a KV head of a row; whether all of them share its positions or only `few` do.
    INLINE u32 n_splits() const { return SEVERAL ? splits_of_row : a.n_splits; }
    INLINE bool many() const { return n_splits() > FEW && position >= MANY; }
    INLINE u32 few() const { return min(FEW, n_splits()); }
    INLINE u32 n_sharing() const { return many() ? n_splits() : few(); }
    // As many of x as this block has, which has every n_sharing-th; all where it is alone. A division for each case, by a number that the compiler may know.
    INLINE u32 share(u32 x) const { return alone ? x : many() ? (x + n_splits() - 1) / n_splits() : (x + few() - 1) / few(); }
    INLINE u32 qkv_rows() const { return a.n_kv_heads * (H + 2) * D; }
    // Warp 8 says that the block's own words are out; warps 0..7 poll only then, so that polls do not delay stores.
    INLINE void published() { barrier_arrive(5, 288); }
    INLINE void wait_published(u32 input) {
        barrier(5, 288);
        // A block that attends alone ends with those of the other heads: what it waits for is there, or nearly.
        if (!(input == EXCHANGE_ATTENDED && alone && attends())) pause_cycles(a.poll_delay);
    }
    // Warps 0..7 say that the input of a phase with a norm is in shared memory; warp 8 adds its squares up while they multiply.
    INLINE void input_is_here() { barrier_arrive(7, 288); }
    INLINE void wait_input() { barrier(7, 288); }
    // Whether the block has a KV head of a row, and positions of it to attend to.
    INLINE bool has_head() const { return SEVERAL ? row < a.n_rows : block < a.n_kv_heads * a.n_splits; }
    INLINE bool attends() const { return has_head() && (alone ? split == 0 : split <= position / PERSISTENT_TILE && (n_splits() <= FEW || split < n_sharing())); }
    // Blocks of a KV head that attend.
    INLINE u32 n_partials() const { return min(n_sharing(), position / PERSISTENT_TILE + 1); }
    // The block has every stride-th tile of its KV head from split on.
    INLINE u32 stride() const { return alone ? 1 : n_sharing(); }
    // Whether tiles come through the ring. A warp, which has every eighth of them, must not be more than a turn of the ring ahead of others; and a block that
    // attends alone has few, which its warps read from their pages while they wait for queries.
    INLINE bool streams(u32 tiles_a_slot) const { return !alone && a.n_slots * tiles_a_slot >= 8; }
    // From here on keys and values are the step's own.
    INLINE u32 first_own() const { return position - n_before; }
    // Of the step's own rows of the sequence the key (0) or value (1) of one that the block attends to, as a page has it.
    INLINE u8 *own_vector(u32 which, u32 own) const { return (u8 *)s.partial + (2 * own + which) * (4 * D); }
    // Cosines and sines of a row of the sequence, `back` rows before the block's.
    INLINE float2 *turns_of(u32 back) const {
        if (!SEVERAL || back == 0) return s.turns[0];
        return (float2 *)(a.exchange + PERSISTENT_TURNS_AT + block * PERSISTENT_TURNS) + (back - 1) * (3 * D / 2);
    }
    // The first position that a phase's layer sees.
    template <class P> INLINE u32 first_seen(const P &p) const { return p.window && position + 1 > p.window ? position + 1 - p.window : 0; }
    // None before phases that attention does not follow.
    template <class P> INLINE PersistentTiles tiles(const P &p) const {
        if (p.kind != PERSISTENT_QKV || p.qkv_part & PERSISTENT_CONTINUED || !attends()) return {0, 0};
        const u32 first = first_seen(p) / PERSISTENT_TILE, end = share(position / PERSISTENT_TILE + 1 - split);
        return {first > split ? min(share(first - split), end) : 0, end};
    }
    // Pages: keys of all heads, then values, each (positions, bytes of a vector).
    template <class P> INLINE u32 page_of(const P &p, u32 position) const {
        return of_this_step(a.page_table)[(SEVERAL ? sequence * a.table_stride : 0) + p.table + (position >> (31 - __clz(a.page_len)))];
    }
    template <u32 VECTOR, class P> INLINE u8 *vector_of(const P &p, u32 page, u32 position, u32 head) const {
        return p.pages + (u64)page * p.page_bytes + (head * a.page_len + (position & (a.page_len - 1))) * VECTOR;
    }
};

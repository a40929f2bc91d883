// A layer's mixture of experts for up to 8 rows: products of warps 0..7. Mixture.cuh is for one
// row.
//
// Warp w chooses for row w of the step, from the scores of all experts. Every expert that some row
// has chosen is then multiplied once for all rows, in the order of their numbers. The input of an
// expert's last matrix is zero for rows that have not chosen it, and is not published for them.
#pragma once
#include "persistent/mixture.cuh"
#include "persistent/products_rows.cuh"

#define NOT_CHOSEN 255

// The choice, in shared memory after the phases.
struct PersistentRowsChoice {
    // Weights and numbers of each row's experts, scale of the norm before them, bits of the
    // experts.
    float weight[PERSISTENT_MOST_ROWS][PERSISTENT_ROWS_USED];
    u32 id[PERSISTENT_MOST_ROWS][PERSISTENT_ROWS_USED];
    float scale[PERSISTENT_MOST_ROWS];
    u32 bits[PERSISTENT_MOST_ROWS][PERSISTENT_MAX_EXPERTS / 32];
    // The experts of all rows; for each and each row, its place among the row's experts, or
    // NOT_CHOSEN.
    u32 experts[PERSISTENT_MOST_ROWS * PERSISTENT_ROWS_USED];
    u8 place[PERSISTENT_MOST_ROWS * PERSISTENT_ROWS_USED][PERSISTENT_MOST_ROWS];
    u32 n;
    u32 padding[3];
};
static_assert(sizeof(PersistentRowsChoice) == PERSISTENT_ROWS_CHOICE, "the host asks for as many bytes");
template <int D, int H> INLINE PersistentRowsChoice &choice_of(const PersistentBlock<D, H, PERSISTENT_MOST_ROWS> &block) {
    return *(PersistentRowsChoice *)(block.phases + block.a.n_phases);
}

// Groups of an expert's last matrix in a slot of the ring: whole pairs, or one group.
INLINE u32 down_groups_a_slot(u32 slot_bytes, u32 group_bytes) {
    const u32 fit = slot_bytes / group_bytes;
    return fit > 1 ? fit & ~1u : 1;
}

template <int D, int H> struct PersistentRowsExperts : PersistentRowsProducts<D, H> {
    typedef PersistentRowsProducts<D, H> Products;
    INLINE explicit PersistentRowsExperts(const typename Products::Block &block) : Products(block) {}
    using Products::a;
    using Products::free_slot;
    using Products::full;
    using Products::lane;
    using Products::parity;
    using Products::part;
    using Products::pass_parity;
    using Products::ring;
    using Products::s;
    using Products::slot;
    using Products::warp;
    typedef typename Products::Sums Sums;
    typedef typename Products::Place Place;
    // Units of an expert's last matrix whose input is received together: four a warp.
    static constexpr u32 UNITS = 8 * PERSISTENT_FEWEST_QUADS;

    // Computes scores of the block's experts, stores the input of gate and up in shared memory,
    // then chooses.
    template <class P> INLINE void route(const P &p, u32 tag) {
        this->wait_published(p.input);
        const u32 steps_a_slot = a.slot_bytes / PERSISTENT_ROUTER_STEP;
        for (u32 expert = 0; expert < p.own_groups; expert++) {
            float sum[PERSISTENT_MOST_ROWS];
#pragma unroll
            for (int row = 0; row < PERSISTENT_MOST_ROWS; row++) sum[row] = 0;
            for (u32 quad = 0, within = 0; quad < p.k_quads; quad++) {
                const u32 column = (warp * p.k_quads + quad) * 128 + lane * 4;
                uint4 x[PERSISTENT_MOST_ROWS];
                bool all;
                do {
                    all = true;
#pragma unroll
                    for (int row = 0; row < PERSISTENT_MOST_ROWS; row++) {
                        x[row] = make_uint4(tag, tag, tag, tag);
                        if (row < a.n_rows && column < a.hidden) x[row] = load_relaxed_4(part(EXCHANGE_WIDE) + ((u64)row * a.hidden + column) * 4);
                    }
#pragma unroll
                    for (int row = 0; row < PERSISTENT_MOST_ROWS; row++)
                        all = all && (((x[row].x ^ tag) | (x[row].y ^ tag) | (x[row].z ^ tag) | (x[row].w ^ tag)) & 15) == 0;
                } while (!__all_sync(~0u, all));
                if (within == 0) mbarrier_wait(full + 8 * slot, parity);
                const float4 w = ((const float4 *)(ring + slot * a.slot_bytes + within * PERSISTENT_ROUTER_STEP + warp * 512))[lane];
#pragma unroll
                for (int row = 0; row < PERSISTENT_MOST_ROWS; row++)
                    sum[row] += w.x * untag_word(x[row].x) + w.y * untag_word(x[row].y) + w.z * untag_word(x[row].z) + w.w * untag_word(x[row].w);
                if (++within == steps_a_slot || quad + 1 == p.k_quads) within = 0, free_slot();
            }
#pragma unroll
            for (int row = 0; row < PERSISTENT_MOST_ROWS; row++) {
                const float of_all = sum_of_32(sum[row]);
                if (lane == row) s.partial[pass_parity][warp][expert * PERSISTENT_MOST_ROWS + row] = of_all;
            }
        }
        arrive_partials(pass_parity);
        pass_parity ^= 1;
        float squares = 0;
        this->receive_some(p, part(p.input), 0, p.k_quads, warp * p.k_quads, tag, squares);
        this->give_squares(squares);
        wait_row_scales();
        choose(p, tag);
    }
    template <class P> INLINE void choose(const P &p, u32 tag) {
        PersistentRowsChoice &choice = choice_of(*this);
        u32 *id = choice.id[warp];
        if (warp < a.n_rows) {
            const u8 *scores = part(EXCHANGE_SCORES) + warp * PERSISTENT_MAX_EXPERTS * 4;
            auto scale = [&] { return choice.scale[warp]; };
            if (a.n_experts <= 128) choose_experts<1>(a, p, scores, tag, lane, scale, id, choice.weight[warp]);
            else choose_experts<2>(a, p, scores, tag, lane, scale, id, choice.weight[warp]);
        }
        __syncwarp();
        const u32 n_mine = warp < a.n_rows ? a.n_used : 0;
        if (lane < PERSISTENT_MAX_EXPERTS / 32) {
            u32 bits = 0;
            for (u32 j = 0; j < n_mine; j++) bits |= id[j] / 32 == lane ? 1u << id[j] % 32 : 0;
            choice.bits[warp][lane] = bits;
        }
        workers_meet();
        // Experts of all rows; `end` counts experts up to this lane's word.
        u32 bits = 0;
        if (lane < PERSISTENT_MAX_EXPERTS / 32)
#pragma unroll
            for (int row = 0; row < PERSISTENT_MOST_ROWS; row++) bits |= choice.bits[row][lane];
        u32 end = __popc(bits);
#pragma unroll
        for (int m = 1; m < PERSISTENT_MAX_EXPERTS / 32; m *= 2) {
            const u32 before = __shfl_up_sync(~0u, end, m);
            if (lane >= m) end += before;
        }
        const u32 n = __shfl_sync(~0u, end, PERSISTENT_MAX_EXPERTS / 32 - 1);
        for (u32 j = lane; j < n; j += 32) choice.place[j][warp] = NOT_CHOSEN;
        __syncwarp();
        const u32 mine = lane < n_mine ? id[lane] : 0;
        const u32 word = __shfl_sync(~0u, bits, mine / 32), to = __shfl_sync(~0u, end, mine / 32);
        if (lane < n_mine) {
            const u32 at = to - __popc(word >> mine % 32);
            choice.place[at][warp] = lane, choice.experts[at] = mine;
        }
        if (warp == 0 && lane == 0) choice.n = n;
        wait_row_choice();
    }
    template <int CODEC, class P> INLINE void multiply_bundles(const P &p) {
        const u32 bundles = choice_of(*this).n * (p.groups / a.n_used), n = this->first_group(bundles, this->block + 1) - this->first_group(bundles, this->block);
        for (u32 i = 0; i < n || i == 0; i++) {
            // the epilogue has read the sums that this pass overwrites
            if (i >= 2) wait_partials_read(pass_parity);
            Sums sum = {};
            Place place = {whole_steps<true>(a.slot_bytes, CODEC, p.warps), p.warps, 0, PERSISTENT_BUNDLE * p.k_quads};
            for (u32 quad = 0; i < n && quad < p.k_quads; quad++) this->template multiply_quad<CODEC>(sum, PERSISTENT_BUNDLE, warp * p.k_quads + quad, place);
            this->give(sum, PERSISTENT_BUNDLE);
        }
    }
    // Multiplies gate and up of the chosen experts, whose input arrived before the scores.
    template <class P> INLINE void gate(const P &p) {
        with_codec(p, [&](auto codec) { multiply_bundles<decltype(codec)::value>(p); });
    }
    // Receives the input of this warp's units from `first` to before `end`, every eighth, at most
    // four. Units of all experts are numbered in a row.
    INLINE void receive_units(const u8 *from, u32 first, u32 end, u32 units, u32 tag) {
        const PersistentRowsChoice &choice = choice_of(*this);
        const u32 row = lane >> 2;
        uint4 chunks[PERSISTENT_FEWEST_QUADS][4];
        // the lane's first chunk; number of chunks from it on
        int at[PERSISTENT_FEWEST_QUADS], left[PERSISTENT_FEWEST_QUADS];
#pragma unroll
        for (int i = 0; i < PERSISTENT_FEWEST_QUADS; i++) {
            const u32 unit = first + 8 * i, expert = unit / units, chunk = (unit - expert * units) * 16 + (lane & 3);
            const u32 place = unit < end && row < a.n_rows ? choice.place[expert][row] : NOT_CHOSEN;
            at[i] = place * units * 16 + chunk, left[i] = place == NOT_CHOSEN ? 0 : (int)(a.expert_ffn / 8) - (int)chunk;
        }
        bool all;
        do {
            all = true;
#pragma unroll
            for (int i = 0; i < PERSISTENT_FEWEST_QUADS; i++)
#pragma unroll
                for (int b = 0; b < 4; b++) {
                    chunks[i][b] = make_uint4(0, 0, 0, 0);
                    if (4 * b < left[i]) chunks[i][b] = load_relaxed_4(from + ((u64)(at[i] + 4 * b) * PERSISTENT_MOST_ROWS + row) * 16);
                }
#pragma unroll
            for (int i = 0; i < PERSISTENT_FEWEST_QUADS; i++)
#pragma unroll
                for (int b = 0; b < 4; b++) all = all && (4 * b >= left[i] || chunk_is(chunks[i][b], tag));
        } while (!__all_sync(~0u, all));
        float unused = 0;
#pragma unroll
        for (int i = 0; i < PERSISTENT_FEWEST_QUADS; i++) this->convert(chunks[i], warp * PERSISTENT_FEWEST_QUADS + i, unused);
        __syncwarp();
    }
    // Multiplies a unit of each of `n` groups, from `group` on, by an input in shared memory.
    template <int CODEC> INLINE void multiply_unit(Sums &sum, u32 group, u32 n, u32 index, const u8 *unit, u32 stride) {
        RowsInput<CODEC> in;
        this->take_input(in, index);
#pragma unroll
        for (int i = 0; i < PERSISTENT_ROWS_MAX_OWN / 16; i++) {
            const bool low = 2 * i >= group && 2 * i < group + n, high = 2 * i + 1 >= group && 2 * i + 1 < group + n;
            if (!low && !high) continue;
            RowsUnit<CODEC> first, second;
            first.load(unit + (2 * i + (low ? 0 : 1) - group) * stride, lane);
            second = first;
            if (low && high) second.load(unit + (2 * i + 1 - group) * stride, lane);
            float of_unit[4] = {};
            this->multiply_pair(of_unit, in, first, second);
#pragma unroll
            for (int j = 0; j < 4; j++)
                if (j < 2 ? low : high) sum.of[i][j] = fmaf(of_unit[j], j & 1 ? in.factors.y : in.factors.x, sum.of[i][j]);
        }
    }
    template <int CODEC, class P> INLINE void multiply_down(const P &p, const u8 *from, u32 tag) {
        const u32 units = (a.expert_ffn + 127) / 128, stride = units * unit_bytes<true>(CODEC), each = down_groups_a_slot(a.slot_bytes, stride);
        // experts at a time; the host ensures that one expert's units fit
        const u32 n = choice_of(*this).n, together = UNITS / units;
        Sums sum = {};
        for (u32 expert = 0; expert < n && p.own_groups > 0;) {
            const u32 end = min(expert + together, n), first = expert * units + ((warp - expert * units) & 7);
            receive_units(from, first, end * units, units, tag);
            for (; expert < end; expert++) {
                const u32 before = expert * units;
                for (u32 group = 0; group < p.own_groups; group += each) {
                    mbarrier_wait(full + 8 * slot, parity);
                    for (u32 unit = (warp - before) & 7; unit < units; unit += 8)
                        multiply_unit<CODEC>(sum, group, min(each, p.own_groups - group), warp * PERSISTENT_FEWEST_QUADS + (before + unit - first) / 8,
                                             ring + slot * a.slot_bytes + unit * unit_bytes<true>(CODEC), stride);
                    free_slot();
                }
            }
            __syncwarp(); // the input has been read
        }
        this->give(sum, p.own_groups);
    }
    template <class P> INLINE void down(const P &p, u32 tag) {
        this->wait_published(p.input);
        with_codec(p, [&](auto codec) { multiply_down<decltype(codec)::value>(p, part(p.input), tag); });
    }
};

// Warps 0..7: products of up to 8 rows on tensor cores, from the packed rows that the kernel for
// one row multiplies. Each warp has its own slice of K. In mma.m16n8k16 the rows are those of two
// groups of weights, and the columns are the rows of the step.
//
// In a block of 32 columns, with t = l % 4, lane l has columns 8 t to 8 t + 7: of the weights' rows
// l / 4 of two groups, a word of nibbles each, and of row l / 4 of the step, a chunk. The order of
// a product's 16 columns is the same on both sides, so any order is right.
//
// A chunk's 10-bit integers become halves, times a power of two for each row and 1,024 columns,
// which is multiplied by afterwards. Halves of weights are 1,024 too large, because one operation
// makes them from the bits. A product therefore begins with the sum of the surplus, which is equal
// for all rows of weights: a few products of the input with constants. Scales follow in f32, and
// sums are f32. A sum of 16 such products is exact to some units of the input's integers, less than
// the rounding to them loses. Weights in F16 are multiplied as they are.
#pragma once
#include "persistent/block.cuh"

// A lane's part of a unit: in each of the four blocks 8 columns of one row.
template <int CODEC> struct RowsUnit {
    static constexpr bool MINS = CODEC == PERSISTENT_CODEC_Q4M || CODEC == PERSISTENT_CODEC_Q5M;
    // halves of columns 4 to 7 are 1,024 + 16 times the integer
    static constexpr bool NIBBLES = MINS || CODEC == PERSISTENT_CODEC_Q4;
    static constexpr bool INNER = Unit<CODEC>::BY_HALVES; // halves are multiplied by their scale
    static constexpr bool TABLE = Unit<CODEC>::TABLE;
    static constexpr bool HALVES = CODEC == PERSISTENT_CODEC_F16;
    static constexpr bool VALUES = INNER || HALVES; // halves are the weights, so sums need no scale
    static constexpr bool UPPER = CODEC == PERSISTENT_CODEC_Q6 || CODEC == PERSISTENT_CODEC_Q5M;
    static constexpr int OFFSET = MINS || CODEC == PERSISTENT_CODEC_Q2M ? 0 : CODEC == PERSISTENT_CODEC_Q3 ? 4 : CODEC == PERSISTENT_CODEC_Q4 ? 8 : CODEC == PERSISTENT_CODEC_Q6 ? 32 : 128;
    u32 words[4][HALVES ? 4 : CODEC == PERSISTENT_CODEC_Q8 ? 2 : 1];
    u32 upper[UPPER ? 4 : 1];
    u32 scales[4]; // d, or d and m

    INLINE void load(const u8 *unit, int lane) {
        const u32 g = lane >> 2, t = lane & 3;
#pragma unroll
        for (int b = 0; b < 4; b++) {
            if constexpr (HALVES) {
                const uint4 w = ((const uint4 *)unit)[32 * b + lane];
                words[b][0] = w.x, words[b][1] = w.y, words[b][2] = w.z, words[b][3] = w.w;
                continue;
            }
            const u32 at = 8 * b + g;
            if constexpr (CODEC == PERSISTENT_CODEC_Q8) {
                const uint2 w = *(const uint2 *)(unit + 512 * (t >> 1) + 16 * at + 8 * (t & 1));
                words[b][0] = w.x, words[b][1] = w.y;
            } else if constexpr (CODEC == PERSISTENT_CODEC_Q2M) {
                words[b][0] = *(const u32 *)(unit + 8 * at + 4 * (t >> 1)) >> (4 * (t & 1));
            } else {
                words[b][0] = *(const u32 *)(unit + 16 * at + 4 * t);
            }
            if constexpr (CODEC == PERSISTENT_CODEC_Q6) upper[b] = *(const u32 *)(unit + 512 + 8 * at + 4 * (t >> 1)) >> (4 * (t & 1));
            if constexpr (CODEC == PERSISTENT_CODEC_Q5M) upper[b] = *(const u32 *)(unit + 512 + 4 * at) >> (2 * t);
            if constexpr (MINS) scales[b] = *(const u32 *)(unit + (UPPER ? 640 : 512) + 4 * at);
            else if constexpr (CODEC == PERSISTENT_CODEC_Q2M) scales[b] = *(const u32 *)(unit + 256 + 8 * at + 4 * (t >> 1));
            else if constexpr (INNER) scales[b] = *(const u16 *)(unit + (UPPER ? 768 : 512) + 4 * at + 2 * (t >> 1));
            else scales[b] = *(const u16 *)(unit + (CODEC == PERSISTENT_CODEC_Q8 ? 1024 : 512) + 2 * at);
        }
    }
    // Block b as halves: columns (0, 2), (1, 3), (4, 6), (5, 7) of the eight.
    INLINE void halves(int b, u32 (&to)[4]) const {
        const u32 w = words[b][0];
        if constexpr (HALVES) {
            to[0] = w, to[1] = words[b][1], to[2] = words[b][2], to[3] = words[b][3];
        } else if constexpr (NIBBLES) {
            to[0] = and_or(w, 0x000f000fu, HALF2_1024), to[1] = and_or(w >> 8, 0x000f000fu, HALF2_1024);
            to[2] = and_or(w, 0x00f000f0u, HALF2_1024), to[3] = and_or(w >> 8, 0x00f000f0u, HALF2_1024);
            if constexpr (CODEC == PERSISTENT_CODEC_Q5M) {
                const u32 u = upper[b];
                to[0] = and_or(u << 4, 0x00100010u, to[0]), to[1] = and_or(u >> 4, 0x00100010u, to[1]);
                to[2] = and_or(u << 7, 0x01000100u, to[2]), to[3] = and_or(u >> 1, 0x01000100u, to[3]);
            }
        } else {
            u32 low, high; // bytes of columns 0 to 3, 4 to 7
            if constexpr (CODEC == PERSISTENT_CODEC_Q2M) {
                low = w & 0x03030303u, high = (w >> 2) & 0x03030303u;
            } else if constexpr (CODEC == PERSISTENT_CODEC_Q3) {
                low = w & 0x0F0F0F0Fu, high = (w >> 4) & 0x0F0F0F0Fu;
            } else if constexpr (TABLE) {
                typedef typename PersistentTable4<CODEC>::Biased Values;
                low = Values::look_up(w & 0xffffu), high = Values::look_up(w >> 16);
            } else if constexpr (INNER) {
                low = (w & 0x0F0F0F0Fu) | ((upper[b] << 4) & 0x30303030u), high = ((w >> 4) & 0x0F0F0F0Fu) | ((upper[b] << 2) & 0x30303030u);
            } else {
                low = w ^ 0x80808080u, high = words[b][1] ^ 0x80808080u;
            }
            to[0] = __byte_perm(low, 0x64646464u, 0x4240), to[1] = __byte_perm(low, 0x64646464u, 0x4341);
            to[2] = __byte_perm(high, 0x64646464u, 0x4240), to[3] = __byte_perm(high, 0x64646464u, 0x4341);
        }
        if constexpr (CODEC == PERSISTENT_CODEC_Q2M) {
            const u32 d = __byte_perm(scales[b], 0, 0x1010), m = __byte_perm(scales[b], 0, 0x3232);
#pragma unroll
            for (int i = 0; i < 4; i++) to[i] = half2_fma(minus_1024<OFFSET>(to[i]), d, m);
        } else if constexpr (INNER) {
#pragma unroll
            for (int i = 0; i < 4; i++) to[i] = half2_mul(minus_1024<OFFSET>(to[i]), scales[b] * 0x10001u);
        }
    }
    // The factor of block b's sums.
    INLINE float scale(int b) const { return CODEC == PERSISTENT_CODEC_FP4 ? __uint_as_float(scales[b] << 16) : low_half(scales[b]); }
};

// A warp's part of 1,024 columns of the input, as the second operand of products.
template <int CODEC> struct RowsInput {
    typedef RowsUnit<CODEC> Unit;
    uint4 halves[4];    // in the order of a unit
    float2 begin[4];    // start values of products for rows 2 t and 2 t + 1
    float2 sums[4];     // MINS: sums of their columns
    float2 factors;     // factors of both rows

    static INLINE void add(float2 &to, const uint4 &x, u32 by_low, u32 by_high) {
        const u32 rows[2][4] = {{by_low, by_low, by_low, by_low}, {by_high, by_high, by_high, by_high}};
        float c[4] = {};
        mma_16x8x16(c, rows[0], x.x, x.y);
        mma_16x8x16(c, rows[1], x.z, x.w);
        to = make_float2(c[0], c[1]);
    }
    INLINE void prepare() {
        if constexpr (Unit::VALUES) return;
#pragma unroll
        for (int b = 0; b < 4; b++) {
            // divided by 16
            if (Unit::NIBBLES) halves[b].z = half2_mul(halves[b].z, 0x2c002c00u), halves[b].w = half2_mul(halves[b].w, 0x2c002c00u);
            // Halves of -1024 - OFFSET and, for 16 times the integers, of -1024 - 16 * OFFSET.
            add(begin[b], halves[b], 0xe400e400u + Unit::OFFSET * 0x10001u, 0xe400e400u + (Unit::NIBBLES ? 16 : 1) * Unit::OFFSET * 0x10001u);
            if (Unit::MINS) add(sums[b], halves[b], 0x3c003c00u, 0x4c004c00u); // halves of 1 and 16
        }
    }
};

template <int D, int H> struct PersistentRowsProducts : PersistentBlock<D, H, PERSISTENT_MOST_ROWS> {
    typedef PersistentBlock<D, H, PERSISTENT_MOST_ROWS> Block;
    INLINE explicit PersistentRowsProducts(const Block &block) : Block(block) {}
    using Block::a;
    using Block::full;
    using Block::lane;
    using Block::parity;
    using Block::pass_parity;
    using Block::ring;
    using Block::s;
    using Block::slot;
    using Block::warp;

    // The position of a pass in the ring.
    struct Place {
        u32 steps_a_slot, warps, within, left;
    };
    // Loads the next unit. A warp without columns, whose input is zeros, loads any unit.
    template <int CODEC> INLINE void take(RowsUnit<CODEC> &unit, Place &place) {
        if (place.within == 0) mbarrier_wait(full + 8 * slot, parity);
        unit.load(ring + slot * a.slot_bytes + place.within * step_bytes<true>(CODEC, place.warps) + min(warp, place.warps - 1) * unit_bytes<true>(CODEC), lane);
        place.within++, place.left--;
        if (place.within == place.steps_a_slot || place.left == 0) {
            place.within = 0;
            this->free_slot();
        }
    }

    // Polls for this lane's chunks of up to four quads from `quad` on. Missing quads are zeros.
    template <class P> INLINE void receive(uint4 (&chunks)[PERSISTENT_FEWEST_QUADS][4], const P &p, const u8 *from, u32 quad, u32 tag) const {
        // Chunks of the lane's row from its first one on. The lane has every fourth one.
        const u32 first = (warp * p.k_quads + quad) * 16 + (lane & 3);
        const int left = (lane >> 2) < a.n_rows ? min((int)p.chunks - (int)first, (int)(16 * (p.k_quads - quad))) : 0;
        from += (first * PERSISTENT_MOST_ROWS + (lane >> 2)) * 16;
        bool all;
        do {
#pragma unroll
            for (int j = 0; j < PERSISTENT_FEWEST_QUADS; j++)
#pragma unroll
                for (int b = 0; b < 4; b++) {
                    chunks[j][b] = make_uint4(0, 0, 0, 0);
                    if (16 * j + 4 * b < left) chunks[j][b] = load_relaxed_4(from + (16 * j + 4 * b) * (16 * PERSISTENT_MOST_ROWS));
                }
            all = true;
#pragma unroll
            for (int j = 0; j < PERSISTENT_FEWEST_QUADS; j++)
#pragma unroll
                for (int b = 0; b < 4; b++) all = all && (16 * j + 4 * b >= left || chunk_is(chunks[j][b], tag));
        } while (!__all_sync(~0u, all));
    }
    INLINE uint4 *kept(u32 index) const { return s.input + index * 128 + lane; }
    INLINE float *factors(u32 index) const { return (float *)(s.input + a.most_quads * 8 * 128) + index * 8; }
    // Stores the chunks of a quad as halves in shared memory, where this lane alone reads them, and
    // the factors of all rows.
    INLINE void convert(const uint4 (&chunk)[4], u32 index, float &squares) {
        u32 scales[4], most = 0; // largest exponent
#pragma unroll
        for (int b = 0; b < 4; b++) scales[b] = scale_of_fine(chunk[b]), most = max(most, scales[b] >> 4);
        most = max(most, __shfl_xor_sync(~0u, most, 1));
        most = max(most, __shfl_xor_sync(~0u, most, 2));
#pragma unroll
        for (int b = 0; b < 4; b++) {
            const uint4 w = chunk[b];
            // The scale's 4 bits of mantissa, and its exponent relative to the largest. A chunk
            // with 2^-15 of the largest scale becomes 0.
            const int exponent = (int)(scales[b] >> 4) - (int)most + 15;
            const u32 scale = (exponent > 0 ? exponent << 10 | (scales[b] & 15) << 6 : 0) * 0x10001u;
            const u32 offset = half2_mul(scale, 0xe600e600u); // -1024 - 512
            auto value = [&](u32 pair) { return half2_fma(and_or(pair, 0x03FF03FFu, HALF2_1024), scale, offset); };
            kept(index)[32 * b] = make_uint4(value(w.x), value(w.y), value(w.z), value(w.w));
            squares += squares_of_fine(w);
        }
        if ((lane & 3) == 0) factors(index)[lane >> 2] = __uint_as_float(most << 23);
    }
    // Sums of a pass: rows g of two groups by rows 2 t and 2 t + 1 of the step.
    struct Sums {
        float of[PERSISTENT_PASS / 2][4];
    };
    template <int CODEC> INLINE void take_input(RowsInput<CODEC> &in, u32 index) const {
#pragma unroll
        for (int b = 0; b < 4; b++) in.halves[b] = kept(index)[32 * b];
        in.factors = *(const float2 *)(factors(index) + 2 * (lane & 3));
        in.prepare();
    }
    // Multiplies units of two groups of weights, without the input's factors.
    template <int CODEC> INLINE void multiply_pair(float (&sum)[4], const RowsInput<CODEC> &in, const RowsUnit<CODEC> &first, const RowsUnit<CODEC> &second) const {
#pragma unroll
        for (int b = 0; b < 4; b++) {
            u32 low[4], high[4];
            first.halves(b, low), second.halves(b, high);
            const u32 rows[2][4] = {{low[0], high[0], low[1], high[1]}, {low[2], high[2], low[3], high[3]}};
            if constexpr (RowsUnit<CODEC>::VALUES) {
                mma_16x8x16(sum, rows[0], in.halves[b].x, in.halves[b].y);
                mma_16x8x16(sum, rows[1], in.halves[b].z, in.halves[b].w);
            } else {
                float c[4] = {in.begin[b].x, in.begin[b].y, in.begin[b].x, in.begin[b].y};
                mma_16x8x16(c, rows[0], in.halves[b].x, in.halves[b].y);
                mma_16x8x16(c, rows[1], in.halves[b].z, in.halves[b].w);
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    const RowsUnit<CODEC> &unit = j < 2 ? first : second;
                    sum[j] = fmaf(c[j], unit.scale(b), sum[j]);
                    if (RowsUnit<CODEC>::MINS) sum[j] = fmaf(j & 1 ? in.sums[b].y : in.sums[b].x, high_half(unit.scales[b]), sum[j]);
                }
            }
        }
    }
    // Multiplies the next `n` groups of the ring by an input in shared memory.
    template <int CODEC> INLINE void multiply_quad(Sums &sum, u32 n, u32 index, Place &place) {
        RowsInput<CODEC> in;
        take_input(in, index);
#pragma unroll
        for (int i = 0; i < PERSISTENT_PASS / 2; i++) {
            if (2 * i >= n) break;
            RowsUnit<CODEC> first, second;
            take(first, place);
            second = first;
            if (2 * i + 1 < n) take(second, place);
            float of_quad[4] = {};
            multiply_pair(of_quad, in, first, second);
#pragma unroll
            for (int j = 0; j < 4; j++) sum.of[i][j] = fmaf(of_quad[j], j & 1 ? in.factors.y : in.factors.x, sum.of[i][j]);
        }
    }
    // Stores the sums of a pass for the epilogue.
    INLINE void give(Sums &sum, u32 n) {
        float *out = s.partial[pass_parity][warp] + 2 * lane;
#pragma unroll
        for (int i = 0; i < PERSISTENT_PASS / 2; i++) {
            if (2 * i < n) *(float2 *)(out + 2 * i * PERSISTENT_SUMS) = make_float2(sum.of[i][0], sum.of[i][1]);
            if (2 * i + 1 < n) *(float2 *)(out + (2 * i + 1) * PERSISTENT_SUMS) = make_float2(sum.of[i][2], sum.of[i][3]);
        }
        arrive_partials(pass_parity);
        pass_parity ^= 1;
    }
    // Receives n * 1,024 columns of the input, from the quad q0 on, into shared memory from `index`
    // on.
    template <class P> INLINE void receive_some(const P &p, const u8 *from, u32 q0, u32 n, u32 index, u32 tag, float &squares) {
        uint4 chunks[PERSISTENT_FEWEST_QUADS][4];
        receive(chunks, p, from, q0, tag);
#pragma unroll
        for (u32 j = 0; j < PERSISTENT_FEWEST_QUADS; j++)
            if (j < n) convert(chunks[j], index + j, squares);
        __syncwarp();
    }
    // Stores the squares of the input when all of it has arrived. A lane has the squares of some
    // chunks of a row.
    INLINE void give_squares(float squares) {
        squares += __shfl_xor_sync(~0u, squares, 1);
        squares += __shfl_xor_sync(~0u, squares, 2);
        if ((lane & 3) == 0) s.squares[warp][lane >> 2] = squares;
        __syncwarp();
        arrive_input();
    }
    // Multiplies the first pass of a phase while it receives its input, PERSISTENT_FEWEST_QUADS
    // quads at a time. Input that later passes need stays in shared memory. Other input is
    // overwritten by the next part.
    template <int CODEC, class P> INLINE void receive_and_multiply(const P &p, u32 n, const u8 *from, u32 tag, Place &place) {
        const bool keep = p.own_groups > PERSISTENT_PASS || p.qkv_part & PERSISTENT_CONTINUED;
        Sums sum = {};
        float squares = 0;
        for (u32 q0 = 0; q0 < p.k_quads; q0 += PERSISTENT_FEWEST_QUADS) {
            const u32 index = keep ? warp * p.k_quads + q0 : warp * PERSISTENT_FEWEST_QUADS, end = min((u32)PERSISTENT_FEWEST_QUADS, p.k_quads - q0);
            receive_some(p, from, q0, end, index, tag, squares);
            for (u32 j = 0; j < end; j++) multiply_quad<CODEC>(sum, n, index + j, place);
            __syncwarp(); // the input has been read
        }
        if (p.kind != PERSISTENT_ADD) give_squares(squares);
        give(sum, n);
    }
    template <int CODEC, class P> INLINE void multiply(const P &p, const u8 *from, u32 tag) {
        const u32 n_groups = p.own_groups;
        const bool is_here = p.qkv_part & PERSISTENT_CONTINUES;
        Place place = {whole_steps<true>(a.slot_bytes, CODEC, p.warps), p.warps, 0, n_groups * p.k_quads};
        // A block without rows makes one empty pass, so that its warps stay in step.
        if (!is_here) receive_and_multiply<CODEC>(p, min((u32)PERSISTENT_PASS, n_groups), from, tag, place);
        for (u32 g0 = is_here ? 0 : PERSISTENT_PASS, pass = g0 / PERSISTENT_PASS; g0 < n_groups || pass == 0; g0 += PERSISTENT_PASS, pass++) {
            // The epilogue has read the sums that this pass overwrites.
            if (pass >= 2) wait_partials_read(pass_parity);
            const u32 n = min((u32)PERSISTENT_PASS, n_groups - g0);
            Sums sum = {};
            for (u32 quad = 0; quad < p.k_quads; quad++) multiply_quad<CODEC>(sum, n, warp * p.k_quads + quad, place);
            give(sum, n);
        }
    }
    template <class P> INLINE void product(const P &p, const u8 *from, u32 tag) {
        if (!(p.qkv_part & PERSISTENT_CONTINUES)) this->wait_published(p.input);
        // The epilogue has read the first part's sums.
        else if (p.qkv_part & PERSISTENT_OF_THREE) wait_partials_read(pass_parity);
        auto with = [&](auto codec) { multiply<decltype(codec)::value>(p, from, tag); };
        if constexpr (may_have<P, PERSISTENT_CODEC_F16>())
            if (p.codec == PERSISTENT_CODEC_F16) return with(Codec<PERSISTENT_CODEC_F16>());
        with_codec(p, with);
    }
};

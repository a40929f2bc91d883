// Warps 0..7 of a kernel for up to 8 rows: products on tensor cores, from the packed rows that the kernel for one row multiplies. Each warp
// has its own slice of K, as there; of mma.m16n8k16 two groups of weights' rows are the rows and the rows of the step the columns.
//
// In a block of 32 columns lane l has columns 8 t to 8 t + 7 (t = l % 4) of the weights' rows l / 4 of two groups, and of the step's row
// l / 4: a word of nibbles, and a chunk. Which columns of a product's 16 these are is the same on both sides, so any order will do.
//
// A chunk's 8-bit integers become halves times a power of two of 1,024 columns and a row, which is multiplied by afterwards. Weights become halves,
// scales included (2^-11 of a weight). Sums are f32.
#pragma once
#include "persistent/block.cuh"

// Of a unit what a lane multiplies: in each of its four blocks 8 columns of one row.
template <int CODEC> struct RowsUnit {
    static constexpr bool MINS = CODEC == PERSISTENT_CODEC_Q4M || CODEC == PERSISTENT_CODEC_Q5M;
    static constexpr bool UPPER = CODEC == PERSISTENT_CODEC_Q6 || CODEC == PERSISTENT_CODEC_Q5M;
    static constexpr u32 OFFSET = MINS ? 0 : CODEC == PERSISTENT_CODEC_Q4 ? 8 : CODEC == PERSISTENT_CODEC_Q6 ? 32 : 128;
    u32 words[4][CODEC == PERSISTENT_CODEC_Q8 ? 2 : 1];
    u32 upper[UPPER ? 4 : 1];
    u32 scales[4]; // d twice, or d and m

    INLINE void load(const u8 *unit, int lane) {
        const u32 g = lane >> 2, t = lane & 3;
#pragma unroll
        for (int b = 0; b < 4; b++) {
            const u32 at = 8 * b + g;
            if constexpr (CODEC == PERSISTENT_CODEC_Q8) {
                const uint2 w = *(const uint2 *)(unit + 512 * (t >> 1) + 16 * at + 8 * (t & 1));
                words[b][0] = w.x, words[b][1] = w.y;
            } else {
                words[b][0] = *(const u32 *)(unit + 16 * at + 4 * t);
            }
            if constexpr (CODEC == PERSISTENT_CODEC_Q6) upper[b] = *(const u32 *)(unit + 512 + 8 * at + 4 * (t >> 1)) >> (4 * (t & 1));
            if constexpr (CODEC == PERSISTENT_CODEC_Q5M) upper[b] = *(const u32 *)(unit + 512 + 4 * at) >> (2 * t);
            if constexpr (MINS) scales[b] = *(const u32 *)(unit + (UPPER ? 640 : 512) + 4 * at);
            else if constexpr (CODEC == PERSISTENT_CODEC_Q6) scales[b] = *(const u16 *)(unit + 768 + 4 * at + 2 * (t >> 1)) * 0x10001u;
            else scales[b] = *(const u16 *)(unit + (CODEC == PERSISTENT_CODEC_Q8 ? 1024 : 512) + 2 * at) * 0x10001u;
        }
    }
    // Block b as halves: columns (0, 2), (1, 3), (4, 6), (5, 7) of the eight.
    INLINE void halves(int b, u32 (&to)[4]) const {
        u32 low, high; // columns 0 to 3, 4 to 7
        if constexpr (CODEC == PERSISTENT_CODEC_Q8) {
            low = words[b][0] ^ 0x80808080u, high = words[b][1] ^ 0x80808080u;
        } else {
            low = words[b][0] & 0x0F0F0F0Fu, high = (words[b][0] >> 4) & 0x0F0F0F0Fu;
            if constexpr (CODEC == PERSISTENT_CODEC_Q6) low |= (upper[b] << 4) & 0x30303030u, high |= (upper[b] << 2) & 0x30303030u;
            if constexpr (CODEC == PERSISTENT_CODEC_Q5M) low |= (upper[b] << 4) & 0x10101010u, high |= (upper[b] << 3) & 0x10101010u;
        }
        const u32 q[4] = {__byte_perm(low, 0x64646464u, 0x4240), __byte_perm(low, 0x64646464u, 0x4341), __byte_perm(high, 0x64646464u, 0x4240),
                          __byte_perm(high, 0x64646464u, 0x4341)};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const u32 x = half2_sub(q[i], 0x64006400u + OFFSET * 0x10001u); // q is 1,024 more than the integer
            if constexpr (MINS) to[i] = half2_fma(x, __byte_perm(scales[b], 0, 0x1010), __byte_perm(scales[b], 0, 0x3232));
            else to[i] = half2_mul(x, scales[b]);
        }
    }
};

template <int D, int H> struct PersistentRowsProducts : PersistentBlock<D, H, PERSISTENT_MOST_ROWS> {
    typedef PersistentBlock<D, H, PERSISTENT_MOST_ROWS> Block;
    INLINE explicit PersistentRowsProducts(const Block &block) : Block(block) {}
    using Block::a;
    using Block::empty;
    using Block::full;
    using Block::lane;
    using Block::next_slot;
    using Block::parity;
    using Block::pass_parity;
    using Block::ring;
    using Block::s;
    using Block::slot;
    using Block::warp;

    // Where a pass is in the ring.
    struct Place {
        u32 steps_a_slot, within, left;
    };
    template <int CODEC> INLINE void take(RowsUnit<CODEC> &unit, Place &place) {
        if (place.within == 0) mbarrier_wait(full + 8 * slot, parity);
        unit.load(ring + slot * a.slot_bytes + (place.within * 8 + warp) * unit_bytes(CODEC), lane);
        place.within++, place.left--;
        if (place.within == place.steps_a_slot || place.left == 0) {
            place.within = 0;
            __syncwarp();
            if (lane == 0) mbarrier_arrive(empty + 8 * slot);
            next_slot();
        }
    }

    // This lane's four chunks of 1,024 columns of all warps, as they come.
    struct Asked {
        uint4 chunk[4];
        u32 first, chunks;
        const u8 *from;
    };
    INLINE bool is_there(const Asked &x, int b) const { return x.first + 4 * b < x.chunks && (lane >> 2) < a.n_rows; }
    INLINE void load(Asked &x, int b) const { x.chunk[b] = load_relaxed_4(x.from + (u64)(x.first + 4 * b) * (16 * PERSISTENT_MOST_ROWS)); }
    template <class P> INLINE void ask(Asked &x, const P &p, const u8 *from, u32 quad) const {
        x.first = (warp * p.k_quads + quad) * 16 + (lane & 3), x.chunks = p.chunks, x.from = from + (lane >> 2) * 16;
#pragma unroll
        for (int b = 0; b < 4; b++) {
            x.chunk[b] = make_uint4(0, 0, 0, 0);
            if (is_there(x, b)) load(x, b);
        }
    }
    INLINE void wait(Asked &x, u32 tag) const {
        while (true) {
            bool all = true;
#pragma unroll
            for (int b = 0; b < 4; b++) all = all && (!is_there(x, b) || chunk_is(x.chunk[b], tag));
            if (__all_sync(~0u, all)) return;
#pragma unroll
            for (int b = 0; b < 4; b++)
                if (is_there(x, b) && !chunk_is(x.chunk[b], tag)) load(x, b);
        }
    }
    // As the second operand of a product, and the factors of rows 2 t and 2 t + 1.
    struct Input {
        uint4 halves[4];
        float2 factors;
    };
    INLINE uint4 *kept(u32 index) const { return s.input + index * 128 + lane; }
    INLINE float *factors(u32 index) const { return (float *)(s.input + a.most_quads * 8 * 128) + index * 8; }
    INLINE void convert(Input &in, const Asked &x, float &squares) const {
        u32 most = 0; // exponent
#pragma unroll
        for (int b = 0; b < 4; b++) most = max(most, x.chunk[b].z >> 20 & 255);
        most = max(most, __shfl_xor_sync(~0u, most, 1));
        most = max(most, __shfl_xor_sync(~0u, most, 2));
#pragma unroll
        for (int b = 0; b < 4; b++) {
            const uint4 w = x.chunk[b];
            const u32 low = __byte_perm(w.x, w.y, 0x4210) ^ 0x80808080u, high = __byte_perm(w.y, w.z, 0x5421) ^ 0x80808080u;
            // The scale's 4 bits of mantissa, and its exponent against the largest: a chunk that is 2^-15 of another counts nothing beside it.
            const int exponent = (int)(w.z >> 20 & 255) - (int)most + 15;
            const u32 scale = (exponent > 0 ? exponent << 10 | (w.z >> 16 & 15) << 6 : 0) * 0x10001u;
            const u32 q[4] = {__byte_perm(low, 0x64646464u, 0x4240), __byte_perm(low, 0x64646464u, 0x4341), __byte_perm(high, 0x64646464u, 0x4240),
                              __byte_perm(high, 0x64646464u, 0x4341)};
            in.halves[b] = make_uint4(half2_mul(half2_sub(q[0], 0x64806480u), scale), half2_mul(half2_sub(q[1], 0x64806480u), scale),
                                      half2_mul(half2_sub(q[2], 0x64806480u), scale), half2_mul(half2_sub(q[3], 0x64806480u), scale));
            squares += __uint_as_float(w.w << 4);
        }
        const float factor = __uint_as_float(most << 23);
        in.factors = make_float2(__shfl_sync(~0u, factor, 8 * (lane & 3)), __shfl_sync(~0u, factor, 8 * (lane & 3) + 4));
    }

    // One pass of n groups. With FIRST its input is received on the way, and kept in shared memory where it is needed again.
    template <int CODEC, bool FIRST, class P> INLINE void multiply_pass(const P &p, u32 n, bool keep, const u8 *from, u32 tag, Place &place) {
        float sum[PERSISTENT_PASS / 2][4];
#pragma unroll
        for (int i = 0; i < PERSISTENT_PASS / 2; i++) sum[i][0] = sum[i][1] = sum[i][2] = sum[i][3] = 0;
        Asked asked;
        float squares = 0;
        if (FIRST) ask(asked, p, from, 0);
        for (u32 quad = 0; quad < p.k_quads; quad++) {
            Input in;
            const u32 index = warp * p.k_quads + quad;
            if (FIRST) {
                wait(asked, tag);
                convert(in, asked, squares);
                if (quad + 1 < p.k_quads) ask(asked, p, from, quad + 1);
                if (keep) {
#pragma unroll
                    for (int b = 0; b < 4; b++) kept(index)[32 * b] = in.halves[b];
                    if (lane < 4) *(float2 *)(factors(index) + 2 * lane) = in.factors;
                    __syncwarp();
                }
            } else {
#pragma unroll
                for (int b = 0; b < 4; b++) in.halves[b] = kept(index)[32 * b];
                in.factors = *(const float2 *)(factors(index) + 2 * (lane & 3));
            }
#pragma unroll
            for (int i = 0; i < PERSISTENT_PASS / 2; i++) {
                if (2 * i >= n) break;
                RowsUnit<CODEC> first, second;
                take(first, place);
                second = first;
                if (2 * i + 1 < n) take(second, place);
                float c[2][4] = {};
#pragma unroll
                for (int b = 0; b < 4; b++) {
                    u32 low[4], high[4];
                    first.halves(b, low), second.halves(b, high);
                    const u32 rows[2][4] = {{low[0], high[0], low[1], high[1]}, {low[2], high[2], low[3], high[3]}};
                    mma_16x8x16(c[0], rows[0], in.halves[b].x, in.halves[b].y);
                    mma_16x8x16(c[1], rows[1], in.halves[b].z, in.halves[b].w);
                }
#pragma unroll
                for (int j = 0; j < 4; j++) sum[i][j] = fmaf(c[0][j] + c[1][j], j & 1 ? in.factors.y : in.factors.x, sum[i][j]);
            }
        }
        if (FIRST && p.kind != PERSISTENT_ADD) {
            squares += __shfl_xor_sync(~0u, squares, 1);
            squares += __shfl_xor_sync(~0u, squares, 2);
            if ((lane & 3) == 0) s.squares[warp][lane >> 2] = squares;
            __syncwarp();
            this->input_is_here();
        }
        // To the epilogue.
        float *out = s.partial[pass_parity][warp] + 2 * lane;
#pragma unroll
        for (int i = 0; i < PERSISTENT_PASS / 2; i++) {
            if (2 * i < n) *(float2 *)(out + 2 * i * PERSISTENT_SUMS) = make_float2(sum[i][0], sum[i][1]);
            if (2 * i + 1 < n) *(float2 *)(out + (2 * i + 1) * PERSISTENT_SUMS) = make_float2(sum[i][2], sum[i][3]);
        }
        barrier_arrive(2 + pass_parity, 288);
        pass_parity ^= 1;
    }
    template <int CODEC, class P> INLINE void multiply(const P &p, const u8 *from, u32 tag) {
        const u32 n_groups = p.own_groups;
        const bool keep = n_groups > PERSISTENT_PASS || p.qkv_part & PERSISTENT_CONTINUED;
        Place place = {a.slot_bytes / (8 * unit_bytes(CODEC)), 0, n_groups * p.k_quads};
        if (!(p.qkv_part & PERSISTENT_CONTINUES)) multiply_pass<CODEC, true>(p, min((u32)PERSISTENT_PASS, n_groups), keep, from, tag, place);
        else multiply_pass<CODEC, false>(p, n_groups, false, from, tag, place);
        for (u32 g0 = PERSISTENT_PASS, pass = 1; g0 < n_groups; g0 += PERSISTENT_PASS, pass++) {
            if (pass >= 2) barrier(8 + pass_parity, 288); // the epilogue has read what this overwrites
            multiply_pass<CODEC, false>(p, min((u32)PERSISTENT_PASS, n_groups - g0), false, from, tag, place);
        }
    }
    template <class P> INLINE void product(const P &p, const u8 *from, u32 tag) {
        if (!(p.qkv_part & PERSISTENT_CONTINUES)) this->wait_published();
        else if (p.qkv_part & PERSISTENT_OF_THREE) barrier(8 + pass_parity, 288); // the epilogue has read the first part's sums
        with_codec(p, [&](auto codec) { multiply<decltype(codec)::value>(p, from, tag); });
    }
};

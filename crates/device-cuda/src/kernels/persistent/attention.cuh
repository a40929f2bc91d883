// Warps 0..7: attention to one KV head and one split of its positions, and the order of phases.
// Pages are F16, Q8_0 or FP8 (pages.cuh).
//
// A warp attends to 16 positions at a time on tensor cores. In products for scores, positions are
// the rows and query heads the columns. In products for sums of values, columns of a head are the
// rows. So 2 to 8 query heads cost the same, and the 16 bytes that a lane loads are a fragment.
// Which columns of a head a lane has is the same for keys and queries, so any order is right. Tiles
// are dealt to the blocks of the KV head in turn, then to their warps. They come through the ring
// unless a block attends alone. Order of accumulation: a warp's tiles in ascending order, then
// warps, then splits.
#pragma once
#include "e4m3.cuh"
#include "persistent/block.cuh"

template <class Products, int D, int H, PersistentPages PAGES, bool MIXTURE> struct PersistentWorker : Products {
    INLINE explicit PersistentWorker(const typename Products::Block &block) : Products(block) {}
    using Products::a;
    using Products::alone;
    using Products::attends;
    using Products::block;
    using Products::kv_head;
    using Products::lane;
    using Products::part;
    using Products::position;
    using Products::product;
    using Products::s;
    using Products::split;
    using Products::warp;
    static constexpr u32 PARTIAL_BYTES = Products::PARTIAL_BYTES;
    static constexpr bool BYTES = PAGES != PAGES_F16, FP8 = PAGES == PAGES_FP8;
    static constexpr u32 VECTOR = persistent_vector<PAGES, D>();
    static constexpr int TILE = PERSISTENT_TILE, A_SLOT = tiles_a_slot(VECTOR);
    // True if registers have room for a tile, which is then loaded before the queries arrive.
    // Otherwise they hold COLUMNS columns at a time.
    static constexpr bool WHOLE_TILE = BYTES || D <= 128;
    static constexpr int COLUMNS = WHOLE_TILE ? D : 128;
    // bytes from one query head, in halves, to the next, without bank conflicts
    static constexpr int QUERY = 2 * D + 64;

    // Computes cosines and sines of the position and of those before it in the step, as rotate.cuh
    // does.
    INLINE void prepare_rotary() {
        for (u32 j = threadIdx.x; j < (this->n_before + 1) * (3 * D / 2); j += 256) {
            const u32 back = Products::SEVERAL ? j / (3 * D / 2) : 0, i = j - back * (3 * D / 2), which = i / (D / 2), pair = i % (D / 2);
            const float *frequencies = which == 0 ? nullptr : which == 1 ? a.frequencies1 : a.frequencies2;
            float sine = 0.0f, cosine = 1.0f;
            if (frequencies) {
                const float scale = which == 1 ? a.rotation_scale1 : a.rotation_scale2;
                sincosf((float)(position - back) * frequencies[pair], &sine, &cosine);
                sine *= scale, cosine *= scale;
            }
            this->rotary_of(back)[i] = make_float2(cosine, sine);
        }
        workers_meet();
    }

    // Eight neighbouring columns of a vector, as they are stored.
    struct Eight {
        u32 words[BYTES ? 2 : 4];
        u32 scale; // only with BYTES: a half of Q8_0, an f32 of FP8
        INLINE void clear() {
#pragma unroll
            for (int i = 0; i < (BYTES ? 2 : 4); i++) words[i] = 0;
            scale = 0;
        }
        INLINE void load(const u8 *vector, u32 column) {
            if constexpr (BYTES) {
                words[0] = *(const u32 *)(vector + column), words[1] = *(const u32 *)(vector + column + 4);
                if constexpr (FP8) scale = *(const u32 *)(vector + D);
                else scale = ((const u16 *)(vector + D))[column / 32];
            } else {
                const uint4 v = *(const uint4 *)(vector + 2 * column);
                words[0] = v.x, words[1] = v.y, words[2] = v.z, words[3] = v.w;
            }
        }
        INLINE void halves(u32 (&to)[4]) const {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                if constexpr (FP8) {
                    const float by = half_scale_of_e4m3(__uint_as_float(scale));
                    to[i] = half2_mul(halves_of_e4m3(words[i / 2], i & 1), pack_half2(by, by));
                } else if constexpr (BYTES) {
                    // Halves of 1024 + 128 + byte, minus 1152.
                    const u32 x = __byte_perm(words[i / 2] ^ 0x80808080u, 0x64646464u, i & 1 ? 0x4342 : 0x4140);
                    to[i] = half2_mul(half2_sub(x, 0x64806480u), scale * 0x10001u);
                } else {
                    to[i] = words[i];
                }
            }
        }
    };
    // A lane's part of a tile, or of COLUMNS of it, with g = lane / 4 and t = lane % 4. Keys:
    // positions g and g + 8, columns 32 c + 8 t to + 7. Values: positions 2 t, 2 t + 1, 2 t + 8, 2
    // t + 9, columns 64 c + 8 g to + 7.
    struct Tile {
        Eight keys[2][COLUMNS / 32];
        Eight values[4][COLUMNS / 64];
    };
    INLINE u32 row_of_key(int r) const { return (lane >> 2) + 8 * r; }
    INLINE u32 row_of_value(int r) const { return 2 * (lane & 3) + (r & 1) + 8 * (r >> 1); }
    // Addresses of a tile's keys and values.
    struct Place {
        const u8 *keys, *values;
    };
    // Loads positions of earlier steps from `first` on, and columns from `column` on. Positions of
    // this step are not read here.
    INLINE void load_keys(Tile &x, const Place &from, u32 position_0, u32 first, u32 column = 0) const {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const u32 row = row_of_key(r), at = position_0 + row;
#pragma unroll
            for (int c = 0; c < COLUMNS / 32; c++) {
                if (at < this->first_own() && at >= first) x.keys[r][c].load(from.keys + row * VECTOR, column + 32 * c + 8 * (lane & 3));
                else x.keys[r][c].clear();
            }
        }
    }
    INLINE void load_values(Tile &x, const Place &from, u32 position_0, u32 first, u32 column = 0) const {
#pragma unroll
        for (int r = 0; r < 4; r++) {
            const u32 row = row_of_value(r), at = position_0 + row;
#pragma unroll
            for (int c = 0; c < COLUMNS / 64; c++) {
                if (at < this->first_own() && at >= first) x.values[r][c].load(from.values + row * VECTOR, column + 64 * c + 8 * (lane >> 2));
                else x.values[r][c].clear();
            }
        }
    }
    INLINE u32 position_of(u32 k) const { return (split + k * this->stride()) * TILE; }
    // The address of the block's k-th tile, which is this warp's. Loads it if registers have room
    // for it.
    template <class P> INLINE Place take(Tile &x, const P &p, const PersistentTiles &tiles, u32 k, u32 first) const {
        const u32 position_0 = position_of(k);
        Place from;
        if (this->streams(A_SLOT)) {
            // The slot's previous tile may be another warp's.
            mbarrier_wait(this->empty + 8 * this->slot, this->parity ^ 1);
            mbarrier_wait(this->full + 8 * this->slot, this->parity);
            from.keys = this->ring + this->slot * a.slot_bytes + (k - tiles.begin) % A_SLOT * (2 * TILE * VECTOR);
            from.values = from.keys + TILE * VECTOR;
        } else {
            const u32 page = this->page_of(p, position_0);
            from.keys = this->template vector_of<VECTOR>(p, page, position_0, kv_head);
            from.values = this->template vector_of<VECTOR>(p, page, position_0, a.n_kv_heads + kv_head);
        }
        if (WHOLE_TILE) load_keys(x, from, position_0, first), load_values(x, from, position_0, first), release(tiles, k);
        return from;
    }
    // The tile is in registers. The warps of a slot's tiles free the slot on behalf of all eight
    // warps.
    INLINE void release(const PersistentTiles &tiles, u32 k) const {
        if (!this->streams(A_SLOT)) return;
        const u32 at = (k - tiles.begin) % A_SLOT;
        __syncwarp();
        if (lane == 0) mbarrier_arrive(this->empty + 8 * this->slot, k + 1 == tiles.end ? 8 - at * (8 / A_SLOT) : 8 / A_SLOT);
    }
    // True if the tile has positions of this step, whose keys and values come from shared memory.
    INLINE bool has_own(u32 position_0) const { return position_0 + TILE > this->first_own(); }
    INLINE void add_own_keys(Tile &x, u32 position_0, u32 column) const {
        if (!has_own(position_0)) return;
#pragma unroll
        for (int r = 0; r < 2; r++)
#pragma unroll
            for (int c = 0; c < COLUMNS / 32; c++)
                if (const u32 own = position_0 + row_of_key(r) - this->first_own(); own <= this->n_before)
                    x.keys[r][c].load(this->own_vector(0, own), column + 32 * c + 8 * (lane & 3));
    }
    INLINE void add_own_values(Tile &x, u32 position_0, u32 column) const {
        if (!has_own(position_0)) return;
#pragma unroll
        for (int r = 0; r < 4; r++)
#pragma unroll
            for (int c = 0; c < COLUMNS / 64; c++)
                if (const u32 own = position_0 + row_of_value(r) - this->first_own(); own <= this->n_before)
                    x.values[r][c].load(this->own_vector(1, own), column + 64 * c + 8 * (lane >> 2));
    }
    // Attends to a tile. For query heads 2 t and 2 t + 1 a lane has the largest score and its part
    // of the sum of weights. For each 16 columns it has a part of the sum of values.
    INLINE void attend(Tile &x, const Place &from, const PersistentTiles &tiles, u32 k, u32 first, float (&most)[2], float (&total)[2], float (&out)[D / 16][4]) const {
        const u32 position_0 = position_of(k);
        const u32 g = lane >> 2, t = lane & 3;
        // Columns of missing heads repeat head 0; their results are not used.
        const u8 *queries = (const u8 *)s.queries + (g < H ? g : 0) * QUERY + 16 * t;
        float score[4], other[4]; // of positions g and g + 8, heads 2 t and 2 t + 1
#pragma unroll
        for (int i = 0; i < 4; i++) score[i] = other[i] = 0;
#pragma unroll
        for (int column = 0; column < D; column += COLUMNS) {
            if (!WHOLE_TILE) load_keys(x, from, position_0, first, column);
            add_own_keys(x, position_0, column);
#pragma unroll
            for (int c = 0; c < COLUMNS / 32; c++) {
                u32 low[4], high[4];
                x.keys[0][c].halves(low), x.keys[1][c].halves(high);
                const uint4 q = *(const uint4 *)(queries + 2 * column + 64 * c);
                const u32 rows[2][4] = {{low[0], high[0], low[1], high[1]}, {low[2], high[2], low[3], high[3]}};
                mma_16x8x16(score, rows[0], q.x, q.y);
                mma_16x8x16(other, rows[1], q.z, q.w);
            }
        }
#pragma unroll
        for (int i = 0; i < 4; i++) score[i] += other[i];
        u32 weights[2];
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const u32 at = position_0 + g + 8 * r;
#pragma unroll
            for (int h = 0; h < 2; h++) {
                float y = score[2 * r + h] * a.attention_scale;
                if (a.softcap > 0) {
                    const float z = y * (0.6931471805599453f / a.softcap);
                    y = 1.4426950408889634f * a.softcap * (1.0f - 2.0f * reciprocal_fast(exp2_fast(2.8853900817779268f * z) + 1.0f));
                }
                score[2 * r + h] = at <= position && at >= first ? y : -1e30f;
            }
        }
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float high = fmaxf(score[h], score[2 + h]);
#pragma unroll
            for (int m = 4; m < 32; m *= 2) high = fmaxf(high, __shfl_xor_sync(~0u, high, m));
            high = fmaxf(high, most[h]);
            const float factor = exp2_fast(most[h] - high);
            most[h] = high;
            // Scores of -1e30 are masked. exp2 would not make 0 of them in a tile whose positions
            // are all masked.
            score[h] = score[h] > -1e30f ? exp2_fast(score[h] - high) : 0.0f;
            score[2 + h] = score[2 + h] > -1e30f ? exp2_fast(score[2 + h] - high) : 0.0f;
            total[h] = total[h] * factor + score[h] + score[2 + h];
#pragma unroll
            for (int i = 0; i < D / 16; i++) out[i][h] *= factor, out[i][2 + h] *= factor;
        }
#pragma unroll
        for (int r = 0; r < 2; r++) weights[r] = transposed(pack_half2(score[2 * r], score[2 * r + 1]));
#pragma unroll
        for (int column = 0; column < D; column += COLUMNS) {
            if (!WHOLE_TILE) load_values(x, from, position_0, first, column);
            if (!WHOLE_TILE && column + COLUMNS == D) release(tiles, k);
            add_own_values(x, position_0, column);
#pragma unroll
            for (int c = 0; c < COLUMNS / 64; c++) {
                u32 v[4][4];
#pragma unroll
                for (int r = 0; r < 4; r++) x.values[r][c].halves(v[r]);
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const u32 columns[4] = {__byte_perm(v[0][i], v[1][i], 0x5410), __byte_perm(v[0][i], v[1][i], 0x7632),
                                            __byte_perm(v[2][i], v[3][i], 0x5410), __byte_perm(v[2][i], v[3][i], 0x7632)};
                    mma_16x8x16(out[(column + 64 * c) / 16 + i], columns, weights[0], weights[1]);
                }
            }
        }
    }
    // True if the block attends to a tile.
    INLINE bool has_tile(u32 tile) const { return alone || (this->many() ? tile % this->n_splits() : tile % this->few()) == split; }
    // Four neighbouring columns of a key or value as a page stores them, and their scale.
    struct Four {
        u32 words[2], scale;
        INLINE void put(u8 *to, u32 column, u32 lane) const {
            if constexpr (BYTES) {
                *(u32 *)(to + column) = words[0];
                if (FP8 && column == 0) *(u32 *)(to + D) = scale;
                if (!FP8 && (lane & 7) == 0) ((u16 *)(to + D))[column / 32] = (u16)scale;
            } else {
                *(uint2 *)(to + 2 * column) = make_uint2(words[0], words[1]);
            }
        }
    };
    // `largest` is the absolute value that the scale is computed from.
    static INLINE Four stored_of(const float (&x)[4], float largest) {
        Four y = {{0, 0}, 0};
        if constexpr (FP8) {
            const float by = fp8_scale(largest), inverse = 1.0f / by;
            y.scale = __float_as_uint(by);
#pragma unroll
            for (int c = 0; c < 4; c++) y.words[0] |= e4m3_of(x[c] * inverse) << (8 * c);
        } else if constexpr (BYTES) {
            const u16 d = to_half(fminf(largest * (1.0f / 127.0f), 65504.0f));
            const float by = from_half(d), inverse = by > 0.0f ? 1.0f / by : 0.0f;
            y.scale = d;
#pragma unroll
            for (int c = 0; c < 4; c++)
                y.words[0] |= (u32)(__float2int_rn(fminf(fmaxf(x[c] * inverse, -127.0f), 127.0f)) & 255) << (8 * c);
        } else {
            y.words[0] = pack_half2_clamped(x[0], x[1]), y.words[1] = pack_half2_clamped(x[2], x[3]);
        }
        return y;
    }
    // Words of q, k and v that a warp receives at a time, at least a head; a lane has four of each
    // 128.
    static constexpr u32 WARP_WORDS = D > 128 ? D : 128, PARTS = WARP_WORDS / 128;
    // Receives a warp's words of q, k and v, from the `at`-th of `words` on, into shared memory.
    // First come the queries of the block's row. Then come key and value of each own row of the
    // step that the block needs, backwards, from `first_back` rows before its own.
    template <class P> INLINE void receive(const P &p, u32 tag, u32 at, u32 words, u32 first_back) const {
        const u32 word = at + 4 * lane, column = word % D, n = word / D;
        const bool is_q = n < H;
        const u32 head = is_q ? n : H + (n - H) % 2, back = is_q ? 0 : first_back + (n - H) / 2;
        // With an odd number of heads of 64 columns, nobody writes the second half of the last
        // warp's words.
        const bool inside = (H + 2) * D % 128 == 0 || word < words;
        const u32 row = head < H ? kv_head * H + head : head == H ? a.n_kv_heads * H + kv_head : a.n_kv_heads * (H + 1) + kv_head;
        const u8 *from = part(EXCHANGE_QKV) + ((Products::SEVERAL ? (this->row - min(back, this->n_before)) * this->qkv_rows() : 0) + row * D + column) * 4;
        float2 rotary[PARTS][4];
        float norm[PARTS][4];
        const float *weights = is_q ? q_norm(p) : k_norm(p);
        const float2 *all_rotary = this->rotary_of(back) + p.rotation * (D / 2);
#pragma unroll
        for (int i = 0; i < PARTS; i++)
#pragma unroll
            for (int c = 0; c < 4; c++) {
                const u32 at = column + 128 * i + c;
                rotary[i][c] = all_rotary[a.interleaved ? at / 2 : at & (D / 2 - 1)];
                norm[i][c] = weights && head <= H ? weights[at] : 1.0f;
            }
        uint4 v[PARTS];
        bool there;
        do {
            there = true;
#pragma unroll
            for (int i = 0; i < PARTS; i++) {
                v[i] = load_relaxed_4(from + 512 * i);
                there = there && (((v[i].x ^ tag) | (v[i].y ^ tag) | (v[i].z ^ tag) | (v[i].w ^ tag)) & 15) == 0;
            }
        } while (__any_sync(~0u, inside && !there));
        float f[PARTS][4], squares = 0.0f;
#pragma unroll
        for (int i = 0; i < PARTS; i++) {
            f[i][0] = untag_word(v[i].x), f[i][1] = untag_word(v[i].y), f[i][2] = untag_word(v[i].z), f[i][3] = untag_word(v[i].w);
            squares += f[i][0] * f[i][0] + f[i][1] * f[i][1] + f[i][2] * f[i][2] + f[i][3] * f[i][3];
        }
#pragma unroll
        for (int m = 1; m < D / 4 && m < 32; m *= 2) squares += __shfl_xor_sync(~0u, squares, m);
        if (weights && head <= H) {
            const float scale = rsqrtf(squares * (1.0f / D) + a.eps);
#pragma unroll
            for (int i = 0; i < PARTS; i++)
#pragma unroll
                for (int c = 0; c < 4; c++) f[i][c] *= scale * norm[i][c];
        }
        float o[PARTS][4];
#pragma unroll
        for (int i = 0; i < PARTS; i++)
#pragma unroll
            for (int c = 0; c < 4; c++) {
                // The column half a head away, in another lane or in this lane's other part.
                const float far = PARTS == 1 ? __shfl_xor_sync(~0u, f[i][c], D / 8 % 32) : f[PARTS - 1 - i][c];
                const float other = a.interleaved ? f[i][c ^ 1] : far;
                const bool low = a.interleaved ? (c & 1) == 0 : column + 128 * i < D / 2;
                o[i][c] = low ? f[i][c] * rotary[i][c].x - other * rotary[i][c].y : f[i][c] * rotary[i][c].x + other * rotary[i][c].y;
                if (head > H) o[i][c] = f[i][c]; // RoPE does not apply to values
            }
        float largest[PARTS]; // over 32 columns; for FP8 over all columns
#pragma unroll
        for (int i = 0; i < PARTS; i++) {
            largest[i] = 0.0f;
            if constexpr (BYTES) largest[i] = max_of_8(fmaxf(fmaxf(fabsf(o[i][0]), fabsf(o[i][1])), fmaxf(fabsf(o[i][2]), fabsf(o[i][3]))));
        }
        if constexpr (FP8) {
#pragma unroll
            for (int i = 1; i < PARTS; i++) largest[0] = fmaxf(largest[0], largest[i]);
#pragma unroll
            for (int m = 8; m < D / 4 && m < 32; m *= 2) largest[0] = fmaxf(largest[0], __shfl_xor_sync(~0u, largest[0], m));
        }
#pragma unroll
        for (int i = 0; i < PARTS; i++) {
            const u32 at = column + 128 * i;
            if (is_q) {
                const uint2 halves = make_uint2(pack_half2_clamped(o[i][0], o[i][1]), pack_half2_clamped(o[i][2], o[i][3]));
                *(uint2 *)((u8 *)s.queries + head * QUERY + 2 * at) = halves;
            } else if (inside) {
                const Four stored = stored_of(o[i], largest[FP8 ? 0 : i]);
                stored.put(this->own_vector(head - H, this->n_before - back), at, lane);
                // Earlier rows are stored by their own blocks.
                if (back == 0) stored.put(this->template vector_of<VECTOR>(p, this->page_of(p, position), position, head == H ? kv_head : a.n_kv_heads + kv_head), at, lane);
            }
        }
    }
    template <class P> INLINE void attention(const P &p, u32 tag) {
        const u32 first = this->first_seen(p), last = position / TILE;
        const PersistentTiles tiles = this->tiles(p);
        // A warp has every eighth tile, numbered from position 0. So the order of accumulation does
        // not depend on the first visible position.
        u32 k = tiles.begin + ((warp - tiles.begin) & 7);
        const bool busy = k < tiles.end;
        Tile x;
        Place from = {nullptr, nullptr};
        if (this->streams(A_SLOT)) this->skip_slots(busy ? (k - tiles.begin) / A_SLOT : tiles.slots(A_SLOT));
        if (busy) from = take(x, p, tiles, k, first);
        wait_qkv();
        pause_cycles(a.poll_delay);
        // Own rows of the step that the block needs, as distances from its own row. They lie in its
        // tiles, and all rows of a step lie in the last two tiles.
        const u32 n_last = min(position % TILE, this->n_before) + 1;
        const u32 first_back = has_tile(last) ? 0 : n_last, end_back = n_last <= this->n_before && has_tile(last - 1) ? this->n_before + 1 : n_last;
        if constexpr (Products::SEVERAL) {
            const u32 words = (H + 2 * (end_back - first_back)) * D;
#pragma unroll 1
            for (u32 at = WARP_WORDS * warp; at < words; at += 8 * WARP_WORDS) receive(p, tag, at, words, first_back);
        } else {
            constexpr u32 WORDS = (H + 2) * D;
            const u32 words = first_back == 0 ? WORDS : H * D;
#pragma unroll
            for (u32 word_0 = 0; word_0 < WORDS; word_0 += 8 * WARP_WORDS)
                if (word_0 + WARP_WORDS * warp < words) receive(p, tag, word_0 + WARP_WORDS * warp, words, 0);
        }
        workers_meet();
        float most[2] = {-1e30f, -1e30f}, total[2] = {0, 0}, out[D / 16][4];
#pragma unroll
        for (int i = 0; i < D / 16; i++) out[i][0] = out[i][1] = out[i][2] = out[i][3] = 0;
        if (busy) {
            while (true) {
                attend(x, from, tiles, k, first, most, total, out);
                if (k + 8 >= tiles.end) break;
                k += 8;
                if (this->streams(A_SLOT)) this->skip_slots(8 / A_SLOT);
                from = take(x, p, tiles, k, first);
            }
            if (this->streams(A_SLOT)) this->skip_slots(tiles.slots(A_SLOT) - (k - tiles.begin) / A_SLOT);
        }
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int head = 2 * (lane & 3) + h;
#pragma unroll
            for (int m = 4; m < 32; m *= 2) total[h] += __shfl_xor_sync(~0u, total[h], m);
            if (head >= H) continue;
            if (lane < 4) s.most[head][warp] = most[h], s.total[head][warp] = total[h];
            float *to = &s.outputs[warp][head * D + 8 * (lane >> 2)];
#pragma unroll
            for (int i = 0; i < D / 16; i++) *(float2 *)(to + 64 * (i / 4) + 2 * (i & 3)) = make_float2(out[i][h], out[i][2 + h]);
        }
        workers_meet();
        u8 *to = part(EXCHANGE_PARTIALS) + (u64)block * PARTIAL_BYTES;
        for (int i = threadIdx.x; i < H * D; i += 256) {
            const int h = i / D; // equal in a whole warp
            float high = -1e30f, sum = 0, value = 0;
#pragma unroll
            for (int w = 0; w < 8; w++) high = fmaxf(high, s.most[h][w]);
            if constexpr (PERSISTENT_HAS_RARE) {
                // The first split, which always attends, adds the sink: a score without a value.
                if (sinks(p) && split == 0) {
                    const float sink = sinks(p)[kv_head * H + h] * 1.4426950408889634f;
                    high = fmaxf(high, sink), sum = exp2_fast(sink - high);
                }
            }
#pragma unroll
            for (int w = 0; w < 8; w++) {
                const float factor = exp2_fast(s.most[h][w] - high);
                sum += factor * s.total[h][w], value += factor * s.outputs[w][i];
            }
            if (alone) { // nothing to merge; H * D is a multiple of 32
                give_attended(value * reciprocal_fast(sum), i, tag);
                continue;
            }
            store_relaxed_1(to + 4 * i, tag_word(value, tag));
            if (i % D == 0) {
                store_relaxed_1(to + 4 * (H * D + 2 * h), tag_word(high, tag));
                store_relaxed_1(to + 4 * (H * D + 2 * h + 1), tag_word(sum, tag));
            }
        }
    }

    // Publishes a column of the KV head's attention. Eight lanes make a chunk. All lanes of a warp
    // call it.
    INLINE void give_attended(float x, u32 column, u32 tag) const {
        const u32 at = lane & 7;
        u8 *to = this->chunk(EXCHANGE_ATTENDED, (kv_head * (H * D) + column) / 8, this->row);
        const float largest = max_of_8(fabsf(x));
        if constexpr (Products::SEVERAL) {
            const u32 scale = fine_scale(largest), word = 2 * (at >> 2) + (at & 1);
            const float inverse = reciprocal_fast(__uint_as_float(scale << 19)), other = __shfl_xor_sync(~0u, x, 2);
            if ((at & 2) == 0) store_relaxed_1(to + 4 * word, fine_pair(x, other, inverse) | fine_scale_bits(scale, word) | tag << 28);
        } else {
            const u32 scale = chunk_scale(largest);
            const u32 q = (u32)(__float2int_rn(x * reciprocal_fast(__uint_as_float(scale << 19))) & 255) << (8 * (at & 3));
            u32 low = at < 4 ? q : 0, high = at < 4 ? 0 : q;
#pragma unroll
            for (int m = 1; m < 8; m *= 2) low |= __shfl_xor_sync(~0u, low, m), high |= __shfl_xor_sync(~0u, high, m);
            if (at == 0) store_relaxed_4(to, chunk_of(low, high, scale, 0.0f, tag));
        }
    }

    // A thread reports that keys and values of the step are in their pages. The stores of the
    // block's other threads came before a barrier that this thread has passed.
    INLINE void written() const {
        __threadfence_block();
        *(volatile u32 *)&s.written = this->step_of_launch + 1;
    }
    INLINE void run() {
        u32 epoch_input = 0, epoch = 0;
        do {
            run_step(epoch_input, epoch);
            epoch_input++;
        } while (this->next_step());
    }
    INLINE void run_step(u32 &epoch_input, u32 &epoch) {
        prepare_rotary();
        this->each_phase([&](const auto &p) {
            const bool is_qkv = p.kind == PERSISTENT_QKV, is_head = p.kind == PERSISTENT_HEAD;
            if (is_qkv && !(p.qkv_part & PERSISTENT_CONTINUES)) epoch++;
            if constexpr (MIXTURE) {
                if (p.kind == PERSISTENT_ROUTE) {
                    this->route(p, tag_of(epoch));
                    return;
                }
                if (p.kind == PERSISTENT_EXPERTS) {
                    this->gate(p);
                    return;
                }
                if (p.kind == PERSISTENT_ADD_EXPERTS) {
                    this->down(p, tag_of(epoch));
                    epoch_input++;
                    return;
                }
            }
            if (is_head && threadIdx.x == 0) {
                *(volatile u32 *)&s.credit += p.pieces; // may be loaded as slots get free
                if (Products::CHAINS) written();
            }
            product(p, part(p.input), tag_of(is_qkv || is_head ? epoch_input : epoch));
            if (is_qkv && !(p.qkv_part & PERSISTENT_CONTINUED) && attends()) attention(p, tag_of(epoch));
            if (p.input == EXCHANGE_GATED) epoch_input++;
            if (p.gate_refill && threadIdx.x == 0) *(volatile u32 *)&s.credit += p.credit;
        });
    }
};

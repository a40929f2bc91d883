// Warps 0..7: attention of one KV head and one split of its positions; and the order of phases. Pages are F16; or, with BYTES, Q8_0 as
// pages.cuh has them.
#pragma once
#include "persistent/mixture.cuh"

template <int D, int H, bool BYTES, bool MIXTURE> struct PersistentWorker : PersistentExperts<D, H> {
    typedef PersistentExperts<D, H> Products;
    INLINE explicit PersistentWorker(const PersistentBlock<D, H> &block) : Products(block) {}
    using Products::a;
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
    static constexpr int N_LANES_V = D / 32; // values of a head that a lane has
    // Elsewhere registers spill, or bytes come fast enough (NOTES.md).
    static constexpr bool AHEAD_IS_FASTER = !BYTES && (D == 64 || H == 3 || H == 4);
    static constexpr u32 VECTOR = BYTES ? D / 32 * 34 : D * 2;

    // Cosines and sines of the position, as rotate.cuh computes them.
    INLINE void turn() {
        for (u32 i = threadIdx.x; i < 3 * (D / 2); i += 256) {
            const u32 which = i / (D / 2), pair = i % (D / 2);
            const float *frequencies = which == 0 ? nullptr : which == 1 ? a.frequencies1 : a.frequencies2;
            float sine = 0.0f, cosine = 1.0f;
            if (frequencies) {
                const float scale = which == 1 ? a.rotation_scale1 : a.rotation_scale2;
                sincosf((float)position * frequencies[pair], &sine, &cosine);
                sine *= scale, cosine *= scale;
            }
            s.turns[which][pair] = make_float2(cosine, sine);
        }
        barrier(1, 256);
    }

    // With BYTES the bytes of the columns, then the scale of their block.
    struct Rows {
        uint2 k[D / 32];
        uint2 v[4];
    };
    static INLINE float byte_of(u32 word, int index) {
        return __uint_as_float(__byte_perm(word ^ 0x80808080u, 0x4b000000u, 0x7440 + index)) - 8388736.0f;
    }
    // Four columns of a key; the values of a lane.
    static INLINE void columns_of(uint2 k, float (&x)[4]) {
        if constexpr (BYTES) {
            const float scale = from_half((u16)k.y);
#pragma unroll
            for (int c = 0; c < 4; c++) x[c] = scale * byte_of(k.x, c);
        } else {
            x[0] = low_half(k.x), x[1] = high_half(k.x), x[2] = low_half(k.y), x[3] = high_half(k.y);
        }
    }
    static INLINE void values_of(uint2 v, float (&x)[N_LANES_V]) {
        if constexpr (BYTES) {
            const float scale = from_half((u16)v.y);
#pragma unroll
            for (int c = 0; c < N_LANES_V; c++) x[c] = scale * byte_of(v.x, c);
        } else {
            x[0] = low_half(v.x), x[1] = high_half(v.x);
            if constexpr (N_LANES_V == 4) x[2] = low_half(v.y), x[3] = high_half(v.y);
        }
    }
    template <class P> INLINE const u8 *vector_at(const P &p, u32 position, u32 head) const {
        const u32 page = a.page_table[p.table + (position >> (31 - __clz(a.page_len)))];
        return p.pages + (u64)page * p.page_bytes + (head * a.page_len + (position & (a.page_len - 1))) * VECTOR;
    }
    // Keys: four positions a warp, eight lanes each. Values: the same four, all lanes each.
    template <class P> INLINE void load_rows(Rows &r, const P &p, u32 tile, u32 position, u32 first, u32 kv_head) const {
        const u32 own = tile * 32 + warp * 4 + (lane >> 3);
        const bool inside = own < position && own >= first;
        const u8 *key = inside ? vector_at(p, own, kv_head) : p.pages;
#pragma unroll
        for (int c = 0; c < D / 32; c++) {
            r.k[c] = make_uint2(0, 0);
            if (!inside) continue;
            if constexpr (BYTES) r.k[c] = make_uint2(*(const u32 *)(key + c * 32 + (lane & 7) * 4), ((const u16 *)(key + D))[c]);
            else r.k[c] = *(const uint2 *)(key + (c * 32 + (lane & 7) * 4) * 2);
        }
#pragma unroll
        for (int q = 0; q < 4; q++) {
            const u32 at = tile * 32 + warp * 4 + q;
            r.v[q] = make_uint2(0, 0);
            if (at < position && at >= first) {
                const u8 *value = vector_at(p, at, a.n_kv_heads + kv_head);
                if constexpr (BYTES) {
                    if constexpr (D == 128) r.v[q].x = *(const u32 *)(value + lane * 4);
                    else r.v[q].x = *(const u16 *)(value + lane * 2);
                    r.v[q].y = ((const u16 *)(value + D))[lane * N_LANES_V / 32];
                } else if constexpr (D == 128) {
                    r.v[q] = *(const uint2 *)(value + lane * 8);
                } else {
                    r.v[q].x = *(const u32 *)(value + lane * 4);
                }
            }
        }
    }
    // Tiles of a split, one after the other, from the one that is loaded. With AHEAD two are on their way while one is used: that is
    // faster where there are many, and takes registers that a single one has no use for.
    template <bool AHEAD, class P>
    INLINE void attend_tiles(const P &p, Rows &now, u32 tile, u32 own_tile, u32 first, float (&most)[H], float (&total)[H],
                             float (&out)[H][N_LANES_V]) const {
        Rows next;
        if constexpr (AHEAD) load_rows(next, p, tile + a.n_splits, position, first, kv_head);
        while (tile <= own_tile) {
            Rows fresh;
            const u32 coming = tile + (AHEAD ? 2 : 1) * a.n_splits;
            if (coming <= own_tile) load_rows(fresh, p, coming, position, first, kv_head);
            const u32 at = tile * 32 + warp * 4 + (lane >> 3);
            float score[H];
#pragma unroll
            for (int h = 0; h < H; h++) score[h] = 0;
#pragma unroll
            for (int c = 0; c < D / 32; c++) {
                const int column = c * 32 + (lane & 7) * 4;
                float k[4];
                columns_of(now.k[c], k);
                if (at == position) {
                    const float4 own = *(const float4 *)(s.new_key + column);
                    k[0] = own.x, k[1] = own.y, k[2] = own.z, k[3] = own.w;
                }
#pragma unroll
                for (int h = 0; h < H; h++) {
                    const float4 q = *(const float4 *)(s.queries + h * D + column);
                    score[h] += q.x * k[0] + q.y * k[1] + q.z * k[2] + q.w * k[3];
                }
            }
            const bool seen = at <= position && at >= first;
            float weight[H];
#pragma unroll
            for (int h = 0; h < H; h++) {
                float x = sum_of_8(score[h]) * a.attention_scale;
                if (a.softcap > 0) {
                    const float y = x * (0.6931471805599453f / a.softcap);
                    x = 1.4426950408889634f * a.softcap * (1.0f - 2.0f * reciprocal_fast(exp2_fast(2.8853900817779268f * y) + 1.0f));
                }
                if (!seen) x = -1e30f;
                float high = fmaxf(x, __shfl_xor_sync(~0u, x, 8));
                high = fmaxf(high, __shfl_xor_sync(~0u, high, 16));
                high = fmaxf(high, most[h]);
                const float factor = exp2_fast(most[h] - high);
                most[h] = high;
                weight[h] = seen ? exp2_fast(x - high) : 0.0f;
                float sum = weight[h] + __shfl_xor_sync(~0u, weight[h], 8);
                sum += __shfl_xor_sync(~0u, sum, 16);
                total[h] = total[h] * factor + sum;
#pragma unroll
                for (int c = 0; c < N_LANES_V; c++) out[h][c] *= factor;
            }
#pragma unroll
            for (int q = 0; q < 4; q++) {
                float v[N_LANES_V];
                values_of(now.v[q], v);
                if (tile * 32 + warp * 4 + q == position) {
#pragma unroll
                    for (int c = 0; c < N_LANES_V; c++) v[c] = s.new_value[lane * N_LANES_V + c];
                }
#pragma unroll
                for (int h = 0; h < H; h++) {
                    const float w = __shfl_sync(~0u, weight[h], q * 8);
#pragma unroll
                    for (int c = 0; c < N_LANES_V; c++) out[h][c] += w * v[c];
                }
            }
            if constexpr (AHEAD) now = next, next = fresh;
            else now = fresh;
            tile += a.n_splits;
        }
    }
    template <class P> INLINE void attention(const P &p, u32 tag) {
        const u32 first = p.window && position + 1 > p.window ? position + 1 - p.window : 0;
        const u32 own_tile = position / 32;
        // Tiles of this split: those congruent to it, from the first that is seen.
        u32 tile = first / 32 + (split + a.n_splits - first / 32 % a.n_splits) % a.n_splits;
        Rows now;
        load_rows(now, p, tile, position, first, kv_head);
        barrier(6, 288);
        pause_cycles(a.poll_delay);
        const bool owner = own_tile % a.n_splits == split;
        constexpr int WORDS = (H + 2) * D;
#pragma unroll
        for (int word_0 = 0; word_0 < WORDS; word_0 += 1024) {
            const int at = word_0 + 128 * warp;
            if (at < WORDS && (at < H * D || owner)) {
                const int word = at + 4 * lane, head = word / D, column = word % D;
                // With an odd number of heads of 64 columns the last warp has half the words: the rest are written by nobody.
                const bool inside = WORDS % 128 == 0 || word < WORDS;
                const u8 *from = part(EXCHANGE_QKV) + ((u64)kv_head * WORDS + word) * 4;
                float2 turns[4];
                float norm[4];
                const bool is_q = head < H;
                const float *weights = is_q ? p.q_norm : p.k_norm;
#pragma unroll
                for (int c = 0; c < 4; c++) {
                    const int pair = a.interleaved ? (column + c) / 2 : (column + c) & (D / 2 - 1);
                    turns[c] = s.turns[p.rotation][pair];
                    norm[c] = weights && head <= H ? weights[column + c] : 1.0f;
                }
                uint4 v;
                do v = load_relaxed_4(from);
                while (__any_sync(~0u, inside && ((v.x ^ tag) | (v.y ^ tag) | (v.z ^ tag) | (v.w ^ tag)) & 15));
                float f[4] = {untag_word(v.x), untag_word(v.y), untag_word(v.z), untag_word(v.w)};
                float squares = f[0] * f[0] + f[1] * f[1] + f[2] * f[2] + f[3] * f[3];
#pragma unroll
                for (int m = 1; m < D / 4; m *= 2) squares += __shfl_xor_sync(~0u, squares, m);
                if (weights && head <= H) {
                    const float scale = rsqrtf(squares * (1.0f / D) + a.eps);
#pragma unroll
                    for (int c = 0; c < 4; c++) f[c] *= scale * norm[c];
                }
                float o[4];
#pragma unroll
                for (int c = 0; c < 4; c++) {
                    const float far = __shfl_xor_sync(~0u, f[c], D / 8);
                    const float other = a.interleaved ? f[c ^ 1] : far;
                    const bool low = a.interleaved ? (c & 1) == 0 : column < D / 2;
                    o[c] = low ? f[c] * turns[c].x - other * turns[c].y : f[c] * turns[c].x + other * turns[c].y;
                }
                float largest = 0.0f;
                if constexpr (BYTES) largest = max_of_8(fmaxf(fmaxf(fabsf(head > H ? f[0] : o[0]), fabsf(head > H ? f[1] : o[1])),
                                                              fmaxf(fabsf(head > H ? f[2] : o[2]), fabsf(head > H ? f[3] : o[3]))));
                if (is_q) {
                    *(float4 *)(s.queries + word) = make_float4(o[0], o[1], o[2], o[3]);
                } else if (inside && owner) {
                    if (head > H) o[0] = f[0], o[1] = f[1], o[2] = f[2], o[3] = f[3];
                    u8 *vector = (u8 *)vector_at(p, position, head == H ? kv_head : a.n_kv_heads + kv_head);
                    uint2 stored;
                    if constexpr (BYTES) {
                        const u16 d = to_half(fminf(largest * (1.0f / 127.0f), 65504.0f));
                        const float scale = from_half(d), inverse = scale > 0.0f ? 1.0f / scale : 0.0f;
                        stored = make_uint2(0, d);
#pragma unroll
                        for (int c = 0; c < 4; c++)
                            stored.x |= (u32)(__float2int_rn(fminf(fmaxf(o[c] * inverse, -127.0f), 127.0f)) & 255) << (8 * c);
                        *(u32 *)(vector + column) = stored.x;
                        if ((lane & 7) == 0) ((u16 *)(vector + D))[column / 32] = d;
                    } else {
                        stored = make_uint2(pack_half2_clamped(o[0], o[1]), pack_half2_clamped(o[2], o[3]));
                        *(uint2 *)(vector + column * 2) = stored;
                    }
                    float seen[4];
                    columns_of(stored, seen);
                    *(float4 *)((head == H ? s.new_key : s.new_value) + column) = make_float4(seen[0], seen[1], seen[2], seen[3]);
                }
            }
        }
        barrier(1, 256);
        float most[H], total[H], out[H][N_LANES_V];
#pragma unroll
        for (int h = 0; h < H; h++) {
            most[h] = -1e30f, total[h] = 0;
#pragma unroll
            for (int c = 0; c < N_LANES_V; c++) out[h][c] = 0;
        }
        if (AHEAD_IS_FASTER && own_tile >= tile + 2 * a.n_splits) attend_tiles<true>(p, now, tile, own_tile, first, most, total, out);
        else attend_tiles<false>(p, now, tile, own_tile, first, most, total, out);
#pragma unroll
        for (int h = 0; h < H; h++) {
#pragma unroll
            for (int c = 0; c < N_LANES_V; c++) s.outputs[warp][h * D + lane * N_LANES_V + c] = out[h][c];
            if (lane == 0) s.most[h][warp] = most[h], s.total[h][warp] = total[h];
        }
        barrier(1, 256);
        u8 *to = part(EXCHANGE_PARTIALS) + (u64)block * PARTIAL_BYTES;
        for (int i = threadIdx.x; i < H * D; i += 256) {
            const int h = i / D; // the same for a whole warp
            float high = -1e30f, sum = 0, value = 0;
#pragma unroll
            for (int w = 0; w < 8; w++) high = fmaxf(high, s.most[h][w]);
#pragma unroll
            for (int w = 0; w < 8; w++) {
                const float factor = exp2_fast(s.most[h][w] - high);
                sum += factor * s.total[h][w], value += factor * s.outputs[w][i];
            }
            store_relaxed_1(to + 4 * i, tag_word(value, tag));
            if (i % D == 0) {
                store_relaxed_1(to + 4 * (H * D + 2 * h), tag_word(high, tag));
                store_relaxed_1(to + 4 * (H * D + 2 * h + 1), tag_word(sum, tag));
            }
        }
    }

    INLINE void run() {
        u32 epoch_input = 0, epoch = 0;
        turn();
        this->each_phase([&](const auto &p) {
            const bool is_qkv = p.kind == PERSISTENT_QKV, is_head = p.kind == PERSISTENT_HEAD;
            if (is_qkv) epoch++;
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
            if (is_head && threadIdx.x == 0) *(volatile u32 *)&s.credit += p.pieces; // all of it may come as slots are free
            product(p, part(p.input), tag_of(is_qkv || is_head ? epoch_input : epoch));
            if (is_qkv && attends()) attention(p, tag_of(epoch));
            if (p.input == EXCHANGE_GATED) epoch_input++;
            if (p.gate_refill && threadIdx.x == 0) *(volatile u32 *)&s.credit += p.credit;
        });
    }
};

// persistent_repack_<type>: packs rows of a file's blocks for the persistent kernels (arguments.h).
//
// Host contract
//   parameter  PersistentRepackArguments
//   threads    256, one warp for each warp of the kernel that multiplies
//   grid       (k_quads, groups): groups is ceil(n_rows / 8), twice that with up_rows; with units,
//              ceil(units / 8) instead of k_quads
// Types: q4_0 (codec q4), q4_1 and q4_k (q4m), q5_0, q5_1 and q5_k (q5m), q8_0 (q8), q6_k (q6),
// q2_k (q2m), q3_k (q3), iq4_nl and iq4_xs (nl), mxfp4 (fp4), f16 and bf16 (f16).
#include "gemm/repack.h"
#include "persistent/units.cuh"

// Index of the step of a group and a quad in the packed phase.
INLINE u32 place(const PersistentRepackArguments &p, u32 group, u32 quad) {
    const u32 together = p.gate ? 2 : 1, n = p.groups / together, i = group / together;
    const u32 owner = ((i + 1) * p.n_blocks - 1) / n;
    const u32 first = owner * n / p.n_blocks * together, end = (owner + 1) * n / p.n_blocks * together;
    const u32 local = group - first, pass = local / 8, in_pass = min(8u, end - first - pass * 8);
    return (first + pass * 8) * p.k_quads + quad * in_pass + local % 8;
}

template <int CODEC, class T> INLINE void persistent_repack(const PersistentRepackArguments &p) {
    RepackArguments none = {};
    none.n_cols = p.n_cols;
    const u32 quad = blockIdx.x, group = blockIdx.y, warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    const bool up = p.up_rows && (group & 1);
    const u32 index = p.units ? quad * 8 + warp : warp * p.k_quads + quad;
    if (p.units ? index >= p.units : warp >= p.warps) return;
    const u32 row = (p.up_rows ? group / 2 : group) * 8 + (lane & 7), k0 = (index * 4 + (lane >> 3)) * 32;
    constexpr u32 BYTES = unit_bytes<true>(CODEC);
    u8 *unit = p.packed + (u64)(p.first_group + group) * p.units * BYTES + index * BYTES;
    if (!p.units) {
        const u32 used = p.warps * BYTES, all = step_bytes<true>(CODEC, p.warps);
        u8 *step = p.packed + (u64)place(p, p.first_group + group, quad) * all;
        unit = step + warp * BYTES;
        if (warp == 0 && used + lane * 16 < all) ((uint4 *)(step + used))[lane] = make_uint4(0, 0, 0, 0);
    }
    const bool inside = row < p.n_rows && k0 < p.n_cols;
    const u8 *from = (up ? p.up_rows : p.rows) + (u64)row * p.row_bytes;
    auto q = [&](u32 i) { return inside ? T::q(none, from, row, k0 + i) : 0u; };
    if (CODEC == PERSISTENT_CODEC_F16) { // rows may end within a block of 32 columns
        auto half = [&](u32 k) { return row < p.n_rows && k < p.n_cols ? T::q(none, from, row, k) : 0u; };
        auto pair = [&](u32 k) { return half(k) | half(k + 2) << 16; };
        for (u32 k = k0, t = 0; t < 4; k += 8, t++) ((uint4 *)unit)[4 * lane + t] = make_uint4(pair(k), pair(k + 1), pair(k + 4), pair(k + 5));
        return;
    }
    if (CODEC == PERSISTENT_CODEC_Q8) {
        u32 w[8];
        for (int k = 0; k < 8; k++) {
            w[k] = 0;
            for (int i = 0; i < 4; i++) w[k] |= (inside ? (q(4 * k + i) ^ 128) & 255 : 0) << (8 * i);
        }
        ((uint4 *)unit)[lane] = make_uint4(w[0], w[1], w[2], w[3]);
        ((uint4 *)(unit + 512))[lane] = make_uint4(w[4], w[5], w[6], w[7]);
        ((u16 *)(unit + 1024))[lane] = to_half(inside ? T::d(none, from, row, k0) : 0.0f);
        return;
    }
    u32 w[4], upper[2] = {0, 0};
    for (int k = 0; k < 4; k++) {
        w[k] = 0;
        for (int i = 0; i < 4; i++) {
            const u32 a = q(8 * k + i), b = q(8 * k + 4 + i);
            w[k] |= Unit<CODEC>::TABLE ? a << (4 * i) | b << (16 + 4 * i) : ((a & 15) | (b & 15) << 4) << (8 * i);
            if (CODEC == PERSISTENT_CODEC_Q2M) upper[k >> 1] |= (a | b << 2) << (4 * (k & 1) + 8 * i);
            if (CODEC == PERSISTENT_CODEC_Q5M) upper[0] |= ((a >> 4) | (b >> 4) << 1) << (2 * k + 8 * i);
            if (CODEC == PERSISTENT_CODEC_Q6) upper[k >> 1] |= ((a >> 4) | (b >> 4) << 2) << (4 * (k & 1) + 8 * i);
        }
    }
    if (CODEC == PERSISTENT_CODEC_Q2M) ((uint2 *)unit)[lane] = make_uint2(upper[0], upper[1]);
    else ((uint4 *)unit)[lane] = make_uint4(w[0], w[1], w[2], w[3]);
    const float d = inside ? T::d(none, from, row, k0) : 0.0f;
    if (CODEC == PERSISTENT_CODEC_Q4 || CODEC == PERSISTENT_CODEC_NL) ((u16 *)(unit + 512))[lane] = to_half(d);
    // The scale is a power of two.
    if (CODEC == PERSISTENT_CODEC_FP4) ((u16 *)(unit + 512))[lane] = (u16)(__float_as_uint(d) >> 16);
    if (CODEC == PERSISTENT_CODEC_Q4M) ((u32 *)(unit + 512))[lane] = pack_half2(d, inside ? T::m(none, from, row, k0) : 0.0f);
    if (CODEC == PERSISTENT_CODEC_Q5M) {
        ((u32 *)(unit + 512))[lane] = upper[0];
        ((u32 *)(unit + 640))[lane] = pack_half2(d, inside ? T::m(none, from, row, k0) : 0.0f);
    }
    // scale of the block's second half
    const float other_d = inside ? T::d(none, from, row, k0 + 16) : 0.0f;
    if (CODEC == PERSISTENT_CODEC_Q6) {
        ((uint2 *)(unit + 512))[lane] = make_uint2(upper[0], upper[1]);
        ((u32 *)(unit + 768))[lane] = pack_half2(d, other_d);
    }
    if (CODEC == PERSISTENT_CODEC_Q3) ((u32 *)(unit + 512))[lane] = pack_half2(d, other_d);
    if (CODEC == PERSISTENT_CODEC_Q2M) {
        auto m = [&](u32 k) { return inside ? T::m(none, from, row, k) : 0.0f; };
        ((uint2 *)(unit + 256))[lane] = make_uint2(pack_half2(d, m(k0)), pack_half2(other_d, m(k0 + 16)));
    }
}
// Q5_0 as a codec with minimum: its values are d * (q - 16).
struct Type_q5_0_min : Type_q5_0 {
    static INLINE float m(const RepackArguments &p, const u8 *row, u64 r, u32 k) { return -16.0f * d(p, row, r, k); }
};
#define PERSISTENT_REPACK(type, CODEC, T)                                                                                           \
    extern "C" __global__ void __launch_bounds__(256) persistent_repack_##type(const __grid_constant__ PersistentRepackArguments a) { \
        persistent_repack<CODEC, T>(a);                                                                                          \
    }
PERSISTENT_REPACK(q4_0, PERSISTENT_CODEC_Q4, Type_q4_0)
PERSISTENT_REPACK(q4_1, PERSISTENT_CODEC_Q4M, Type_q4_1)
PERSISTENT_REPACK(q4_k, PERSISTENT_CODEC_Q4M, Type_q4_k)
PERSISTENT_REPACK(q8_0, PERSISTENT_CODEC_Q8, Type_q8_0)
PERSISTENT_REPACK(q6_k, PERSISTENT_CODEC_Q6, Type_q6_k)
PERSISTENT_REPACK(q5_0, PERSISTENT_CODEC_Q5M, Type_q5_0_min)
PERSISTENT_REPACK(q5_1, PERSISTENT_CODEC_Q5M, Type_q5_1)
PERSISTENT_REPACK(q5_k, PERSISTENT_CODEC_Q5M, Type_q5_k)
PERSISTENT_REPACK(q2_k, PERSISTENT_CODEC_Q2M, Type_q2_k)
PERSISTENT_REPACK(q3_k, PERSISTENT_CODEC_Q3, Type_q3_k)
PERSISTENT_REPACK(iq4_nl, PERSISTENT_CODEC_NL, Type_iq4_nl)
PERSISTENT_REPACK(iq4_xs, PERSISTENT_CODEC_NL, Type_iq4_xs)
PERSISTENT_REPACK(mxfp4, PERSISTENT_CODEC_FP4, Type_mxfp4)
PERSISTENT_REPACK(f16, PERSISTENT_CODEC_F16, Type_f16)
PERSISTENT_REPACK(bf16, PERSISTENT_CODEC_F16, Type_bf16)

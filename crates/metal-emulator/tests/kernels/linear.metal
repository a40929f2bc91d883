// Typical kernels of a language model: a reduction, a quantised matrix times a vector, a tiled
// matrix product.
#include <metal_stdlib>
using namespace metal;

constant bool has_weight [[function_constant(0)]];

struct NormArgs {
    uint n;
    float eps;
};

kernel void rms_norm(
        constant NormArgs & a      [[buffer(0)]],
        device const float4 * x    [[buffer(1)]],
        device const float4 * w    [[buffer(2), function_constant(has_weight)]],
        device float4 * y          [[buffer(3)]],
        uint row                   [[threadgroup_position_in_grid]],
        uint tid                   [[thread_position_in_threadgroup]],
        uint ntg                   [[threads_per_threadgroup]],
        ushort lane                [[thread_index_in_simdgroup]],
        ushort sg                  [[simdgroup_index_in_threadgroup]]) {
    threadgroup float part[32];
    const uint n4 = a.n / 4;
    device const float4 * xr = x + row * n4;
    float s = 0.0;
    for (uint i = tid; i < n4; i += ntg) s += dot(xr[i], xr[i]);
    s = simd_sum(s);
    if (sg == 0) part[lane] = 0.0;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (lane == 0) part[sg] = s;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    s = simd_sum(part[lane]);
    const float scale = rsqrt(s / float(a.n) + a.eps);
    for (uint i = tid; i < n4; i += ntg) {
        float4 v = xr[i] * scale;
        if (has_weight) v *= w[i];
        y[row * n4 + i] = v;
    }
}

// q4_0: 32 weights per block, one f16 scale, low nibbles are weights 0..15, high nibbles 16..31
struct BlockQ4_0 {
    half d;
    uchar qs[16];
};
struct GemvArgs {
    uint cols;
    uint rows;
};

template<typename B, short NR>
kernel void gemv_q4_0_impl(
        constant GemvArgs & a      [[buffer(0)]],
        device const B * w         [[buffer(1)]],
        device const float * x     [[buffer(2)]],
        device float * y           [[buffer(3)]],
        uint tg                    [[threadgroup_position_in_grid]],
        ushort sg                  [[simdgroup_index_in_threadgroup]],
        ushort nsg                 [[simdgroups_per_threadgroup]],
        ushort lane                [[thread_index_in_simdgroup]]) {
    const uint nb = a.cols / 32;
    const uint row0 = (tg * nsg + sg) * NR;
    float acc[NR] = { 0.0f };
    const ushort part = lane & 1;                       // two lanes per block: 8 bytes each
    for (uint ib = lane / 2; ib < nb; ib += 16) {
        device const float4 * xl = (device const float4 *) (x + ib * 32 + 8 * part);
        device const float4 * xh = (device const float4 *) (x + ib * 32 + 16 + 8 * part);
        float4 l0 = xl[0], l1 = xl[1], h0 = xh[0], h1 = xh[1];
        const float sumx = dot(l0 + l1 + h0 + h1, float4(1.0f));
        for (short r = 0; r < NR; r++) {
            if (row0 + r >= a.rows) break;
            device const B & b = w[(row0 + r) * nb + ib];
            device const uchar * q = b.qs + 8 * part;
            float s = 0.0f;
            for (short j = 0; j < 4; j++) {
                s += l0[j] * float(q[j] & 0xF) + l1[j] * float(q[j + 4] & 0xF);
                s += h0[j] * float(q[j] >> 4) + h1[j] * float(q[j + 4] >> 4);
            }
            acc[r] += float(b.d) * (s - 8.0f * sumx);
        }
    }
    for (short r = 0; r < NR; r++) {
        const float t = simd_sum(acc[r]);
        if (lane == 0 && row0 + r < a.rows) y[row0 + r] = t;
    }
}
typedef decltype(gemv_q4_0_impl<BlockQ4_0, 4>) gemv_t;
template [[host_name("gemv_q4_0")]] kernel gemv_t gemv_q4_0_impl<BlockQ4_0, 4>;

// C[M][N] = A[M][K] * B[K][N], half inputs, float out; a 32x32 tile per threadgroup of four
// simdgroups
struct GemmArgs {
    uint m, n, k;
};
kernel void gemm_f16(
        constant GemmArgs & a      [[buffer(0)]],
        device const half * A      [[buffer(1)]],
        device const half * B      [[buffer(2)]],
        device float * C           [[buffer(3)]],
        threadgroup half * sh      [[threadgroup(0)]],
        uint2 tg                   [[threadgroup_position_in_grid]],
        ushort tid                 [[thread_index_in_threadgroup]],
        ushort sg                  [[simdgroup_index_in_threadgroup]]) {
    threadgroup half * sA = sh;              // 32 x 16
    threadgroup half * sB = sh + 32 * 16;    // 16 x 32
    simdgroup_half8x8 ma[2], mb[2];
    simdgroup_float8x8 mc[2][2];
    #pragma unroll(2)
    for (short i = 0; i < 2; i++) for (short j = 0; j < 2; j++) mc[i][j] = make_filled_simdgroup_matrix<float, 8>(0.f);
    const short sr = 16 * (sg / 2), sc = 16 * (sg % 2);
    for (uint k0 = 0; k0 < a.k; k0 += 16) {
        for (ushort e = tid; e < 32 * 16; e += 128) {
            sA[e] = A[(tg.y * 32 + e / 16) * a.k + k0 + e % 16];
            sB[e] = B[(k0 + e / 32) * a.n + tg.x * 32 + e % 32];
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (short kk = 0; kk < 16; kk += 8) {
            for (short i = 0; i < 2; i++) simdgroup_load(ma[i], sA + (sr + 8 * i) * 16 + kk, 16);
            for (short j = 0; j < 2; j++) simdgroup_load(mb[j], sB + kk * 32 + sc + 8 * j, 32);
            for (short i = 0; i < 2; i++) for (short j = 0; j < 2; j++) simdgroup_multiply_accumulate(mc[i][j], ma[i], mb[j], mc[i][j]);
        }
#ifndef WITHOUT_BARRIER
        threadgroup_barrier(mem_flags::mem_threadgroup);
#endif
    }
    for (short i = 0; i < 2; i++) for (short j = 0; j < 2; j++)
        simdgroup_store(mc[i][j], C + (tg.y * 32 + sr + 8 * i) * a.n + tg.x * 32 + sc + 8 * j, a.n);
}

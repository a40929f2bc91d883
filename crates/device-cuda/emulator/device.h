// Types and functions that CUDA C++ has and C++ lacks, for kernels that prepare.py has copied. Each
// PTX instruction that they use is a function of its name. engine.h runs them.
#pragma once
#include "engine.h"
#include <math.h>
#include <stdint.h>
#include <stdio.h>

#define __device__
#define __global__
#define __constant__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __align__(n) alignas(n)

template <class T> inline T max(T a, T b) { return a < b ? b : a; }
template <class T> inline T min(T a, T b) { return b < a ? b : a; }
inline unsigned max(unsigned a, int b) { return max(a, (unsigned)b); }
inline unsigned max(int a, unsigned b) { return max((unsigned)a, b); }
inline unsigned min(unsigned a, int b) { return min(a, (unsigned)b); }
inline unsigned min(int a, unsigned b) { return min((unsigned)a, b); }

struct alignas(8) float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
struct alignas(8) uint2 { unsigned x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

// ---- numbers

template <class To, class From> inline To same_bits(From x) {
    To to;
    static_assert(sizeof to == sizeof x, "the same bits");
    memcpy(&to, &x, sizeof to);
    return to;
}
inline float __uint_as_float(unsigned x) { return same_bits<float>(x); }
inline float __int_as_float(int x) { return same_bits<float>(x); }
inline unsigned __float_as_uint(float x) { return same_bits<unsigned>(x); }
inline int __ffs(unsigned x) { return __builtin_ffs(x); }
inline int __clz(unsigned x) { return x ? __builtin_clz(x) : 32; }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fdividef(float a, float b) { return a / b; }
inline float __expf(float x) { return expf(x); }
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline int __float2int_rn(float x) { return (int)rintf(x); }
inline int __dp4a(int a, int b, int c) {
    for (int i = 0; i < 4; i++) c += (int8_t)(a >> (8 * i)) * (int8_t)(b >> (8 * i));
    return c;
}
inline unsigned __byte_perm(unsigned low, unsigned high, unsigned selector) {
    const uint64_t bytes = (uint64_t)high << 32 | low;
    unsigned result = 0;
    for (int i = 0; i < 4; i++) {
        const unsigned which = selector >> (4 * i) & 15, byte = bytes >> (8 * (which & 7)) & 255;
        result |= (which & 8 ? (byte & 128 ? 255 : 0) : byte) << (8 * i);
    }
    return result;
}
inline uint16_t half_bits(float x) { return same_bits<uint16_t>((_Float16)x); }
inline unsigned two_halves(float low, float high) { return half_bits(low) | (unsigned)half_bits(high) << 16; }
inline float first_half(unsigned x) { return half_value(x & 65535); }
inline float second_half(unsigned x) { return half_value(x >> 16); }

// ---- threads

inline void __syncthreads() { emulated_sync_block(); }
inline void __syncwarp(unsigned = ~0u) { emulated_sync_warp(); }
inline void __threadfence() { emulated_fence(); }
inline void __threadfence_block() { emulated_fence(); }
inline unsigned lane_number() { return threadIdx.x % 32; }
template <class T> inline T exchange(T mine, unsigned from) {
    uint64_t bits = 0;
    memcpy(&bits, &mine, sizeof mine);
    bits = emulated_exchange(bits, from);
    memcpy(&mine, &bits, sizeof mine);
    return mine;
}
template <class T> inline T __shfl_sync(unsigned, T mine, unsigned lane) { return exchange(mine, lane); }
template <class T> inline T __shfl_xor_sync(unsigned, T mine, unsigned mask) { return exchange(mine, lane_number() ^ mask); }
template <class T> inline T __shfl_up_sync(unsigned, T mine, unsigned n) { return exchange(mine, lane_number() >= n ? lane_number() - n : lane_number()); }
inline unsigned __ballot_sync(unsigned, bool mine) {
    const uint64_t *given = emulated_gather(mine);
    unsigned all = 0;
    for (unsigned i = 0; i < 32; i++) all |= (unsigned)given[i] << i;
    return all;
}
// A thread may poll until all lanes agree, so other threads run first.
inline bool __all_sync(unsigned mask, bool mine) {
    emulated_poll();
    return __ballot_sync(mask, mine) == ~0u;
}
inline bool __any_sync(unsigned mask, bool mine) {
    emulated_poll();
    return __ballot_sync(mask, mine) != 0;
}
inline unsigned __match_any_sync(unsigned, unsigned mine) {
    const uint64_t *given = emulated_gather(mine);
    unsigned all = 0;
    for (unsigned i = 0; i < 32; i++) all |= (unsigned)(given[i] == mine) << i;
    return all;
}
inline unsigned __reduce_max_sync(unsigned, unsigned mine) {
    const uint64_t *given = emulated_gather(mine);
    for (unsigned i = 0; i < 32; i++) mine = max(mine, (unsigned)given[i]);
    return mine;
}
inline unsigned __reduce_min_sync(unsigned, unsigned mine) {
    const uint64_t *given = emulated_gather(mine);
    for (unsigned i = 0; i < 32; i++) mine = min(mine, (unsigned)given[i]);
    return mine;
}
template <class T, class U> inline T atomicAdd(T *to, U x) {
    const T before = *to;
    *to += x;
    return before;
}
template <class T, class U> inline T atomicMax(T *to, U x) {
    const T before = *to;
    if (before < (T)x) *to = x;
    return before;
}
template <class T> inline T __ldcg(const T *from) { return *from; }
template <class T> inline T __ldcv(const T *from) { return *from; }
template <class T> inline T __ldg(const T *from) { return *from; }

// Addresses of shared memory have 32 bits. They are offsets in the block's dynamic part. With the
// upper bit set they are offsets in the module, which has the static part.
static unsigned char emulated_anchor;
inline size_t __cvta_generic_to_shared(const void *p) {
    const uintptr_t offset = (uintptr_t)p - (uintptr_t)emulated_shared;
    return offset < (256 << 10) ? offset : 0x80000000u | (unsigned)((uintptr_t)p - (uintptr_t)&emulated_anchor + 0x40000000u);
}
static inline unsigned char *shared_pointer(unsigned address) {
    return address >> 31 ? &emulated_anchor + (ptrdiff_t)(address & 0x7fffffffu) - 0x40000000 : emulated_shared + address;
}

// ---- PTX instructions

typedef unsigned long long ptx_b64;
inline void ptx_griddepcontrol_launch_dependents() {}
inline void ptx_griddepcontrol_wait() {}
inline void ptx_prefetch_global_l2(const void *) {}
inline void ptx_fence_mbarrier_init_release_cluster() {}
inline void ptx_fence_proxy_async_shared__cta() {}
inline void ptx_fence_proxy_async_global() {}
inline void ptx_setmaxnreg_dec_sync_aligned_u32() {}
inline void ptx_setmaxnreg_inc_sync_aligned_u32() {}
inline void ptx_createpolicy_fractional_l2__evict_first_b64(ptx_b64 &policy) { policy = 0; }

inline void ptx_cvt_f32_f16(float &out, uint16_t x) { out = half_value(x); }
inline void ptx_cvt_rn_f16_f32(uint16_t &out, float x) { out = half_bits(x); }
inline void ptx_cvt_rn_f16x2_f32(unsigned &out, float high, float low) { out = two_halves(low, high); }
inline void ptx_sub_rn_f16x2(unsigned &out, unsigned a, unsigned b) { out = two_halves(first_half(a) - first_half(b), second_half(a) - second_half(b)); }
inline void ptx_mul_rn_f16x2(unsigned &out, unsigned a, unsigned b) { out = two_halves(first_half(a) * first_half(b), second_half(a) * second_half(b)); }
// Products and sums of halves are exact in f64.
inline unsigned fma_of_halves(unsigned a, unsigned b, unsigned c) { return same_bits<uint16_t>((_Float16)((double)half_value(a) * half_value(b) + half_value(c))); }
inline void ptx_fma_rn_f16x2(unsigned &out, unsigned a, unsigned b, unsigned c) {
    out = fma_of_halves(a & 65535, b & 65535, c & 65535) | fma_of_halves(a >> 16, b >> 16, c >> 16) << 16;
}
inline void ptx_lop3_b32_0xea(unsigned &out, unsigned a, unsigned b, unsigned c) { out = a & b | c; }
inline void ptx_ex2_approx_ftz_f32(float &out, float x) { out = exp2f(x); }
inline void ptx_rcp_approx_ftz_f32(float &out, float x) { out = 1.0f / x; }

inline void ptx_ld_shared_u32(unsigned &a, unsigned from) { memcpy(&a, shared_pointer(from), 4); }
inline void ptx_ld_shared_v2_u32(unsigned &a, unsigned &b, unsigned from) { ptx_ld_shared_u32(a, from), ptx_ld_shared_u32(b, from + 4); }
inline void ptx_ld_shared_v4_u32(unsigned &a, unsigned &b, unsigned &c, unsigned &d, unsigned from) {
    ptx_ld_shared_v2_u32(a, b, from), ptx_ld_shared_v2_u32(c, d, from + 8);
}
inline void load_8x8s(unsigned &a, unsigned &b, unsigned &c, unsigned &d, unsigned row, bool transposed) {
    unsigned v[4];
    emulated_ldmatrix(v, shared_pointer(row), transposed);
    a = v[0], b = v[1], c = v[2], d = v[3];
}
inline void ptx_ldmatrix_sync_aligned_m8n8_x4_shared_b16(unsigned &a, unsigned &b, unsigned &c, unsigned &d, unsigned row) { load_8x8s(a, b, c, d, row, false); }
inline void ptx_ldmatrix_sync_aligned_m8n8_x4_trans_shared_b16(unsigned &a, unsigned &b, unsigned &c, unsigned &d, unsigned row) { load_8x8s(a, b, c, d, row, true); }
inline void ptx_movmatrix_sync_aligned_m8n8_trans_b16(unsigned &out, unsigned v) { out = emulated_movmatrix(v); }
inline void ptx_mma_sync_aligned_m16n8k16_row_col_f32_f16_f16_f32(float &d0, float &d1, float &d2, float &d3, unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0,
                                                                  unsigned b1) {
    float d[4] = {d0, d1, d2, d3};
    const unsigned a[4] = {a0, a1, a2, a3};
    emulated_mma(d, a, b0, b1);
    d0 = d[0], d1 = d[1], d2 = d[2], d3 = d[3];
}
inline void ptx_mma_sync_aligned_m16n8k8_row_col_f32_f16_f16_f32(float &d0, float &d1, float &d2, float &d3, unsigned a0, unsigned a1, unsigned b0) {
    ptx_mma_sync_aligned_m16n8k16_row_col_f32_f16_f16_f32(d0, d1, d2, d3, a0, a1, 0, 0, b0, 0);
}

inline void ptx_bar_sync(unsigned id, unsigned n) { emulated_barrier(id, n, true); }
inline void ptx_bar_arrive(unsigned id, unsigned n) { emulated_barrier(id, n, false); }
inline void ptx_cp_async_cg_shared_global(unsigned to, const void *from, unsigned bytes) { emulated_copy_16(shared_pointer(to), from, bytes != 0); }
inline void ptx_cp_async_ca_shared_global(unsigned to, const void *from, unsigned bytes) { emulated_copy_16(shared_pointer(to), from, bytes != 0); }
inline void ptx_cp_async_commit_group() { emulated_copy_commit(); }
inline void ptx_cp_async_wait_group(unsigned n) { emulated_copy_wait(n); }
inline void ptx_mbarrier_init_shared__cta_b64(unsigned b, unsigned n) { emulated_mbarrier_init(shared_pointer(b), n); }
inline void ptx_mbarrier_arrive_expect_tx_shared__cta_b64(unsigned b, unsigned bytes) { emulated_mbarrier_expect(shared_pointer(b), bytes); }
inline void ptx_mbarrier_arrive_shared__cta_b64(unsigned b, unsigned times = 1) { emulated_mbarrier_arrive(shared_pointer(b), times); }
inline void ptx_mbarrier_try_wait_parity_shared__cta_b64(unsigned b, unsigned parity) { emulated_mbarrier_wait(shared_pointer(b), parity); }
inline void ptx_cp_async_bulk_shared__cluster_global_mbarrier__complete_tx__bytes(unsigned to, const void *from, unsigned bytes, unsigned barrier) {
    emulated_bulk_copy(shared_pointer(to), from, bytes, shared_pointer(barrier));
}
inline void ptx_cp_async_bulk_shared__cluster_global_mbarrier__complete_tx__bytes_l2__cache_hint(unsigned to, const void *from, unsigned bytes, unsigned barrier, ptx_b64) {
    emulated_bulk_copy(shared_pointer(to), from, bytes, shared_pointer(barrier));
}

inline void ptx_ld_relaxed_gpu_global_u32(unsigned &a, const void *from) { memcpy(&a, from, 4); }
inline void ptx_ld_relaxed_gpu_global_u64(ptx_b64 &a, const void *from) { memcpy(&a, from, 8); }
inline void ptx_ld_relaxed_gpu_global_v2_u32(unsigned &a, unsigned &b, const void *from) { memcpy(&a, from, 4), memcpy(&b, (const char *)from + 4, 4); }
inline void ptx_ld_relaxed_gpu_global_v4_u32(unsigned &a, unsigned &b, unsigned &c, unsigned &d, const void *from) {
    ptx_ld_relaxed_gpu_global_v2_u32(a, b, from), ptx_ld_relaxed_gpu_global_v2_u32(c, d, (const char *)from + 8);
}
// Other blocks may see each word of a vector at a different time.
inline void ptx_st_relaxed_gpu_global_u32(void *to, unsigned a) { emulated_store(to, a, 4); }
inline void ptx_st_relaxed_gpu_global_u64(void *to, ptx_b64 a) { emulated_store(to, a, 8); }
inline void ptx_st_relaxed_gpu_global_v2_u32(void *to, unsigned a, unsigned b) { emulated_store(to, a, 4), emulated_store((char *)to + 4, b, 4); }
inline void ptx_st_relaxed_gpu_global_v4_u32(void *to, unsigned a, unsigned b, unsigned c, unsigned d) {
    ptx_st_relaxed_gpu_global_v2_u32(to, a, b), ptx_st_relaxed_gpu_global_v2_u32((char *)to + 8, c, d);
}
inline void ptx_mov_u32_clock(unsigned &out) { out = emulated_clock(); }

// PTX instructions without a name in CUDA C++, and fixed-width types. No other header is included,
// so that NVRTC compiles these kernels without include paths of the toolkit.
#pragma once

#include "gemm/types.h"

#define INLINE __device__ __forceinline__

INLINE u32 shared_address(const void *p) { return (u32)__cvta_generic_to_shared(p); }

// ---- half precision, two values a register

// Both values rounded to nearest even; `low` in the low half.
INLINE u32 pack_half2(float low, float high) {
    u32 r;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}
// Like pack_half2, but magnitudes past 65504 become 65504 rather than infinity.
INLINE u32 pack_half2_clamped(float low, float high) {
    return pack_half2(fminf(fmaxf(low, -65504.0f), 65504.0f), fminf(fmaxf(high, -65504.0f), 65504.0f));
}
INLINE u16 to_half(float x) {
    u16 r;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(r) : "f"(x));
    return r;
}
INLINE float from_half(u16 h) {
    float r;
    asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(h));
    return r;
}
INLINE float low_half(u32 v) { return from_half((u16)(v & 0xffff)); }
INLINE float high_half(u32 v) { return from_half((u16)(v >> 16)); }
INLINE u32 half2_sub(u32 a, u32 b) {
    u32 r;
    asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
}
INLINE u32 half2_mul(u32 a, u32 b) {
    u32 r;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
}
INLINE u32 half2_fma(u32 a, u32 b, u32 c) {
    u32 r;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
    return r;
}
// (a & mask) | bits as one LOP3. The compiler emits two if mask and bits are both immediates.
INLINE u32 and_or(u32 a, u32 mask, u32 bits) {
    u32 r;
    asm("lop3.b32 %0, %1, %2, %3, 0xEA;" : "=r"(r) : "r"(a), "r"(mask), "r"(bits));
    return r;
}
INLINE float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
INLINE float reciprocal_fast(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// ---- shared memory

INLINE void load_shared_1(u32 *v, u32 address) { asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v[0]) : "r"(address) : "memory"); }
INLINE void load_shared_2(u32 *v, u32 address) {
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(v[0]), "=r"(v[1]) : "r"(address) : "memory");
}
INLINE void load_shared_4(u32 *v, u32 address) {
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
                 : "r"(address)
                 : "memory");
}
// Loads four 8x8 matrices of halves; lane l has the address of row l % 8 of matrix l / 8.
INLINE void load_matrices(u32 *v, u32 address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
                 : "r"(address)
                 : "memory");
}
// Loads an 8x8 matrix of halves transposed. A lane gets columns 2 (lane % 4) and 2 (lane % 4) + 1
// of row lane / 4.
INLINE u32 transposed(u32 v) {
    u32 r;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(r) : "r"(v));
    return r;
}
INLINE void load_matrices_transposed(u32 *v, u32 address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
                 : "r"(address)
                 : "memory");
}
INLINE void barrier(int id, int n_threads) { asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(n_threads) : "memory"); }
INLINE void barrier_arrive(int id, int n_threads) { asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(n_threads) : "memory"); }

// ---- copies: cp.async of 16 bytes (sm_80)

// Zeros are written where `inside` is false.
INLINE void copy_16(u32 to, const void *from, bool inside) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(inside ? 16 : 0) : "memory");
}
// Like copy_16, but through L1, for data that several warps read.
INLINE void copy_16_cached(u32 to, const void *from, bool inside) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(inside ? 16 : 0) : "memory");
}
INLINE void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N> INLINE void copy_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }

// ---- mbarriers and bulk copies (sm_90)

INLINE void mbarrier_init(u32 b, int n) { asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(b), "r"(n)); }
INLINE void mbarrier_expect(u32 b, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(b), "r"(bytes) : "memory");
}
INLINE void mbarrier_arrive(u32 b) { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(b) : "memory"); }
INLINE void mbarrier_arrive(u32 b, u32 times) { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0], %1;" ::"r"(b), "r"(times) : "memory"); }
INLINE void mbarrier_wait(u32 b, u32 parity) {
    asm volatile("{.reg .pred p;\n"
                 "WAIT_%=:\n mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n @p bra DONE_%=;\n bra WAIT_%=;\n"
                 "DONE_%=:\n}" ::"r"(b), "r"(parity)
                 : "memory");
}
INLINE void bulk_copy(u32 to, const void *from, u32 bytes, u32 mbarrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to), "l"(from),
                 "r"(bytes), "r"(mbarrier)
                 : "memory");
}
// Like bulk_copy, for data that is read once: the policy evicts it from L2 first.
INLINE u64 evict_first_policy() {
    u64 policy;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}
INLINE void bulk_copy(u32 to, const void *from, u32 bytes, u32 mbarrier, u64 policy) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(mbarrier), "l"(policy)
                 : "memory");
}
// ---- mma.sync m16n8k16, f16 operands, f32 sums (sm_80)
INLINE void mma_16x8x16(float *d, const u32 *a, u32 b0, u32 b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// ---- programmatic dependent launch (sm_90): without the launch attribute these do nothing
INLINE void dependency_wait() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
INLINE void dependency_launch() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

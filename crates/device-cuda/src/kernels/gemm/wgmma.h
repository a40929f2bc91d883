// wgmma.m64nNk16 with f16 operands and f32 sums: the first operand in registers or in shared
// memory, the second in shared memory (sm_90a).
//
// The sums of a thread, for warp w of the warpgroup, lane l, g = l / 4, t = l % 4: d[4 j + e] is
// row 16 w + g + 8 (e / 2), column 8 j + 2 t + e % 2. Each warp has its first operand in the layout
// of mma.m16n8k16.
#pragma once
#include "gemm/ptx.h"

// Ten numbered operands %p0 .. %p9, and the registers that belong to them.
#define OPERANDS_10(p) "%" #p "0, %" #p "1, %" #p "2, %" #p "3, %" #p "4, %" #p "5, %" #p "6, %" #p "7, %" #p "8, %" #p "9"
#define OPERANDS_FIRST_10 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9"
#define OPERANDS_60 OPERANDS_FIRST_10 ", " OPERANDS_10(1) ", " OPERANDS_10(2) ", " OPERANDS_10(3) ", " OPERANDS_10(4) ", " OPERANDS_10(5)
#define OPERANDS_90 OPERANDS_60 ", " OPERANDS_10(6) ", " OPERANDS_10(7) ", " OPERANDS_10(8)
#define SUMS_4(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define SUMS_16(d, i) SUMS_4(d, i), SUMS_4(d, i + 4), SUMS_4(d, i + 8), SUMS_4(d, i + 12)
#define SUMS_32(d, i) SUMS_16(d, i), SUMS_16(d, i + 16)
#define SUMS_64(d, i) SUMS_32(d, i), SUMS_32(d, i + 32)

#define SUMS_8(d, i) SUMS_4(d, i), SUMS_4(d, i + 4)
#define SUMS_48 SUMS_32(d, 0), SUMS_16(d, 32)
#define SUMS_80 SUMS_64(d, 0), SUMS_16(d, 64)
#define SUMS_96 SUMS_64(d, 0), SUMS_32(d, 64)
#define SUMS_128 SUMS_64(d, 0), SUMS_64(d, 64)

template <int N> struct Wgmma;

// The arguments are N, the list of operands of the sums, their registers, and the numbers of the
// seven operands that follow. The second operand is (N, 16), or (16, N) if TRANSPOSED.
#define WGMMA(N, LIST, SUMS, A0, A1, A2, A3, B, P, T)                                                                             \
    template <> struct Wgmma<N> {                                                                                                 \
        template <int TRANSPOSED = 0> static INLINE void multiply(float (&d)[N / 2], const u32 (&a)[4], u64 b, int accumulate) { \
            asm volatile("{.reg .pred p; setp.ne.b32 p, %" #P ", 0;\n"                                                            \
                         "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.f16.f16 {" LIST "}, "                                    \
                         "{%" #A0 ", %" #A1 ", %" #A2 ", %" #A3 "}, %" #B ", p, 1, 1, %" #T ";}"                                  \
                         : SUMS                                                                                                   \
                         : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate), "n"(TRANSPOSED));                 \
        }                                                                                                                         \
        static INLINE void multiply_shared(float (&d)[N / 2], u64 a, u64 b, int accumulate) {                                     \
            asm volatile("{.reg .pred p; setp.ne.b32 p, %" #A2 ", 0;\n"                                                           \
                         "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.f16.f16 {" LIST "}, %" #A0 ", %" #A1 ", p, 1, 1, 0, 0;}" \
                         : SUMS                                                                                                   \
                         : "l"(a), "l"(b), "r"(accumulate));                                                                      \
        }                                                                                                                         \
    };
WGMMA(16, "%0, %1, %2, %3, %4, %5, %6, %7", SUMS_8(d, 0), 8, 9, 10, 11, 12, 13, 14)
WGMMA(32, OPERANDS_FIRST_10 ", %10, %11, %12, %13, %14, %15", SUMS_16(d, 0), 16, 17, 18, 19, 20, 21, 22)
WGMMA(64, OPERANDS_FIRST_10 ", " OPERANDS_10(1) ", " OPERANDS_10(2) ", %30, %31", SUMS_32(d, 0), 32, 33, 34, 35, 36, 37, 38)
#define OPERANDS_40 OPERANDS_FIRST_10 ", " OPERANDS_10(1) ", " OPERANDS_10(2) ", " OPERANDS_10(3)
#define LIST_48 OPERANDS_40 ", %40, %41, %42, %43, %44, %45, %46, %47"
WGMMA(96, LIST_48, SUMS_48, 48, 49, 50, 51, 52, 53, 54)
WGMMA(128, OPERANDS_60 ", %60, %61, %62, %63", SUMS_64(d, 0), 64, 65, 66, 67, 68, 69, 70)
#define LIST_80 OPERANDS_60 ", " OPERANDS_10(6) ", " OPERANDS_10(7)
WGMMA(160, LIST_80, SUMS_80, 80, 81, 82, 83, 84, 85, 86)
WGMMA(192, OPERANDS_90 ", %90, %91, %92, %93, %94, %95", SUMS_96, 96, 97, 98, 99, 100, 101, 102)
#define LIST_128 OPERANDS_90 ", " OPERANDS_10(9) ", " OPERANDS_10(10) ", " OPERANDS_10(11) ", %120, %121, %122, %123, %124, %125, %126, %127"
WGMMA(256, LIST_128, SUMS_128, 128, 129, 130, 131, 132, 133, 134)

INLINE void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
INLINE void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int N> INLINE void wgmma_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory"); }
// Keeps the compiler from reading sums before the preceding wait.
template <int N> INLINE void wgmma_settle(float (&d)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+f"(d[i])::"memory");
}
// K-major operand with 128-byte swizzle: 8 rows of 128 bytes are 1,024 bytes (>> 4 at bit 32). The
// next slice of 16 columns is at + 2.
INLINE u64 wgmma_operand(u32 address) { return 0x4000004000010000ull | ((address & 0x3FFFF) >> 4); }
// Like wgmma_operand, for a transposed operand: a row of K has 64 of its columns in 128 bytes, and
// the next 64 are `stride` bytes further. The next slice of 16 rows is 2,048 bytes further.
INLINE u64 wgmma_transposed(u32 address, u32 stride) { return 0x4000004000000000ull | (u64)(stride >> 4) << 16 | ((address & 0x3FFFF) >> 4); }
// Makes shared memory visible to wgmma after a barrier: stores of this thread, and copies by
// cp.async that it has waited for.
INLINE void wgmma_written() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

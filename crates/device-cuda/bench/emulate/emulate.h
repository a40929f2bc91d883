// Runs a block of a CUDA kernel on a CPU: every thread is a fiber, and barriers and exchanges within a warp switch between them. What it
// shows: that a kernel's arithmetic, addresses and order of barriers are right. What it does not: races between barriers (threads run one
// after the other), speed, and what a compiler makes of the source.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <sys/types.h>
#include <ucontext.h>
#include <vector>

#define __device__
#define __global__
#define __constant__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__
using std::max;
using std::min;

struct float2 { float x, y; };
struct float4 { float x, y, z, w; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

// ---- threads

struct Index { unsigned x, y, z; };
inline Index threadIdx, blockIdx, gridDim, blockDim;
// Dynamic shared memory.
alignas(1024) inline unsigned char emulated_shared[232448];

struct Fiber {
    ucontext_t context;
    std::vector<char> stack;
    bool done;
};
inline std::vector<Fiber> fibers(1024);
inline ucontext_t outside;
inline unsigned current, n_fibers;
inline std::function<void()> kernel_of_block;

inline void next_fiber() {
    const unsigned from = current;
    for (unsigned i = 1; i <= n_fibers; i++) {
        const unsigned to = (from + i) % n_fibers;
        if (fibers[to].done) continue;
        current = threadIdx.x = to;
        if (to != from) swapcontext(&fibers[from].context, &fibers[to].context);
        return;
    }
    swapcontext(&fibers[from].context, &outside);
}
inline void run_fiber() {
    kernel_of_block();
    fibers[current].done = true;
    next_fiber();
}
inline void run_block(unsigned n_threads, std::function<void()> kernel) {
    n_fibers = n_threads, kernel_of_block = kernel;
    for (unsigned i = 0; i < n_threads; i++) {
        Fiber &f = fibers[i];
        f.done = false, f.stack.resize(256 << 10);
        getcontext(&f.context);
        f.context.uc_stack.ss_sp = f.stack.data(), f.context.uc_stack.ss_size = f.stack.size(), f.context.uc_link = nullptr;
        makecontext(&f.context, run_fiber, 0);
    }
    // What no thread writes is NaN, in halves and in f32.
    memset(emulated_shared, 0xff, sizeof emulated_shared);
    current = 0, threadIdx = {0, 0, 0}, blockDim = {n_threads, 1, 1};
    swapcontext(&outside, &fibers[0].context);
}
inline void run_grid(unsigned x, unsigned y, unsigned n_threads, std::function<void()> kernel) {
    gridDim = {x, y, 1};
    for (blockIdx.y = 0; blockIdx.y < y; blockIdx.y++)
        for (blockIdx.x = 0; blockIdx.x < x; blockIdx.x++) run_block(n_threads, kernel);
}

struct Barrier {
    unsigned arrived = 0, generation = 0;
    // Of the fibers from `first` to before `end` that have not returned.
    void wait(unsigned first, unsigned end) {
        const unsigned mine = generation;
        arrived++;
        while (generation == mine) {
            unsigned alive = 0;
            for (unsigned i = first; i < end; i++) alive += !fibers[i].done;
            if (arrived < alive) next_fiber();
            else arrived = 0, generation++;
        }
    }
};
inline Barrier of_block, of_warp[32];
inline void __syncthreads() { of_block.wait(0, n_fibers); }
inline void __syncwarp(unsigned = ~0u) { of_warp[current / 32].wait(current / 32 * 32, current / 32 * 32 + 32); }

inline uint64_t exchanged[32][32];
template <class T> T exchange(T mine, unsigned from) {
    uint64_t (&of)[32] = exchanged[current / 32];
    memcpy(&of[current % 32], &mine, sizeof mine);
    __syncwarp();
    T result;
    memcpy(&result, &of[from % 32], sizeof result);
    __syncwarp();
    return result;
}
template <class T> T __shfl_sync(unsigned, T mine, unsigned lane) { return exchange(mine, lane); }
template <class T> T __shfl_xor_sync(unsigned, T mine, unsigned mask) { return exchange(mine, current % 32 ^ mask); }
template <class T> T __shfl_up_sync(unsigned, T mine, unsigned n) { return exchange(mine, current % 32 >= n ? current % 32 - n : current % 32); }
inline unsigned __ballot_sync(unsigned, bool mine) {
    unsigned all = 0;
    for (unsigned i = 0; i < 32; i++) all |= (unsigned)exchange(mine, i) << i;
    return all;
}
inline unsigned __match_any_sync(unsigned, unsigned mine) {
    unsigned all = 0;
    for (unsigned i = 0; i < 32; i++) all |= (unsigned)(exchange(mine, i) == mine) << i;
    return all;
}

inline void __threadfence() {}
inline unsigned atomicAdd(unsigned *to, unsigned x) {
    *to += x;
    return *to - x;
}
template <class T> T __ldcg(const T *from) { return *from; }

// ---- numbers

inline int __ffs(unsigned x) { return __builtin_ffs(x); }
inline int __clz(unsigned x) { return x ? __builtin_clz(x) : 32; }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
template <class To, class From> To same_bits(From x) {
    To to;
    static_assert(sizeof to == sizeof x, "the same bits");
    memcpy(&to, &x, sizeof to);
    return to;
}
inline float __uint_as_float(unsigned x) { return same_bits<float>(x); }
inline float __int_as_float(int x) { return same_bits<float>(x); }
inline unsigned __float_as_uint(float x) { return same_bits<unsigned>(x); }
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline uint16_t half_bits(float x) { return same_bits<uint16_t>((_Float16)x); }
inline float half_value(uint16_t bits) { return (float)same_bits<_Float16>(bits); }
inline unsigned __byte_perm(unsigned low, unsigned high, unsigned selector) {
    const uint64_t bytes = (uint64_t)high << 32 | low;
    unsigned result = 0;
    for (int i = 0; i < 4; i++) {
        const unsigned which = selector >> (4 * i) & 15, byte = bytes >> (8 * (which & 7)) & 255;
        result |= (which & 8 ? (byte & 128 ? 255 : 0) : byte) << (8 * i);
    }
    return result;
}

// ---- cp.async: a copy is done when it is issued, or only when its thread waits for it

struct Copy16 {
    unsigned to;
    const void *from;
    bool inside;
    void run() const {
        if (inside) memcpy(emulated_shared + to, from, 16);
        else memset(emulated_shared + to, 0, 16);
    }
};
inline bool copies_are_late;
inline std::vector<std::vector<std::vector<Copy16>>> copies(1024); // of a thread, by group
inline void async_copy(unsigned to, const void *from, bool inside) {
    const Copy16 copy = {to, from, inside};
    if (!copies_are_late) return copy.run();
    if (copies[current].empty()) copies[current].emplace_back();
    copies[current].back().push_back(copy);
}
inline void async_commit() { copies[current].emplace_back(); }
inline void async_wait(size_t n) {
    auto &groups = copies[current];
    while (groups.size() > n + 1) {
        for (const Copy16 &copy : groups.front()) copy.run();
        groups.erase(groups.begin());
    }
}

// ---- tensor cores. Of the first operand, 16 rows of 16 columns, a lane has rows lane / 4 and 8 more, columns 2 (lane % 4), the next, and 8 more.

inline unsigned operands[32][32][6];
inline float half_of(unsigned word, int which) { return half_value(which ? word >> 16 : word & 65535); }
inline float first_operand(unsigned warp, int row, int k) { return half_of(operands[warp][row % 8 * 4 + k % 8 / 2][row / 8 + k / 8 * 2], k & 1); }
inline void load_8x8s(unsigned *v, unsigned address, bool transposed) {
    const unsigned lane = current % 32;
    for (unsigned m = 0; m < 4; m++) {
        const auto half = [&](unsigned row, unsigned column) {
            uint16_t bits;
            memcpy(&bits, emulated_shared + exchange(address, 8 * m + row) + 2 * column, 2);
            return (unsigned)bits;
        };
        v[m] = 0;
        for (unsigned i = 0; i < 2; i++) {
            // All lanes take part in each exchange.
            const unsigned row = transposed ? 2 * (lane % 4) + i : lane / 4, column = transposed ? lane / 4 : 2 * (lane % 4) + i;
            v[m] |= half(row, column) << (16 * i);
        }
    }
}
inline void multiply_16x8(float *d, const unsigned *a, unsigned b0, unsigned b1) {
    const unsigned warp = current / 32, lane = current % 32;
    unsigned (&mine)[6] = operands[warp][lane];
    std::copy(a, a + 4, mine), mine[4] = b0, mine[5] = b1;
    __syncwarp();
    for (int e = 0; e < 4; e++) {
        const int row = lane / 4 + 8 * (e / 2), column = 2 * (lane % 4) + e % 2;
        for (int k = 0; k < 16; k++) d[e] += first_operand(warp, row, k) * half_of(operands[warp][column * 4 + k % 8 / 2][4 + k / 8], k & 1);
    }
    __syncwarp();
}
// wgmma with the descriptor of its second operand, or of both, swizzled by 128 bytes. Done at once: what is still read when others write is not seen.
struct SharedOperand {
    unsigned start, leading, stride;
    SharedOperand(uint64_t operand) : start((operand & 0x3fff) << 4), leading((operand >> 16 & 0x3fff) << 4), stride((operand >> 32 & 0x3fff) << 4) {
        if (operand >> 62 != 1) printf("operand %llx: expected a swizzle of 128 bytes\n", (unsigned long long)operand), exit(1);
    }
    // The row of N or M and the column of K; the other way round in memory where it is transposed.
    float at(int row, int k, bool transposed) const {
        unsigned at = transposed ? start + row / 64 * leading + k / 8 * stride + k % 8 * 128 + row % 64 * 2 : start + row / 8 * stride + row % 8 * 128 + k * 2;
        at ^= (at >> 7 & 7) << 4;
        uint16_t bits;
        memcpy(&bits, emulated_shared + at, 2);
        return half_value(bits);
    }
};
// first(row, column of K) is an element of the warp's 16 rows of the first operand.
template <class First> void multiply_64xn(float *d, int n, First first, uint64_t b, bool accumulate, bool transposed) {
    const unsigned lane = current % 32;
    const SharedOperand second(b);
    for (int i = 0; i < n / 2; i++) {
        const int row = lane / 4 + 8 * (i / 2 % 2), column = 8 * (i / 4) + 2 * (lane % 4) + i % 2;
        if (!accumulate) d[i] = 0;
        for (int k = 0; k < 16; k++) d[i] += first(row, k) * second.at(column, k, transposed);
    }
    __syncwarp();
}
inline void multiply_64xn_registers(float *d, int n, const unsigned *a, uint64_t b, bool accumulate, bool transposed) {
    const unsigned warp = current / 32;
    std::copy(a, a + 4, operands[warp][current % 32]);
    __syncwarp();
    multiply_64xn(d, n, [&](int row, int k) { return first_operand(warp, row, k); }, b, accumulate, transposed);
}
inline void multiply_64xn_shared(float *d, int n, uint64_t a, uint64_t b, bool accumulate) {
    const SharedOperand first(a);
    const int row_0 = current / 32 % 4 * 16;
    __syncwarp();
    multiply_64xn(d, n, [&](int row, int k) { return first.at(row_0 + row, k, false); }, b, accumulate, false);
}

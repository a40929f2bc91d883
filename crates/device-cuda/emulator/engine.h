// Functions of the engine, which runs blocks of threads on a CPU, for kernels (device.h) and the
// driver (driver.cc).
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>

struct Index {
    unsigned x, y, z;
};

inline float half_value(uint16_t bits) {
    _Float16 half;
    memcpy(&half, &bits, sizeof half);
    return (float)half;
}

extern "C" {
// Indices of the running thread. Threads have only x, blocks x, y and z.
extern Index threadIdx, blockIdx, gridDim, blockDim;
// The running block's dynamic shared memory.
extern unsigned char *emulated_shared;

// A launch. Blocks run one after the other, or `together` if they wait for each other.
struct EmulatedLaunch {
    const char *name;
    Index grid;
    unsigned n_threads, shared_bytes;
    bool together;
    void (*kernel)(const void *arguments);
    const void *arguments;
};
void emulated_run(const EmulatedLaunch *launch);
// Seed of the random order of warps in the next launches.
void emulated_seed(uint64_t seed);
// Name of the running kernel, for error reports.
const char *emulated_kernel();

// ---- operations of threads

void emulated_sync_block();
void emulated_sync_warp();
// The running thread polls for a store of another thread, so other threads run next.
void emulated_poll();
void emulated_barrier(unsigned id, unsigned n_threads, bool waits);
// Value of lane `from` of the warp.
uint64_t emulated_exchange(uint64_t mine, unsigned from);
// Values of all lanes; valid until the warp's next exchange but one.
const uint64_t *emulated_gather(uint64_t mine);
unsigned emulated_clock();

void emulated_mbarrier_init(unsigned char *barrier, unsigned count);
void emulated_mbarrier_arrive(unsigned char *barrier, unsigned times);
void emulated_mbarrier_expect(unsigned char *barrier, unsigned bytes);
void emulated_mbarrier_wait(unsigned char *barrier, unsigned parity);
void emulated_bulk_copy(unsigned char *to, const void *from, unsigned bytes, unsigned char *barrier);
// Stores a word that other blocks see some time later.
void emulated_store(void *to, uint64_t value, unsigned bytes);
// Makes all earlier stores visible.
void emulated_fence();

// cp.async: a copy is done either when it is issued, or only when its thread waits for it.
void emulated_copy_16(unsigned char *to, const void *from, bool inside);
void emulated_copy_commit();
void emulated_copy_wait(unsigned n_groups);

// mma.m16n8k16: halves, sums in f32. A lane has rows lane / 4 and lane / 4 + 8 of the first
// operand. Its columns are c = 2 (lane % 4), c + 1, c + 8 and c + 9.
void emulated_mma(float *d, const unsigned *a, unsigned b0, unsigned b1);
void emulated_ldmatrix(unsigned *v, const unsigned char *row, bool transposed);
unsigned emulated_movmatrix(unsigned v);
// wgmma.m64nNk16. The first operand is in registers, or in shared memory with a descriptor like the
// second. The product is computed at once, so a write to operands that a GPU would still read is
// not detected.
void emulated_wgmma(float *d, unsigned n, const unsigned *a, uint64_t b, bool accumulate, bool transposed);
void emulated_wgmma_shared(float *d, unsigned n, uint64_t a, uint64_t b, bool accumulate);
}

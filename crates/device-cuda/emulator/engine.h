// What kernels (device.h) and the driver (driver.cc) ask of the engine, which runs blocks of
// threads on a CPU.
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
// Of the thread that runs; x of a thread, all three of a block.
extern Index threadIdx, blockIdx, gridDim, blockDim;
// The running block's dynamic shared memory.
extern unsigned char *emulated_shared;

// A launch. Blocks run one after the other, or, where they wait for each other, `together`.
struct EmulatedLaunch {
    const char *name;
    Index grid;
    unsigned n_threads, shared_bytes;
    bool together;
    void (*kernel)(const void *arguments);
    const void *arguments;
};
void emulated_run(const EmulatedLaunch *launch);
// Where the next launches' order of warps begins.
void emulated_seed(uint64_t seed);
// What runs, for a report of an error.
const char *emulated_kernel();

// ---- what threads do

void emulated_sync_block();
void emulated_sync_warp();
// A thread waits for what another one does: others go on.
void emulated_poll();
void emulated_barrier(unsigned id, unsigned n_threads, bool waits);
// What lane `from` of the warp gave.
uint64_t emulated_exchange(uint64_t mine, unsigned from);
// What all lanes gave; valid until the warp's next exchange but one.
const uint64_t *emulated_gather(uint64_t mine);
unsigned emulated_clock();

void emulated_mbarrier_init(unsigned char *barrier, unsigned count);
void emulated_mbarrier_arrive(unsigned char *barrier, unsigned times);
void emulated_mbarrier_expect(unsigned char *barrier, unsigned bytes);
void emulated_mbarrier_wait(unsigned char *barrier, unsigned parity);
void emulated_bulk_copy(unsigned char *to, const void *from, unsigned bytes, unsigned char *barrier);
// A word that other blocks see, some time later.
void emulated_store(void *to, uint64_t value, unsigned bytes);
// All of the stores before are there.
void emulated_fence();

// cp.async: a copy is done when it is issued, or only when its thread waits for it.
void emulated_copy_16(unsigned char *to, const void *from, bool inside);
void emulated_copy_commit();
void emulated_copy_wait(unsigned n_groups);

// mma.m16n8k16: halves, sums in f32. Of the first operand a lane has rows lane / 4 and 8 more,
// columns 2 (lane % 4), the next, and 8 more.
void emulated_mma(float *d, const unsigned *a, unsigned b0, unsigned b1);
void emulated_ldmatrix(unsigned *v, const unsigned char *row, bool transposed);
unsigned emulated_movmatrix(unsigned v);
// wgmma.m64nNk16, the first operand in registers, or in shared memory with a descriptor as the
// second. Done at once: what is still read when others write is not seen.
void emulated_wgmma(float *d, unsigned n, const unsigned *a, uint64_t b, bool accumulate, bool transposed);
void emulated_wgmma_shared(float *d, unsigned n, uint64_t a, uint64_t b, bool accumulate);
}

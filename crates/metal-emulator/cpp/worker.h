// The state of a worker: what runtime.cpp schedules and access.cpp checks.
#pragma once
#include "runtime.h"

typedef unsigned long msl_size;

// A worker's memory is aligned to SPACE: first the stacks, one after another, then the Worker with
// everything small. So a stack pointer identifies its lane, and per-lane state is not at the same
// offset of each stack, where all would compete for the same cache sets. The first page of each
// stack is a guard.
static const msl_u64 STACK = 256 << 10, STACK_GUARD = 4096;
static const msl_u32 MAX_THREADS = 1024, MAX_VARIABLES = 64, MAX_RESOURCES = 1024, MAX_REGIONS = 40 + MAX_RESOURCES;
static const msl_u64 THREADGROUP_LIMIT = 32 << 10, THREADGROUP_GAP = 64;
static const msl_u64 THREADGROUP_SPACE = THREADGROUP_LIMIT + (MAX_VARIABLES + 2) * (THREADGROUP_GAP + 16);
static const msl_u64 STACKS = MAX_THREADS * STACK, SPACE = 2 * STACKS;

enum { SHADOW_GAP = 0, SHADOW_UNINITIALISED = 1, SHADOW_INITIALISED = 2 };

// Instructions whose last access is kept. An unrolled loop has hundreds that access different
// buffers in turn.
static const msl_u32 RECENT_BITS = 11, RECENT = 1 << RECENT_BITS;

struct Worker;
struct Simdgroup;

struct Lane {
    void * sp;
    Worker * worker;
    Simdgroup * simdgroup;
    msl_u32 lane, operation;
    bool done, from_scheduler, orders_device;
    msl_site site;
    void * tsan;
    void * fake;
    msl_lane_context context;
};

struct Simdgroup {
    msl_u32 n, cursor, parity, active, results;
    // Masks of lanes: runnable; waiting at an exchange; waiting at another exchange than the first,
    // which is `operation` at `site`; waiting at a barrier.
    msl_u32 ready, gathered, apart, at_barrier, operation;
    msl_site site;
    Lane * lanes[32];
    msl_u8 order[32];
    // Double-buffered: lanes write the next exchange while others may still read the last one.
    alignas(64) msl_u8 slots[2][32][MSL_SLOT];
    alignas(32) msl_u8 result[8][MSL_SLOT];
    unsigned short barriers;  // barriers for device memory
    char barrier;
};

struct Variable {
    const void * key;
    const char * name;
    msl_u8 * address;
    msl_u64 size;
};

// Memory that a kernel may access. `counter` is its position in the dispatch; NOT_COUNTED, or
// RESOURCE: counted in `totals`.
enum { NOT_COUNTED = -1, RESOURCE = 31 };
struct Region {
    msl_u64 address, length, writable_length;
    bool writable;
    int counter;
    msl_u64 read, written;
    msl_u64 * read_sectors;
    msl_u64 * written_sectors;
    msl_u64 * totals;
    msl_u8 * writers;
    msl_u32 index;
    // Last writer of each word in the running threadgroup, with the barriers before the write; null
    // for read-only memory.
    struct Written * written_by;
    msl_u64 own_bytes;  // size of a separate mapping for `written_by`, or 0
};

// Writer of a word of device memory: the threadgroup's serial number, the thread, and the barriers
// for device memory that the threadgroup and the simdgroup had passed.
struct Written {
    msl_u32 threadgroup;
    // bytes: a bit for each byte of the word
    unsigned short thread, barriers, simdgroup_barriers, bytes;
};
// Words whose writers a worker records in memory that it keeps, at most 48 MiB. Further regions get
// mappings of their own.
static const msl_u64 NOTES = 4 << 20;

struct Worker {
    void * scheduler_sp;
    void * scheduler_tsan;
    void * scheduler_fake;
    const void * scheduler_bottom;
    msl_size scheduler_size;
    bool failed;
    msl_u64 steps_left, most_steps;
    msl_u32 n_stacks, n_variables, n_regions, how;  // how: the order of lanes
    msl_u64 random, threadgroup_used, threadgroup_total;
    // Serial number of the running threadgroup, from 1. It counts over all dispatches, so that
    // records of earlier dispatches match nobody.
    msl_u32 serial;
    Written * notes;         // NOTES of them, or null before the first
    unsigned short barriers; // barriers for device memory of this threadgroup
    const msl_entry * entry;
    msl_fault * fault;
    char barrier, start, end;
    msl_counters counters;
    msl_group_context group;
    Variable variables[MAX_VARIABLES];
    Region regions[MAX_REGIONS];
    // indexed by instruction address: an instruction mostly accesses the same buffer
    Region * recent[RECENT];
    Simdgroup simdgroups[MAX_THREADS / 32];
    Lane lanes[MAX_THREADS];
    alignas(64) msl_u8 threadgroup_memory[THREADGROUP_SPACE];
    alignas(64) msl_u8 threadgroup_shadow[THREADGROUP_SPACE];
};
static_assert(sizeof(Worker) <= SPACE - STACKS, "");

static inline Lane * lane_at(Worker * w, msl_u32 i) { return &w->lanes[i]; }
static inline msl_u8 * stack_at(Worker * w, msl_u64 i) { return (msl_u8 *) w - STACKS + i * STACK; }
static inline msl_u64 stack_pointer() {
    msl_u64 sp;
    asm volatile("movq %%rsp, %0" : "=r"(sp));
    return sp;
}
static inline Worker * msl_current_worker() { return (Worker *) ((stack_pointer() & ~(SPACE - 1)) + STACKS); }
static inline Lane * msl_current_lane() {
    const msl_u64 sp = stack_pointer(), base = sp & ~(SPACE - 1);
    return lane_at((Worker *) (base + STACKS), (msl_u32) ((sp - base) / STACK));
}

[[noreturn]] __attribute__((visibility("hidden"))) void msl_fail(Lane * l);
[[noreturn]] __attribute__((visibility("hidden"))) void msl_overdue(Worker * w);
// Counts an access or an operation of a lane, and ends the run after too many.
static inline void msl_step(Worker * w) {
    if (__builtin_expect(w->steps_left-- == 0, false)) msl_overdue(w);
}
__attribute__((visibility("hidden"))) msl_fault * msl_fault_of(Lane * l, msl_u32 kind);
__attribute__((visibility("hidden"))) void msl_fault_site(msl_fault * f, const msl_site * site, const char * name);
__attribute__((visibility("hidden"))) void msl_access_prepare(Worker * w, const msl_dispatch * d);
__attribute__((visibility("hidden"))) void msl_access_finish(Worker * w);
__attribute__((visibility("hidden"))) const msl_entry * msl_entry_at(msl_u32 i);

// Checks and counts every memory access.
//
// Kernels are compiled with clang's AddressSanitizer instrumentation in its outlined form and a
// prefix of our own: before each load or store that clang could not prove to stay on the stack, it
// calls msl_loadN or msl_storeN with the address. These functions are not the sanitizer's runtime
// but this file, which knows what a kernel may access: the ranges that the dispatch bound, to the
// byte, and threadgroup memory, with a shadow byte for each of its bytes.
#include "worker.h"

extern "C" {
extern msl_u8 __ehdr_start[] __attribute__((visibility("hidden")));
extern msl_u8 _end[] __attribute__((visibility("hidden")));
}
extern volatile bool msl_running __attribute__((visibility("hidden")));

static Region nothing;

static Region * add_region(Worker * w, msl_u64 address, msl_u64 length, bool writable, int counter) {
    Region * r = &w->regions[w->n_regions++];
    *r = Region{ address, length, writable ? length : 0, writable, counter, 0, 0, nullptr, nullptr, nullptr, nullptr, 0, nullptr, 0 };
    return r;
}

extern "C" {
void * mmap(void *, msl_size, int, int, int, long);
int munmap(void *, msl_size);
}

// Reserves address space that uses memory only where it is written; null if there is none.
static Written * map_notes(msl_u64 bytes) {
    void * p = mmap(nullptr, bytes, 3, 0x4022, -1, 0);
    return p == (void *) -1 ? nullptr : (Written *) p;
}

// Prepares the notes about writers of a region. `used` counts the worker's notes for earlier
// regions.
static void note_writers(Worker * w, Region * r, msl_u64 * used) {
    const msl_u64 words = r->length / 4 + 2;
    if (w->notes && words <= NOTES - *used) {
        r->written_by = w->notes + *used;
        *used += words;
        return;
    }
    r->written_by = map_notes(words * sizeof(Written));
    r->own_bytes = r->written_by ? words * sizeof(Written) : 0;
}

void msl_access_prepare(Worker * w, const msl_dispatch * d) {
    // Long before the serial numbers of threadgroups repeat.
    if (w->notes && w->serial > 1u << 31) {
        munmap(w->notes, NOTES * sizeof(Written));
        w->notes = nullptr;
    }
    if (!w->notes) {
        w->notes = map_notes(NOTES * sizeof(Written));
        w->serial = 0;
    }
    msl_u64 used = 0;
    w->n_regions = 0;
    for (msl_u32 i = 0; i < d->n_buffers; i++) {
        const msl_buffer & b = d->buffers[i];
        Region * r = add_region(w, (msl_u64) b.address, b.length, b.writable, (int) i);
        r->read_sectors = b.read_sectors;
        r->written_sectors = b.written_sectors;
        r->writers = b.writers;
        r->index = b.index;
        if (b.noted && b.length) note_writers(w, r, &used);
    }
    add_region(w, (msl_u64) stack_at(w, 0), STACKS, true, NOT_COUNTED);
    // The slots of the simdgroups' exchanges.
    add_region(w, (msl_u64) w->simdgroups, sizeof w->simdgroups, true, NOT_COUNTED);
    // Variables at program scope.
    add_region(w, (msl_u64) __ehdr_start, (msl_u64) (_end - __ehdr_start), true, NOT_COUNTED);
    for (msl_u32 i = 0; i < d->n_resources; i++) {
        const msl_buffer & b = d->resources[i];
        Region * r = add_region(w, (msl_u64) b.address, b.length, b.writable, RESOURCE);
        r->read_sectors = b.read_sectors;
        r->written_sectors = b.written_sectors;
        r->totals = b.totals;
        r->index = b.index;
        if (b.noted && b.length) note_writers(w, r, &used);
    }
    for (auto & r : w->recent) r = &nothing;
}

void msl_access_finish(Worker * w) {
    for (msl_u32 i = 0; i < w->n_regions; i++) {
        const Region & r = w->regions[i];
        if (r.own_bytes) munmap(r.written_by, r.own_bytes);
        if (r.counter >= 0 && r.counter < RESOURCE) {
            w->counters.read[r.counter] = r.read;
            w->counters.written[r.counter] = r.written;
        } else if (r.totals) {
            __atomic_fetch_add(&r.totals[0], r.read, __ATOMIC_RELAXED);
            __atomic_fetch_add(&r.totals[1], r.written, __ATOMIC_RELAXED);
        }
    }
}

// Index in `recent` of the instruction at an address.
static inline __attribute__((always_inline)) msl_u64 recent_of(msl_u64 code) { return code * 0x9e3779b97f4a7c15ul >> (64 - RECENT_BITS); }

[[noreturn]] static void fail_at(Lane * l, msl_u32 kind, msl_u64 address, msl_u64 size, bool write, msl_u64 code) {
    msl_fault * f = msl_fault_of(l, kind);
    f->address = address;
    f->size = size;
    f->write = write;
    f->code = code - 1 - (msl_u64) __ehdr_start;
    msl_fail(l);
}

// The variable around or before an offset of threadgroup memory.
static const Variable * variable_near(Worker * w, msl_u64 offset) {
    const Variable * best = nullptr;
    for (msl_u32 i = 0; i < w->n_variables; i++)
        if (w->variables[i].address <= w->threadgroup_memory + offset && (!best || w->variables[i].address > best->address)) best = &w->variables[i];
    return best;
}

[[noreturn]] static void fail_threadgroup(Lane * l, msl_u64 offset, msl_u64 size, bool write, bool gap, msl_u64 code) {
    const Variable * v = variable_near(l->worker, offset);
    if (v) {
        const msl_site none = {};
        msl_fault_site(l->worker->fault, &none, v->name);
        offset -= (msl_u64) (v->address - l->worker->threadgroup_memory);
    }
    fail_at(l, gap ? MSL_THREADGROUP_BOUNDS : MSL_UNINITIALISED, offset, size, write, code);
}

static void check_threadgroup(Lane * l, msl_u64 offset, msl_u64 size, bool write, msl_u64 code) {
    msl_u8 * shadow = l->worker->threadgroup_shadow + offset;
    if (size > THREADGROUP_SPACE - offset) fail_threadgroup(l, offset, size, write, true, code);
    bool gap = false, uninitialised = false;
    for (msl_u64 i = 0; i < size; i++) {
        gap |= shadow[i] == SHADOW_GAP;
        uninitialised |= shadow[i] == SHADOW_UNINITIALISED;
    }
    if (gap) fail_threadgroup(l, offset, size, write, true, code);
    if (write) {
        __builtin_memset(shadow, SHADOW_INITIALISED, size);
    } else if (uninitialised) {
        fail_threadgroup(l, offset, size, write, false, code);
    }
#ifdef MSL_COUNT
    (write ? l->worker->counters.threadgroup_written : l->worker->counters.threadgroup_read) += size;
#endif
}

static __attribute__((noinline)) Region * find_region(Worker * w, msl_u64 address, msl_u64 size) {
    for (msl_u32 i = 0; i < w->n_regions; i++) {
        Region * r = &w->regions[i];
        const msl_u64 at = address - r->address;
        if (at <= r->length && r->length - at >= size) return r;
    }
    return nullptr;
}

#ifdef MSL_COUNT
static void count(Region * r, msl_u64 address, msl_u64 size, bool write) {
    if (r->counter < 0 || !size) return;
    (write ? r->written : r->read) += size;
    msl_u64 * sectors = write ? r->written_sectors : r->read_sectors;
    if (!sectors) return;
    const msl_u64 first = r->address / 32;
    for (msl_u64 s = address / 32 - first; s <= (address + size - 1) / 32 - first; s++)
        if (!(__atomic_load_n(&sectors[s / 64], __ATOMIC_RELAXED) >> (s % 64) & 1)) __atomic_fetch_or(&sectors[s / 64], 1ul << (s % 64), __ATOMIC_RELAXED);
}
#endif

// Checks that no other binding wrote the bytes, and no other thread without a barrier between, for
// a region with such notes.
static __attribute__((noinline)) void check_order_slowly(Region * r, msl_u64 address, msl_u64 size, bool write, msl_u64 code) {
    Lane * l = msl_current_lane();
    Worker * w = l->worker;
    const msl_u64 at = address - r->address;
    if (r->writers) {
        for (msl_u64 i = 0; i < size; i++) {
            if (write) {
                r->writers[at + i] = (msl_u8) (r->index + 1);
            } else if (r->writers[at + i] && r->writers[at + i] != r->index + 1) {
                msl_fault_of(l, MSL_ALIASED)->count = r->writers[at + i] - 1u;
                fail_at(l, MSL_ALIASED, address, size, write, code);
            }
        }
    }
    if (!r->written_by || !size) return;
    const msl_u32 thread = (msl_u32) (l - w->lanes);
    const Simdgroup * g = l->simdgroup;
    for (msl_u64 word = at / 4; word <= (at + size - 1) / 4; word++) {
        Written & by = r->written_by[word];
        unsigned short bytes = 0;
        for (msl_u64 i = 0; i < 4; i++)
            if (4 * word + i >= at && 4 * word + i < at + size) bytes |= (unsigned short) (1u << i);
        if (write) {
            const bool same = by.threadgroup == w->serial && by.thread == thread && by.barriers == w->barriers && by.simdgroup_barriers == g->barriers;
            by = Written{ w->serial, (unsigned short) thread, w->barriers, g->barriers, (unsigned short) (same ? by.bytes | bytes : bytes) };
        } else if ((by.bytes & bytes) && by.threadgroup == w->serial && by.thread != thread && by.barriers == w->barriers &&
                   !(by.thread / 32u == thread / 32 && by.simdgroup_barriers != g->barriers)) {
            msl_fault_of(l, MSL_UNORDERED)->count = by.thread;
            fail_at(l, MSL_UNORDERED, address, size, write, code);
        }
    }
}

// Fast path of check_order_slowly: a read of words that this threadgroup did not write, or a write
// of whole words.
static inline __attribute__((always_inline)) void check_order(Region * r, msl_u64 address, msl_u64 size, bool write, msl_u64 code) {
    if (__builtin_expect(!r->writers && size <= 16, true)) {
        const Worker * w = msl_current_worker();
        const msl_u64 at = address - r->address;
        Written * by = r->written_by + at / 4;
        const msl_u64 n = (at % 4 + size + 3) / 4;
        if (!write) {
            bool own = false;
            for (msl_u64 i = 0; i < n; i++) own |= by[i].threadgroup == w->serial;
            if (__builtin_expect(!own, true)) return;
        } else if (at % 4 == 0 && size % 4 == 0) {
            const Lane * l = msl_current_lane();
            const Written now = { w->serial, (unsigned short) (l - w->lanes), w->barriers, l->simdgroup->barriers, 15 };
            for (msl_u64 i = 0; i < n; i++) by[i] = now;
            return;
        }
    }
    check_order_slowly(r, address, size, write, code);
}

extern "C" __attribute__((visibility("hidden"))) void msl_atomic_access(const volatile void * word) {
    const msl_u64 address = (msl_u64) word;
    Region * r = find_region(msl_current_worker(), address, 4);
    if (r && r->written_by) r->written_by[(address - r->address) / 4].bytes = 0;
}

// The slow path: an access outside the region that this instruction accessed last.
static __attribute__((noinline)) void check_slowly(msl_u64 address, msl_u64 size, bool write, msl_u64 code) {
    if (!msl_running) return;
    Lane * l = msl_current_lane();
    Worker * w = l->worker;
    const msl_u64 offset = address - (msl_u64) w->threadgroup_memory;
    if (offset < THREADGROUP_SPACE) return check_threadgroup(l, offset, size, write, code);
    Region * r = find_region(w, address, size);
    if (!r) fail_at(l, MSL_OUT_OF_BOUNDS, address, size, write, code);
    if (write && !r->writable) fail_at(l, MSL_READ_ONLY, address, size, write, code);
    w->recent[recent_of(code)] = r;
    if (r->written_by || r->writers) check_order(r, address, size, write, code);
#ifdef MSL_COUNT
    count(r, address, size, write);
#endif
}

// Returns whether all bytes of a threadgroup access were written; only checks the usual sizes of an
// access.
static inline __attribute__((always_inline)) bool is_initialised(const msl_u8 * shadow, msl_u64 size) {
    typedef unsigned short __attribute__((aligned(1), may_alias)) Two;
    typedef msl_u32 __attribute__((aligned(1), may_alias)) Four;
    typedef msl_u64 __attribute__((aligned(1), may_alias)) Eight;
    const msl_u64 all = 0x0101010101010101ul * SHADOW_INITIALISED;
    switch (size) {
        case 1: return *shadow == (msl_u8) all;
        case 2: return *(const Two *) shadow == (unsigned short) all;
        case 4: return *(const Four *) shadow == (msl_u32) all;
        case 8: return *(const Eight *) shadow == all;
        case 16: return *(const Eight *) shadow == all && *(const Eight *) (shadow + 8) == all;
        default: return false;
    }
}

static inline __attribute__((always_inline)) void check(msl_u64 address, msl_u64 size, bool write, msl_u64 code) {
    if (__builtin_expect(msl_running, true)) {
        Worker * w = msl_current_worker();
        msl_step(w);
        Region * r = w->recent[recent_of(code)];
        const msl_u64 at = address - r->address, length = write ? r->writable_length : r->length;
        if (__builtin_expect(at < length && length - at >= size, true)) {
            if (r->written_by || r->writers) check_order(r, address, size, write, code);
#ifdef MSL_COUNT
            count(r, address, size, write);
#endif
            return;
        }
        const msl_u64 offset = address - (msl_u64) w->threadgroup_memory;
        if (offset <= THREADGROUP_SPACE - 16 && is_initialised(w->threadgroup_shadow + offset, size)) {
#ifdef MSL_COUNT
            (write ? w->counters.threadgroup_written : w->counters.threadgroup_read) += size;
#endif
            return;
        }
    }
    check_slowly(address, size, write, code);
}

static __attribute__((noinline)) void misaligned(msl_u64 address, msl_u64 size, bool write, msl_u64 code) {
    if (msl_running) fail_at(msl_current_lane(), MSL_MISALIGNED, address, size, write, code);
}

#define CODE ((msl_u64) __builtin_return_address(0))
#define HIDDEN extern "C" __attribute__((visibility("hidden")))
// With a granularity of 16 bytes (-asan-mapping-scale=4) clang calls these only for accesses that
// it assumes to be aligned to their size, and the two below for all others.
#define ACCESS(n) \
    HIDDEN void msl_load##n(msl_u64 address) { \
        if (address % n) misaligned(address, n, false, CODE); \
        check(address, n, false, CODE); \
    } \
    HIDDEN void msl_store##n(msl_u64 address) { \
        if (address % n) misaligned(address, n, true, CODE); \
        check(address, n, true, CODE); \
    }
ACCESS(1) ACCESS(2) ACCESS(4) ACCESS(8) ACCESS(16)
HIDDEN void msl_loadN(msl_u64 address, msl_u64 size) { check(address, size, false, CODE); }
HIDDEN void msl_storeN(msl_u64 address, msl_u64 size) { check(address, size, true, CODE); }
HIDDEN void * msl_memcpy(void * to, const void * from, msl_u64 size) {
    check((msl_u64) from, size, false, CODE);
    check((msl_u64) to, size, true, CODE);
    return __builtin_memcpy(to, from, size);
}
HIDDEN void * msl_memmove(void * to, const void * from, msl_u64 size) {
    check((msl_u64) from, size, false, CODE);
    check((msl_u64) to, size, true, CODE);
    return __builtin_memmove(to, from, size);
}
HIDDEN void * msl_memset(void * to, int value, msl_u64 size) {
    check((msl_u64) to, size, true, CODE);
    return __builtin_memset(to, value, size);
}
// Referenced by instrumented code regardless of options.
HIDDEN void __asan_init(void) {}
HIDDEN void __asan_version_mismatch_check_v8(void) {}
HIDDEN void __asan_handle_no_return(void) {}

// ---------------------------------------------------------------- undefined behaviour without an
// address clang's -fsanitize=alignment,bounds,... calls these with the source location.

struct Place {
    const char * file;
    msl_u32 line, column;
};

[[noreturn]] static void undefined(const Place & place, msl_u32 kind, const char * what, msl_u64 address, msl_u64 size) {
    if (!msl_running) __builtin_trap();
    Lane * l = msl_current_lane();
    msl_fault * f = msl_fault_of(l, kind);
    const msl_site site = { place.file, place.line, place.column };
    msl_fault_site(f, &site, what);
    f->address = address;
    f->size = size;
    msl_fail(l);
}

struct TypeMismatch {
    Place place;
    const void * type;
    msl_u8 log_alignment, kind;
};
HIDDEN void __ubsan_handle_type_mismatch_v1_abort(const TypeMismatch * d, msl_u64 address) {
    undefined(d->place, MSL_MISALIGNED, "", address, 1ul << d->log_alignment);
}
HIDDEN void __ubsan_handle_out_of_bounds_abort(const Place * d, msl_u64 index) {
    undefined(*d, MSL_UNDEFINED, "an index past the end of its array", index, 0);
}
HIDDEN void __ubsan_handle_shift_out_of_bounds_abort(const Place * d, msl_u64, msl_u64 by) {
    undefined(*d, MSL_UNDEFINED, "a shift by as many bits as the type has, or more", by, 0);
}
HIDDEN void __ubsan_handle_divrem_overflow_abort(const Place * d, msl_u64, msl_u64) {
    undefined(*d, MSL_UNDEFINED, "an integer division by zero", 0, 0);
}
HIDDEN void __ubsan_handle_builtin_unreachable(const Place * d) { undefined(*d, MSL_UNDEFINED, "unreachable code", 0, 0); }
HIDDEN void __ubsan_handle_missing_return(const Place * d) { undefined(*d, MSL_UNDEFINED, "the end of a function that returns a value", 0, 0); }

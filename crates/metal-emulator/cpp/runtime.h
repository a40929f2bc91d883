// The interface between a compiled library, its runtime and the program that loads it. Plain C
// layouts. src/abi.rs mirrors the structs that Rust uses.
#pragma once
#pragma GCC system_header

typedef unsigned char msl_u8;
typedef unsigned short msl_u16;
typedef unsigned int msl_u32;
typedef unsigned long msl_u64;

extern "C" {

// ---- what kernels call (metal_stdlib.h) ----

// The location of a call in the .metal source.
struct msl_site {
    const char * file;
    msl_u32 line, column;
};

// Operations that the lanes of a simdgroup execute together.
enum msl_operation {
    MSL_SHUFFLE,    // shuffles, broadcasts
    MSL_REDUCTION,  // reductions and prefix sums
    MSL_VOTE,       // ballot, any, all, is_first
    MSL_MATRIX,     // 8x8 multiply-accumulate
    MSL_BARRIER,    // simdgroup_barrier
    MSL_TENSOR,     // product of tensors
    MSL_OPERATIONS,
};

enum { MSL_SLOT = 32 };  // bytes of a lane's value in an exchange

// The values of an exchange: slot i of `data` belongs to lane i, if bit i of `active` is set.
struct msl_slots {
    msl_u32 active, lane;
    const msl_u8 * data;
};

void msl_exchange(msl_u32 operation, const void * value, msl_u32 size, const msl_site * site, msl_slots * out);
// The result shared by all lanes, computed by the first that requests it: `index` is the quad, or
// 0.
bool msl_result_get(void * out, msl_u32 size, msl_u32 index);
void msl_result_put(const void * value, msl_u32 size, msl_u32 index);
// In: a0 a1 b0 b1 c0 c1, this lane's two elements of three 8x8 matrices. Out: its two elements of
// a*b+c.
void msl_matrix_multiply(const float in[6], const msl_site * site, float out[2]);
// A shuffle that reads an inactive lane.
void msl_inactive_lane(msl_u32 lane, const msl_site * site);
// A product of tensors begins, by all lanes of this many simdgroups.
void msl_tensor(msl_u32 simdgroups, const msl_site * site);
// The lane's index among the threads of this many simdgroups.
msl_u32 msl_tensor_thread(msl_u32 simdgroups);
// Ends the dispatch with a fault that `what` describes.
void msl_undefined(const char * what, const msl_site * site);
void msl_threadgroup_barrier(const msl_site * site, bool device_memory);
// A simdgroup_barrier that orders device memory was passed.
void msl_simdgroup_ordered(void);
msl_u32 msl_lane(void);
// An atomic access to a word is ordered by itself: earlier writers of the word do not matter.
__attribute__((visibility("hidden"))) void msl_atomic_access(const volatile void * word);
// Units in the last place by which results of functions are moved.
extern msl_u32 msl_ulp __attribute__((visibility("hidden")));
// Records, before anything runs, that a kernel has a variable of `size` bytes.
bool msl_static_variable(const void * kernel, const char * name, msl_u64 size);
// The storage of a threadgroup variable, one per `key` and threadgroup.
void * msl_threadgroup_variable(const void * key, msl_u64 size, const char * name);
// The value of function constant `index`, as 8 bytes; false if the pipeline does not set it.
bool msl_function_constant(msl_u32 index, void * out, msl_u32 size);

// ---- what a library exports ----

struct msl_lane_context {
    msl_u32 thread_position_in_grid[3], thread_position_in_threadgroup[3], thread_index_in_threadgroup[1], thread_index_in_simdgroup[1],
        simdgroup_index_in_threadgroup[1], thread_index_in_quadgroup[1], quadgroup_index_in_threadgroup[1];
    const struct msl_group_context * group;
};
struct msl_group_context {
    msl_u32 threadgroup_position_in_grid[3], threads_per_threadgroup[3], threadgroups_per_grid[3], threads_per_grid[3],
        simdgroups_per_threadgroup[1], quadgroups_per_threadgroup[1], threads_per_simdgroup[1];
    void * buffers[31];
    void * threadgroup[31];
};

// One kernel under its host name. `present(i)` says whether parameter i exists under this
// pipeline's function constants.
struct msl_entry {
    const char * name;
    void (*run)(const msl_lane_context *);
    bool (*present)(msl_u32 parameter);
    const void * kernel;  // its address, by which its variables are known
};

enum { MSL_MAX_CONSTANTS = 128 };
struct msl_constants {
    // marks the table in the library's file, so that values can be written to a copy before it is
    // loaded
    char magic[32];
    msl_u64 count;
    struct { msl_u32 index, size; msl_u64 bits; } value[MSL_MAX_CONSTANTS];
};

// ---- a dispatch ----

struct msl_buffer {
    msl_u8 * address;      // of the first byte of the kernel's argument
    msl_u64 length;        // bytes that may be accessed from there
    msl_u32 index;         // [[buffer(index)]]
    msl_u16 writable;
    // true if a kernel may write through it, so that writers are recorded
    msl_u16 noted;
    msl_u64 * read_sectors;     // bitmaps of 32-byte sectors of addresses, or null
    msl_u64 * written_sectors;
    // if it overlaps another binding: the binding that wrote each byte; otherwise null
    msl_u8 * writers;
    msl_u64 * totals;      // of a resource: bytes read and written, or null
};

struct msl_length {
    msl_u32 index, length;
};

struct msl_dispatch {
    msl_u32 function;           // index into the entries
    msl_u32 threadgroups[3];
    msl_u32 threads[3];
    msl_u32 order;              // 0 forward, 1 reverse, 2 random
    msl_u64 seed;
    const msl_buffer * buffers;
    const msl_length * lengths;
    msl_u32 n_buffers, n_lengths;
    const msl_buffer * resources;  // reached through addresses only
    msl_u32 n_resources;
    msl_u32 flush;              // subnormal f32 are zero
    msl_u32 ulp;                // msl_ulp
    msl_u64 most_steps;         // accesses and operations of all lanes, after which a fault ends the run
    msl_u64 * next;             // the next threadgroup to run, shared by the workers
    msl_u32 * stop;             // set by the worker that found a fault
};

struct msl_counters {
    msl_u64 threadgroups, threads;
    msl_u64 operations[MSL_OPERATIONS];  // of a simdgroup
    msl_u64 threadgroup_barriers;        // of a threadgroup
    msl_u64 threadgroup_read, threadgroup_written;
    msl_u64 read[31], written[31];       // bytes, by position in `buffers`
    msl_u64 switches;
    msl_u64 steps;                       // accesses, and operations of lanes
};

enum msl_fault_kind {
    MSL_OK,
    MSL_OUT_OF_BOUNDS,        // address, size
    MSL_READ_ONLY,            // address, size
    MSL_THREADGROUP_BOUNDS,   // address as an offset, size, name
    MSL_UNINITIALISED,        // address as an offset, size, name
    MSL_DIVERGENT_BARRIER,    // count of threads that reached it
    MSL_DIVERGENT_SIMDGROUP,  // lanes
    MSL_INACTIVE_LANE,        // lanes, count is the lane that was read
    MSL_TOO_MUCH_THREADGROUP, // size
    MSL_MISALIGNED,           // address, size is the alignment
    MSL_ALIASED,              // address, size, count is the index of the binding that wrote
    MSL_UNORDERED,            // address, size, count is the thread that wrote
    MSL_OVERDUE,              // size: the steps allowed
    MSL_UNDEFINED,            // name describes it
};

struct msl_fault {
    msl_u32 kind, write;
    msl_u64 address, size, code;  // code: offset in the library's image, or 0
    msl_u32 lanes, count, line, column;
    msl_u32 threadgroup[3], thread[3];
    char file[256], name[64];
};

// Memory of a worker: stacks, simdgroups, threadgroup memory. Allocated once and used by all
// libraries.
void * msl_memory_new(void);
// Runs threadgroups until none is left or a fault occurs, and returns the fault.
msl_u32 msl_run(const msl_dispatch * dispatch, void * memory, msl_counters * counters, msl_fault * fault);
}

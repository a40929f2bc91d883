// The named barriers of a block, and the warps that meet at each one. Warps 0..7 multiply and
// attend, warp 8 runs epilogues, warp 9 streams. One side arrives and continues, the other side
// waits.
#pragma once
#include "gemm/ptx.h"

enum PersistentBarrier {
    BARRIER_WORKERS = 1,       // warps 0..7 wait for each other
    BARRIER_PARTIALS = 2,      // and 3, by parity of the pass: 0..7 stored partial sums, 8 waits
    BARRIER_PUBLISHED = 5,     // 8 published the block's words, 0..7 wait before they poll
    BARRIER_QKV = 6,           // 8 published the block's q, k and v, 0..7 wait before attention
    BARRIER_INPUT = 7,         // 0..7 stored an input in shared memory, 8 waits to sum its squares
    BARRIER_PARTIALS_READ = 8, // and 9, by parity: 8 has read partial sums, 0..7 wait to overwrite
    BARRIER_SCALE = 10,        // 8 stored the scale of a router's input, the chooser waits
    BARRIER_CHOICE = 11,       // the chooser stored the choice of experts, others wait
};
// Threads that meet.
#define WARPS_0_TO_7 256
#define WARPS_0_TO_8 288
#define WARPS_8_AND_9 64

INLINE void workers_meet() { barrier(BARRIER_WORKERS, WARPS_0_TO_7); }
INLINE void arrive_partials(u32 parity) { barrier_arrive(BARRIER_PARTIALS + parity, WARPS_0_TO_8); }
INLINE void wait_partials(u32 parity) { barrier(BARRIER_PARTIALS + parity, WARPS_0_TO_8); }
INLINE void arrive_partials_read(u32 parity) { barrier_arrive(BARRIER_PARTIALS_READ + parity, WARPS_0_TO_8); }
INLINE void wait_partials_read(u32 parity) { barrier(BARRIER_PARTIALS_READ + parity, WARPS_0_TO_8); }
INLINE void arrive_qkv() { barrier_arrive(BARRIER_QKV, WARPS_0_TO_8); }
INLINE void wait_qkv() { barrier(BARRIER_QKV, WARPS_0_TO_8); }
INLINE void arrive_input() { barrier_arrive(BARRIER_INPUT, WARPS_0_TO_8); }
INLINE void wait_input() { barrier(BARRIER_INPUT, WARPS_0_TO_8); }
// One row: warp 9 chooses. It waits for the scale, warp 8 for the choice.
INLINE void arrive_scale() { barrier_arrive(BARRIER_SCALE, WARPS_8_AND_9); }
INLINE void wait_scale() { barrier(BARRIER_SCALE, WARPS_8_AND_9); }
INLINE void arrive_choice() { barrier_arrive(BARRIER_CHOICE, WARPS_8_AND_9); }
INLINE void wait_choice() { barrier(BARRIER_CHOICE, WARPS_8_AND_9); }
// Several rows: warps 0..7 choose, one row each. They wait for scales, all warps for the choice.
INLINE void arrive_row_scales() { barrier_arrive(BARRIER_SCALE, WARPS_0_TO_8); }
INLINE void wait_row_scales() { barrier(BARRIER_SCALE, WARPS_0_TO_8); }
INLINE void wait_row_choice() { barrier(BARRIER_CHOICE, PERSISTENT_THREADS); }

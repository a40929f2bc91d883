// persistent_decode_<D>_<H>; persistent_decode_q8_0_<D>_<H> over pages of Q8_0, _fp8_ of FP8: a whole token of a dense decoder in one launch, one row. D: head_dim, H: query heads of a KV head.
// persistent_decode_experts_<D>_<H>, persistent_decode_experts_q8_0_<D>_<H>, _fp8_: of a decoder some of whose layers are mixtures of experts
// (mixture.cuh). Kernels of their own, since code that is never executed costs time too (NOTES.md).
//
// Host contract
//   parameter  PersistentArguments (persistent/arguments.h)
//   launch     cooperative, one block a multiprocessor (n_blocks = grid, at most PERSISTENT_MAX_BLOCKS), 320 threads
//   dynamic shared memory  n_slots * slot_bytes + PERSISTENT_SHARED(D, H) + 2,560 * the largest k_quads
//              + sizeof(PersistentPhase) * n_phases, + PERSISTENT_CHOICE of a mixture
//   exchange   zeros before the first launch; each launch uses one of its two halves and clears the other for the next one. A launch
//              that stops early (stop_phase) does not change turns: clear all before the next one.
//
// How it works. Warps 0..7 multiply (products.cuh), each its own slice of K, and attend (attention.cuh); warp 8 adds the eight partial
// sums, runs the epilogue and publishes (epilogue.cuh); warp 9 streams weights, keys and values (stream.cuh) through a ring of
// bulk copies, in the order of use, over phases and layers. Values go from block to block as words that carry their epoch (exchange.cuh). Readers poll in
// warp-uniform loops, and only after their own block has published. Vectors are quantised by the writer, 8 values a chunk. A phase
// with more than 8 groups of rows runs in passes of 8.
//
// A layer has 6 hand-overs: QKV input, q k v, partial attentions, attention, gate/up input, down input; 8 with post-norms; and the scores of
// a mixture.
// Order of accumulation: fixed (lanes, then warps, then splits in ascending order), so results do not change from run to run.
// Bytes a token: the weights once, keys and values once. Measured: NOTES.md.
#pragma once
#include "persistent/attention.cuh"
#include "persistent/epilogue.cuh"
#include "persistent/run.cuh"
#include "persistent/stream.cuh"

template <int D, int H, PersistentPages PAGES, bool MIXTURE> INLINE void persistent_decode(const PersistentTable &a) {
    typedef PersistentBlock<D, H> Block;
    persistent_run<Block, PersistentWorker<PersistentExperts<D, H>, D, H, PAGES, MIXTURE>, PersistentEpilogue<D, H, MIXTURE>,
                   PersistentStream<Block, persistent_vector<PAGES, D>(), MIXTURE>>(a);
}

#define PERSISTENT_KERNEL(NAME, D, H, PAGES, MIXTURE)                                                               \
    extern "C" __global__ void __launch_bounds__(320, 1) NAME(const __grid_constant__ PersistentTable a) { \
        persistent_decode<D, H, PAGES, MIXTURE>(a);                                                                 \
    }
#define PERSISTENT_DECODE(D, H) PERSISTENT_KERNEL(persistent_decode_##D##_##H, D, H, PAGES_F16, false)
#define PERSISTENT_DECODE_Q8_0(D, H) PERSISTENT_KERNEL(persistent_decode_q8_0_##D##_##H, D, H, PAGES_Q8_0, false)
#define PERSISTENT_DECODE_FP8(D, H) PERSISTENT_KERNEL(persistent_decode_fp8_##D##_##H, D, H, PAGES_FP8, false)
#define PERSISTENT_DECODE_EXPERTS(D, H) PERSISTENT_KERNEL(persistent_decode_experts_##D##_##H, D, H, PAGES_F16, true)
#define PERSISTENT_DECODE_EXPERTS_Q8_0(D, H) PERSISTENT_KERNEL(persistent_decode_experts_q8_0_##D##_##H, D, H, PAGES_Q8_0, true)
#define PERSISTENT_DECODE_EXPERTS_FP8(D, H) PERSISTENT_KERNEL(persistent_decode_experts_fp8_##D##_##H, D, H, PAGES_FP8, true)

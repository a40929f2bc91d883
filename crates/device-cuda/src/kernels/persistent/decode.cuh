// The persistent kernel for one row: a whole token of a decoder in one launch (README.md). Its name
// is persistent_decode_[experts_][q8_0_|fp8_]<D>_<H>. D is head_dim, H the query heads of a KV
// head. Q8_0 and FP8 are types of pages. Decoders with mixtures of experts have kernels of their
// own, since code that never runs costs time too (NOTES.md).
//
// Host contract
//   parameter  PersistentArguments (arguments.h)
//   launch     cooperative, one block for each multiprocessor in use (at most
//              PERSISTENT_MAX_BLOCKS), PERSISTENT_THREADS threads
//   dynamic shared memory  n_slots * slot_bytes + PERSISTENT_SHARED(D, H)
//              + PERSISTENT_INPUT * most_quads + sizeof(PersistentPhase) * n_phases
//              + PERSISTENT_CHOICE of a mixture
//   exchange   zeros before the first launch. A launch uses one half and clears the other one for
//              the next launch. A launch that stops early (stop_phase) does not change the turn:
//              clear all before the next launch.
//
// Readers poll in warp-uniform loops, and only after their own block has published. The writer
// quantises vectors, 8 values a chunk. A phase with more than 8 groups in a block runs in passes.
// Order of accumulation: fixed (lanes, then warps, then splits in ascending order), so results do
// not change from run to run. Bytes a token: weights, keys and values once.
//
// A layer has 6 hand-overs: QKV input, q k v, partial attentions, attention, gate/up input, down
// input. Post-norms make them 8, and a mixture adds the scores.
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
    extern "C" __global__ void __launch_bounds__(PERSISTENT_THREADS, 1) NAME(const __grid_constant__ PersistentTable a) { \
        persistent_decode<D, H, PAGES, MIXTURE>(a);                                                                 \
    }

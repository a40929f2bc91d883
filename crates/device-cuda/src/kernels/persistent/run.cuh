// The start of a block: it prepares shared memory, then each warp runs its role.
#pragma once
#include "persistent/block.cuh"

template <class Block, class Worker, class Epilogue, class Stream> INLINE void persistent_run(const PersistentTable &a) {
    extern __shared__ __align__(128) u8 persistent_memory[];
    Block k(a, persistent_memory);
    if (threadIdx.x == 0) {
        for (u32 i = 0; i < a.n_slots; i++) mbarrier_init(k.full + 8 * i, 1), mbarrier_init(k.empty + 8 * i, 8);
        k.s.credit = k.s.written = 0;
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    }
    k.prepare(Stream::TILES_A_SLOT);
    __syncthreads();
    if (k.warp < 8) {
        Worker worker(k);
        worker.run();
    } else if (k.warp == 8) {
        Epilogue epilogue(k);
        epilogue.finish();
    } else {
        Stream stream(k);
        stream.stream();
        stream.clear();
    }
}

// all_reduce: out = sum over ranks of x, in the order of the ranks, so that all ranks get the same
// bits. all_gather: out[row] = the rows of all ranks, one after another.
//
// Every GPU of a group runs the kernel with the same number of blocks. Block b exchanges a range of
// neighbouring values with block b of the other GPUs, a chunk at a time. It writes each chunk into
// the inbox of every other rank. An inbox is in the memory of the GPU that reads it, or in host
// memory if the GPUs cannot access each other's memory.
//
// Few rows travel in packets of 16 bytes. A packet has two values, each in a word of 64 bits with
// the chunk's number (its epoch). A reader that sees the epoch also sees the value, so no fence is
// needed. Bytes: 8 a value to each other rank. Many rows (all_reduce_many, all_gather_many; a
// multiple of 4 columns) travel without epochs, and a flag says which chunk has arrived. Bytes: 4 a
// value.
//
// Inbox: packets (n_ranks, 2, COLLECTIVE_BLOCKS, CHUNK), then values (n_ranks, 4,
// COLLECTIVE_BLOCKS_MANY, MANY) in fours, then flags (n_ranks, COLLECTIVE_BLOCKS_MANY). The index
// in the second dimension is the chunk's number modulo the dimension's length.
//
// Why a slot may be overwritten: a rank writes packet e after it has read packet e - 1 of all
// others, and they wrote that one after they had read e - 2. For many rows a block sends chunk c,
// then receives c - 1. A block that sends c has therefore seen the flag of c - 2, which was set
// after c - 4 was read. Kernels of a stream run one after another, so this also holds if a block or
// a thread had nothing to exchange.
//
// Grid: (blocks), 512 threads.
#include "kernels.cuh"

#define THREADS 512
#define PACKETS 8
#define CHUNK (THREADS * PACKETS)
#define FOURS 4
#define MANY (THREADS * FOURS)
#define SLOTS 4

__device__ __forceinline__ void store_packet(ulong address, float a, float b, uint epoch) {
    const ulong low = ulong(epoch) << 32 | __float_as_uint(a), high = ulong(epoch) << 32 | __float_as_uint(b);
    asm volatile("st.relaxed.sys.global.v2.u64 [%0], {%1, %2};" ::"l"(address), "l"(low), "l"(high) : "memory");
}

// Waits until the packet of the epoch has arrived.
__device__ __forceinline__ void load_packet(ulong address, float &a, float &b, uint epoch) {
    ulong low, high;
    do {
        asm volatile("ld.relaxed.sys.global.v2.u64 {%0, %1}, [%2];" : "=l"(low), "=l"(high) : "l"(address) : "memory");
    } while (uint(low >> 32) != epoch || uint(high >> 32) != epoch);
    a = __uint_as_float(uint(low));
    b = __uint_as_float(uint(high));
}

// The next kernel may start while this one waits for other GPUs. If several ranks share a GPU, its
// blocks could occupy the multiprocessors that the other ranks need.
__device__ __forceinline__ void start(const CollectiveArguments &a) {
    if (a.is_alone) announce();
    await();
}

template <bool GATHER>
__device__ __forceinline__ void collective(const CollectiveArguments &a) {
    start(a);
    const ulong n_values = ulong(a.n_rows) * a.cols, n_packets = (n_values + 1) / 2;
    const ulong of_block = (n_packets + gridDim.x - 1) / gridDim.x;
    const ulong first = of_block * blockIdx.x, end = min(first + of_block, n_packets);
    uint epoch = a.epochs[blockIdx.x];
    const ulong inbox = a.inboxes[a.rank];
    for (ulong start = first; start < end; start += CHUNK) {
        epoch++;
        // Offset in bytes from the start of an inbox to this block's packets of a rank.
        const auto slot = [&](uint rank) {
            return ((ulong(rank) * 2 + (epoch & 1)) * COLLECTIVE_BLOCKS + blockIdx.x) * CHUNK * 16;
        };
        float mine[PACKETS][2];
#pragma unroll
        for (uint i = 0; i < PACKETS; i++) {
            const ulong at = 2 * (start + i * THREADS + threadIdx.x);
            mine[i][0] = at < 2 * end ? a.x[at] : 0.0f;
            mine[i][1] = at + 1 < n_values && at < 2 * end ? a.x[at + 1] : 0.0f;
        }
        for (uint rank = 0; rank < a.n_ranks; rank++) {
            if (rank == a.rank) continue;
            const ulong to = a.inboxes[rank] + slot(a.rank);
#pragma unroll
            for (uint i = 0; i < PACKETS; i++) {
                const uint packet = i * THREADS + threadIdx.x;
                if (start + packet < end) store_packet(to + packet * 16, mine[i][0], mine[i][1], epoch);
            }
        }
#pragma unroll
        for (uint i = 0; i < PACKETS; i++) {
            const uint packet = i * THREADS + threadIdx.x;
            if (start + packet >= end) continue;
            const ulong at = 2 * (start + packet);
            float sum[2] = {0.0f, 0.0f};
            for (uint rank = 0; rank < a.n_ranks; rank++) {
                float v[2] = {mine[i][0], mine[i][1]};
                if (rank != a.rank) load_packet(inbox + slot(rank) + packet * 16, v[0], v[1], epoch);
#pragma unroll
                for (uint j = 0; j < 2; j++) {
                    if (!GATHER) {
                        sum[j] += v[j];
                    } else if (at + j < n_values) {
                        const ulong row = (at + j) / a.cols, column = (at + j) % a.cols;
                        a.out[(row * a.n_ranks + rank) * a.cols + column] = v[j];
                    }
                }
            }
            if (!GATHER) {
                a.out[at] = sum[0];
                if (at + 1 < n_values) a.out[at + 1] = sum[1];
            }
        }
    }
    announce();
    __syncthreads();
    if (threadIdx.x == 0) a.epochs[blockIdx.x] = epoch;
}

__device__ __forceinline__ void store_four(ulong address, Vec4 v) {
    asm volatile("st.relaxed.sys.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(address), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w) : "memory");
}

__device__ __forceinline__ Vec4 load_four(ulong address) {
    Vec4 v;
    asm volatile("ld.relaxed.sys.global.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "l"(address) : "memory");
    return v;
}

template <bool GATHER>
__device__ __forceinline__ void collective_many(const CollectiveArguments &a) {
    start(a);
    const ulong n_fours = ulong(a.n_rows) * a.cols / 4, cols = a.cols / 4;
    const ulong of_block = (n_fours + gridDim.x - 1) / gridDim.x;
    const ulong first = of_block * blockIdx.x, end = min(first + of_block, n_fours);
    const uint n_chunks = first < end ? uint((end - first + MANY - 1) / MANY) : 0;
    const uint before = a.epochs[COLLECTIVE_BLOCKS + blockIdx.x];
    const ulong inbox = a.inboxes[a.rank], packets = ulong(a.n_ranks) * 2 * COLLECTIVE_BLOCKS * CHUNK * 16;
    const auto slot = [&](uint rank, uint number) {
        return packets + ((ulong(rank) * SLOTS + number % SLOTS) * COLLECTIVE_BLOCKS_MANY + blockIdx.x) * MANY * 16;
    };
    const auto flag = [&](uint rank) {
        return packets + ulong(a.n_ranks) * SLOTS * COLLECTIVE_BLOCKS_MANY * MANY * 16 +
               (ulong(rank) * COLLECTIVE_BLOCKS_MANY + blockIdx.x) * 4;
    };
    const Vec4 *x = (const Vec4 *)a.x;
    Vec4 *out = (Vec4 *)a.out;
    for (uint chunk = 0; chunk <= n_chunks; chunk++) {
        if (chunk < n_chunks) {
            const uint number = before + chunk + 1;
            const ulong start = first + ulong(chunk) * MANY;
            Vec4 mine[FOURS];
#pragma unroll
            for (uint i = 0; i < FOURS; i++) {
                const ulong at = start + i * THREADS + threadIdx.x;
                mine[i] = at < end ? x[at] : Vec4{0.0f, 0.0f, 0.0f, 0.0f};
            }
            for (uint rank = 0; rank < a.n_ranks; rank++) {
                if (rank == a.rank) continue;
                const ulong to = a.inboxes[rank] + slot(a.rank, number);
#pragma unroll
                for (uint i = 0; i < FOURS; i++) {
                    const uint four = i * THREADS + threadIdx.x;
                    if (start + four < end) store_four(to + four * 16, mine[i]);
                }
            }
            // All threads' values are written before one of them sets the flag.
            __syncthreads();
            if (threadIdx.x < a.n_ranks && threadIdx.x != a.rank) {
                const ulong to = a.inboxes[threadIdx.x] + flag(a.rank);
                asm volatile("fence.acq_rel.sys;\n st.relaxed.sys.global.u32 [%0], %1;" ::"l"(to), "r"(number) : "memory");
            }
        }
        if (chunk == 0) continue;
        const uint number = before + chunk;
        const ulong start = first + ulong(chunk - 1) * MANY;
        if (threadIdx.x < a.n_ranks && threadIdx.x != a.rank) {
            uint seen;
            do {
                asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(seen) : "l"(inbox + flag(threadIdx.x)) : "memory");
            } while (int(seen - number) < 0);
        }
        __syncthreads();
#pragma unroll
        for (uint i = 0; i < FOURS; i++) {
            const uint four = i * THREADS + threadIdx.x;
            const ulong at = start + four;
            if (at >= end) continue;
            Vec4 sum = {0.0f, 0.0f, 0.0f, 0.0f};
            for (uint rank = 0; rank < a.n_ranks; rank++) {
                const Vec4 v = rank == a.rank ? x[at] : load_four(inbox + slot(rank, number) + four * 16);
                if (GATHER) {
                    out[(at / cols * a.n_ranks + rank) * cols + at % cols] = v;
                } else {
                    sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
                }
            }
            if (!GATHER) out[at] = sum;
        }
    }
    announce();
    __syncthreads();
    if (threadIdx.x == 0) a.epochs[COLLECTIVE_BLOCKS + blockIdx.x] = before + n_chunks;
}

KERNEL(THREADS) all_reduce(const __grid_constant__ CollectiveArguments a) { collective<false>(a); }

KERNEL(THREADS) all_gather(const __grid_constant__ CollectiveArguments a) { collective<true>(a); }

KERNEL(THREADS) all_reduce_many(const __grid_constant__ CollectiveArguments a) { collective_many<false>(a); }

KERNEL(THREADS) all_gather_many(const __grid_constant__ CollectiveArguments a) { collective_many<true>(a); }

// all_reduce: out = sum over ranks of x, in the order of the ranks, so that all have the same bits.
// all_gather: out[row] = the rows of all ranks, one after another.
//
// Every GPU of a group runs the kernel on the same number of blocks, and block b of each exchanges with block b of the others. A
// rank writes its values into the inbox of each other rank, two in a packet of 16 bytes, each in a word of 64 bits with the number of
// the chunk (its epoch): seeing the epoch is seeing the value, and there is no fence. Inboxes lie on the GPU that reads them, or, where
// GPUs do not reach each other's memory, in pinned memory.
//
// Inbox: (n_ranks, 2, COLLECTIVE_BLOCKS, CHUNK) packets; the second dimension is the epoch's parity. A packet may be written over,
// since whoever writes epoch e has read epoch e - 1 of all others, which they wrote after they had read e - 2; kernels of a stream
// are one after another, which keeps that true where a block or a thread had nothing to exchange.
//
// A block has neighbouring packets. Grid: (blocks), 512 threads. Bytes: 8 a value to each other rank, 8 from each.
#include "kernels.cuh"

#define THREADS 512
#define PACKETS 8
#define CHUNK (THREADS * PACKETS)

__device__ __forceinline__ void store_packet(ulong address, float a, float b, uint epoch) {
    const ulong low = ulong(epoch) << 32 | __float_as_uint(a), high = ulong(epoch) << 32 | __float_as_uint(b);
    asm volatile("st.relaxed.sys.global.v2.u64 [%0], {%1, %2};" ::"l"(address), "l"(low), "l"(high) : "memory");
}

// Waits until the packet of the epoch is there.
__device__ __forceinline__ void load_packet(ulong address, float &a, float &b, uint epoch) {
    ulong low, high;
    do {
        asm volatile("ld.relaxed.sys.global.v2.u64 {%0, %1}, [%2];" : "=l"(low), "=l"(high) : "l"(address) : "memory");
    } while (uint(low >> 32) != epoch || uint(high >> 32) != epoch);
    a = __uint_as_float(uint(low));
    b = __uint_as_float(uint(high));
}

template <bool GATHER>
__device__ __forceinline__ void collective(const CollectiveArguments &a) {
    await();
    const ulong n_values = ulong(a.n_rows) * a.cols, n_packets = (n_values + 1) / 2;
    const ulong of_block = (n_packets + gridDim.x - 1) / gridDim.x;
    const ulong first = of_block * blockIdx.x, end = min(first + of_block, n_packets);
    uint epoch = a.epochs[blockIdx.x];
    const ulong inbox = a.inboxes[a.rank];
    for (ulong start = first; start < end; start += CHUNK) {
        epoch++;
        // Bytes from an inbox to this block's packets of a rank.
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
    // Not earlier: on a GPU with several ranks, blocks that wait for this kernel would keep those away that it waits for.
    announce();
    __syncthreads();
    if (threadIdx.x == 0) a.epochs[blockIdx.x] = epoch;
}

KERNEL(THREADS) all_reduce(const __grid_constant__ CollectiveArguments a) { collective<false>(a); }

KERNEL(THREADS) all_gather(const __grid_constant__ CollectiveArguments a) { collective<true>(a); }

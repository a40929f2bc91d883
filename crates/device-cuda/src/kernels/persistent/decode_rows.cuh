// persistent_decode_rows_<D>_<H>; persistent_decode_rows_q8_0_<D>_<H> over pages of Q8_0, _fp8_ of FP8: a step of up to 8 rows of a dense decoder in one
// launch, of as many sequences or fewer; persistent_decode_rows_experts_... of a mixture, of which no file is (persistent/sources.rs). D: head_dim, H: query heads of a KV head. The same table and packed weights as of one row (decode.cuh).
//
// Host contract, where it differs from that of one row
//   rows       1 to PERSISTENT_MOST_ROWS, and no more than n_blocks / n_kv_heads
//   dynamic shared memory  n_slots * slot_bytes + PERSISTENT_SHARED_ROWS(D, H) + PERSISTENT_ROWS_INPUT * most_quads
//              + sizeof(PersistentPhase) * n_phases, of a mixture + PERSISTENT_ROWS_CHOICE
//   exchange   2 * PERSISTENT_ROWS_EXCHANGE bytes and the turn; from PERSISTENT_TURNS_AT on PERSISTENT_TURNS bytes a block
//
// How it works. As for one row, but that products are those of tensor cores (products_rows.cuh), and that blocks share the rows' KV heads:
// each has one head of one row, and one of its splits. Keys and values of rows before it in the step it receives as its own, from the exchange.
// Order of accumulation: fixed, whatever other rows there are; but a row's positions are split by how many rows there are.
#pragma once
#include "persistent/attention.cuh"
#include "persistent/epilogue_rows.cuh"
#include "persistent/products_rows.cuh"
#include "persistent/run.cuh"
#include "persistent/stream.cuh"

template <bool MIXTURE> struct PersistentRowsOf {
    template <int D, int H> using Products = PersistentRowsProducts<D, H>;
};
template <> struct PersistentRowsOf<true> {
    template <int D, int H> using Products = PersistentRowsExperts<D, H>;
};
template <int D, int H, PersistentPages PAGES, bool MIXTURE> INLINE void persistent_decode_rows(const PersistentTable &a) {
    typedef PersistentBlock<D, H, PERSISTENT_MOST_ROWS> Block;
    typedef typename PersistentRowsOf<MIXTURE>::template Products<D, H> Products;
    persistent_run<Block, PersistentWorker<Products, D, H, PAGES, MIXTURE>, PersistentRowsEpilogue<D, H, MIXTURE>,
                   PersistentStream<Block, persistent_vector<PAGES, D>(), MIXTURE>>(a);
}

#define PERSISTENT_ROWS_KERNEL(NAME, D, H, PAGES, MIXTURE)                                                 \
    extern "C" __global__ void __launch_bounds__(320, 1) NAME(const __grid_constant__ PersistentTable a) { \
        persistent_decode_rows<D, H, PAGES, MIXTURE>(a);                                                   \
    }
#define PERSISTENT_DECODE_ROWS(D, H) PERSISTENT_ROWS_KERNEL(persistent_decode_rows_##D##_##H, D, H, PAGES_F16, false)
#define PERSISTENT_DECODE_ROWS_Q8_0(D, H) PERSISTENT_ROWS_KERNEL(persistent_decode_rows_q8_0_##D##_##H, D, H, PAGES_Q8_0, false)
#define PERSISTENT_DECODE_ROWS_FP8(D, H) PERSISTENT_ROWS_KERNEL(persistent_decode_rows_fp8_##D##_##H, D, H, PAGES_FP8, false)
